"""Sites with pandas frames: features agreed as between files, and predictions for raw frames."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from command_line import command, write
from fedaccord import Coarse, Exact, Federation, LabelSpace, Site
from fedaccord.errors import ConfigError, DataError
from fedaccord.runs.trained_model import TrainedModel

pytestmark = pytest.mark.usefixtures("one_thread")
GRADES = ["grave", "mild", "none"]
COARSE = {"kind": "coarse", "correspondence": {"well": ["none"], "ill": ["mild", "grave"]}}
FEATURES = {"numbers": ["age", "fever"], "categories": ["smoker"], "text": ["note"], "text_width": 8}
QUICK = {"model": {"name": "mlp", "hidden": [8]}, "rounds": 15, "epochs": 3, "lr": 0.1}


def patients(n, seed):
    """Numbers, words, text and missing values, from which the grade can be told."""
    rng = np.random.default_rng(seed)
    grade = rng.permutation(np.arange(n) % 3)
    frame = pd.DataFrame(
        {
            "age": (30 + 15 * grade + rng.normal(size=n)).round(2),
            "smoker": pd.Categorical(np.where(grade == 2, "yes", np.where(rng.random(n) < 0.5, "no", "maybe"))),
            "fever": rng.random(n) < 0.5,
            "note": np.where(grade == 0, "all is well", "short of breath"),
            "grade": [["none", "mild", "grave"][g] for g in grade],
        }
    )
    frame.loc[3, "age"] = np.nan
    frame.loc[4, ["smoker", "note"]] = None
    return frame


def coarse(frame):
    return frame.assign(ill=np.where(frame.grade == "none", "well", "ill")).drop(columns="grade")


def sites(**changes):
    return [
        Site.from_frame("north", patients(60, 1), label="grade"),
        Site.from_frame("south", coarse(patients(60, 2)), label="ill", view=changes.get("view", COARSE)),
    ]


@pytest.fixture(scope="module")
def result():
    federation = Federation(sites(), test=patients(30, 3), features=FEATURES)
    return federation.train(**QUICK)


class TestTraining:
    def test_it_learns_and_finds_the_classes(self, result):
        assert result.trained.labels == tuple(GRADES)
        assert result.summary["final"]["global"]["accuracy"] > 0.9

    def test_it_is_the_run_of_the_same_files(self, result, tmp_path):
        """Same rows, same seed: the model of `fedaccord run`, bit for bit."""
        for name, frame in (("north", patients(60, 1)), ("south", coarse(patients(60, 2)))):
            frame.to_csv(tmp_path / f"{name}.csv", index=False)
        patients(30, 3).to_csv(tmp_path / "test.csv", index=False)
        write(
            tmp_path,
            """
