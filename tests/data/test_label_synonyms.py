"""Synonyms of labels: every kind of view and file, whole federations and single sites, and tables that contradict."""

import numpy as np
import pytest

from command_line import write
from fedaccord.config import load_experiment, parse_experiment, to_toml
from fedaccord.errors import ConfigError, DataError
from fedaccord.experiment import load_federation
from fedaccord.labels.synonyms import check_synonyms, rename_annotation, renaming

LABELS = '[labels]\nclasses = ["mild", "grave"]\nsynonyms = { mild = ["Mild", "1"], grave = ["Grave"] }\n'


def site(name, view="{}", label='"dx"', data=None, more=""):
    key = f"label = {label}\n" if label else ""
    return f'\n[[sites]]\nname = "{name}"\ndata = "{data or name + ".csv"}"\n{key}view = {view}\ntest = 0\n{more}\n'


def table(*labels, column="dx"):
    return f"age,{column}\n" + "".join(f"{30 + row},{label}\n" for row, label in enumerate(labels))


@pytest.fixture
def load(tmp_path):
    def read(text, **files):
        for name, content in files.items():
            (tmp_path / f"{name}.csv").write_text(content)
        return load_federation(*load_experiment(write(tmp_path, text)))

    return read


def targets(data, name="north"):
    return data.sites[name].train.target.tolist()


class TestViews:
    def test_exact(self, load):
        assert targets(load(LABELS + site("north"), north=table("Mild", "1.0", "grave", "Grave", "mild", ""))) == [
            *(0, 0, 1, 1, 0, -1)
        ]

    def test_classes_from_files(self, load):
        text = LABELS.replace('classes = ["mild", "grave"]\n', "") + site("north") + site("south")
        data = load(text, north=table("Mild", "Grave"), south=table("1", "grave"))
        assert data.space.names == ("grave", "mild")
        assert (targets(data), targets(data, "south")) == ([1, 0], [1, 0])

    def test_candidates(self, load):
        data = load(LABELS + site("north", '{ kind = "candidates" }'), north=table("Mild|Grave", "1", "grave | 1"))
        assert targets(data) == [[True, True], [True, False], [True, True]]

    def test_tags_in_one_column_and_in_several(self, load):
        listed = load(LABELS + site("north", '{ kind = "tags" }'), north=table("Mild;Grave", "1;mild", ";"))
        assert targets(listed) == [[1, 1], [1, 0], [0, 0]]
        # Two columns of the same tag: it is present if either says so.
        flags = site("north", '{ kind = "tags" }', label='["Mild", "mild", "Grave"]')
        data = load(LABELS + flags, north="age,Mild,mild,Grave\n1,0,1,0\n2,,0,1\n3,,,1\n4,1,0,0\n")
        assert targets(data) == [[1, 0], [0, 1], [-1, 1], [1, 0]]

    def test_two_probabilities_for_one_class_of_a_correspondence(self, load):
        groups = "{ ill = { mild = 0.5, Mild = 0.2, grave = 1.0 }, ok = { mild = 0.5 } }"
        view = f'{{ kind = "coarse", correspondence = {groups} }}'
        with pytest.raises(ConfigError, match="the correspondence gives two probabilities for 'mild', one as 'Mild'"):
            load(LABELS + site("north", view), north=table("ill", "ok"))

    def test_coarse_names_are_the_sites_own(self, load):
        """The federation's synonyms do not change the names of another criterion, even if they use the same words."""
        view = '{ kind = "coarse", correspondence = { "1" = ["mild"], ill = ["grave"] } }'
        more = 'synonyms = { ill = ["Ill", "sick"] }'
        data = load(LABELS + site("west", view, more=more), west=table("1", "Ill", "sick", "ill"))
        assert targets(data, "west") == [0, 1, 1, 1]

    def test_known_labels(self, load):
        text = LABELS + site("north", '{ known = ["Mild"] }') + site("south", '{ known = "own" }')
        data = load(text, north=table("1", "mild"), south=table("Grave", "grave"))
        assert (data.sites["north"].view.known, data.sites["south"].view.known) == (("mild",), ("grave",))

    def test_a_word_means_something_else_at_one_site(self, load):
        other = site("south", more='synonyms = { grave = ["1"], mild = ["0"] }')
        data = load(LABELS + site("north") + other, north=table("1", "grave"), south=table("1", "0"))
        assert (targets(data), targets(data, "south")) == ([0, 1], [1, 0])

    def test_a_sites_names_go_on_to_the_federations(self, load):
        data = load(LABELS + site("north", more='synonyms = { Mild = ["m"] }'), north=table("m", "Grave"))
        assert targets(data) == [0, 1]

    def test_files_of_the_server(self, load):
        text = LABELS + '[server]\ntest = "test.csv"\nlabelled = "own.csv"\n' + site("north")
        own = "age,dx\n55,Mild\n66,Grave\n"
        data = load(text, north=table("mild", "grave"), test=table("1", "Grave", ""), own=own)
        assert (data.test[1].tolist(), data.labelled[1].tolist()) == ([0, 1], [0, 1])


