"""Features agreed between sites: from reports alone, as if all rows lay in one place."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.data.declarations import Features
from fedaccord.data.features import (
    MOST_CATEGORIES,
    ColumnReport,
    FeaturePlan,
    agree,
    cells_of_other_kind,
    describe_columns,
    mixed_kinds,
)
from fedaccord.data.tables import Table
from fedaccord.errors import DataError

MISSING = ("?",)


def described_as(**keys):
    return Features(missing=list(MISSING), **keys)


def table(**columns):
    rows = len(next(iter(columns.values())))
    arrays = {name: np.array([str(c) for c in column], dtype=object) for name, column in columns.items()}
    return Table(Path("clinic.csv"), arrays, np.arange(2, rows + 2))


def report(of, train=None, **keys):
    rows = np.arange(of.rows) if train is None else np.array(train)
    return describe_columns(of, list(of.columns), rows, described_as(**keys))


def plan_of(*tables, **given_):
    return agree({f"site-{i}": report(t) for i, t in enumerate(tables)}, described_as(**given_))


numbers = st.one_of(st.just("?"), st.floats(-1e6, 1e6, width=32).map(repr))
words = st.sampled_from(["?", "red", "green", "1.0", "1", "blue"])
sites = st.lists(st.lists(st.tuples(numbers, words), min_size=1, max_size=12), min_size=1, max_size=4)


def as_table(rows):
    return table(size=[n for n, _ in rows], colour=[w for _, w in rows])


@given(sites)
def test_the_plan_from_reports_is_the_plan_from_pooled_rows(data):
    def described(rows):
        return report(as_table(rows), categories=["colour"])

    apart = agree({f"site-{i}": described(rows) for i, rows in enumerate(data)}, described_as())
    together = agree({"all": described([row for rows in data for row in rows])}, described_as())
    assert apart.names == together.names
    (size, colour), (pooled_size, pooled_colour) = apart.columns, together.columns
    assert colour == pooled_colour
    assert size.mean == pytest.approx(pooled_size.mean, rel=1e-9, abs=1e-6)
    assert size.scale == pytest.approx(pooled_size.scale, rel=1e-6, abs=1e-6)


@given(st.lists(st.tuples(numbers, words), min_size=2, max_size=12), st.data())
def test_what_a_row_becomes_does_not_depend_on_other_rows(rows, data):
    row = data.draw(st.integers(0, len(rows) - 1))
    plan = agree(
        {"a": report(as_table([("1", "red"), ("5", "1"), ("?", "blue")]), categories=["colour"])}, described_as()
    )
    everywhere, alone = plan.encode(as_table(rows))[0][row], plan.encode(as_table([rows[row]]))[0][0]
    np.testing.assert_array_equal(everywhere, alone)


def test_a_worked_example():
    north, south = table(age=[10, 20], ward=["a", "b"]), table(age=[30, "?", 40], ward=["c", "b", "?"])
    plan = plan_of(north, south)
    assert plan.names == ["age", "age is missing", "ward = a", "ward = b", "ward = c"]
    spread = np.sqrt(125)  # of 10, 20, 30, 40 around 25
    x, gaps = plan.encode(south)
    np.testing.assert_allclose(x, [[5 / spread, 0, 0, 0, 1], [0, 1, 0, 1, 0], [15 / spread, 0, 0, 0, 0]], rtol=1e-6)
    assert x.dtype == np.float32
    assert gaps == {"age": 1, "ward": 1}
    assert plan.encode(north)[1] == {}
    assert FeaturePlan.model_validate_json(plan.model_dump_json()) == plan  # it is part of a trained model


def test_a_report_is_of_training_rows_and_holds_no_row():
    told = report(table(age=[1, 3, 1000, "?"], ward=["a", "b", "c", "?"]), train=[0, 1])
    assert told["age"] == ColumnReport(kind="number", n=2, mean=2, variance=1)
    assert told["ward"] == ColumnReport(kind="category", values=["a", "b"])
    assert report(table(age=["?", 1]))["age"].missing == 1


def test_kinds_by_looking_and_by_decree():
    mostly = table(age=[*range(19), "old"], code=[1, 2] * 10, empty=["?"] * 20, half=[1, "x"] * 10)
    assert {n: r.kind for n, r in report(mostly).items()} == {
        "age": "number",
        "code": "number",
        "empty": "empty",
        "half": "category",
    }
    decreed = report(mostly, categories=["code"], numbers=["half"])
    assert (decreed["code"].kind, decreed["code"].values) == ("category", ["1", "2"])
    assert (decreed["half"].kind, decreed["half"].n) == ("number", 10)


def test_whole_numbers_are_one_category_however_they_are_written():
    told = {
        "a": report(table(sex=["1.0", "0.0"]), categories=["sex"]),
        "b": report(table(sex=["1", "0"]), categories=["sex"]),
    }
    plan = agree(told, described_as())
    assert plan.names == ["sex = 0", "sex = 1"]
    np.testing.assert_array_equal(plan.encode(table(sex=["1.0", "1"]))[0], [[0, 1], [0, 1]])


def test_a_site_without_a_value_goes_along_with_the_others():
    assert plan_of(table(c=["?", "?"]), table(c=["x", "y"])).names == ["c = x", "c = y"]
    numbers_ = plan_of(table(c=["?", "?"]), table(c=[1, 3])).columns[0]
    assert (numbers_.kind, numbers_.mean, numbers_.scale, numbers_.flag_missing) == ("number", 2, 1, True)


def test_a_new_word_sets_nothing_and_is_counted():
    x, gaps = plan_of(table(c=["x", "y"])).encode(table(c=["z", "x", "?"]))
    np.testing.assert_array_equal(x, [[0, 0], [1, 0], [0, 0]])
    assert gaps == {"c": 2}
    assert plan_of(table(c=["x", "y"])).read(table(c=["z", "x", "?"]))[1:] == ({"c": 1}, [])  # at a site: missing only


def test_values_far_out_are_cut_and_a_constant_is_zero():
    plan = plan_of(table(a=[0, 2], b=[5, 5]))
    np.testing.assert_array_equal(plan.encode(table(a=[1e6, -1e6], b=[5, 6]))[0], [[10, 0], [-10, 1]])
    raw = plan_of(table(a=[0, 2], b=[5, 5]), standardise="none")
    np.testing.assert_array_equal(raw.encode(table(a=[1e6, -1e6], b=[5, 6]))[0], [[1e6, 5], [-1e6, 6]])


def test_a_large_mean_does_not_swallow_the_spread():
    plan = plan_of(table(a=[1e9, 1e9 + 2]), table(a=[1e9 + 1, 1e9 + 3]))
    assert plan.columns[0].scale == pytest.approx(np.sqrt(1.25))


def test_what_the_file_gives_is_used_as_it_is():
    plan = agree({}, described_as(numbers={"age": [50, 10]}, categories={"sex": ["1.0", "2.0"]}), ["age", "sex"])
    assert plan.names == ["age", "age is missing", "sex = 1", "sex = 2"]
    rows = table(age=[60, "?"], sex=["1", "2.0"])
    np.testing.assert_array_equal(plan.encode(rows)[0], [[1, 0, 1, 0], [0, 1, 0, 1]])
    _, gaps, problems = plan.read(table(age=[60, 1], sex=["1", "3"]))
    assert problems == ["clinic.csv, line 3, column 'sex': '3' is not among its values; known: 1, 2"]
    assert plan.encode(table(age=[60, 1], sex=["1", "3"]))[1] == {"sex": 1}  # in rows to be predicted it is unknown


def test_text_is_hashed():
    plan = agree({}, described_as(text=["note"], text_width=16), ["note"])
    assert len(plan.names) == 16
    x, gaps = plan.encode(table(note=["severe cough", "cough severe", "?", "fever"]))
    assert gaps == {"note": 1}
    assert not x[2].any()
    np.testing.assert_allclose(np.linalg.norm(x[[0, 1, 3]], axis=1), 1, rtol=1e-6)
    assert (x[0] != x[3]).any()
    assert (x[0] != x[1]).any()  # the order of words counts


def test_every_wrong_number_is_named():
    plan = plan_of(table(a=[1, 2], b=[1, 2]))
    with pytest.raises(DataError) as caught:
        plan.encode(table(a=["x"] * 8, b=["1", *["y"] * 7]))
    text = str(caught.value)
    assert text == (
        "15 cells cannot be read: clinic.csv, line 2 and 7 more, column 'a': 'x' is not a number; "
        "clinic.csv, line 3 and 6 more, column 'b': 'y' is not a number"
    )


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        (
            (table(c=[1, 2]), table(c=["x", "y"])),
            "column 'c' holds numbers at site 'site-0' but words at site 'site-1'; name every feature column",
        ),
        (
            (table(c=[f"w{i}" for i in range(MOST_CATEGORIES + 1)]),),
            "column 'c' has 201 different words, such as 'w99'; name it in features.numbers",
        ),
        ((table(c=["?", "?"]), table(c=["?"])), None),
    ],
)
def test_columns_that_cannot_be_agreed(tables, message):
    if message is None:
        assert plan_of(*tables).names == ["c", "c is missing"]  # nothing is known of it, and nothing breaks
    else:
        with pytest.raises(DataError) as caught:
            plan_of(*tables)
        assert message in str(caught.value)


def test_no_features_at_all():
    with pytest.raises(DataError, match="no features are left"):
        agree({"a": {}}, described_as())


class TestMixedKinds:
    """Sites that differ in what a column is: the cells that stand against the others are named, numbers in doubt."""

    WORDS = table(c=["big", "?", 7, "small"])
    NUMBERS = table(c=[*range(19), "old"])

    def told(self, **tables):
        reports = {site: report(t) for site, t in tables.items()}
        cells = cells_of_other_kind("c", tables, reports, MISSING)
        return mixed_kinds(reports), [cell.removeprefix("clinic.csv, ") for cell in cells]

    def test_words_against_numbers(self):
        problems, cells = self.told(a=self.NUMBERS, b=self.WORDS, c=self.NUMBERS)
        assert list(problems) == ["c"]
        assert problems["c"].startswith("column 'c' holds numbers at sites 'a', 'c' but words at site 'b'; name ")
        assert cells == [
            "line 2, column 'c': 'big' is not a number",
            "line 5, column 'c': 'small' is not a number",
            *["line 21, column 'c': 'old' is not a number"] * 2,  # those that are wrong by any reading come last
        ]

    def test_one_against_one(self):
        assert len(self.told(a=self.WORDS, b=self.NUMBERS)[1]) == 3

    def test_numbers_against_words(self):
        _, cells = self.told(a=self.WORDS, b=table(c=["?", 5, 6]), c=self.WORDS)
        assert cells == [
            "line 3, column 'c': '5' is a number, and most sites have words there",
            "line 4, column 'c': '6' is a number, and most sites have words there",
        ]

    def test_a_site_without_a_value_is_on_no_side(self):
        assert self.told(a=self.WORDS, b=table(c=["?"]))[0] == {}
