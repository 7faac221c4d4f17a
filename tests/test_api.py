"""FedAccord from Python: sites in memory, any module with an encoder and a head, and a result to look into."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn

import fedaccord
from fedaccord import Candidates, Coarse, Exact, Federation, LabelSpace, Site
from fedaccord.errors import ConfigError, DataError, UntrustedError
from fedaccord.methods.common_model import shared_model_recipe
from fedaccord.methods.shared_settings import ClassicSettings

DIGITS = LabelSpace(str(digit) for digit in range(10))
SHAPES = {"round": ["0", "6", "8", "9"], "straight": ["1", "4", "7"], "open": ["2", "3", "5"]}
QUICK = {"rounds": 8, "steps": 10, "lr": 0.2}


@pytest.fixture(scope="module")
def digits():
    data = load_digits()
    return data.data / 8 - 1, [str(y) for y in data.target]


@pytest.fixture(scope="module")
def sites(digits):
    x, y = digits
    shape_of = {digit: shape for shape, members in SHAPES.items() for digit in members}
    return [
        Site("exact", x[:200], y[:200], Exact(DIGITS)),
        Site("shapes", x[200:500], [shape_of[name] for name in y[200:500]], Coarse(DIGITS, SHAPES)),
        Site("unsure", x[500:800], [{name, "7"} for name in y[500:800]], Candidates(DIGITS), truth=y[500:800]),
    ]


class Small(nn.Module):
    """A user's own network."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, 24), nn.Tanh())
        self.head = nn.Linear(24, 10)

    def forward(self, x):
        return self.head(self.encoder(x))


@pytest.fixture(scope="module")
def result(sites, digits):
    x, y = digits
    federation = Federation(sites, test=(x[1000:], y[1000:]))
    return federation.train(method="accord", model={"name": "mlp", "hidden": [32]}, **QUICK)


def test_a_federation_of_three_views_learns(result):
    assert result.summary["final"]["global"]["accuracy"] > 0.7
    assert set(result.summary["final"]["sites"]["each"]) == {"exact", "shapes", "unsure"}


def test_the_metrics_are_a_frame_of_all_rounds(result):
    frame = result.metrics
    assert list(frame.columns) == ["round", "scope", "site", "metric", "value"]
    last = frame[(frame["round"] == 8) & (frame.scope == "global") & (frame.metric == "accuracy")]
    assert last.value.item() == result.summary["final"]["global"]["accuracy"]
    assert set(frame.site.dropna()) == {"exact", "shapes", "unsure"}


def test_the_model_is_the_trained_one(result, digits):
    x, y = digits
    samples = torch.tensor(x[1000:], dtype=torch.float32)
    with torch.no_grad():
        found = result.model.eval()(samples).argmax(-1)
    right = (found == torch.tensor([int(name) for name in y[1000:]])).float().mean()
    assert right.item() == pytest.approx(result.summary["final"]["global"]["accuracy"])


def test_the_report_is_written_where_asked(result, tmp_path):
    path = result.report(tmp_path / "mine.html")
    assert "<html" in path.read_text(encoding="utf-8")


def test_the_folder_is_kept_where_asked(sites, tmp_path):
    result = Federation(sites).train("fedavg", out=tmp_path / "run", rounds=1, steps=1)
    assert result.folder == tmp_path / "run"
    assert (result.folder / "summary.json").exists()
    assert result.summary["final"]["global"] == {}


def test_a_temporary_folder_goes_with_the_result(sites):
    result = Federation(sites).train(rounds=1, steps=1)
    folder, frame = result.folder, result.metrics
    assert folder.exists()
    for _ in range(2):  # closing again changes nothing
        result.close()
        assert not folder.exists()
        assert len(frame)
        assert result.metrics.equals(frame)


def test_a_users_own_module_is_trained_and_left_as_it_was(sites):
    torch.manual_seed(0)
    module = Small()
    before = module.head.weight.detach().clone()
    result = Federation(sites).train(model=module, **QUICK)
    assert torch.equal(module.head.weight, before)
    assert not torch.equal(result.model.head.weight, before)
    assert result.summary["final"]["sites"]["each"]["exact"]["accuracy"] > 0.6
    again = Federation(sites).train(model=module, **QUICK)
    assert again.summary["model_sha256"] == result.summary["model_sha256"]


def test_settings_may_be_numbers_of_numpy(sites):
    plain = Federation(sites).train(rounds=2, steps=1, lr=0.5, seed=3, model={"name": "mlp", "hidden": [8]})
    model = {"name": "mlp", "hidden": (np.int64(8),)}
    settings = {"rounds": np.int64(2), "steps": np.int32(1), "lr": np.float32(0.5), "seed": np.uint8(3)}
    numpys = Federation(sites).train(model=model, run={"evaluate_every": np.int64(1)}, **settings)
    assert numpys.summary["rounds"] == 2
    assert numpys.summary["model_sha256"] == plain.summary["model_sha256"]


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (Small, r"model is the class Small; make one of it: model=Small\(...\)"),
        (3, "model should be a name, a table with a name and settings, or a module .*, not 3"),
        (Small.forward, "model should be a name, a table with a name and settings, or a module"),
    ],
)
def test_what_is_no_model_is_told(sites, model, words):
    with pytest.raises(ConfigError, match=words):
        Federation(sites).train(model=model, rounds=1)