name = "files"
server.test = "test.csv"
features = { numbers = ["age", "fever"], categories = ["smoker"], text = ["note"], text_width = 8 }
model = { name = "mlp", hidden = [8] }
method = { name = "accord", rounds = 15, epochs = 3, lr = 0.1 }
run.workers = 0
[[sites]]
name = "north"
data = "north.csv"
label = "grade"
[[sites]]
name = "south"
data = "south.csv"
label = "ill"
view = { kind = "coarse", correspondence = { well = ["none"], ill = ["mild", "grave"] } }
""",
        )
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        files = TrainedModel.load(tmp_path / "runs/files")
        assert torch.equal(files.network().head.weight, result.model.head.weight)

    def test_views_may_be_objects_or_names(self):
        space = LabelSpace(["none", "mild", "grave"])
        groups = Coarse(space, COARSE["correspondence"])
        given = [
            Site.from_frame("north", patients(60, 1), "grade", Exact(space)),
            Site.from_frame("south", coarse(patients(60, 2)), "ill", groups),
            Site.from_frame("west", patients(20, 5).drop(columns="grade"), view="unlabelled"),
        ]
        result = Federation(given).train(rounds=1)
        assert result.trained.labels == space.names
        assert result.trained.view("south", "own").answers == ("well", "ill")

    def test_columns_may_have_numbers_for_names(self):
        frame = patients(9, 1)
        frame.columns = range(len(frame.columns))
        trained = Federation([Site.from_frame("a", frame, 4)]).train(rounds=1).trained
        assert (trained.labels, trained.predict(frame).shape) == (tuple(GRADES), (9, 3))

    def test_several_label_columns_and_groups(self):
        frame = patients(30, 1).assign(cough=[0, 1, None] * 10, race=["p", "q", "p|q"] * 10)
        site = Site.from_frame("a", frame.drop(columns=["grade", "race"]), label=["fever", "cough"], view="tags")
        assert Federation([site]).train(rounds=1).trained.labels == ("cough", "fever")
        fairness = {"group": "p", "label": "mild"}
        fair = Federation([Site.from_frame(name, frame, "grade", sensitive="race") for name in "ab"])
        assert fair.train(rounds=1, fairness=fairness).trained.predict(frame).shape == (30, 3)

    def test_a_cell_may_hold_several_names(self):
        frame = patients(30, 1)
        frame["grade"] = [{grade, "none"} if row % 2 else [grade] for row, grade in enumerate(frame["grade"])]
        frame.loc[0, "grade"] = None
        result = Federation([Site.from_frame("a", frame, "grade", "candidates")]).train(rounds=1, out=None)
        assert result.trained.labels == tuple(GRADES)

    def test_classes_and_the_servers_samples_may_be_given(self):
        frame = patients(30, 3)
        names = frame.grade.tolist()
        classes = ["none", "mild", "grave", "fatal"]
        by_name, by_column = (
            Federation(sites(), test=test, labelled=(patients(9, 7), "grade"), classes=classes).train(rounds=1)
            for test in ((frame.drop(columns="grade"), names), (frame, "grade"))
        )
        assert by_name.trained.labels == tuple(classes)
        assert by_name.summary["final"]["global"] == by_column.summary["final"]["global"] != {}


def test_a_site_shows_no_row_of_its_data():
    """Notebooks and error messages print objects."""
    space = LabelSpace(["secret", "other"])
    frame = pd.DataFrame({"age": [12345.0], "dx": ["secret"]})
    for site in (Site("a", [[12345.0]], ["secret"], Exact(space)), Site.from_frame("a", frame, "dx")):
        assert "name='a'" in repr(site)
        assert "12345" not in repr(site)
        assert "secret" not in repr(site)


class TestPredicting:
    def test_raw_frames_give_a_row_of_probabilities_for_each_sample(self, result):
        new = patients(30, 3)
        found = result.trained.predict(new.drop(columns="grade").iloc[:, ::-1])  # in any order of columns
        assert found.shape == (30, 3)
        right = [GRADES[column] for column in found.argmax(-1)] == new.grade.to_numpy()
        assert right.mean() == pytest.approx(result.summary["final"]["global"]["accuracy"])
        own = result.trained.predict(new, site="south", answers="own")
        assert own.shape == (30, 2)
        assert not torch.equal(result.trained.predict(new, site="south"), found)  # the site has its prior

    def test_a_lacking_column_is_an_error_unless_it_is_to_be_filled(self, result):
        less = patients(9, 3).drop(columns=["fever", "note"])
        with pytest.raises(DataError, match=r"'frame' has no columns 'fever', 'note'; the model reads .*fill=True"):
            result.trained.predict(less)
        empty = less.assign(fever=None, note=None)
        assert torch.equal(result.trained.predict(less, fill=True), result.trained.predict(empty))

    def test_arrays_and_tensors_are_features(self, result):
        plan = result.trained.description.inputs.features
        x = torch.zeros(2, len(plan.names))
        assert torch.equal(result.trained.predict(x.numpy()), result.trained.predict(x))
        for wrong in (x[:, 1:], x[:, 1:].numpy()):
            with pytest.raises(DataError, match=r"give a DataFrame with the columns 'age', 'fever', 'smoker', 'note'"):
                result.trained.predict(wrong)

    def test_a_frame_of_numbers_for_a_model_of_arrays(self):
        x, y = np.random.default_rng(0).normal(size=(30, 3)), ["a", "b", "c"] * 10
        trained = Federation([Site("s", x, y, Exact(LabelSpace(list("abc"))))]).train(rounds=1).trained
        tensor = torch.tensor(x, dtype=torch.float32)
        assert torch.equal(trained.predict(pd.DataFrame(x)), trained.predict(tensor))
        assert torch.equal(trained.predict(x), trained.predict(tensor))


def without_notes(federation):
    return [finding for finding in federation.check() if finding.level != "note"]


class TestChecking:
    def test_a_sound_federation_has_no_warnings(self):
        assert without_notes(Federation(sites())) == []

    def test_it_finds_what_the_command_prints(self, tmp_path):
        north = patients(60, 1)
        south = patients(60, 2).assign(age=lambda frame: 1000 * frame.age + 1e6)
        south["grade"] = south.grade.where(south.grade != "none")
        view = {"known": ["grave", "mild", "none"]}
        given = [Site.from_frame("north", north, "grade"), Site.from_frame("south", south, "grade", view)]
        found = [str(finding) for finding in Federation(given).check()]
        north.to_csv(tmp_path / "north.csv", index=False)
        south.to_csv(tmp_path / "south.csv", index=False)
        text = '[[sites]]\nname = "{0}"\ndata = "{0}.csv"\nlabel = "grade"\n'
        known = 'view = { known = ["grave", "mild", "none"] }\n'
        write(tmp_path, text.format("north") + text.format("south") + known)
        printed = command("check", "experiment.toml", cwd=tmp_path).out
        assert any("no row is annotated with 'none'" in line for line in found)
        assert any("is it the same unit?" in line for line in found)
        for line in found:
            assert line.replace(": site 'south': ", ": ") in printed

    def test_wrong_cells_are_errors_of_the_list_and_stop_training(self):
        frame = patients(60, 1).astype({"age": object})
        frame.loc[7, "age"] = "old"
        federation = Federation([Site.from_frame("north", frame, "grade")])
        (error,) = (finding for finding in federation.check() if finding.level == "error")
        assert error.text == "a cell cannot be read: north (frame), row 8, column 'age': 'old' is not a number"
        with pytest.raises(DataError, match="row 8, column 'age'"):
            federation.train(rounds=1)

    def test_data_that_cannot_be_used_at_all_are_an_error(self):
        other = patients(60, 2).drop(columns="note")
        federation = Federation([*sites()[:1], Site.from_frame("other", other, "grade")])
        (error,) = without_notes(federation)
        assert error.level == "error"
        assert "'note'" in error.text
        with pytest.raises(ConfigError, match="did you mean 'rounds'"):
            federation.check(ronds=3)

    def test_findings_name_arguments_that_mend_them(self):
        other = patients(60, 1).astype({"smoker": object})
        other = other.replace({"grade": {"none": "None", "mild": "?"}, "smoker": {"yes": "Yes"}})
        pair = [Site.from_frame("a", patients(60, 0), "grade"), Site.from_frame("b", other, "grade")]
        texts = [finding.text for finding in Federation(pair).check()]
        assert not [text for text in texts if "[labels]" in text or "[features]" in text]
        lines = [text.splitlines()[1] for text in texts if "pass this argument to Federation:" in text]
        assert lines == [
            "synonyms={'none': ['None']}",
            "missing=['?']",
            "features={'synonyms': {'smoker': {'yes': ['Yes']}}}",
        ]
        federation = Federation(
            pair, synonyms={"none": ["None"]}, missing=["?"], features={"synonyms": {"smoker": {"yes": ["Yes"]}}}
        )
        assert without_notes(federation) == []

    def test_codes_of_a_site(self):
        codes = patients(60, 1).replace({"grade": {"none": "0", "mild": "1", "grave": "2"}})
        pair = [Site.from_frame("a", patients(60, 0), "grade"), Site.from_frame("b", codes, "grade")]
        (found,) = without_notes(Federation(pair))
        line = "synonyms={'grave': ['...'], 'mild': ['...'], 'none': ['...']}"
        assert f"pass this argument to site 'b', with its words in place of the dots:\n{line}\n" in found.text

    def test_arrays_are_checked_too(self):
        space = LabelSpace(["a", "b"])
        found = Federation([Site("s", np.zeros((9, 2)), ["a"] * 9, Exact(space))]).check()
        assert "warning: no site has a training sample of 'b'" in map(str, found)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Site.from_frame("a", [[1]], "y"), DataError, "site 'a': its frame should be a pandas DataFrame"),
        (lambda: Site.from_frame("a", patients(9, 1), "grade", "exakt"), ConfigError, "did you mean 'exact'"),
        (lambda: Site.from_frame("a", patients(9, 1), "grade", 3), ConfigError, "its view should be a kind such as"),
        (lambda: Site.from_frame("a", patients(9, 1), "grade", "other:View"), ConfigError, "as an object, as in view="),
        (lambda: Site.from_frame("a", patients(9, 1)[:0], "grade"), DataError, "a \\(frame\\) has no rows"),
        (
            lambda: Federation([*sites(), Site("b", [[1.0]], ["x"], Exact(LabelSpace(["x"])))]),
            ConfigError,
            "has a frame",
        ),
        (lambda: Federation([*sites(), *sites()]), ConfigError, "two sites are named 'north'"),
        (
            lambda: Federation([Site("b", [[1.0]], ["x"], Exact(LabelSpace(["x"])))], classes=["x"]),
            ConfigError,
            "features and classes are for sites with frames",
        ),
        (
            lambda: Federation([Site.from_frame("a", patients(9, 1), "grad")]).train(rounds=1),
            DataError,
            "'a \\(frame\\)' has no column 'grad'; did you mean 'grade'",
        ),
        (
            lambda: Federation(sites(), features={"number": ["age"]}).train(rounds=1),
            ConfigError,
            "unknown key 'features.number'; did you mean 'numbers'",
        ),
        (
            lambda: Federation(sites(), test=(patients(9, 1), ["none"])).train(rounds=1),
            DataError,
            "test: there are 9 samples but 1 class names",
        ),
        (lambda: Federation(sites(), test=[[1]]).train(rounds=1), DataError, "test: a frame is needed"),
    ],
)
def test_mistakes_have_a_message(make, error, words):
    with pytest.raises(error, match=words):
        make()