class TestArrays:
    def arrays(self, folder, name, **arrays):
        np.savez(folder / f"{name}.npz", x=np.arange(8.0).reshape(4, 2), **arrays)

    @pytest.mark.parametrize(
        ("kind", "more", "expected"),
        [
            ("exact", {"y": [0, 1, 2, -1]}, [0, 0, 1, -1]),
            ("tags", {"Y": [[1, 0, 0], [0, 0, 1], [-1, 0, -1], [0, 1, 1]]}, [[1, 0], [0, 1], [0, -1], [1, 1]]),
            ("candidates", {"candidates": [[1, 0, 0], [0, 1, 0], [0, 1, 1], [1, 1, 1]]}, None),
        ],
    )
    def test_names_that_become_one(self, load, tmp_path, kind, more, expected):
        self.arrays(tmp_path, "north", label_names=["Mild", "mild", "grave"], **more)
        data = load(LABELS + site("north", f'{{ kind = "{kind}" }}', label=None, data="north.npz"))
        expected = expected or [[True, False], [True, False], [True, True], [True, True]]
        assert targets(data) == expected

    def test_a_data_set_that_is_split_and_its_test_file(self, load, tmp_path):
        self.arrays(tmp_path, "all", label_names=["Mild", "mild", "Grave"], y=np.array([0, 1, 2, 2]))
        self.arrays(tmp_path, "test", label_names=["Grave", "1"], y=np.array([0, 1, 1, 0]))
        split = '[data]\ndataset = "all.npz"\npartition = { kind = "iid", sites = 1 }\ntest = 0\n'
        split += 'view = { kind = "exact", known = ["Mild", "Grave"] }\n[server]\ntest = "test.npz"\n'
        data = load(LABELS + split)
        assert data.space.names == ("mild", "grave")
        assert sorted(targets(data, "site-0")) == [0, 0, 1, 1]
        assert data.test[1].tolist() == [1, 0, 0, 1]


class TestContradictions:
    @pytest.mark.parametrize(
        ("labels", "message"),
        [
            ('synonyms = { mild = ["x"], grave = ["x"] }', "'x' stands for both 'mild' and 'grave'"),
            (
                'synonyms = { mild = ["grave"], grave = ["g"] }',
                "'grave' stands for 'mild' and is itself a name in",
            ),
            (
                'classes = ["mild", "grave"]\nsynonyms = { mild = ["grave"] }',
                "'grave' is itself one of the labels, so it cannot",
            ),
            (
                'classes = ["mild"]\nsynonyms = { mlid = ["m"] }',
                "'mlid' is not one of the labels; did you mean 'mild'",
            ),
            ("synonyms = { mild = [] }", "'mild' has no words"),
            ('synonyms = { mild = [" "] }', "'mild' lists an empty word"),
            ('synonyms = { mild = ["?"] }\nmissing = ["?"]', "missing: '?' is a label or one of its synonyms"),
            ('classes = ["NA"]\nmissing = ["NA"]', "missing: 'NA' is a label or one of its synonyms"),
        ],
    )
    def test_of_the_federation(self, labels, message):
        with pytest.raises(ConfigError) as caught:
            parse_experiment(f"[labels]\n{labels}\n" + site("north"))
        assert message in str(caught.value)
        assert str(caught.value).startswith("experiment: labels: ")

    @pytest.mark.parametrize(
        ("view", "synonyms", "message"),
        [
            ("{}", '{ gravee = ["x"] }', "sites[1].synonyms: 'gravee' is not one of the labels; did you mean 'grave'?"),
            (
                "{}",
                '{ mild = ["grave"] }',
                "sites[1].synonyms: 'grave' is itself one of the labels, so it cannot stand",
            ),
            ("{}", '{ mild = ["x"], grave = ["x"] }', "sites[1]: synonyms: 'x' stands for both 'mild' and 'grave'"),
            (
                '{ kind = "coarse", correspondence = { ill = ["mild", "grave"] } }',
                '{ mild = ["x"] }',
                "sites[1]: synonyms: 'mild' is not one of the labels; known: ill",
            ),
        ],
    )
    def test_of_a_site(self, view, synonyms, message):
        with pytest.raises(ConfigError) as caught:
            parse_experiment(LABELS + site("north") + site("south", view, more=f"synonyms = {synonyms}"))
        assert message in str(caught.value)

    def test_an_unknown_word_still_is_one(self, load):
        with pytest.raises(DataError, match=r"north.csv, line 3, column 'dx': 'Milde' is not one of the labels"):
            load(LABELS + site("north"), north=table("Mild", "Milde"))


def test_a_run_folder_keeps_them():
    text = LABELS + 'missing = ["?"]\n' + site("north", more='synonyms = { "mild" = ["leicht é"] }')
    experiment = parse_experiment(text)
    assert parse_experiment(to_toml(experiment)) == experiment


def test_raw_annotations_of_python():
    names = renaming({"mild": ["Mild", "1"]})
    assert [rename_annotation(value, "|", names) for value in ("Mild|grave", ["1", "x"], 1, 1.0, None, "", 2)] == [
        *("mild|grave", ["mild", "x"], "mild", "mild", None, "", 2)
    ]
    assert rename_annotation("Mild|x", None, names) == "Mild|x"
    check_synonyms({"mild": ["Mild", "mild"]}, ["mild"])  # a name may list itself
