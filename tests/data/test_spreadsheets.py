"""Sheets of .xlsx files: values, formulas, dates, and files that cannot be read."""

import datetime
import sys
import zipfile

import openpyxl
import pytest

from fedaccord.data import unpacking
from fedaccord.data.declarations import Reading
from fedaccord.data.tables import is_table, read_table
from fedaccord.errors import ConfigError, DataError


@pytest.fixture
def path(tmp_path):
    return tmp_path / "clinic.xlsx"


def save(path, *rows, title="Sheet", more=()):
    book = openpyxl.Workbook()
    book.active.title = title
    for row in rows:
        book.active.append(row)
    for name in more:
        book.create_sheet(name).append(["other"])
    book.save(path)
    return path


def contents(table):
    return {name: column.tolist() for name, column in table.columns.items()}


def test_cells_read_as_the_same_text(path):
    when = datetime.datetime(2021, 3, 4)
    save(path, ["age", "who", None, "on", "ok"], [63, " Ann ", 1, when, True], [], [7.5, None], ["1,5", "Bo"])
    table = read_table(path)
    assert is_table(path)
    assert contents(table) == {
        "age": ["63", "7.5", "1,5"],
        "who": ["Ann", "", "Bo"],
        "on": ["2021-03-04", "", ""],
        "ok": ["True", "", ""],
    }
    assert table.wrong(1, "age", "is bad") == "clinic.xlsx, row 4, column 'age': is bad"


def test_numbers_that_were_typed_as_text(path):
    save(path, ["age"], ["1,5"], ["2"])
    table = read_table(path)
    assert contents(table) == {"age": ["1.5", "2"]}
    assert table.read_as == "the sheet 'Sheet' with decimal commas"


def test_sheets_and_headers(path):
    save(path, ["a"], [1], more=["second"])
    assert contents(read_table(path)) == {"a": ["1"]}
    assert read_table(path).read_as == "the sheet 'Sheet', one of 2"
    with pytest.raises(DataError, match="has no rows"):
        read_table(path, read=Reading(sheet="second"))
    assert contents(read_table(path, ["x"], read=Reading(sheet="second"))) == {"x": ["other"]}
    with pytest.raises(DataError, match=r"has no sheet 'secnd'; did you mean 'second'\?"):
        read_table(path, read=Reading(sheet="secnd"))
    save(path, ["a"], [1, 2])
    with pytest.raises(
        DataError, match="1 columns are in its header, but row 2 has 2 cells; if it is a title, remove the lines"
    ):
        read_table(path)


def test_formulas_without_a_stored_value(path):
    save(path, ["age", "twice"], [1, "=2*A2"])
    with pytest.raises(DataError, match=r"cell B2: the formula =2\*A2 has no stored value; open the file in a"):
        read_table(path)


def test_a_sheet_that_claims_to_be_huge(path, monkeypatch):
    book = openpyxl.Workbook()
    book.active.append(["age"])
    book.active["A9"] = 3
    book.active["XFD1"] = "far"
    book.save(path)
    assert contents(read_table(path))["age"] == ["3"]
    monkeypatch.setattr(unpacking, "MOST_CELLS", 1000)
    with pytest.raises(DataError, match="more than the limit of"):
        read_table(path)
    monkeypatch.setattr(unpacking, "LIMIT", 10)
    monkeypatch.setattr(unpacking, "GROWTH", 0)
    with pytest.raises(DataError, match="unpacks to more than"):
        read_table(path)


def test_files_that_are_no_spreadsheets(path):
    path.write_text("age\n1\n")
    with pytest.raises(DataError, match=r"is not an .xlsx file: it is damaged, protected by a password, or in another"):
        read_table(path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("note.txt", "no sheet")
    with pytest.raises(DataError, match=r"is damaged and cannot be read as an .xlsx file"):
        read_table(path)


def test_without_openpyxl(path, monkeypatch):
    save(path, ["a"], [1])
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    with pytest.raises(
        ConfigError, match=r"openpyxl, which is not installed; install it with pip install 'fedaccord\["
    ):
        read_table(path)
