"""Sites that bring tables, from the files to what the host trains on."""

import json

import numpy as np
import pytest
import torch

from fedaccord.config import parse_experiment, to_toml, with_paths_from
from fedaccord.data import common_features
from fedaccord.data.registry import locate
from fedaccord.errors import ConfigError, DataError, lists_in_full
from fedaccord.experiment import load_federation
from fedaccord.hosting import build_host, host_spec
from fedaccord.runs.records import describe_federation

CLASSES = '[labels]\nclasses = ["cold", "flu", "well"]\n'


def rows(*labels, column="dx", head="age,ward"):
    return f"{head},{column}\n" + "".join(f"{30 + i},{'ab'[i % 2]},{label}\n" for i, label in enumerate(labels))


def site(name="north", view='{ kind = "exact" }', label='"dx"', test=0, data=None, more=""):
    label = "" if label is None else f"label = {label}\n"
    data = data or f"{name}.csv"
    return f'\n[[sites]]\nname = "{name}"\ndata = "{data}"\n{label}view = {view}\ntest = {test}\n{more}\n'


@pytest.fixture
def load(tmp_path):
    def read(text, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.csv").write_text(content)
        return load_federation(parse_experiment(text), tmp_path)

    return read


def only(data):
    (one,) = data.sites.values()
    return one


class TestLabels:
    def test_exact_names_and_empty_cells(self, load):
        data = load(CLASSES + site(), north=rows("flu", "", "well", "cold"))
        assert only(data).train.target.tolist() == [1, -1, 2, 0]
        assert torch.equal(only(data).train.truth, only(data).train.target)

    def test_candidates(self, load):
        data = load(CLASSES + site(view='{ kind = "candidates" }'), north=rows("flu|cold", "", "well"))
        assert only(data).train.target.tolist() == [[True, True, False], [True, True, True], [False, False, True]]
        assert only(data).train.truth is None

    def test_coarse_names(self, load):
        view = '{ kind = "coarse", correspondence = { ill = ["cold", "flu"], fine = ["well"] } }'
        data = load(CLASSES + site(view=view), north=rows("fine", "ill", ""))
        assert only(data).train.target.tolist() == [1, 0, -1]

    def test_tag_lists(self, load):
        view = '{ kind = "tags", known = ["cold", "flu"] }'
        data = load(CLASSES + site(view=view), north=rows("flu;cold", "flu", "", ";"))
        assert only(data).train.target.tolist() == [[1, 1, -1], [0, 1, -1], [-1, -1, -1], [0, 0, -1]]

    def test_tag_columns(self, load):
        text = "age,flu,cold\n30,1,no\n31,,True\n32,0.0,?\n"
        unsure = '[labels]\nclasses = ["cold", "flu", "well"]\nmissing = ["?"]\n'
        data = load(unsure + site(view='{ kind = "tags" }', label='["flu", "cold"]'), north=text)
        assert only(data).train.target.tolist() == [[0, 1, -1], [1, -1, -1], [-1, 0, -1]]
        assert data.features.names == ["age"]
        some = load(unsure + site(view='{ kind = "tags", known = ["flu"] }', label='["flu", "cold"]'), north=text)
        assert only(some).train.target[:, 0].tolist() == [-1, -1, -1]  # a tag it does not know says nothing

    def test_unlabelled_without_a_label_column(self, load):
        data = load(CLASSES + site(view='{ kind = "unlabelled" }', label=None), north="age,ward\n30,a\n31,b\n")
        assert only(data).train.target.tolist() == [-1, -1]

    def test_known_labels_only(self, load):
        known = '{ kind = "exact", known = ["flu", "well"] }'
        assert only(load(CLASSES + site(view=known), north=rows("flu", "well"))).view.known == ("flu", "well")
        with pytest.raises(DataError, match=r"north.csv, line 3, column 'dx': 'cold' is not one of the labels; known"):
            load(CLASSES + site(view=known), north=rows("flu", "cold"))
        own = only(load(CLASSES + site(view='{ known = "own" }'), north=rows("flu", "cold", "", "flu")))
        assert own.view.known == ("cold", "flu")

    def test_a_number_as_a_name(self, load):
        exact = load('[labels]\nclasses = ["0", "1"]\n' + site(), north=rows("1.0", "0", "1"))
        assert only(exact).train.target.tolist() == [1, 0, 1]
        literal = load('[labels]\nclasses = ["1.0", "1"]\n' + site(), north=rows("1.0", "1"))
        assert only(literal).train.target.tolist() == [0, 1]

    def test_a_label_may_be_called_like_a_missing_value(self, load):
        data = load(site(), north=rows("None", "flu", "NA", "null", ""))
        assert data.space.names == ("NA", "None", "flu", "null")
        assert only(data).train.target.tolist() == [1, 2, 0, 3, -1]
        own = site(view='{ kind = "exact", known = "own" }')
        assert only(load(CLASSES.replace("well", "None") + own, north=rows("None", "flu"))).view.known == (
            "flu",
            "None",
        )
        groups = site(view='{ kind = "coarse", correspondence = { NA = ["cold"], ill = ["flu", "well"] } }')
        assert only(load(CLASSES + groups, north=rows("NA", "ill", ""))).train.target.tolist() == [0, 1, -1]

    def test_words_that_mean_not_annotated_are_listed_and_counted(self, load):
        data = load('[labels]\nmissing = ["?", "NA"]\n' + site(), north=rows("None", "?", "flu", "", "NA", "?"))
        assert data.space.names == ("None", "flu")
        assert only(data).train.target.tolist() == [0, -1, 1, -1, -1, -1]
        assert data.label_words["north"].missing == {"?": 2, "(empty)": 1, "NA": 1}
        with pytest.raises(DataError, match=r"'\?' is not one of .*; if it means .* list it in labels.missing"):
            load(CLASSES + site(), north=rows("flu", "?"))
        with pytest.raises(DataError, match=r"'NA' is not 0 or 1; if it means .* list it in labels.missing"):
            load(CLASSES + site(view='{ kind = "tags" }', label='["flu"]'), north="age,flu\n30,1\n31,NA\n")

    def test_classes_are_found_in_the_files(self, load):
        coarse = '{ kind = "coarse", correspondence = { low = ["2", "9"], high = ["10"] } }'
        text = site() + site("south", '{ kind = "candidates" }') + site("west", coarse)
        data = load(text, north=rows("2", "30"), south=rows("4|2", ""), west=rows("low", "high"))
        assert data.space.names == ("2", "4", "9", "10", "30")
        assert load(site(), north=rows("b", "a", "10", "9")).space.names == ("9", "10", "a", "b")
        with pytest.raises(ConfigError, match=r"labels.classes is needed"):
            load(site(), north=rows("", ""))


class TestWrongCells:
    def test_labels_and_features_of_all_sites_are_told_together(self, load):
        north = "age,ward,dx\nold,a,flu\n31,b,fluu\n32,a,well\n"
        south = "age,ward,dx\n30,a,cold|flue\n31,b,\n"
        text = CLASSES + '[features]\nnumbers = ["age"]\ncategories = { ward = ["a"] }\n'
        with pytest.raises(DataError) as caught:
            load(text + site() + site("south", '{ kind = "candidates" }'), north=north, south=south)
        assert str(caught.value) == (
            "5 cells cannot be read: "
            "north.csv, line 2, column 'age': 'old' is not a number; "
            "north.csv, line 3, column 'ward': 'b' is not among its values; known: a; "
            "north.csv, line 3, column 'dx': 'fluu' is not one of the labels; did you mean 'flu'?; "
            "south.csv, line 3, column 'ward': 'b' is not among its values; known: a; "
            "south.csv, line 2, column 'dx': 'flue' is not one of the labels; did you mean 'flu'?"
        )

    def test_ten_are_shown_and_the_rest_counted(self, load):
        with pytest.raises(DataError) as caught:
            load(CLASSES + site(), north=rows("x", *[f"x{number}" for number in range(11)], "x", "x"))
        told = str(caught.value)
        assert told.startswith("14 cells cannot be read: north.csv, line 2 and 2 more, column 'dx': 'x' is not one of")
        assert told.count("is not one of the labels") == 10
        assert told.endswith("; and 2 more")
        with pytest.raises(DataError) as caught, lists_in_full():
            load(CLASSES + site(), north=rows("x", *[f"x{number}" for number in range(11)], "x", "x"))
        assert str(caught.value).count("is not one of the labels") == 12

    def test_a_column_that_one_site_writes_in_words(self, load):
        """Every cell that is against the other sites is named by file, line, column and value."""
        south = "age,ward,dx\n" + "".join(f"{'old' if i % 4 else 60 + i},a,cold\n" for i in range(16))
        with pytest.raises(DataError) as caught:
            load(CLASSES + site() + site("south"), north=rows("flu", "well"), south=south)
        told = str(caught.value)
        assert told.startswith(
            "column 'age' holds numbers at site 'north' but words at site 'south'; name every feature column in "
            "features.numbers or features.categories: 12 cells cannot be read: "
            "south.csv, line 3 and 11 more, column 'age': 'old' is not a number"
        )
        with pytest.raises(DataError) as caught:
            load(CLASSES + '[features]\nnumbers = ["age"]\n' + site() + site("south"), north=rows("flu"), south=south)
        assert str(caught.value) == told[told.index("12 cells") :]  # by decree it is told just so

    def test_tag_columns_and_sensitive_columns(self, load):
        text = CLASSES + site(view='{ kind = "tags" }', label='["flu"]', more='sensitive = "sex"')
        with pytest.raises(DataError) as caught:
            load(text, north="age,flu,sex\n30,2,m\n31,1,m||f\n")
        assert "north.csv, line 2, column 'flu': '2' is not 0 or 1" in str(caught.value)
        assert "north.csv, line 3, column 'sex': a name is missing between the bars of 'm||f'" in str(caught.value)


class TestFeatures:
    def test_moments_are_of_all_sites_training_rows(self, load):
        text = CLASSES + site(test=0.4) + site("south", test=0.4)
        data = load(text, north=rows(*["flu"] * 10), south=rows(*["cold"] * 20))
        x = torch.cat([s.train.x[:, 0] for s in data.sites.values()]).double()
        assert [len(s.train) for s in data.sites.values()] == [6, 12]
        assert float(x.mean()) == pytest.approx(0, abs=1e-6)
        assert float(x.var(correction=0)) == pytest.approx(1, abs=1e-5)
        assert abs(float(torch.cat([s.test.x[:, 0] for s in data.sites.values()]).mean())) > 1e-3

    def test_a_site_s_own_moments_are_for_arrays(self, load):
        with pytest.raises(
            ConfigError, match=r'features.standardise = "site" is for arrays, and the sites bring tables'
        ):
            load(CLASSES + site() + '[features]\nstandardise = "site"\n', north=rows("flu", "well"))

    def test_the_order_of_sites_changes_nothing(self, load):
        files = {"north": rows("flu", "well", "cold"), "south": rows("cold", "cold")}
        one = load(CLASSES + site() + site("south"), **files)
        other = load(CLASSES + site("south") + site(), **files)
        assert list(other.sites) == ["south", "north"]
        assert one.features == other.features
        assert torch.equal(one.sites["north"].train.x, other.sites["north"].train.x)

    def test_what_the_file_gives_is_not_reported(self, load, monkeypatch):
        asked = []
        describe = common_features.describe_columns

        def recorded(table, names, *rest):
            asked.append(list(names))
            return describe(table, names, *rest)

        monkeypatch.setattr(common_features, "describe_columns", recorded)
        load(CLASSES + site(), north=rows("flu", "well"))
        assert asked == [["age", "ward"]]
        asked.clear()
        given = "numbers = { age = [30, 2] }\ncategories = ['ward']"
        data = load(CLASSES + f"[features]\n{given}\n" + site(), north=rows("flu", "well"))
        assert asked == [["ward"]]
        assert only(data).train.x[:, 0].tolist() == [0, 0.5]
        asked.clear()
        given = 'numbers = { age = [30, 2] }\ncategories = { ward = ["a", "b"] }'
        load(CLASSES + f"[features]\n{given}\n" + site(), north=rows("flu", "well"))
        assert asked == [[]]

    def test_a_label_of_one_site_is_no_feature_of_another(self, load):
        text = CLASSES + site() + site("south", '{ kind = "unlabelled" }', label=None)
        data = load(text, north=rows("flu", "well"), south=rows("flu", "well"))
        assert data.features.names == ["age", "ward = a", "ward = b"]

    def test_missing_values_and_feature_names_are_in_the_account(self, load):
        data = load(CLASSES + site() + site("south"), north="age,dx\n,flu\n3,flu\n?,well\n", south="age,dx\n1,flu\n")
        account = describe_federation(data, {})
        assert account["missing"] == {"north": {"age": 2}, "south": {}}
        assert account["features"] == ["age", "age is missing"]
        assert json.loads(json.dumps(account)) == account

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            ('numbers = ["aged"]', r"'north.csv' has no column 'aged'; did you mean 'age'\?"),
            ('numbers = ["age", "dx"]', "site 'north': 'dx' is its label, so"),
            ('numbers = ["age", "ward"]', r"north.csv, line 2, column 'ward': 'a' is not a number"),
            ('ignore = ["age", "ward"]', "no features are left"),
        ],
    )
    def test_wrong_feature_columns(self, load, features, message):
        with pytest.raises((ConfigError, DataError), match=message):
            load(CLASSES + f"[features]\n{features}\n" + site(), north=rows("flu", "well"))

    @pytest.mark.parametrize(
        ("features", "message"),
        [
            ('numbers = ["age"]\nignore = ["age"]', "the column 'age' is named twice"),
            ("numbers = { age = [30, 0] }", r"numbers.age is \[30.0, 0.0\], but should .* deviation above 0"),
            ("numbers = { age = [30] }", r"numbers.age is \[30.0\], but should be a mean and a deviation"),
        ],
    )
    def test_wrong_feature_declarations(self, features, message):
        with pytest.raises(ConfigError, match=message):
            parse_experiment(f"[features]\n{features}\n" + site())

    def test_sites_with_other_columns(self, load):
        with pytest.raises(DataError, match=r"columns: site 'south' lacks 'ward' and also has 'room'; rename"):
            load(CLASSES + site() + site("south"), north=rows("flu"), south=rows("flu", head="age,room"))
        text = CLASSES + '[features]\nignore = ["ward", "room"]\n' + site() + site("south")
        data = load(text, north=rows("flu"), south=rows("flu", head="age,room"))
        assert data.features.names == ["age"]


