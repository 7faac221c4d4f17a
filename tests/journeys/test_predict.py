"""From a finished run to predictions and to an ONNX file, as a user does it."""

from __future__ import annotations

import csv
import json
import shutil
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

from command_line import SMALL, blobs, command, write
from fedaccord.data.dataset import load_dataset
from fedaccord.data.tables import frame_table
from fedaccord.models.registry import MODELS
from fedaccord.runs.trained_model import TrainedModel

pytestmark = pytest.mark.usefixtures("one_thread")
TABLES = """
name = "tables"

[[sites]]
name = "north"
data = "north.csv"
label = "grade"

[[sites]]
name = "south"
data = "south.csv"
label = "ill"
view = { kind = "coarse", correspondence = { well = ["none"], ill = ["mild", "grave"] } }

[model]
name = "mlp"
hidden = [8]

[method]
name = "accord"
rounds = 15
epochs = 3
lr = 0.1

[run]
workers = 0
"""
GRADES = ["none", "mild", "grave"]


def patients(n, seed):
    """Rows of a table whose grade can be told from its columns."""
    rng = np.random.default_rng(seed)
    grade = rng.permutation(np.arange(n) % 3)
    age = 30 + 15 * grade + rng.normal(size=n)
    smoker = np.where(grade == 2, "yes", np.where(rng.random(n) < 0.5, "no", "maybe"))
    return pd.DataFrame({"age": age.round(2), "smoker": smoker, "grade": [GRADES[g] for g in grade]})


