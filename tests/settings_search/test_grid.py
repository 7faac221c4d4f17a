"""The combinations of --set, and the mistakes in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import SMALL, write
from fedaccord.errors import UserError
from fedaccord.settings_search.grid import read_grid, split_values

WORDS = st.text(st.characters(codec="ascii", exclude_characters="\"'[]{},\\"), max_size=5).map(str.strip)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0.01,0.03, 0.1", ["0.01", "0.03", "0.1"]),
        ("[8, 8],[16]", ["[8, 8]", "[16]"]),
        ('"a,b",\'c,"d\'', ['"a,b"', "'c,\"d'"]),
        ('"a\\",b",c', ['"a\\",b"', "c"]),
        ("'\\',x", ["'\\'", "x"]),
        ('{ kind = "krum", hostile = 1 },"mean"', ['{ kind = "krum", hostile = 1 }', '"mean"']),
        ("1,", ["1", ""]),
    ],
)
def test_commas_inside_brackets_and_quotes_separate_nothing(text, values):
    assert split_values(text) == values


@given(st.lists(WORDS, min_size=1))
def test_plain_words_are_split_at_every_comma(words):
    assert split_values(",".join(words)) == words


def grid(folder, *changes, budget=None, text=SMALL):
    return read_grid(write(folder, text), changes, budget)[0]


def test_all_combinations_are_tried_and_one_of_them_may_be_the_files_own(tmp_path):
    found = grid(tmp_path, "method.lr=0.01,0.1", "model.hidden=[16],[8]", "method.rounds=3", text=SMALL + "")
    words = [setting.words(found.keys) for setting in found.settings]
    assert found.keys == ["method.lr", "model.hidden"]
    assert words[-4:] == ["lr=0.01, hidden=[16]", "lr=0.01, hidden=[8]", "lr=0.1, hidden=[16]", "lr=0.1, hidden=[8]"]
    assert {setting.experiment.settings.rounds for setting in found.settings} == {3}
    own = [setting for setting in found.settings if setting.is_own]
    assert len(own) == 1
    default = own[0].experiment.settings.lr
    again = grid(tmp_path, f"method.lr={default},0.5")
    assert [(s.words(again.keys), s.is_own) for s in again.settings] == [(f"lr={default}", True), ("lr=0.5", False)]


def test_the_files_own_setting_is_added_and_equal_values_are_tried_once(tmp_path):
    found = grid(tmp_path, "method.lr=0.7,0.70,0.8")
    assert [setting.words(found.keys) for setting in found.settings] == ["the file's own", "lr=0.7", "lr=0.8"]


def test_keys_of_the_same_last_name_are_told_apart(tmp_path):
    text = SMALL.replace("[run]", "[stop]\nmetric = 'sites.mean.nll'\n\n[run]")
    found = grid(tmp_path, "method.steps=1,2", "stop.patience=3,4", text=text)
    assert found.settings[-1].words(found.keys) == "steps=2, patience=4"


def test_a_budget_draws_combinations_with_the_files_seed(tmp_path):
    changes = "method.lr=0.1,0.2,0.3,0.4", "method.steps=1,3"
    draws = [grid(tmp_path, *changes, budget=3) for _ in range(2)]
    words = [[setting.words(found.keys) for setting in found.settings] for found in draws]
    assert words[0] == words[1]
    assert (len(words[0]), words[0][0], draws[0].skipped) == (4, "the file's own", 5)
    assert grid(tmp_path, *changes, budget=100).skipped == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["method.lr=0.1"], "needs a --set with several values"),
        (["method.lr"], "takes section.key=value,value"),
        (["method.lr=0.1,,0.2"], "a value between commas is empty"),
        (["method.lr=0.1,0.2", "method.lr=0.3"], "is given twice"),
        (["seed=0,1"], "given with --seeds"),
        (["data.test=0.1,0.2"], "--set data.test: values to choose from are for keys of method"),
        (["method.lr=0.1,fast"], "method.lr"),
        (["method.rate=1,2"], "method.rate"),
        (["model.hidden=[8],[8"], "not a TOML value"),
    ],
)
def test_mistakes_are_named_before_anything_runs(tmp_path, changes, message):
    with pytest.raises(UserError, match=message.replace("[", r"\[")):
        grid(tmp_path, *changes)
