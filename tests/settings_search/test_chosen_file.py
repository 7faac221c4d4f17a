"""The chosen file is the user's file with other values, or a complete one where that cannot be."""

import tomllib

import pytest

from command_line import SMALL, write
from fedaccord.config import load_experiment
from fedaccord.errors import UserError
from fedaccord.settings_search.chosen_file import HEADER, check_target, write_chosen
from fedaccord.settings_search.grid import Setting

COMMENTED = (
    SMALL.replace("rounds = 2", "rounds = 2  # few")
    .replace("hidden = [16]", "hidden = [\n  16, # wide\n]")
    .replace("[method]", "# the method\n[method]  # ours")
)


def chosen(folder, values, text=COMMENTED, target="out.toml"):
    file = write(folder, text)
    experiment, _ = load_experiment(file, [f"{key}={value}" for key, value in values.items()])
    written = write_chosen(file, Setting(values, experiment), folder / target, "the reason")
    assert load_experiment(written)[0].method == experiment.method
    return written.read_text()


def test_only_the_chosen_values_change(tmp_path):
    text = chosen(tmp_path, {"method.rounds": "7", "model.hidden": "[8, 8]", "method.name": "fedprox"})
    expected = COMMENTED.replace("rounds = 2", "rounds = 7").replace("[\n  16, # wide\n]", "[8, 8]")
    assert text == f"{HEADER}: the reason\n" + expected.replace('"fedavg"', '"fedprox"')


def test_keys_that_the_file_lacks_are_added_to_their_tables(tmp_path):
    text = chosen(tmp_path, {"method.lr": "0.5", "stop.seconds": "60.0", "seed": "3"})
    assert text.splitlines()[1] == "seed = 3"
    assert "[method]  # ours\nlr = 0.5\n" in text
    assert text.endswith("\n[stop]\nseconds = 60.0\n")


def test_a_last_line_without_its_end_is_no_trouble(tmp_path):
    text = SMALL.replace("\n[run]\nworkers = 0\n", "") + "\n[run]"
    assert "\n[run]\nworkers = 0\n" in chosen(tmp_path, {"run.workers": "0"}, text)


def test_a_text_that_cannot_be_edited_becomes_a_complete_file(tmp_path):
    text = 'model = { name = "mlp" }\n' + SMALL.replace('[model]\nname = "mlp"\nhidden = [16]\n', "")
    written = chosen(tmp_path, {"model.hidden": "[4]"}, text)
    assert tomllib.loads(written)["model"]["hidden"] == [4]


def test_in_another_folder_paths_are_absolute(tmp_path):
    (tmp_path / "there").mkdir()
    text = SMALL.replace('"digits"', '"own.npz"')
    written = chosen(tmp_path, {"method.rounds": "7"}, text, "there/out.toml")
    assert tomllib.loads(written)["data"]["dataset"] == str(tmp_path / "own.npz")


def test_a_file_of_the_user_is_never_overwritten(tmp_path):
    own = write(tmp_path, SMALL)
    with pytest.raises(UserError, match="exists and was not written by tune"):
        check_target(own)
    check_target(write(tmp_path, f"{HEADER}: x\n", "earlier.toml"))
    for target, message in ((tmp_path, "is a folder"), (tmp_path / "no" / "x.toml", "there is no folder")):
        with pytest.raises(UserError, match=message):
            check_target(target)