class TestSensitive:
    TEXT = CLASSES + site(more='sensitive = "ward"', test=0.5) + site("south", more='sensitive = "ward"')
    FILES = {"north": rows(*["flu"] * 6), "south": "age,ward,dx\n30,c|a,flu\n31,,cold\n"}

    def test_groups_with_candidates(self, load):
        data = load(self.TEXT, **self.FILES)
        assert data.groups == ["a", "b", "c"]
        assert data.features.names == ["age"]
        south = data.sites["south"].train.group
        assert south.tolist() == [[True, False, True], [True, True, True]]
        north = data.sites["north"]
        assert torch.cat([north.train.group, north.test.group]).sum(0).tolist() == [3, 3, 0]

    def test_groups_reach_the_host(self, load):
        data = load(self.TEXT + '[method]\nname = "fedavg"\n', **self.FILES)
        experiment = parse_experiment(self.TEXT + '[method]\nname = "fedavg"\n')
        model = {"name": "mlp", "settings": {}, "input_shape": [1]}
        spec = host_spec(data.sites, data.space, model, "fedavg", experiment.settings, 0)
        host = build_host(json.loads(json.dumps(spec.spec)), spec.tensors)
        for name, there in host.sites.items():
            assert torch.equal(there.train.group, data.sites[name].train.group)
            assert torch.equal(there.test.group, data.sites[name].test.group)


