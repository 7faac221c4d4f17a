"""Words that look like one name, and words that must be left apart."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.labels.alike import folded, groups_alike


@pytest.mark.parametrize(
    "words",
    [
        ("mild", "Mild", "MILD", " mild ", "mild."),
        ("short of breath", "Short-of-Breath", "short_of_breath", "shortofbreath"),
        ("Café", "cafe", "CAFÉ", "Cafe\u0301"),
        ("biopsy", "Biopsies"),
        ("cold", "colds"),
        ("mass", "masses", "Mass"),
        ("grade 1", "Grade 1", "grade-1", "GRADE1"),
        ("straße", "STRASSE"),
        ("Łódź", "lodz"),
        ("HER2+", "her2 +"),
    ],
)
def test_differences_that_do_not_count(words):
    assert len({folded(word) for word in words}) == 1
    assert groups_alike([words]) == [sorted(words)]


@pytest.mark.parametrize(
    "words",
    [
        ("1", "10", "11", "-1"),
        ("A1", "A2", "A10", "A 11"),
        ("grade 1", "grade 2", "grade 12", "grade 1-2"),
        ("C", "C++", "C#"),
        ("HER2+", "HER2-"),
        ("<5", ">5", "5", ">=5"),
        ("1-2", "1/2", "12", "1 2", "1.2", "1,2"),
        ("m2", "m3"),
        ("news", "new", "as", "a", "is"),
        ("class", "clas"),
        ("か", "が"),
        ("की", "का", "कि"),
        ("none", "one", "non-small", "small"),
        ("+", "-", "?"),
        ("0", "1", "2", "yes", "no"),
        ("M", "F", "A", "male"),
        ("well", "ill", "fine", "no disease"),
    ],
)
def test_differences_that_count(words):
    assert groups_alike([words]) == []


class TestFamilies:
    def test_yes_and_no_in_all_spellings(self):
        spelled = [{"yes", "no"}, {"Yes", "No"}, {"1", "0"}, {"true", "False"}, {"Y", "N"}]
        assert groups_alike(spelled) == [["0", "False", "N", "No", "no"], ["1", "Y", "Yes", "true", "yes"]]

    def test_sexes_beside_other_words(self):
        assert groups_alike([{"M", "F", "unknown"}, {"male", "female"}]) == [["F", "female"], ["M", "male"]]
        assert groups_alike([{"T", "F"}, {"male", "female"}]) == []
        assert groups_alike([{"T", "F"}, {"yes", "no"}]) == [["F", "no"], ["T", "yes"]]

    def test_a_code_among_other_codes_has_another_meaning(self):
        assert groups_alike([{"0", "1", "2"}, {"yes", "no"}]) == []
        assert groups_alike([{"1", "10"}, {"yes", "no"}]) == []
        # It cannot be renamed at all sites if it has two meanings.
        assert groups_alike([{"0", "1"}, {"1", "2"}, {"yes", "no"}]) == [["0", "no"]]


@given(st.text(min_size=1))
def test_case_never_counts_and_digits_always_do(word):
    assert folded(word) == folded(word.upper().lower()) or word.casefold() != word.upper().lower().casefold()
    assert [c for c in folded(word) if c.isdecimal()] == [
        c for c in word.casefold() if c.isdecimal()
    ] or not word.strip()
