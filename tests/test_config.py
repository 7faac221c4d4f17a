"""The experiment file: what is read, what is written back, what `--set` changes, and how a mistake is told."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.config import load_experiment, parse_experiment, to_toml, with_paths_from, without_federation
from fedaccord.errors import ConfigError
from fedaccord.extensions import trusting
from fedaccord.messages.names import POOL
from fedaccord.methods.registry import METHODS

DIGITS = '[data]\ndataset = "digits"\npartition = { kind = "iid", sites = 3 }\n'
WHOLE = """
name = "every-key"
seed = 7

[labels]
classes = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]

[data]
dataset = "digits"
partition = { kind = "quantity", sizes = [30, 20, 10, 5] }
names = ["a", "b", "c", "d"]
view = { kind = "candidates", generate = "class", following = 0.25, known = ["one", "two"] }
test = 0.25
samples = 500
standardise = "site"

[data.views]
a = { known = "own" }
b = { kind = "coarse", correspondence = { low = { zero = 1.0, one = 0.5 }, high = { one = 0.5 } } }
c = { kind = "unlabelled" }

[server]
test = "held/out.npz"

[model]
name = "my.models:make"
depth = 3
rate = 1e-7
words = ["x", "y"]
nested = { on = true }

[method]
name = "fedprox"
mu = 0.5
participation = 2
epochs = 3

[run]
workers = 0
deadline = 1.5
"""
SITES = """
[[sites]]
name = "first"
data = "first.npz"