class TestServerTest:
    def test_its_file_is_read_with_the_sites_plan(self, load):
        text = CLASSES + '[server]\ntest = "held.csv"\n' + site()
        data = load(text, north=rows("flu", "well"), held="dx,ward,age\nflu,new,31\n,a,30\ncold,a,30\n")
        x, y = data.test
        assert y.tolist() == [1, 0]  # the row without a class is left out
        np.testing.assert_allclose(x, [[1, 0, 0], [-1, 1, 0]], atol=1e-6)
        assert data.test_source == "the server's own test file, held.csv"

    def test_mistakes(self, load):
        text = CLASSES + '[server]\ntest = "held.csv"\n'
        with pytest.raises(DataError, match=r"server.test: no row of 'held.csv' has a class in column 'dx'"):
            load(text + site(), north=rows("flu"), held=rows(""))
        with pytest.raises(ConfigError, match=r"server.label is needed"):
            load(text + site(view='{ kind = "candidates" }'), north=rows("flu"), held=rows("flu"))
        with pytest.raises(DataError, match=r"held.csv, line 2, column 'dx': 'x' is not one of the labels"):
            load(text + site(), north=rows("flu"), held=rows("x"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (site(label=None), "site 'north': the key 'label' is missing; it names the label column, one of 'age', "),
        (site(label='["dx"]'), "several label columns are for a view of tags, and this one is 'exact'"),
        (site(view='{ kind = "candidates", generate = "uniform" }'), "view.generate is for"),
        (site(label='"dxx"'), "'north.csv' has no column 'dxx'; did you mean 'dx'"),
        (site() + site("south", data="north.csv", label='"sick"'), "'north.csv' has no column 'sick'"),
        (site(more='sensitive = "sex"'), "'north.csv' has no column 'sex'"),
        (site() + site("south", data="north.xlsx"), "site 'south': the file"),
        (site() + site("south", data="."), "'north' brings a table, site 'south' a folder of images"),
        (site() + site("south", data="south.npz"), "'north' brings a table, site 'south' an .npz file"),
        (site() + site("south", data="images/"), "'north' brings a table, site 'south' a folder of images"),
        (site("south", data="south.npz"), "the key 'label' is for a table; this is an .npz file"),
        (site(view='{ kind = "coarse", correspondence = "shape" }'), "the data set names no grouping 'shape'"),
    ],
)
def test_wrong_declarations(load, text, message):
    with pytest.raises((ConfigError, DataError)) as caught:
        load(CLASSES + text, north=rows("flu", "well"))
    assert message in str(caught.value)


