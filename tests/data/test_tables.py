"""A site's file as cells of text: every form it comes in, and every way in which it can be wrong."""

import gzip

import numpy as np
import pandas as pd
import pytest

from fedaccord.data.declarations import Reading
from fedaccord.data.tables import TEXT_ENDINGS, are_missing, by_value, is_table, read_numbers, read_table, report_cells
from fedaccord.errors import ConfigError, DataError
from fedaccord.labels.space import plain


def cells(*words):
    return np.array(words, dtype=object)


def written(folder, text, name="clinic.csv"):
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def contents(table):
    return {name: column.tolist() for name, column in table.columns.items()}


AS_READ = {"age": ["63", "", "7.5"], "who": ["Ann", "Bo, jr", "Cy"]}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.csv", 'age,who\n63,Ann\n,"Bo, jr"\n7.5,Cy\n'),
        ("a.csv", '\ufeffage , who\r\n63, Ann\r\n , "Bo, jr"\r\n\r\n  \r\n7.5,Cy'),  # a mark, blanks, empty lines
        ("a.tsv", "age\twho\n63\tAnn\n\tBo, jr\n7.5\tCy\n"),
        ("a.csv", ',age,who,\n0,63,Ann,x\n1,,"Bo, jr",y\n2,7.5,Cy,z\n'),  # row numbers, as pandas writes them
        ("A.CSV", 'age,who\n63,Ann\n,"Bo, jr"\n7.5,Cy\n'),
        *(
            (f"a{ending}.gz", gzip.compress(b'age,who\n63,Ann\n,"Bo, jr"\n7.5,Cy\n', mtime=0))
            for ending in TEXT_ENDINGS
        ),
        ("a.csv", "age;who\n63;Ann\n;Bo, jr\n7,5;Cy\n"),
        ("a.csv", "sep=;\r\nage;who\r\n63;Ann\r\n;Bo, jr\r\n7,5;Cy\r\n"),
        ("a.csv", 'age,who\r63,Ann\r,"Bo, jr"\r7.5,Cy\r'),
        ("a.txt", "'age'|'who'\n'63'|'Ann'\n|'Bo, jr'\n7.5|Cy\n"),
        ("a.csv", 'age\twho\n63\tAnn\n\t"Bo, jr"\n7.5\tCy\n'.encode("utf-16")),
    ],
)
def test_text_files(tmp_path, name, text):
    path = written(tmp_path, text, name)
    assert is_table(path)
    assert contents(read_table(path)) == AS_READ


def test_parquet_reads_as_the_same_text(tmp_path):
    frame = pd.DataFrame({"age": [63, None, 7.5], "who": ["Ann", "Bo, jr", "Cy"]})
    frame.to_parquet(tmp_path / "a.parquet")
    assert is_table(tmp_path / "a.parquet")
    assert contents(read_table(tmp_path / "a.parquet")) == AS_READ


def test_parquet_columns_of_every_type(tmp_path):
    frame = pd.DataFrame(
        {
            "flag": [True, False],
            "grade": pd.array([3, None], dtype="Int64"),
            "ward": pd.Categorical(["a", "b"]),
            "real": [0.1, 2.0],
            "none": [None, "x"],
        }
    )
    frame.to_parquet(tmp_path / "a.parquet")
    assert contents(read_table(tmp_path / "a.parquet")) == {
        "flag": ["True", "False"],
        "grade": ["3", ""],
        "ward": ["a", "b"],
        "real": ["0.1", "2"],
        "none": ["", "x"],
    }


def test_a_header_for_files_without_one(tmp_path):
    path = written(tmp_path, "63,Ann\n,Bo\n", "a.data")
    table = read_table(path, ["age", "who"])
    assert contents(table) == {"age": ["63", ""], "who": ["Ann", "Bo"]}
    assert table.wrong(1, "age", "is bad") == "a.data, line 2, column 'age': is bad"


def test_a_wrong_cell_is_placed_in_the_file_as_an_editor_shows_it(tmp_path):
    path = written(tmp_path, 'age,note\n\n63,"two\nlines"\n\n64,x\n')
    table = read_table(path)
    assert table.wrong(0, "age", "is bad") == "clinic.csv, line 3, column 'age': is bad"
    assert table.wrong(1, "age", "is bad") == "clinic.csv, line 6, column 'age': is bad"
    pd.DataFrame({"age": [1, 2]}).to_parquet(tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet").wrong(1, "age", "is bad") == "a.parquet, row 2, column 'age': is bad"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no rows"),
        ("age,who\n", "has no rows"),
        ("age,who,age\n1,2,3\n", "has two columns named 'age', number 1 and 3; rename one"),
        ("age,who\n1\n1,2\n1,2,3\n", "2 columns are in its header, but line 2 has 1 cells; line 4 has 3 cells"),
        ("age,who\n" + "1\n" * 12, "line 11 has 1 cells; and 2 more"),
    ],
)
def test_files_that_are_no_tables(tmp_path, text, message):
    with pytest.raises(DataError) as caught:
        read_table(written(tmp_path, text))
    assert message in str(caught.value)
    assert "clinic.csv" in str(caught.value)


