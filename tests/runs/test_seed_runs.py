"""How a number of seeds is asked for, and how their folders are found."""

import pytest

from fedaccord.errors import UserError
from fedaccord.runs.seed_runs import parse_seeds, seed_folders


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("3", [0, 1, 2]),
        ("0-7", list(range(8))),
        ("0,2,5", [0, 2, 5]),
        ("8, 0-2, 1", [0, 1, 2, 8]),
        ("5-5", [5]),
        ("5,", None),
        ("", None),
        ("a-b", None),
        ("-1", None),
        ("1.5", None),
        ("²", None),
    ],
)
def test_seeds_are_a_number_a_span_or_a_list(text, seeds):
    if seeds is None:
        with pytest.raises(UserError, match="a number of seeds"):
            parse_seeds(text)
    else:
        assert parse_seeds(text) == seeds


@pytest.mark.parametrize(
    ("text", "message"),
    [("0", "asks for no seed"), ("7-0", "write 0-7"), ("0-99999999", "at most 10000"), ("99999999", "at most 10000")],
)
def test_slips_are_named(text, message):
    with pytest.raises(UserError, match=message):
        parse_seeds(text)


def test_folders_of_seeds_are_sorted_by_number(tmp_path):
    for name in ("seed-10", "seed-2", "seed-x", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "seed-3").write_text("no folder")
    assert [folder.name for folder in seed_folders(tmp_path)] == ["seed-2", "seed-10"]
    assert seed_folders(tmp_path / "nowhere") == []