def test_two_seeds_split_differently(sites):
    one, two = (Federation(sites).train(seed=seed, rounds=1, steps=1).summary["model_sha256"] for seed in (0, 1))
    assert one != two


def test_a_module_of_this_process_is_of_no_use_to_workers(sites):
    with pytest.raises(fedaccord.FedAccordError, match=r"use workers=0, or name it as 'package.module:factory'"):
        Federation(sites).train(model=Small(), workers=1, rounds=1)


def averaging(settings: ClassicSettings) -> fedaccord.Recipe:
    """FedAvg as a function that workers can import."""
    return shared_model_recipe(settings)


def test_a_method_may_be_a_function(sites, tmp_path):
    short = {"rounds": 2, "steps": 2}
    named = Federation(sites).train("fedavg", **short).summary
    for workers in (0, 1):
        handed = Federation(sites).train(averaging, out=tmp_path / str(workers), workers=workers, **short)
        assert handed.summary["model_sha256"] == named["model_sha256"]
        assert handed.summary["method"] == f"{__name__}:averaging"

    def local(settings: ClassicSettings) -> fedaccord.Recipe:
        return shared_model_recipe(settings)

    assert Federation(sites).train(local, **short).summary["model_sha256"] == named["model_sha256"]
    with pytest.raises(ConfigError, match=r"local' cannot be imported by other processes; use workers=0"):
        Federation(sites).train(local, workers=1, **short)
    with pytest.raises(ConfigError, match="method should be a name or a function that returns a recipe, not 3"):
        Federation(sites).train(3, **short)


def test_a_name_of_code_needs_trust(sites):
    name = f"{__name__}:averaging"
    with pytest.raises(UntrustedError, match=rf'trust=\["{__name__}"\]'):
        Federation(sites).train(name, rounds=1)
    assert Federation(sites).train(name, trust=__name__, rounds=1, steps=1).summary["rounds"] == 1


@pytest.mark.parametrize(
    ("broken", "error", "words"),
    [
        (lambda s: [], DataError, "at least one site"),
        (lambda s: [s[0], s[0]], ConfigError, "two sites are named 'exact'"),
        (lambda s: [Site("a", s[0].x, s[0].labels[:-1], s[0].view)], DataError, "200 samples but 199 labels"),
        (lambda s: [Site("a", s[0].x, ["x"] * 200, s[0].view)], DataError, "'x' is not one of the labels"),
        (lambda s: [s[0], Site("b", s[0].x[:, :9], s[0].labels, s[0].view)], DataError, "differ in shape"),
        (lambda s: s[0], DataError, "at least one site, in a list"),
        (lambda s: [("a", s[0].x)], ConfigError, "made of fedaccord.Site, not of tuple"),
        (lambda s: [Site("a", s[0].x, s[0].labels, Exact)], ConfigError, r"one such as Exact\(space\)"),
        (lambda s: [Site("a", [["1", "b"]], ["0"], s[0].view)], DataError, "site 'a': samples are rows of numbers"),
        (lambda s: [Site("a", [[1, 2], [3]], ["0", "1"], s[0].view)], DataError, "samples are rows of numbers"),
        (lambda s: [Site("a", s[0].x * np.nan, s[0].labels, s[0].view)], DataError, "NaN"),
        (lambda s: [s[0], Site("b", s[0].x, ["no"] * 200, Exact(LabelSpace(["no"])))], ConfigError, "label space"),
    ],
)
def test_mistakes_are_told(sites, broken, error, words):
    with pytest.raises(error, match=words):
        Federation(broken(sites)).train(rounds=1)


@pytest.mark.parametrize(
    ("test", "words"),
    [
        (lambda x, y: (x, y[:3]), "test: there are 200 samples but 3 class names"),
        (lambda x, y: (x[:, :9], y), r"test: the samples have shape \(9,\), the sites' have"),
        (lambda x, y: x, "samples and their true class names are needed"),
        (lambda x, y: (x, ["x"] * 200), "test: .*'x' is not one of the labels"),
    ],
)
def test_mistakes_in_the_test_data_are_told(sites, test, words):
    with pytest.raises(DataError, match=words):
        Federation(sites[:1], test=test(sites[0].x, sites[0].labels)).train(rounds=1)