def test_a_file_of_another_kind(load, tmp_path):
    (tmp_path / "south.ods").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"site 'south': 'south.ods' is no file of samples; a table ends with .csv"):
        load(CLASSES + site() + site("south", data="south.ods"), north=rows("flu"))


def test_a_run_folder_keeps_all_of_it():
    features = 'numbers = { age = [50, 10.5] }\ncategories = { ward = ["a", "b"] }\ntext = ["note"]\nmissing = ["-"]'
    more = 'sensitive = "sex"\nheader = ["age", "ward", "note", "sex", "flu", "cold"]'
    text = CLASSES + f"[features]\n{features}\n" + site(view='{ kind = "tags" }', label='["flu", "cold"]', more=more)
    experiment = parse_experiment(text)
    assert experiment.features.given_numbers() == {"age": [50, 10.5]}
    assert parse_experiment(to_toml(experiment)) == experiment


def test_a_header_for_one_file_only(load):
    text = CLASSES + site(more='header = ["age", "ward", "dx"]') + site("south")
    data = load(text, north="30,a,flu\n", south=rows("cold"))
    assert [s.train.target.tolist() for s in data.sites.values()] == [[1], [0]]


def test_files_are_looked_for_beside_the_experiment_and_then_below_the_data_folder(tmp_path, monkeypatch):
    beside, below = tmp_path / "here", tmp_path / "data"
    for folder in (beside, below / "heart"):
        folder.mkdir(parents=True)
    (below / "heart" / "north.csv").write_text(rows("flu", "well"))
    experiment = parse_experiment(CLASSES + site(data="heart/north.csv"))
    monkeypatch.delenv("FEDACCORD_DATA", raising=False)
    with pytest.raises(DataError, match=r"here/heart/north.csv' is not there"):
        load_federation(experiment, beside)
    monkeypatch.setenv("FEDACCORD_DATA", str(below))
    assert len(only(load_federation(experiment, beside)).train) == 2
    assert with_paths_from(experiment, beside).sites[0].data == str(below / "heart" / "north.csv")
    (beside / "heart").mkdir()
    (beside / "heart" / "north.csv").write_text(rows("flu"))
    assert len(only(load_federation(experiment, beside)).train) == 1
    assert locate("gone.csv", beside) == beside / "gone.csv"
