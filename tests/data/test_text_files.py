"""Text tables: every way of writing gives the same cells, and every wrong file one sentence with a way out."""

import csv
import gzip
import io

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedaccord.data.declarations import Reading
from fedaccord.data.tables import read_table
from fedaccord.data.text_files import LONGEST_CELL, read_text_table
from fedaccord.errors import DataError

LETTERS = "abzäöß€ ,;|'\"\t\n."
words = st.text(LETTERS, max_size=6).map(str.strip)
numbers = st.integers(-999, 999).map(lambda n: n / 8 + 0.0625)
rows = st.lists(st.tuples(numbers, words, words), min_size=1, max_size=6)


@given(
    rows,
    st.sampled_from([",", ";", "\t", "|"]),
    st.sampled_from([".", ","]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16", "cp1252"]),
    st.sampled_from([csv.QUOTE_ALL, csv.QUOTE_MINIMAL]),
    st.sampled_from(["\n", "\r\n", "\r"]),
    st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_a_table_comes_back_from_any_way_of_writing_it(tmp_path, table, separator, decimal, encoding, quoting, end, gz):
    text = io.StringIO()
    quoting = csv.QUOTE_ALL if end == "\r" else quoting  # Python's writer would leave "\n" in a cell without quotes
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator=end)
    writer.writerow(["size", "who", "note"])
    writer.writerows([repr(size).replace(".", decimal), who, note] for size, who, note in table)
    raw = text.getvalue().encode(encoding)
    path = tmp_path / ("a.csv.gz" if gz else "a.csv")
    path.write_bytes(gzip.compress(raw, 1) if gz else raw)
    found = read_table(path)
    assert [float(cell) for cell in found.column("size")] == [size for size, _, _ in table]
    assert found.column("who").tolist() == [who for _, who, _ in table]
    assert found.column("note").tolist() == [note for _, _, note in table]


def message(tmp_path, content, name="ward.csv", read=None):
    path = tmp_path / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        read_text_table(path, None, read or Reading())
    return str(caught.value).replace(f"{tmp_path}/", "")


WRONG = {
    "an unclosed quote": (
        'age,who\n1,a\n2,"b\n3,c\n',
        "'ward.csv', line 3: a quote (\") opens here and is never closed; close it, or add read = { quote = '' }",
    ),
    "a quote inside a cell": (
        'age,who\n1,"a" b\n',
        "'ward.csv', line 2: a quoted cell goes on after its closing quote (\"); write a quote inside of a cell twice",
    ),
    "ragged lines": (
        "age,who\n1,a\n2,b,c\n",
        "'ward.csv': 2 columns are in its header, but line 3 has 3 cells; a cell that contains the separator needs",
    ),
    "a title": (
        "Export of May\nage,who\n1,a\n",
        "'ward.csv', line 1: 'Export of May' is a single cell, but the lines below have 2; if it is a title, remove",
    ),
    "a title in a row of empty cells": (
        "Export of May;;\nage;who;dx\n1;a;b\n",
        "'ward.csv', line 1: only one of 3 columns has a name, 'Export of May'; if it is a title, remove the lines",
    ),
    "another separator": (
        "age:who\n1:a\n2:b\n",
        "'ward.csv', line 1: its header is a single cell, 'age:who'; commas, semicolons, tabs and bars are recognised "
        'between cells; for another character add read = { separator = ":" }',
    ),
    "a web page": (
        "\n<!DOCTYPE html>\n<html><head><title>Log in</title>\n",
        "'ward.csv', line 1: it begins like a web page, '<!DOCTYPE html> <html><head><title>Log i'; a download may",
    ),
    "NUL bytes": (b"age,who\n1,a\n2,\0\n", "'ward.csv', line 3: it holds a NUL byte, so it is not text or damaged"),
    "UTF-16 without a mark": ("age,who\n1,a\n".encode("utf-16-le"), "'ward.csv' looks like UTF-16 without"),
    "a zip archive": (b"PK\x03\x04...", "'ward.csv' is not a text table but a zip archive or a spreadsheet; unpack"),
    "gzip": (
        gzip.compress(b"a,b\n1,2\n", mtime=0),
        "'ward.csv' is not a text table but compressed by gzip; add '.gz' to",
    ),
    "old Excel": (b"\xd0\xcf\x11\xe0...", "a spreadsheet of old Excel; save it as .xlsx or as .csv"),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_file_gets_one_sentence(tmp_path, case):
    content, expected = WRONG[case]
    found = message(tmp_path, content)
    assert expected in found
    assert "\n" not in found


def test_a_quote_that_swallows_the_file(tmp_path):
    found = message(tmp_path, 'age,who\n1,"a\n' + "2,b\n" * (LONGEST_CELL // 3))
    assert found.startswith("'ward.csv', line 2: a quote (\") opens here and is never closed;")


def test_lines_below_the_separator_that_excel_names(tmp_path):
    assert "line 4 has 3 cells" in message(tmp_path, "sep=;\nage;who\n1;a\n2;b;c\n")
    path = tmp_path / "ward.csv"
    path.write_text("sep=;\nage;who\n1;a\n")
    assert read_text_table(path, None, Reading()).lines == [3]