def test_a_federation_that_cannot_be_trained_leaves_no_folder(sites, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ConfigError, match="needs images"):
        Federation(sites).train(model="cnn", rounds=1)
    assert list(tmp_path.iterdir()) == []


def test_stopping_rules_can_be_given(sites):
    never_enough = {"metric": "sites.mean.accuracy", "patience": 1, "min_delta": 1.0}
    assert Federation(sites).train(rounds=5, steps=1, stop=never_enough).summary["rounds"] == 2


def test_a_report_that_cannot_be_written(result, tmp_path):
    with pytest.raises(fedaccord.FedAccordError, match="cannot be written"):
        result.report(tmp_path / "nowhere" / "report.html")


def test_a_wrong_setting_is_told_with_a_hint(sites):
    with pytest.raises(ConfigError, match="did you mean 'rounds'"):
        Federation(sites).train(ronds=3)


class TestSynonyms:
    SPACE = LabelSpace(["mild", "grave"])

    def test_of_the_federation_and_of_a_site(self):
        x = np.arange(8.0).reshape(4, 2)
        sites = [
            Site("a", x, ["Mild", "1", "grave", "mild"], Exact(self.SPACE), test=0),
            Site("b", x, [1, 0, None, {"1", "0"}], Candidates(self.SPACE), 0, synonyms={"grave": ["1"], "Mild": ["0"]}),
            Site("c", x, ["1", "y", "y", "n"], Coarse(self.SPACE, {"1": ["mild"], "yes": ["grave"]}), 0, ["Mild"] * 4,
                 synonyms={"yes": ["y"], "1": ["n"]}),
        ]  # fmt: skip
        federation = Federation(sites, test=(x, ["Mild", "grave", "1", ""]), synonyms={"mild": ["Mild", "1"]})
        data = federation._array_data(0)
        assert data.sites["a"].train.target.tolist() == [0, 0, 1, 0]
        assert data.sites["b"].train.target.tolist() == [[False, True], [True, False], [True, True], [True, True]]
        assert data.sites["c"].train.target.tolist() == [0, 1, 1, 0]
        assert data.sites["c"].train.truth.tolist() == [0] * 4
        assert data.test[1].tolist() == [0, 1, 0]

    def test_of_frames(self):
        frame = pd.DataFrame({"age": [1, 2, 3, 4], "dx": ["Mild", "NA", "NA", "mild"]})
        other = pd.DataFrame({"age": [1, 2, 3, 4], "dx": [1, 0, 0, None]})
        own = {"Mild": ["1"], "NA": ["0"]}
        sites = [
            Site.from_frame("a", frame, "dx", test=0),
            Site.from_frame("b", other, "dx", test=0, synonyms=own),
        ]
        federation = Federation(sites, synonyms={"mild": ["Mild"]})
        with federation._experiment("accord", "mlp", 0, (), {"run": None}, {}) as (experiment, _):
            data = federation._data(experiment)
        assert data.space.names == ("NA", "mild")
        assert data.sites["a"].train.target.tolist() == [1, 0, 0, 1]
        assert data.sites["b"].train.target.tolist() == [1, 0, 0, -1]

    def test_words_that_mean_not_annotated(self):
        x = np.zeros((4, 2))
        site = Site("a", x, ["mild", "?", "grave", "unclear "], Exact(self.SPACE), test=0)
        data = Federation([site], test=(x, ["mild", "?", "grave", "?"]), missing=["?", "unclear"])._array_data(0)
        assert data.sites["a"].train.target.tolist() == [self.SPACE.column("mild"), -1, self.SPACE.column("grave"), -1]
        assert data.test is not None
        assert len(data.test[1]) == 2

    def test_that_contradict(self):
        site = Site("a", [[1.0], [2.0]], ["mild", "grave"], Exact(self.SPACE))
        with pytest.raises(ConfigError, match="Federation: labels: synonyms: 'grave' is itself one of the labels"):
            Federation([site], synonyms={"mild": ["grave"]}).train(rounds=1)
        with pytest.raises(ConfigError, match="site 'a': synonyms: 'x' is not one of the labels"):
            Federation([replace(site, synonyms={"x": ["y"]})])


def test_one_class_is_refused():
    space = LabelSpace(["a", "b"])
    with pytest.raises(DataError, match="every label in the training samples is 'a', so no model can learn anything"):
        Federation([Site("s", [[1.0]] * 4, ["a"] * 4, Exact(space))]).train(rounds=1)


def test_the_limit_of_updates_is_a_section_of_its_own(sites, tmp_path):
    quick = {"method": "fedavg", "rounds": 1, "steps": 1}
    Federation(sites).train(**quick, admit={"norm": 5.0}, out=tmp_path / "run")
    assert "norm = 5.0" in (tmp_path / "run/config.toml").read_text(encoding="utf-8")
    with pytest.raises(ConfigError, match=r"admit.norm"):
        Federation(sites).train(**quick, admit={"norm": -1.0})
