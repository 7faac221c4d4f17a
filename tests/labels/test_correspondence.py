"""Coarse names become the matrix P(coarse label | class)."""

import pytest
import torch

from fedaccord.errors import ConfigError, CorrespondenceError
from fedaccord.labels.correspondence import column_problems, correspondence_matrix, readable_groups
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Coarse

SPACE = LabelSpace(["cat", "dog", "cow"])


def rows(groups):
    return correspondence_matrix(groups, SPACE).tolist()


def test_lists_of_classes_make_a_matrix_of_zeros_and_ones():
    assert rows({"pet": ["cat", "dog"], "farm": ["cow"]}) == [[1, 1, 0], [0, 0, 1]]


def test_a_class_under_several_names_is_split_equally():
    assert rows({"pet": ["cat", "dog"], "farm": ["dog", "cow"]}) == [[1, 0.5, 0], [0, 0.5, 1]]


def test_a_class_listed_twice_under_one_name_counts_once():
    assert rows({"pet": ["cat", "cat", "dog"], "farm": ["cow"]}) == [[1, 1, 0], [0, 0, 1]]


def test_a_class_under_no_name_has_a_column_of_zeros():
    assert rows({"pet": ["cat"], "farm": ["cow"]}) == [[1, 0, 0], [0, 0, 1]]


def test_probabilities_are_taken_as_given():
    table = {"pet": {"cat": 1.0, "dog": 0.75}, "farm": {"dog": 0.25, "cow": 1}}
    assert rows(table) == [[1, 0.75, 0], [0, 0.25, 1]]


def test_probabilities_of_a_class_must_sum_to_one():
    table = {"pet": {"cat": 1.0, "dog": 0.75}, "farm": {"dog": 0.2, "cow": 1.0}}
    with pytest.raises(ConfigError, match=r"^site 'a': the probabilities given class 'dog' sum to 0.95, not to 1$"):
        correspondence_matrix(table, SPACE, "site 'a'")


def test_with_probabilities_no_class_may_be_left_out():
    with pytest.raises(ConfigError, match="given class 'cow' sum to 0, not to 1"):
        rows({"pet": {"cat": 1.0, "dog": 1.0}})


def test_probabilities_below_zero_are_refused():
    with pytest.raises(ConfigError, match=r"the probability of 'farm' given 'cat' is -0.5, below zero"):
        rows({"pet": {"cat": 1.5, "dog": 1.0}, "farm": {"cat": -0.5, "cow": 1.0}})


def test_the_two_forms_do_not_mix():
    with pytest.raises(ConfigError, match="mixes lists of classes with tables of probabilities"):
        rows({"pet": ["cat", "dog"], "farm": {"cow": 1.0}})


def test_an_unknown_class_is_told_the_closest_one():
    with pytest.raises(ConfigError, match=r"coarse label 'farm': 'coww' is not a label .* did you mean 'cow'\?"):
        rows({"pet": ["cat", "dog"], "farm": ["coww"]})


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({}, "correspondence names no coarse label"),
        ({"pet": ["cat"], "farm": []}, "the coarse label 'farm' maps to no class"),
        # An annotation 'farm' would be impossible, its loss infinite.
        (
            {"pet": dict.fromkeys(SPACE, 1.0), "farm": {"cow": 0.0}},
            "the coarse label 'farm' has probability zero for every class",
        ),
    ],
)
def test_a_coarse_label_needs_a_class(groups, message):
    with pytest.raises(ConfigError, match=message):
        rows(groups)


@pytest.mark.parametrize(
    ("matrix", "problem"),
    [
        ([[1 / 3, 1, 0], [1 / 3, 0, 0.5], [1 / 3, 0, 0.5]], None),
        ([[1.0, 1.00001, 0.0], [0.0, 0.0, 1.0]], "given class 'dog' sum to 1.00001, not to 1"),
        ([[1.0, float("nan"), 0.0], [0.0, 0.0, 1.0]], "given class 'dog' sum to nan, not to 1"),
        ([[1.0, 1.5, 0.0], [0.0, -0.5, 1.0]], "given class 'dog' is below zero"),
    ],
)
def test_an_estimated_matrix_can_be_checked(matrix, problem):
    found = column_problems(torch.tensor(matrix), SPACE)
    assert list(found) == ([] if problem is None else ["dog"])
    assert problem is None or problem in found["dog"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([["cat"]], r"correspondence should be a table of coarse names .*, not a list$"),
        ("shape", r"correspondence should be a table of coarse names .*, not a str$"),
        ({"pet": "cat"}, "'pet' has 'cat' instead of a list"),
        ({"pet": 3}, "'pet' has 3 instead of a list"),
        ({"pet": {"cat": "often"}}, "the probability of 'pet' given 'cat' is 'often', not a number"),
    ],
)
def test_what_is_no_table_of_coarse_names_is_told(given, message):
    with pytest.raises(ConfigError, match=message):
        Coarse(SPACE, given)


def caught(groups):
    with pytest.raises(CorrespondenceError) as error:
        correspondence_matrix(groups, SPACE)
    return error.value


def test_every_mistake_is_told_at_once():
    error = caught({"pet": ["cats", "dog"], "farm": [], "wild": ["cowl"]})
    assert [problem.partition(" is ")[0] for problem in error.problems] == [
        "correspondence, coarse label 'pet': 'cats'",
        "correspondence: the coarse label 'farm' maps to no class",
        "correspondence, coarse label 'wild': 'cowl'",
    ]
    assert str(error.at("site 'a'")) == "site 'a': " + "; ".join(error.problems)
    many = LabelSpace(range(14))
    with pytest.raises(CorrespondenceError, match=r"class '9' sum to 0.5, not to 1; and 4 more$"):
        correspondence_matrix({"any": dict.fromkeys(many, 0.5)}, many)


def test_a_site_does_not_read_of_classes_that_it_does_not_name():
    sums = caught({"pet": {"dog": 0.5}})
    assert [name for name in SPACE if f"'{name}' sum to" in str(sums)] == ["cat", "dog", "cow"]
    assert sums.message_for_site() == (
        "correspondence: a class that it does not name has no probability; "
        "correspondence: the probabilities given class 'dog' sum to 0.5, not to 1"
    )
    unknown = caught({"pet": ["bull", "dog"]})
    assert "known: cat, dog, cow" in str(unknown)
    assert "cow" not in unknown.message_for_site()


def test_a_wrong_correspondence_becomes_one_that_can_be_looked_at():
    groups = {"pet": {"cat": 0.5, "dog": 0.0, "hen": 1.0}, "none": {}, "farm": ["cat"]}
    assert readable_groups(groups, SPACE) == {"pet": ["cat"], "none": ["cat"], "farm": ["cat"]}
    assert readable_groups({"none": []}, SPACE) == {"none": ["cat", "dog", "cow"]}
