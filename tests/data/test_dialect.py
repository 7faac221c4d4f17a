"""Recognising how a text table is written: encoding, separator and quotes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.data.dialect import (
    Dialect,
    announced_separator,
    decode,
    probable_separator,
    recognise_quote,
    recognise_separator,
)
from fedaccord.errors import DataError


def separator(text, columns=None, usual=","):
    return recognise_separator(text, columns, usual, "a.csv")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("age,dx\n1,a\n", ","),
        ("age;dx\n1,5;a\n2,5;b\n", ";"),  # commas are in every row, but not in the header
        ("age\tdx\n1\ta;b\n", "\t"),
        ("age|dx\n1|a\n", "|"),
        ("age,dx\n1,a|b\n2,c|d\n", ","),
        ('age,note\n1,"a;b"\n2,"c;d"\n', ","),
        ("weight;kg,dx\n70,a\n80,b\n", ","),  # a semicolon in a name
        ("age,dx\n1,a\n2,b\n3,5,c\n", ","),  # one line of another length
        ("age\n1\n", ","),
        ("", ","),
        ('age,dx\n1,"a\n2,b\n', ","),  # a quote that is never closed
    ],
)
def test_the_separator_that_divides_every_line_alike(text, found):
    assert separator(text) == (found, [])


def test_named_columns_say_how_many_cells_a_line_has():
    assert separator("1,5;2,5;3,5\n", columns=3) == (";", [])
    assert separator("1,5;2,5;3,5\n", columns=4) == (",", [])


def test_two_separators_that_fit_are_a_doubt():
    chosen, (doubt,) = separator("age, years;sex\n30,5;m\n")
    assert chosen == ";"
    assert doubt == (
        "a.csv: its cells are separated by ';' or by ',', and ';' was taken; "
        'change this with read = { separator = "," }, or confirm it with ";"'
    )


@given(
    st.sampled_from(["\t", ";", "|", ","]),
    st.lists(st.tuples(*3 * [st.text("ab1.", min_size=1, max_size=3)]), min_size=2, max_size=6),
)
def test_every_separator_is_recognised(mark, rows):
    text = "".join(mark.join(row) + "\n" for row in rows)
    assert separator(text) == (mark, [])


def test_quotes():
    assert recognise_quote("'age','dx'\n", ",") == "'"
    assert recognise_quote("'age',dx\n", ",") == '"'
    assert recognise_quote('"age","dx"\n', ",") == '"'
    assert recognise_quote("", ",") == '"'


def test_excels_first_line_names_the_separator():
    assert announced_separator("sep=;\r\nage;dx\n") == (";", 7)
    assert announced_separator("age;dx\n") == ("", 0)


@pytest.mark.parametrize(
    ("raw", "text", "encoding"),
    [
        ("Müller".encode(), "Müller", "utf-8"),
        (b"\xef\xbb\xbfage", "age", "utf-8-sig"),
        ("Müller".encode("utf-16"), "Müller", "utf-16"),
        (b"\xfe\xff\x00a", "a", "utf-16"),
    ],
)
def test_encodings_that_a_file_shows(raw, text, encoding):
    assert decode(raw, None, "a.csv") == (text, encoding, [])


def test_the_code_page_of_windows_is_a_doubt_until_it_is_confirmed():
    raw = "age,who\n1,Jo\n2,Müller\n".encode("cp1252")
    text, encoding, (doubt,) = decode(raw, None, "a.csv")
    assert (text[-7:], encoding) == ("Müller\n", "cp1252")
    assert doubt == (
        "a.csv: it is not UTF-8 and was taken for cp1252, in which line 3 reads 'Müller'; "
        'confirm this with read = { encoding = "cp1252" }, or name another encoding, such as "cp1250"'
    )
    assert decode(raw, "cp1252", "a.csv")[2] == []
    assert decode(raw, "cp1250", "a.csv")[0][-7:] == "Müller\n"
    assert decode("\ufeffage".encode("utf-16-le"), "utf-16-le", "a.csv")[0] == "age"


@pytest.mark.parametrize(
    ("raw", "declared", "message"),
    [
        (b"a,b\n1,\x81\n", None, "'a.csv', line 2: the byte 0x81 is not UTF-8 or cp1252 text; name its encoding"),
        (b"a,b\n1,\xff\n", "utf-8", "'a.csv', line 2: the byte 0xff is not utf-8 text"),
        (b"\xff\xfea\x00b", None, "is not utf-16 text"),
        (b"a", "undefined", "'a.csv' is not undefined text: "),
        ("age,dx\n1,a\n".encode("utf-16-le"), None, "looks like UTF-16 without a byte order mark; add read = { enc"),
        ("age,dx\n1,a\n".encode("utf-16-be"), None, '"utf-16-be"'),
        (b"age,dx\n" + 100 * b"1,a\n" + b"1,\0\n", None, "'a.csv', line 102: it holds a NUL byte"),
    ],
)
def test_bytes_that_are_no_text(raw, declared, message):
    with pytest.raises(DataError) as caught:
        decode(raw, declared, "a.csv")
    assert message in str(caught.value)


def test_cells_that_were_not_divided():
    assert probable_separator(["age:dx"], [["1:a"], ["2:b"]]) == ":"
    assert probable_separator(["age dx"], [["1 a"], ["2 b"]]) == " "
    assert probable_separator(["a note"], [["short of breath"], ["pain"]]) is None
    assert probable_separator(["file"], [["a.png"]]) is None
    assert probable_separator(["age", "dx:"], [["1", "2"]]) is None


def test_a_dialect_in_words():
    assert Dialect().describe() == "','-separated UTF-8 text"
    assert Dialect(";", encoding="cp1252", decimal=",").describe() == "';'-separated cp1252 text with decimal commas"
    assert Dialect("\t", "'", "utf-16", ",", ".").describe() == (
        "tab-separated UTF-16 text with decimal commas and thousands grouped by '.', quoted by \"'\""
    )
