"""Labels are names; only the label space turns them into columns."""

import pytest

from fedaccord.errors import ConfigError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Exact

ANIMALS = LabelSpace(["cat", "dog", "cow"])


def test_a_space_keeps_the_order_it_was_given():
    assert ANIMALS.names == ("cat", "dog", "cow")
    assert list(ANIMALS) == ["cat", "dog", "cow"]
    assert len(ANIMALS) == 3
    assert "dog" in ANIMALS
    assert "hen" not in ANIMALS


def test_names_become_columns():
    assert ANIMALS.column("cow") == 2
    assert ANIMALS.columns(["cow", "cat"]) == [2, 0]


def test_numbers_are_read_as_names():
    digits = LabelSpace(range(3))
    assert digits.names == ("0", "1", "2")
    assert digits.column(2) == digits.column("2") == 2


def test_spaces_are_equal_when_names_and_order_are():
    assert LabelSpace(["a", "b"]) == LabelSpace(("a", "b"))
    assert hash(LabelSpace(["a", "b"])) == hash(LabelSpace(("a", "b")))
    assert LabelSpace(["a", "b"]) != LabelSpace(["b", "a"])
    assert LabelSpace(["a", "b"]) != ("a", "b")


def test_its_repr_makes_it_again():
    assert eval(repr(ANIMALS)) == ANIMALS  # noqa: S307


def test_a_subspace_keeps_the_order_of_the_space():
    assert ANIMALS.subspace(["cow", "cat"]).names == ("cat", "cow")


def test_a_label_named_twice_is_refused():
    with pytest.raises(ConfigError, match="the label 'dog' is named twice in the label space"):
        LabelSpace(["cat", "dog", "cow", "dog"])


def test_an_empty_space_is_refused():
    with pytest.raises(ConfigError, match="needs at least one label name"):
        LabelSpace([])


def test_an_unknown_name_is_told_the_closest_one():
    with pytest.raises(ConfigError, match=r"^'dogg' is not a label of this federation; did you mean 'dog'\?$"):
        ANIMALS.column("dogg")


def test_an_unlike_name_is_told_all_and_where_it_stood():
    with pytest.raises(ConfigError, match=r"^site 'north': 'zebra' is not a label .*; known: cat, dog, cow$"):
        ANIMALS.columns(["cat", "zebra"], "site 'north'")


@pytest.mark.parametrize("make", [LabelSpace, lambda text: Exact(ANIMALS, known=text), ANIMALS.columns])
def test_one_text_is_not_a_list_of_its_letters(make):
    with pytest.raises(ConfigError, match=r"label names are given as a list, .* not as the one text 'abc'"):
        make("abc")