def rows(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def numbers(path, names):
    return torch.tensor([[float(row[name]) for name in names] for row in rows(path)], dtype=torch.float32)


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A finished run of one exact and one coarse site, and new rows."""
    folder = tmp_path_factory.mktemp("tables")
    patients(60, 1).to_csv(folder / "north.csv", index=False)
    south = patients(60, 2)
    south.insert(0, "ill", np.where(south.pop("grade") == "none", "well", "ill"))
    south.to_csv(folder / "south.csv", index=False)
    new = patients(12, 3).drop(columns="grade")
    new.insert(0, "unused", "x")
    new["maybe"] = ["none|grave", "", "NA", "mild", *[""] * 8]
    new.to_csv(folder / "new.csv", index=False)
    write(folder, TABLES)
    done = command("run", "experiment.toml", cwd=folder)
    assert (done.code, done.err) == (0, "")
    return folder


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """A finished run on images."""
    folder = tmp_path_factory.mktemp("digits")
    write(folder, SMALL)
    assert command("run", "experiment.toml", cwd=folder).code == 0
    return folder


class TestTables:
    def test_names_and_probabilities_in_the_order_of_the_rows(self, tables):
        done = command("predict", "runs/tables", "new.csv", cwd=tables)
        assert (done.code, done.out, done.err) == (0, "predictions for 12 rows: predictions.csv\n", "")
        written = rows(tables / "predictions.csv")
        classes = TrainedModel.load(tables / "runs" / "tables").labels
        assert list(written[0]) == ["prediction", "probability", *classes]
        truth = patients(12, 3)["grade"].tolist()
        assert [row["prediction"] for row in written] == truth
        for row in written:
            each = [float(row[name]) for name in classes]
            assert float(row["probability"]) == max(each) == float(row[row["prediction"]])
            assert sum(each) == pytest.approx(1, abs=1e-6)

    def test_they_are_those_of_the_model_to_the_last_digit(self, tables):
        command("predict", "runs/tables", "new.csv", "--out", "exact.csv", cwd=tables)
        model = TrainedModel.load(tables / "runs" / "tables")
        plan = model.description.inputs.features
        new = patients(12, 3)
        age = (new["age"].to_numpy() - plan.columns[0].mean) / plan.columns[0].scale
        words = [(new["smoker"] == value).to_numpy() for value in ("maybe", "no", "yes")]
        x = torch.from_numpy(np.stack([age, *words], 1).astype(np.float32))
        assert torch.equal(numbers(tables / "exact.csv", model.labels), model.predict(x))

    def test_parquet(self, tables):
        pd.read_csv(tables / "new.csv").to_parquet(tables / "new.parquet")
        command("predict", "runs/tables", "new.csv", "--out", "1.csv", cwd=tables)
        assert command("predict", "runs/tables", "new.parquet", "--out", "2.csv", cwd=tables).code == 0
        assert (tables / "1.csv").read_bytes() == (tables / "2.csv").read_bytes()

    def test_cells_without_a_known_value_are_counted(self, tables):
        write(tables, "age,smoker\n40,no\n,pipe\n50,\n", "gaps.csv")
        done = command("predict", "runs/tables", "gaps.csv", "--out", "gaps-out.csv", cwd=tables)
        assert (done.code, done.out.splitlines()) == (
            0,
            [
                "note: 3 cells are missing or of no known category: age 1, smoker 2",
                "predictions for 3 rows: gaps-out.csv",
            ],
        )

    def test_kept_columns_come_first_so_that_rows_can_be_joined(self, tables):
        new = patients(3, 4).drop(columns="grade").assign(patient_id=["007", "-8", "=1+1"], prediction="old", mild=0)
        new.to_csv(tables / "ids.csv", index=False)
        done = command("predict", "runs/tables", "ids.csv", "--keep", "patient_id", "--out", "kept.csv", cwd=tables)
        assert (done.code, done.out) == (0, "predictions for 3 rows: kept.csv\n")
        written = rows(tables / "kept.csv")
        assert list(written[0]) == ["patient_id", "prediction", "probability", "grave", "mild", "none"]
        assert [row["patient_id"] for row in written] == ["007", "-8", "'=1+1"]  # no formula for a spreadsheet
        done = command("predict", "runs/tables", "ids.csv", "--keep", "all", "--out", "kept.csv", cwd=tables)
        assert done.out.splitlines()[:2] == [
            f"note: the kept column '{name}' is called '{name} (input)', because predictions have that name"
            for name in ("prediction", "mild")
        ]
        written = rows(tables / "kept.csv")
        assert list(written[0])[:5] == ["age", "smoker", "patient_id", "prediction (input)", "mild (input)"]
        assert {row["prediction (input)"] for row in written} == {"old"}

    def test_a_missing_column_is_filled_only_if_asked(self, tables):
        patients(3, 4).drop(columns=["grade", "smoker"]).assign(smokes="no").to_csv(tables / "less.csv", index=False)
        asked = ("predict", "runs/tables", "less.csv", "--out", "less-out.csv")
        done = command(*asked, cwd=tables)
        assert (done.code, done.err) == (
            2,
            "error: 'less.csv' has no column 'smoker' (did you mean 'smokes'?); the model reads the columns 'age', "
            "'smoker'; --fill (in Python fill=True) treats it as missing values\n",
        )
        done = command(*asked, "--fill", cwd=tables)
        assert done.out.splitlines()[0] == "note: the file has no column 'smoker': treated as missing in every row"
        patients(3, 4).assign(smoker="").to_csv(tables / "empty.csv", index=False)
        command("predict", "runs/tables", "empty.csv", "--out", "empty-out.csv", cwd=tables)
        assert (tables / "less-out.csv").read_bytes() == (tables / "empty-out.csv").read_bytes()

    def test_a_coarse_site_in_the_classes_and_in_its_own_words(self, tables):
        asked = ("predict", "runs/tables", "new.csv", "--site", "south")
        assert command(*asked, "--out", "fine.csv", cwd=tables).code == 0
        assert command(*asked, "--answers", "own", "--out", "own.csv", cwd=tables).code == 0
        fine, own = numbers(tables / "fine.csv", GRADES), numbers(tables / "own.csv", ["well", "ill"])
        assert torch.allclose(own, torch.stack([fine[:, 0], fine[:, 1:].sum(1)], 1), atol=1e-6)
        assert {row["prediction"] for row in rows(tables / "own.csv")} == {"well", "ill"}
        command("predict", "runs/tables", "new.csv", "--out", "common.csv", cwd=tables)
        assert not torch.equal(numbers(tables / "common.csv", GRADES), fine)  # the site has its prior

    def test_candidates_are_kept_to(self, tables):
        command("predict", "runs/tables", "new.csv", "--out", "free.csv", cwd=tables)
        done = command("predict", "runs/tables", "new.csv", "--candidates", "maybe", "--out", "held.csv", cwd=tables)
        assert (done.code, done.err) == (0, "")
        free, held = numbers(tables / "free.csv", GRADES), numbers(tables / "held.csv", GRADES)
        both = free[0, [0, 2]]
        assert torch.allclose(held[0], torch.stack([both[0], torch.tensor(0.0), both[1]]) / both.sum(), atol=1e-6)
        assert torch.allclose(held[[1, 2]], free[[1, 2]], atol=1e-6)  # no set: nothing is excluded
        assert held[3].tolist() == [0, 1, 0]
        assert rows(tables / "held.csv")[3]["prediction"] == "mild"

    def test_candidates_in_a_site_s_own_words(self, tables):
        frame = pd.read_csv(tables / "new.csv").assign(maybe="ill")
        frame.to_csv(tables / "ill.csv", index=False)
        arguments = ("--site", "south", "--answers", "own", "--candidates", "maybe", "--out", "held.csv")
        assert command("predict", "runs/tables", "ill.csv", *arguments, cwd=tables).code == 0
        assert numbers(tables / "held.csv", ["well", "ill"]).tolist() == [pytest.approx([0, 1])] * 12

    def test_the_model_folder_on_another_machine(self, tables, tmp_path):
        command("predict", "runs/tables", "new.csv", "--site", "north", cwd=tables)
        shutil.copytree(tables / "runs" / "tables" / "model", tmp_path / "taken")
        shutil.copy(tables / "new.csv", tmp_path)
        assert command("predict", "taken", "new.csv", "--site", "north", cwd=tmp_path).code == 0
        assert (tmp_path / "predictions.csv").read_bytes() == (tables / "predictions.csv").read_bytes()

    def test_files_without_a_header_line_as_the_sites_had_them(self, tables, tmp_path):
        for name in ("north", "south"):
            frame = pd.read_csv(tables / f"{name}.csv")
            frame[["age", "smoker", frame.columns[-1 if name == "north" else 0]]].to_csv(
                tmp_path / f"{name}.csv", index=False, header=False
            )
        text = TABLES.replace('"ill"\nview', '"grade"\nview') + '\n[features]\nheader = ["age", "smoker", "grade"]\n'
        write(tmp_path, text)
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        for header in (False, True):
            new = patients(12, 3)
            new.to_csv(tmp_path / "new.csv", index=False, header=header)
            done = command("predict", "runs/tables", "new.csv", cwd=tmp_path)
            assert done.out == "predictions for 12 rows: predictions.csv\n"
            assert [row["prediction"] for row in rows(tmp_path / "predictions.csv")] == new["grade"].tolist()


class TestArrays:
    def test_pixels_and_what_training_made_of_them(self, digits):
        images = load_dataset("digits", digits).train.x[:20]
        pixels = ((images[:, 0] + 1) * 8).astype(np.uint8)
        for name, x in (("pixels", pixels), ("floats", images)):
            np.savez(digits / f"{name}.npz", x=x)
            assert command("predict", "runs/small", f"{name}.npz", "--out", f"{name}.csv", cwd=digits).code == 0
        assert (digits / "pixels.csv").read_bytes() == (digits / "floats.csv").read_bytes()
        model = TrainedModel.load(digits / "runs" / "small")
        assert torch.equal(numbers(digits / "pixels.csv", "0123456789"), model.predict(torch.from_numpy(images)))

    def test_kept_arrays(self, digits):
        np.savez(digits / "ids.npz", x=np.zeros((2, 8, 8), np.uint8), id=[7, 8], other=["@b", "a"], wide=np.eye(2))
        for keep, names in ((("id",), ["id"]), (("all",), ["id", "other"])):
            asked = [word for name in keep for word in ("--keep", name)]
            assert command("predict", "runs/small", "ids.npz", *asked, cwd=digits).code == 0
            written = rows(digits / "predictions.csv")
            assert list(written[0])[: len(names) + 1] == [*names, "prediction"]
            assert [row["id"] for row in written] == ["7", "8"]
        assert [row["other"] for row in written] == ["'@b", "a"]

    @pytest.mark.parametrize("form", [np.uint8, bool, str])
    def test_candidates(self, digits, form):
        sets = np.zeros((3, 10), dtype=np.uint8)
        sets[0, [2, 3]] = 1
        sets[1, 5] = 1
        given = np.array(["2|3", "5", ""]) if form is str else sets.astype(form)
        np.savez(digits / "held.npz", x=np.zeros((3, 8, 8), np.uint8), candidates=given)
        assert command("predict", "runs/small", "held.npz", "--candidates", "candidates", cwd=digits).code == 0
        held = numbers(digits / "predictions.csv", "0123456789")
        assert [(row > 0).nonzero().flatten().tolist() for row in held] == [[2, 3], [5], list(range(10))]
        assert torch.allclose(held.sum(1), torch.ones(3), atol=1e-6)

    def test_rows_are_scaled_by_the_site_they_come_from(self, tmp_path):
        x, y = blobs(60)
        np.savez(tmp_path / "a.npz", x=x, y=y)
        np.savez(tmp_path / "b.npz", x=x + 500, y=y)
        sites = "".join(f'[[sites]]\nname = "{name}"\ndata = "{name}.npz"\n' for name in "ab")
        settings = SMALL[SMALL.index("[model]") :].replace("steps = 2", "epochs = 5")
        write(tmp_path, "name = 'scaled'\nfeatures.standardise = 'site'\n" + sites + settings)
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        found = {}
        for arguments in (("--site", "a"), ("--site", "b"), ()):
            assert command("predict", "runs/scaled", "b.npz", *arguments, cwd=tmp_path).code == 0
            written = rows(tmp_path / "predictions.csv")
            found[arguments[-1:]] = np.mean([row["prediction"] == str(c) for row, c in zip(written, y, strict=True)])
        assert found["b",] > 0.9
        assert found["a",] < 0.7

    def test_tags(self, tmp_path):
        x, y = blobs(60)
        np.savez(tmp_path / "a.npz", x=x, Y=np.eye(3, dtype=np.int8)[y])
        site = '[[sites]]\nname = "a"\ndata = "a.npz"\nview = { kind = "tags" }\n'
        write(tmp_path, "name = 'tags'\n" + site + SMALL[SMALL.index("[model]") :].replace("steps = 2", "epochs = 9"))
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        assert command("predict", "runs/tags", "a.npz", cwd=tmp_path).code == 0
        for row in rows(tmp_path / "predictions.csv"):
            likely = [name for name in "012" if float(row[name]) >= 0.5]
            assert row["prediction"] == ";".join(likely)
            chances = [p if (p := float(row[name])) >= 0.5 else 1 - p for name in "012"]
            assert float(row["probability"]) == pytest.approx(np.prod(chances), rel=1e-5)
        done = command("predict", "runs/tags", "a.npz", "--candidates", "Y", cwd=tmp_path)
        assert (done.code, "this model predicts tags" in done.err) == (2, True)


class TestImages:
    TEXT = """
name = "images"
[labels]
classes = ["dark", "light"]
[features]
image_size = 8
[[sites]]
name = "north"
data = "north"
label = "what"
[model]
name = "mlp"
hidden = [4]
[method]
name = "fedavg"
rounds = 10
[run]
workers = 0
"""

    def test_a_folder_like_those_of_the_sites(self, tmp_path):
        for name in ("north", "new"):
            (tmp_path / name).mkdir()
            for shade in range(0, 250, 20):
                Image.new("RGB", (9, 9), (shade,) * 3).save(tmp_path / name / f"{shade:03d}.png")
        told = [f"{shade:03d}.png,{'light' if shade > 120 else 'dark'}\n" for shade in range(0, 250, 20)]
        write(tmp_path / "north", "file,what\n" + "".join(told), "labels.csv")
        write(tmp_path, self.TEXT)
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        assert command("predict", "runs/images", "new", cwd=tmp_path).code == 0
        found = {row["file"]: row["prediction"] for row in rows(tmp_path / "predictions.csv")}
        assert sorted(found) == list(found) == [f"{shade:03d}.png" for shade in range(0, 250, 20)]
        assert (found["000.png"], found["240.png"]) == ("dark", "light")
        write(tmp_path / "new", "file,may\n240.png,dark\n000.png,dark|light\n", "labels.csv")
        done = command("predict", "runs/images", "new", "--candidates", "may", "--keep", "may", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert [row["may"] for row in rows(tmp_path / "predictions.csv")] == ["dark", "dark|light"]
        assert [(r["file"], r["prediction"]) for r in rows(tmp_path / "predictions.csv")] == [
            ("240.png", "dark"),
            ("000.png", "dark"),
        ]


class TestMistakes:
    """Each is one sentence and an exit code."""

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["runs/tables", "new.csv", "--site", "nord"], 2, "the model has no site 'nord'; did you mean 'north'?"),
            (["runs/tables", "new.csv", "--answers", "own"], 2, "own answers need the name of a site"),
            (["runs/tables", "new.csv", "--answers", "all"], 2, "answers are 'classes' or 'own', not 'all'"),
            (["runs", "new.csv"], 3, "'runs' is neither a run folder nor a model folder: it has no model.json"),
            (["runs/tables", "nowhere.csv"], 2, "the file 'nowhere.csv' is not there"),
            (["runs/tables", "experiment.toml"], 2, "'experiment.toml' is not a file of samples"),
            (["runs/tables", "x.npz"], 2, "the model was trained on tables"),
            (["runs/tables", "short.csv"], 2, "'short.csv' has no column 'smoker' (did you mean 'smokes'?)"),
            (["runs/tables", "other.csv", "--fill"], 2, "has no columns 'age', 'smoker'; the model reads the columns"),
            (["runs/tables", "new.csv", "--keep", "unusd"], 2, "has no column 'unusd'; did you mean 'unused'?"),
            (["runs/tables", "new.csv", "--out", "p.parquet"], 2, "written as CSV, so --out should end with .csv"),
            (["runs/tables", "wrong.csv"], 2, "line 3, column 'age': 'old' is not a number"),
            (["runs/tables", "new.csv", "--candidates", "may"], 2, "has no column 'may'; did you mean 'maybe'?"),
            (
                ["runs/tables", "new.csv", "--candidates", "smoker"],
                2,
                "line 2 and 3 more, column 'smoker': 'yes' is not one of",
            ),
            (["runs/tables", "new.csv", "--out", "new.csv"], 2, "the predictions would be written over 'new.csv'"),
            (["runs/tables", "new.csv", "--out", "no/where.csv"], 3, "'no/where.csv' cannot be written: No such file"),
            (["runs/tables", "new.csv", "--out", "."], 3, "'.' cannot be written: Is a directory"),
            (["runs/tables", "runs"], 2, "'runs' is a folder, but only models of images read folders"),
        ],
    )
    def test_of_tables(self, tables, arguments, code, said):
        np.savez(tables / "x.npz", x=np.zeros((2, 4)))
        write(tables, "age,smokes\n1,no\n", "short.csv")
        write(tables, "weight\n1\n", "other.csv")
        write(tables, "age,smoker\n40,no\nold,no\n", "wrong.csv")
        before = (tables / "new.csv").read_bytes()
        done = command("predict", *arguments, cwd=tables)
        assert done.code == code
        assert done.err.startswith("error: ")
        assert said in done.err
        assert done.err.count("\n") == 1
        assert (tables / "new.csv").read_bytes() == before

    @pytest.mark.parametrize(
        ("arrays", "arguments", "said"),
        [
            ({"z": np.zeros(3)}, [], "'in.npz' has no array 'x'; known: z"),
            ({"x": np.zeros((0, 8, 8))}, [], "'in.npz' has no rows"),
            ({"x": np.zeros((2, 1, 7, 8))}, [], "'in.npz': the samples have shape (1, 7, 8), those the model was"),
            ({"x": np.array([["a"]])}, [], "'in.npz': 'x': the samples are of type <U1"),
            ({"x": np.zeros((2, 1, 8, 8)), "c": np.ones((2, 3))}, ["--candidates", "c"], "one column for each of 10"),
            ({"x": np.zeros((2, 1, 8, 8)), "c": np.ones((3, 10))}, ["--candidates", "c"], "has 3 rows, the samples 2"),
            ({"x": np.zeros((2, 1, 8, 8))}, ["--candidates", "c"], "has no array 'c'"),
            ({"x": np.zeros((2, 1, 8, 8))}, ["--keep", "id"], "has no array 'id'"),
            ({"x": np.zeros((2, 1, 8, 8)), "id": np.ones((2, 2))}, ["--keep", "id"], "has not one value per row"),
        ],
    )
    def test_of_arrays(self, digits, arrays, arguments, said):
        np.savez(digits / "in.npz", **arrays)
        done = command("predict", "runs/small", "in.npz", *arguments, cwd=digits)
        assert done.code == 2
        assert said in done.err

    def test_candidates_a_site_does_not_know(self, tmp_path):
        write(tmp_path, SMALL.replace('"fedavg"', '"accord"') + '\n[data.views]\nsite-0 = { known = ["0", "1"] }\n')
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        np.savez(tmp_path / "in.npz", x=np.zeros((2, 8, 8), np.uint8), c=np.array(["0|5", "5|6"]))
        done = command("predict", "runs/small", "in.npz", "--site", "site-0", "--candidates", "c", cwd=tmp_path)
        unknown = "its candidates are all unknown to the site"
        assert (done.code, done.err) == (2, f"error: a cell cannot be read: 'in.npz', array 'c', row 2: {unknown}\n")

    def test_the_line_of_candidates_a_site_does_not_know(self, tables, tmp_path):
        text = TABLES.partition('[[sites]]\nname = "south"')
        known = text[0] + 'view = { known = ["none", "mild"] }\n\n' + "".join(text[1:])
        north = pd.read_csv(tables / "north.csv")
        north[north.grade != "grave"].to_csv(tmp_path / "north.csv", index=False)
        shutil.copy(tables / "south.csv", tmp_path)
        write(tmp_path, known)
        assert command("run", "experiment.toml", "--set", "method.rounds=1", cwd=tmp_path).code == 0
        maybe = ["mild|grave", "grave", "none"]
        patients(3, 0).assign(maybe=maybe).to_csv(tmp_path / "new.csv", index=False)
        done = command("predict", "runs/tables", "new.csv", "--site", "north", "--candidates", "maybe", cwd=tmp_path)
        assert done.code == 2
        where = "new.csv, line 3, column 'maybe'"
        assert done.err == f"error: a cell cannot be read: {where}: its candidates are all unknown to the site\n"

    def test_a_run_that_is_not_finished(self, digits, tmp_path):
        shutil.copytree(digits / "runs" / "small", tmp_path / "cut")
        shutil.rmtree(tmp_path / "cut" / "model")
        done = command("predict", "cut", "in.npz", cwd=tmp_path)
        assert (done.code, done.err.endswith("go on with: fedaccord resume cut\n")) == (3, True)


def session(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options)


class TestOnnx:
    # resnet34 is like resnet18, only deeper; cnn1d takes no pictures
    @pytest.mark.parametrize("name", [name for name in MODELS if name not in ("resnet34", "cnn1d")])
    def test_it_computes_what_pytorch_does(self, tmp_path, name):
        text = SMALL.replace('"mlp"', f'"{name}"').replace("rounds = 2\nsteps = 2", "rounds = 1\nsteps = 1\nlr = 0.001")
        text = (text if name == "mlp" else text.replace("hidden = [16]\n", "")).replace("samples = 200", "samples = 40")
        write(tmp_path, text.replace('"fedavg"', '"accord"'))
        assert command("run", "experiment.toml", "--set", "run.evaluate_every=0", cwd=tmp_path).code == 0
        model = TrainedModel.load(tmp_path / "runs" / "small")
        x = torch.randn(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))
        done = command("export", "runs/small", "--onnx", "m.onnx", "--site", "site-1", cwd=tmp_path)
        assert (done.code, done.out, done.err) == (0, "model: m.onnx\n", "")
        opened = session(tmp_path / "m.onnx")
        (found,) = opened.run(["probabilities"], {"x": x.numpy()})
        assert torch.allclose(torch.from_numpy(found), model.predict(x, "site-1"), atol=1e-5)
        assert np.ptp(found, 0).max() > 1e-3  # samples are told apart
        assert not torch.allclose(torch.from_numpy(found), model.predict(x), atol=1e-3)  # the site has its prior
        assert json.loads(opened.get_modelmeta().custom_metadata_map["labels"]) == list("0123456789")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["experiment.toml", "m.onnx", "runs"]

    @pytest.mark.parametrize("arguments", [(), ("--site", "north"), ("--site", "south", "--answers", "own")])
    def test_a_model_of_tables_takes_the_columns_of_the_table(self, tables, arguments):
        done = command("export", "runs/tables", "--onnx", "m.onnx", *arguments, cwd=tables)
        assert (done.code, done.out, done.err) == (0, "model: m.onnx\n", "")
        write(tables, "age,smoker\n40,no\n,pipe\n50.5,\n61,yes\n,NA\n1e9,maybe\n", "raw.csv")
        assert command("predict", "runs/tables", "raw.csv", "--out", "raw-out.csv", *arguments, cwd=tables).code == 0
        frame = pd.read_csv(tables / "raw.csv", keep_default_na=False)
        age, smoker = pd.to_numeric(frame.age).to_numpy(), frame.smoker.to_numpy(dtype=object)
        opened = session(tables / "m.onnx")
        (found,) = opened.run(["probabilities"], {"age": age, "smoker": smoker})
        told = opened.get_modelmeta().custom_metadata_map
        names = json.loads(told["labels"])
        assert names == list(TrainedModel.load(tables / "runs" / "tables").view(*arguments[1::2]).answers)
        expected = numbers(tables / "raw-out.csv", names)
        assert torch.allclose(torch.from_numpy(found), expected, atol=1e-5)
        assert [column["name"] for column in json.loads(told["columns"])] == ["age", "smoker"]
        assert json.loads(told["inputs"]) == {"age": "age", "smoker": "smoker"}

    def test_text_is_an_input_of_hashed_features(self, tmp_path):
        frame = patients(30, 1).assign(note=["short of breath", "all is well", None] * 10)
        frame.to_csv(tmp_path / "a.csv", index=False)
        site = '[[sites]]\nname = "a"\ndata = "a.csv"\nlabel = "grade"\n'
        features = '[features]\nnumbers = ["age"]\ntext = ["note"]\ntext_width = 4\n'
        write(tmp_path, "name = 'texts'\n" + site + features + SMALL[SMALL.index("[model]") :])
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        done = command("export", "runs/texts", "--onnx", "m.onnx", cwd=tmp_path)
        note = "the input of 'note' takes encoded features, because ONNX cannot hash text or split groups"
        assert done.out == f"note: {note}\nmodel: m.onnx\n"
        model = TrainedModel.load(tmp_path / "runs" / "texts")
        hashed = model.encode(frame_table(frame, "frame"))[0][:, -4:].numpy()
        (found,) = session(tmp_path / "m.onnx").run(None, {"age": frame.age.to_numpy(), "note": hashed})
        assert torch.allclose(torch.from_numpy(found), model.predict(frame), atol=1e-5)

    def test_the_common_model(self, digits):
        assert command("export", "runs/small", "--onnx", "m.onnx", cwd=digits).code == 0
        x = torch.from_numpy(load_dataset("digits", digits).train.x[:7])
        (found,) = session(digits / "m.onnx").run(None, {"x": x.numpy()})
        expected = TrainedModel.load(digits / "runs" / "small").predict(x)
        assert torch.allclose(torch.from_numpy(found), expected, atol=1e-6)

    def test_labels_a_site_does_not_know_are_impossible(self, tmp_path):
        write(tmp_path, SMALL.replace('"fedavg"', '"accord"') + '\n[data.views]\nsite-0 = { known = ["0", "1"] }\n')
        assert command("run", "experiment.toml", cwd=tmp_path).code == 0
        assert command("export", "runs/small", "--onnx", "m.onnx", "--site", "site-0", cwd=tmp_path).code == 0
        (found,) = session(tmp_path / "m.onnx").run(None, {"x": np.zeros((1, 1, 8, 8), np.float32)})
        assert (found[0, 2:] == 0).all()
        assert found.sum() == pytest.approx(1)

    @pytest.mark.parametrize(
        ("arguments", "code", "said"),
        [
            (["runs/small", "--onnx", "m.onnx", "--site", "site-7"], 2, "the model has no site 'site-7'; did you mean"),
            (["runs", "--onnx", "m.onnx"], 3, "'runs' is neither a run folder nor a model folder"),
            (["runs/small", "--onnx", "no/m.onnx"], 3, "'no/m.onnx' cannot be written: "),
            (["runs/small", "--onnx", "."], 3, "'.' cannot be written: Is a directory"),
        ],
    )
    def test_mistakes(self, digits, arguments, code, said):
        done = command("export", *arguments, cwd=digits)
        assert done.code == code
        assert said in done.err
        assert done.err.count("\n") == 1

    def test_without_the_package(self, digits, monkeypatch):
        monkeypatch.setattr("fedaccord.runs.onnx_export.find_spec", lambda name: None)
        done = command("export", "runs/small", "--onnx", "m.onnx", cwd=digits)
        assert (done.code, "pip install 'fedaccord[onnx]'" in done.err) == (2, True)
