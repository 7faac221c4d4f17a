"""Recognising decimal commas and grouped thousands, and what stays open."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.data.declarations import Reading
from fedaccord.data.dialect import Dialect
from fedaccord.data.number_marks import doubts_of, recognise_marks, with_plain_numbers


def column(*cells):
    return np.array(cells, dtype=object)


def marks_of(*cells, separator=";", other=(), **read):
    columns = {"size": column(*cells)} | ({"other": column(*other)} if other else {})
    return recognise_marks(columns, Reading(**read), separator)


@pytest.mark.parametrize(
    ("cells", "decimal", "thousands"),
    [
        (["1", "2"], ".", ""),
        (["1.5", "2"], ".", ""),
        (["1,5", "2"], ",", ""),
        (["-1,5e3", "NA", ""], ",", ""),
        (["0,123", "12"], ",", ""),  # a group cannot begin with 0
        (["1234,567"], ",", ""),  # nor have four digits
        (["1,234,567", "5"], ".", ","),
        (["1.234.567", "5"], ".", "."),
        (["1,234.5"], ".", ","),
        (["1.234,5"], ",", "."),
        (["1.234", "1,5"], ",", "."),  # the same column has decimal commas
        (["1,234", "1.5"], ".", ","),
        (["1'234.5"], ".", "'"),
        (["1 234,5", "12"], ",", " "),
        (["1\u00a0234", "12"], ".", " "),
        (["a", "b", "1,5"], ".", ""),  # words
        (["12.03.2021", "13.04.2021"], ".", ""),  # dates
    ],
)
def test_marks_that_only_one_reading_fits(cells, decimal, thousands):
    found = marks_of(*cells)
    assert (found.decimal, found.thousands) == (decimal, thousands)
    assert doubts_of(found, [2, 3, 4], "a.csv") == []


def test_a_comma_that_could_be_either_is_a_doubt():
    found = marks_of("7", "1,234")
    assert (found.decimal, found.thousands) == (",", "")  # a file with semicolons
    assert doubts_of(found, [2, 3], "a.csv") == [
        "a.csv, line 3, column 'size': '1,234' was taken for 1.234; if it means 1234, add "
        'read = { thousands = "," }; confirm 1.234 with read = { decimal = "," }'
    ]
    found = marks_of("7", "1,234", separator=",")
    assert (found.decimal, found.thousands) == (".", ",")
    (doubt,) = doubts_of(found, [2, 3], "a.csv")
    assert "'1,234' was taken for 1234; if it means 1.234, add read = { decimal = \",\" }" in doubt


def test_a_point_that_could_be_either_is_a_doubt_only_where_commas_may_be_decimal():
    assert marks_of("1.234", "5", separator=",") == marks_of("1.5", separator=",")
    found = marks_of("1.234", "5", separator=";")
    assert (found.decimal, found.thousands) == (".", "")
    assert "was taken for 1.234; if it means 1234" in doubts_of(found, [2, 3], "a.csv")[0]


def test_another_column_decides_but_not_without_a_word():
    found = marks_of("1.234", "2.345", other=["1,5", "2,5"])
    assert (found.decimal, found.thousands) == (",", ".")
    assert "'1.234' was taken for 1234" in doubts_of(found, [2, 3], "a.csv")[0]


def test_a_declared_mark_ends_the_doubt():
    for read, decimal, thousands in (
        ({"decimal": ","}, ",", ""),
        ({"thousands": ","}, ".", ","),
        ({"decimal": ".", "thousands": ""}, ".", ""),
    ):
        found = marks_of("7", "1,234", **read)
        assert (found.decimal, found.thousands, found.doubtful) == (decimal, thousands, None)
    assert marks_of("1.234", decimal=",").thousands == "."
    assert marks_of("1,5", thousands=" ").decimal == ","
    assert marks_of("5", thousands=".").decimal == ","


def test_commas_and_points_in_one_file():
    found = marks_of("1,5", "2", other=["1.5", "3"])
    assert (found.decimal, found.thousands) == (".", "")
    (doubt,) = doubts_of(found, [2, 3], "a.csv")
    assert doubt.startswith(
        "a.csv: numbers are written with a comma, as in '1,5' (line 2, column 'size'), and with a point, as in "
        "'1.5' (line 2, column 'other'); cells with a comma are read as words;"
    )


def test_only_numbers_of_mostly_numeric_columns_are_rewritten():
    dialect = Dialect(";", decimal=",", thousands=".")
    columns = {
        "size": column("1.234,5", "-,5", "12", "?", "x", "1,5e3", "1.5"),
        "note": column("3,5", "a", "b", "c", "d", "e", "f"),
    }
    plain = with_plain_numbers(columns, dialect)
    assert plain["size"].tolist() == ["1234.5", "-.5", "12", "?", "x", "1.5e3", "1.5"]
    assert plain["note"].tolist() == columns["note"].tolist()


def formatted(value, decimal, thousands):
    return f"{value:,.4f}".replace(",", "_").replace(".", decimal).replace("_", thousands)


@given(
    st.lists(st.integers(-(10**12), 10**12).map(lambda n: n / 10**4), min_size=1),
    st.sampled_from([(".", ","), (",", "."), (".", ""), (",", ""), (".", "'"), (",", " "), (".", "\u202f")]),
)
def test_every_way_of_writing_gives_the_same_numbers(values, marks):
    cells = column(*(formatted(value, *marks) for value in values))
    found = recognise_marks({"x": cells}, Reading(), ";")
    plain = with_plain_numbers({"x": cells}, Dialect(decimal=found.decimal, thousands=found.thousands))["x"]
    assert [float(cell) for cell in plain] == values