[[sites]]
name = "second"
data = "below/second.npz"
test = 0.5
view = { kind = "coarse", correspondence = { low = ["0", "1"], high = ["2"] } }
"""


def refusal(text, *changes):
    with pytest.raises(ConfigError) as caught:
        parse_experiment(text, changes, "my.toml")
    assert str(caught.value).startswith("my.toml: ")
    return str(caught.value).removeprefix("my.toml: ")


class TestReading:
    def test_what_is_left_out_has_a_default(self):
        read = parse_experiment(DIGITS)
        assert (read.name, read.seed, read.method_name, read.model.name) == ("federation", 0, "accord", "mlp")
        assert (read.data.view.kind, read.data.test, read.run.device) == ("exact", 0.2, "cpu")

    def test_a_view_without_a_kind_is_exact(self):
        read = parse_experiment(DIGITS + '[data.views.site-1]\nknown = ["1"]\n')
        assert read.data.views["site-1"].kind == "exact"
        assert read.data.views["site-1"].known == ["1"]

    def test_every_default_of_a_method_is_written_down(self):
        for method in METHODS:
            read = parse_experiment(DIGITS + f'[method]\nname = "{method}"\nlr = 0.5\n')
            fields = METHODS[method].settings.model_fields
            length = {"epochs": 1} if fields["steps"].default is None else {}  # a method may have its own steps
            assert read.method == {"name": method, "lr": 0.5, **length} | {
                name: field.default for name, field in fields.items() if name != "lr" and field.default is not None
            }
            assert tomllib.loads(to_toml(read))["method"] == read.method

    def test_a_file_is_read_with_the_folder_its_paths_start_from(self, tmp_path):
        (tmp_path / "e.toml").write_text(DIGITS)
        read, folder = load_experiment(tmp_path / "e.toml", ["seed=3"])
        assert (read.seed, folder) == (3, tmp_path)

    def test_a_byte_order_mark_is_no_mistake(self, tmp_path):
        (tmp_path / "e.toml").write_text(DIGITS, encoding="utf-8-sig")
        assert load_experiment(tmp_path / "e.toml")[0].data.dataset == "digits"


NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda name: name != POOL)


class TestWriting:
    @pytest.mark.parametrize("text", [DIGITS, WHOLE, SITES], ids=["short", "every key", "sites"])
    def test_what_is_written_reads_as_the_same_experiment(self, text):
        with trusting(["my"]):
            read = parse_experiment(text)
            assert parse_experiment(to_toml(read)) == read

    @pytest.mark.parametrize(
        "name",
        ['say "a"', "it's", "back\\slash", "tab\tand\nline", "Zürich", "東京", "😀", "a.b", "[x]", "#", "\x7f", " "],
    )
    def test_odd_names_survive(self, name):
        read = parse_experiment(
            DIGITS, ["data.names=['a','b','c']", "data.view={kind='coarse',correspondence={x=['1'],y=['2']}}"]
        )
        odd = read.data.view.model_copy(update={"correspondence": {name: ["1"], "y": [name]}})
        data = read.data.model_copy(update={"names": [name, "b", "c"], "views": {name: odd}})
        written = read.model_copy(update={"data": data})
        again = parse_experiment(to_toml(written))
        assert again == written
        assert list(again.data.views) == [name]

    @given(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    def test_any_names_of_sites_survive(self, names):
        read = parse_experiment(SITES)
        sites = [read.sites[1].model_copy(update={"name": name, "data": f"{name}.npz"}) for name in names]
        written = read.model_copy(update={"sites": sites})
        assert parse_experiment(to_toml(written)) == written

    def test_files_can_be_named_by_their_whole_path(self, tmp_path):
        read = with_paths_from(parse_experiment(SITES, ['server.test="t.npz"']), tmp_path)
        assert [site.data for site in read.sites] == [f"{tmp_path}/first.npz", f"{tmp_path}/below/second.npz"]
        assert read.server.test == f"{tmp_path}/t.npz"
        assert with_paths_from(read, tmp_path / "elsewhere") == read
        file = with_paths_from(parse_experiment(DIGITS, ['data.dataset="x.npz"']), tmp_path)
        assert file.data.dataset == f"{tmp_path}/x.npz"
        assert with_paths_from(parse_experiment(DIGITS), tmp_path).data.dataset == "digits"


class TestSet:
    def change(self, *changes, text=DIGITS):
        return parse_experiment(text, changes)

    @pytest.mark.parametrize(
        ("change", "where", "value"),
        [
            ("name=bare-word", ["name"], "bare-word"),
            ('name="quoted"', ["name"], "quoted"),
            ("seed=3", ["seed"], 3),
            ("data.test=0.5", ["data", "test"], 0.5),
            (" data.test = 0.5 ", ["data", "test"], 0.5),
            ("data.names=['a','b','c']", ["data", "names"], ["a", "b", "c"]),
            ("data.standardise=none", ["data", "standardise"], "none"),
            ("data.partition.stratified=true", ["data", "partition", "stratified"], True),
            ("data.partition={kind='classes',sites=5,classes=2}", ["data", "partition", "classes"], 2),
            ("data.view.known=['1','2']", ["data", "view", "known"], ["1", "2"]),
            ("data.views.site-2.kind=unlabelled", ["data", "views", "site-2", "kind"], "unlabelled"),
            ("model.hidden=[3,4]", ["model", "settings", "hidden"], [3, 4]),
            ("method.prior=all", ["method", "prior"], "all"),
            ("run.workers=2", ["run", "workers"], 2),
        ],
    )
    def test_one_key_is_changed(self, change, where, value):
        found = self.change(change)
        for step in where:
            found = found[step] if isinstance(found, dict) else getattr(found, step)
        assert found == value

    def test_a_word_with_an_equals_sign_keeps_it(self):
        assert self.change("data.dataset=a=b.npz").data.dataset == "a=b.npz"

    def test_the_last_change_wins(self):
        assert self.change("seed=1", "seed=2").seed == 2

    def test_what_is_not_changed_stays(self):
        read = self.change("method.rounds=9", text=DIGITS + "[method]\nlr = 0.5\n")
        assert (read.method["rounds"], read.method["lr"]) == (9, 0.5)

    @pytest.mark.parametrize("change", ["seed", "=3", "a..b=3", ".a=3", "a.=3", ""])
    def test_what_is_no_change_is_refused(self, change):
        with pytest.raises(ConfigError) as caught:
            self.change(change)
        assert str(caught.value) == f"--set takes section.key=value, not '{change}'"

    def test_a_list_of_bare_words_is_refused(self):
        with pytest.raises(ConfigError, match=r"--set data.names: \[a,b\] is not a TOML value .* words in quotes\?"):
            self.change("data.names=[a,b]")

    def test_a_value_has_no_keys_below_it(self):
        with pytest.raises(ConfigError, match=r"--set data\.dataset\.x: 'dataset' is not a table"):
            self.change("data.dataset.x=3")


class TestMistakes:
    """How a mistake is told; which mistakes there are is the business of journeys/test_bad_input.py."""

    def test_the_first_three_are_told_and_the_rest_counted(self):
        changes = ["seed=-1", "data.test=2", "run.workers=-1", "run.deadline=0", "labels.classes=[]"]
        assert refusal(DIGITS, *changes) == (
            "seed is -1, but should be at least 0; "
            "labels.classes is [], but should be of at least 1 entry; "
            "data.test is 2, but should be below 1; and 2 more"
        )

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ("data.partition={kind='gamma',sites=2,gamma=1.0}", "data.partition.gamma is 1.0, but should be below 1"),
            (
                "data.partition={kind='classes',sites=2,classes=0}",
                "data.partition.classes is 0, but should be at least 1",
            ),
            ("data.views.exact.knwn=['1']", "unknown key 'data.views.exact.knwn'; did you mean 'known'?"),
            (
                "data.view={kind='coarse',correspondence={a=3}}",
                "data.view.correspondence.a is 3, but should be a list or a table",
            ),
            (
                "data.view={kind='coarse',correspondence=3}",
                "data.view.correspondence is 3, but should be a table or a string",
            ),
            ("data.view.known=own-labels", "data.view.known is 'own-labels', but should be a list or 'own'"),
            ("data.partition={kind='quantity',sizes=[3,0]}", "data.partition.sizes[1] is 0, but should be at least 1"),
            ("method.sites=exakt", "method.sites is 'exakt', but should be 'all' or 'exact' or a list"),
            ("method.participation=few", "method.participation is 'few', but should be a whole number or a number"),
            ("method={name='fedharmony',exchanges=3}", "method.exchanges is 3; known: 1, 2"),
            ("method={name='fedharmony',exchanges=[1,2]}", "method.exchanges is [1, 2]; known: 1, 2"),
            ("method.rounds=1.5", "method.rounds is 1.5, but should be a whole number"),
            ("data.partition.stratified=maybe", "data.partition.stratified is 'maybe', but should be true or false"),
        ],
    )
    def test_the_place_is_named_as_the_file_writes_it(self, change, told):
        assert refusal(DIGITS, change) == told

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ("data.sensitive={column='c',flips='cyclic',q=0.3}", 'q has no effect unless flips = "uniform"'),
            ("data.sensitive={column='c',following=0.9}", 'following has no effect unless flips = "cyclic"'),
            ("data.sensitive={column='c',q=0.3,other=0.2}", 'other has no effect unless flips = "cyclic"'),
            (
                "data.view={kind='candidates',generate='uniform',following=0.9}",
                'following has no effect unless generate = "class"',
            ),
            ("data.view={kind='candidates',generate='class',q=0.4}", 'q has no effect unless generate = "uniform"'),
            (
                "data.view={kind='candidates',generate='class',rho=0.2}",
                'rho has no effect unless generate = "instance"',
            ),
            ("data.view={kind='candidates',q=0.4}", "q has no effect unless generate is set"),
            ("data.view={kind='candidates',drop_full=false}", "drop_full has no effect unless generate is set"),
            (
                "data.view={kind='candidates',generate='superset',min_size=2}",
                "min_size has no effect if all sets are equally likely",
            ),
        ],
    )
    def test_a_key_that_nothing_looks_at_is_refused(self, change, told):
        assert told in refusal(DIGITS, change)

    @pytest.mark.parametrize(
        "change",
        [
            "data.sensitive={column='c',flips='cyclic',q=0.0,following=0.9,other=0.2}",
            "data.sensitive={column='c',q=0.3,following=0.5}",
            "data.view={kind='candidates',generate='class',q=0.3,following=0.9,min_size=2}",
        ],
    )
    def test_a_key_with_its_default_may_stand_where_nothing_looks_at_it(self, change):
        parse_experiment(DIGITS, [change])

    def test_a_long_value_is_cut(self):
        told = refusal(DIGITS, f"data.test='{'x' * 500}'")
        assert told == f"data.test is '{'x' * 56}..., but should be a number"


def test_the_same_experiment_without_federation_keeps_its_budget_and_drops_what_is_of_the_server():
    text = """
    name = "study"
    seed = 5
    [data]
    dataset = "digits"
    partition = { kind = "iid", sites = 3 }
    [method]
    name = "fedprox"
    mu = 0.3
    rounds = 7
    steps = 4
    lr = 0.02
    participation = 0.5
    aggregation = "median"
    [stop]
    metric = "global.accuracy"
    patience = 2
    """
    together = parse_experiment(text)
    alone = without_federation(together)
    assert (alone.name, alone.method_name, alone.seed) == ("study-alone", "local", 5)
    kept = ("rounds", "steps", "lr", "participation", "batch", "optimiser", "momentum")
    assert [alone.method[key] for key in kept] == [together.method[key] for key in kept]
    assert "mu" not in alone.method
    assert alone.stop.metric is None  # a metric of a global model that nobody trains
    assert (alone.data, alone.model) == (together.data, together.model)
