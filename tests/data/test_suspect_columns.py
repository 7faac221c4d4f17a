"""Dates, and numbers that are read as words."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.data.suspect_columns import first_date, holds_number, is_date, numbers_as_words
from fedaccord.data.tables import Table


def table(*cells):
    return Table(Path("clinic.csv"), {"c": np.array(cells, dtype=object)}, np.arange(2, len(cells) + 2))


FORMS = ["%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%d/%m/%y", "%Y/%m/%d", "%d-%m-%Y", "%d %b %Y", "%d%b%Y", "%b %d, %Y"]
TIMES = ["", " %H:%M", "T%H:%M:%S", " %H:%M:%S.%f", "T%H:%M:%SZ", " %H:%M:%S+00:00", " %I:%M %p"]


@given(st.datetimes(), st.sampled_from(FORMS), st.sampled_from(TIMES))
def test_every_common_way_of_writing_a_date(when, form, time):
    when = when.replace(year=max(when.year, 1000))
    assert is_date(when.strftime(form + time))


@pytest.mark.parametrize(
    "cell",
    ["", "2021", "20210304", "1.5", "12", "2021-13-01", "32.01.2021", "13/13/2021", "1.2.3.4", "3/4", "may", "x"],
)
def test_no_dates(cell):
    assert not is_date(cell)


def test_a_column_of_dates():
    assert is_date("2021-03")
    assert first_date(table("?", "2021-03-04", "", "2021-03-05", "late"), "c", ["?"]) == 1
    assert first_date(table("2021-03-04", "a", "b"), "c", []) is None
    assert first_date(table("", "?"), "c", ["?"]) is None


@pytest.mark.parametrize(
    "cell",
    [
        "12 kg",
        "12kg",
        "<5",
        "< 5",
        ">=3",
        "≤ 7,5",
        "~4",
        "1.5*",
        "3,5",
        "12%",
        "$5",
        "€ 1.200",
        "38 °C",
        "5 mg/dl",
        "7?",
    ],
)
def test_cells_that_hold_a_number(cell):
    assert holds_number(cell)


@pytest.mark.parametrize("cell", ["", "a", "1a", "2nd", "3rd", "T1", "three", "grade 3", "2 or more than that", "-"])
def test_words_beside_digits(cell):
    assert not holds_number(cell)


def test_numbers_with_units_are_suspected():
    found = numbers_as_words(table(*["12 kg"] * 3, "<5", "1.5*", "3,5", "70", "?", "unknown"), "c", ["?"])
    assert (found.holding, found.given) == (7, 8)
    assert found.has_commas
    assert found.describe() == (
        "column 'c' is read as words, although 7 of 8 cells hold numbers: "
        "'12 kg' (3 cells), '1.5*' (1 cell), '3,5' (1 cell), '<5' (1 cell) and 1 more"
    )


def test_other_columns_are_not_suspected():
    assert numbers_as_words(table("red", "blue", "5"), "c", []) is None
    assert numbers_as_words(table("1a", "1b", "2a"), "c", []) is None
    assert numbers_as_words(table("1", "2"), "c", []) is None  # declared as words elsewhere
    assert numbers_as_words(table("", "?"), "c", ["?"]) is None