def test_other_files_that_are_no_tables(tmp_path):
    with pytest.raises(DataError, match=r"site 'a': the file '.*gone.csv' is not there"):
        read_table(tmp_path / "gone.csv", where="site 'a'")
    with pytest.raises(DataError, match="cannot be read as a table"):
        read_table(written(tmp_path, "age,who\n1,2\n", "a.parquet"))
    with pytest.raises(DataError, match="3 columns are named, but line 1 has 2 cells"):
        read_table(written(tmp_path, "1,2\n"), ["a", "b", "c"])
    pd.DataFrame({"tags": [["a"], ["b", "c"]]}).to_parquet(tmp_path / "lists.parquet")
    with pytest.raises(DataError, match=r"column 'tags' holds lists; write several labels as text"):
        read_table(tmp_path / "lists.parquet")


def test_a_table_says_how_it_was_read(tmp_path):
    table = read_table(written(tmp_path, "größe;who\n1,5;Ann\n".encode("cp1252")))
    assert table.read_as == "';'-separated cp1252 text with decimal commas"
    assert len(table.doubts) == 1
    read = Reading(encoding="cp1252")
    assert read_table(written(tmp_path, "größe;who\n1,5;Ann\n".encode("cp1252")), read=read).doubts == ()
    pd.DataFrame({"age": ["1,5"]}).to_parquet(tmp_path / "a.parquet")
    assert contents(read_table(tmp_path / "a.parquet")) == {"age": ["1,5"]}  # the file says what is a number
    assert read_table(tmp_path / "a.parquet").read_as == ""


def test_what_is_recognised_can_be_declared(tmp_path):
    path = written(tmp_path, "size;who\n1,234;Ann\n")
    assert contents(read_table(path)) == {"size": ["1.234"], "who": ["Ann"]}
    assert contents(read_table(path, read=Reading(thousands=",")))["size"] == ["1234"]
    path = written(tmp_path, 'size^who\n1^12" screen\n')
    read = Reading(separator="^", quote="")
    assert contents(read_table(path, read=read)) == {"size": ["1"], "who": ['12" screen']}
    spaced = written(tmp_path, "size who\n1 Ann\n")
    assert contents(read_table(spaced, read=Reading(separator=" "))) == {"size": ["1"], "who": ["Ann"]}


@pytest.mark.parametrize(
    ("name", "keys"),
    [("a.csv", {"sheet": "one"}), ("a.parquet", {"decimal": ","}), ("a.xlsx", {"encoding": "cp1252"})],
)
def test_keys_that_mean_nothing_for_a_file(tmp_path, name, keys):
    (key,) = keys
    with pytest.raises(ConfigError, match=rf"site 'a': read.{key} has no effect on '{name}'; leave it out"):
        read_table(written(tmp_path, "age\n1\n", name), where="site 'a'", read=Reading(**keys))


def test_a_message_does_not_repeat_a_cell_as_long_as_a_file(tmp_path):
    table = read_table(written(tmp_path, "age,who\n1,2\n"))
    assert len(table.wrong(0, "who", "x" * 10**6)) < 1100


def test_an_unknown_column_says_the_closest(tmp_path):
    table = read_table(written(tmp_path, "age,who\n1,2\n"))
    with pytest.raises(DataError, match=r"'clinic.csv' has no column 'aged'; did you mean 'age'\?"):
        table.column("aged")


def test_numbers_missing_cells_and_wrong_ones():
    values, wrong = read_numbers(cells("1", " 2.5 ", "?", "", "-1e3", "abc", "inf", "nan", "1_000", "1e31"), ["?"])
    np.testing.assert_array_equal(values, [1, 2.5, np.nan, np.nan, -1000, *[np.nan] * 5])
    assert wrong.tolist() == [5, 6, 7, 8, 9]
    values, wrong = read_numbers(cells("1", "", "3"), [])
    np.testing.assert_array_equal(values, [1, np.nan, 3])  # an empty cell is missing, whatever the words for it are
    assert not len(wrong)
    assert read_numbers(cells("1_000", "2"), [])[1].tolist() == [0]  # Python alone would read it
    values, wrong = read_numbers(cells("True", "false", "maybe"), [])
    assert (values[:2].tolist(), wrong.tolist()) == ([1, 0], [2])


def test_words():
    assert [plain(w) for w in ("1.0", "-2.00", "1.5", "01", "a.0", "1.")] == ["1", "-2", "1.5", "01", "a.0", "1."]
    assert by_value(cells("b", "NA", "b"), ["NA"])[0] == ["b", None]
    assert by_value(cells("b", "a", "b"), [])[1].tolist() == [0, 1, 0]
    assert are_missing(cells("", "NA", "na"), ["NA"]).tolist() == [True, True, False]


def test_ten_wrong_cells_are_shown_and_the_rest_counted():
    report_cells([])
    with pytest.raises(DataError, match=r"^a cell cannot be read: here$"):
        report_cells(["here"])
    with pytest.raises(DataError) as caught:
        report_cells([f"cell {i}" for i in range(13)])
    assert str(caught.value).startswith("13 cells cannot be read: cell 0; cell 1;")
    assert str(caught.value).endswith("cell 9; and 3 more")
