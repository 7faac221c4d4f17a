"""What a site sees of its samples: made from true classes in a study, or read from the site's own arrays."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
import torch

from fedaccord.clean_classifier import clean_predictions
from fedaccord.data.dataset import Rows, load_dataset
from fedaccord.data.sites import observe, read_annotations
from fedaccord.errors import ConfigError, DataError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import CandidatesView, CoarseView, ExactView, TagsView, UnlabelledView, ViewContext

SPACE = LabelSpace(["ant", "bee", "cat", "dog"])
Y = np.array([0, 1, 2, 3, 0, 1, 2, 3])
X = np.arange(8, dtype=np.float32)[:, None]
ANIMALS = {"size": {"small": ["ant", "bee"], "large": ["cat", "dog"]}}
ALL = np.ones((8, 4), bool)


def exact(**settings):
    return ExactView(kind="exact", **settings)


def coarse(correspondence):
    return CoarseView(kind="coarse", correspondence=correspondence)


def candidates(**settings):
    return CandidatesView(kind="candidates", **settings)


def seen(declared, rows=None, chances=None, seed=0):
    rng = np.random.default_rng(seed)
    return observe(rows or Rows(X, Y), declared, SPACE, ViewContext("site 'a'", ANIMALS), chances, rng)


def refusal(declared, rows=None):
    with pytest.raises((ConfigError, DataError)) as caught:
        seen(declared, rows)
    return str(caught.value)


class TestStudy:
    def test_exact_labels(self):
        found = seen(exact())
        assert found.target.tolist() == found.truth.tolist() == Y.tolist()
        assert found.left_out == 0

    def test_exact_labels_of_some_classes(self):
        found = seen(exact(known=["dog", "bee"]))
        assert found.target.tolist() == [1, 3, 1, 3]
        assert found.rows.x.ravel().tolist() == [1, 3, 5, 7]
        assert (found.left_out, found.view.known) == (4, ("bee", "dog"))

    def test_a_grouping_of_the_data_set_by_its_name(self):
        found = seen(coarse("size"))
        assert found.target.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
        assert (found.view.answers, found.truth.tolist()) == (("small", "large"), Y.tolist())

    def test_a_class_under_no_group_is_left_out(self):
        found = seen(coarse({"insect": ["bee", "ant"], "pet": ["dog"]}))
        assert found.target.tolist() == [0, 0, 1, 0, 0, 1]
        assert found.truth.tolist() == [0, 1, 3, 0, 1, 3]
        assert found.left_out == 2

    def test_probabilities_are_drawn_from(self):
        shares = {"often": {"ant": 0.8, "bee": 1}, "else": {"ant": 0.2, "cat": 1, "dog": 1}}
        rows = Rows(np.zeros((4000, 1), np.float32), np.arange(4000) % 4)
        found = seen(coarse(shares), rows)
        ants = found.target[found.truth == 0]
        assert (ants == 0).float().mean() == pytest.approx(0.8, abs=0.04)
        assert (found.target[found.truth == 1] == 0).all()
        assert (found.target[found.truth >= 2] == 1).all()

    def test_tags_of_the_known_labels(self):
        tags = np.array([[1, 0, 1, 0], [0, -1, 1, 1]], np.int8)
        found = seen(TagsView(kind="tags", known=["bee", "cat"]), Rows(X[:2], None, tags))
        assert found.target.tolist() == [[-1, 0, 1, -1], [-1, -1, 1, -1]]
        assert found.truth is None

    @pytest.mark.parametrize("y", [Y, None])
    def test_nothing(self, y):
        found = seen(UnlabelledView(kind="unlabelled"), Rows(X, y))
        assert found.target.tolist() == [-1] * 8
        assert found.left_out == 0
        assert (found.truth is None) == (y is None)

    def test_the_same_seed_gives_the_same_annotations(self):
        declared = candidates(generate="uniform", q=0.5)
        assert torch.equal(seen(declared, seed=1).target, seen(declared, seed=1).target)
        assert not torch.equal(seen(declared, seed=1).target, seen(declared, seed=2).target)


class TestCandidatesOfTheData:
    SETS = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 1, 1, 1], [1, 0, 0, 0]], bool)

    def test_they_are_taken_as_they_are(self):
        found = seen(candidates(), Rows(X[:4], Y[:4], candidates=self.SETS))
        assert found.target.tolist() == self.SETS.tolist()
        assert found.truth.tolist() == [0, 1, 2, 3]

    def test_true_classes_are_not_needed(self):
        found = seen(candidates(), Rows(X[:4], candidates=self.SETS))
        assert found.target.tolist() == self.SETS.tolist()
        assert (found.truth, found.left_out) == (None, 0)

    def test_only_known_labels_remain_and_no_set_is_empty(self):
        found = seen(candidates(known=["bee", "cat"]), Rows(X[:4], candidates=self.SETS))
        assert found.target.tolist() == [[False, True, False, False]] * 2 + [[False, True, True, False]]
        assert (found.rows.x.ravel().tolist(), found.left_out) == ([0, 1, 2], 1)

    def test_a_set_without_its_true_class_is_kept_unless_it_gets_empty(self):
        sets = np.array([[0, 1, 0, 0], [0, 0, 0, 1]], bool)
        found = seen(candidates(known=["ant", "bee"]), Rows(X[:2], Y[:2], candidates=sets))
        assert found.target.tolist() == [[False, True, False, False]]
        assert found.left_out == 1

    def test_asked_for_generated_ones_those_of_the_data_are_not_used(self):
        rows = Rows(X[:4], Y[:4], candidates=np.ones((4, 4), bool))
        assert seen(candidates(generate="uniform", q=0), rows).target.tolist() == np.eye(4, dtype=bool).tolist()


class TestGeneratedCandidates:
    ROWS = Rows(np.zeros((4000, 1), np.float32), np.arange(4000) % 4)

    def sets(self, chances=None, **settings):
        found = seen(candidates(**settings), self.ROWS, chances)
        assert found.target.dtype == torch.bool
        assert found.target[torch.arange(4000), found.truth].all()  # the true class is always in it
        return found.target, found.truth

    def wrong(self, **settings):
        """Return how often each label is in the sets of class 'ant'."""
        target, truth = self.sets(**settings)
        return target[truth == 0].float().mean(0).tolist()

    def test_uniform(self):
        assert self.wrong(generate="uniform", q=0.25, drop_full=False) == pytest.approx([1, 0.25, 0.25, 0.25], abs=0.05)

    def test_superset(self):
        target, truth = self.sets(generate="superset")
        drawn = Counter(tuple(row) for row in target[truth == 0].tolist())
        assert len(drawn) == 2**3 - 1  # every set with the true class but the full one
        assert min(drawn.values()) > 0.7 * 1000 / 7

    def test_by_class(self):
        rates = self.wrong(generate="class", following=0.7, other=0.2, drop_full=False)
        assert rates == pytest.approx([1, 0.7, 0.2, 0.2], abs=0.05)

    def test_by_instance(self):
        chances = np.tile([0.7, 0.2, 0.08, 0.02], (4000, 1))
        settings = {"generate": "instance", "rho": 0.4, "chances": chances, "drop_full": False}
        sharp = {**settings, "temperature": 1.0}
        assert self.wrong(**sharp, normalise="none") == pytest.approx([1, 0.4, 0.16, 0.04], abs=0.05)
        assert self.wrong(**sharp) == pytest.approx([1, 1, 0.426667, 0.106667], abs=0.05)
        even = np.array([1, 0.4 ** (1 / 7), 0.1 ** (1 / 7)])  # the view's own temperature
        assert self.wrong(**settings)[1:] == pytest.approx((0.4 * even / (even.sum() / 4)).tolist(), abs=0.05)

    def test_the_smallest_set_and_the_full_one(self):
        target, _ = self.sets(generate="uniform", q=0.1, min_size=2)
        assert target.sum(1).min() == 2
        target, _ = self.sets(generate="uniform", q=0.95)
        assert target.sum(1).max() == 3
        target, _ = self.sets(generate="uniform", q=0.95, drop_full=False)
        assert target.sum(1).max() == 4

    KNOWN = ["ant", "bee", "dog"]
    CHANCES = np.tile([0.4, 0.3, 0.2, 0.1], (4000, 1))

    @pytest.mark.parametrize(
        "settings",
        [
            {"generate": "uniform", "q": 0.95},
            {"generate": "superset"},
            {"generate": "class", "following": 0.95, "other": 0.95},
            {"generate": "instance", "rho": 1.0},
        ],
    )
    def test_no_set_holds_all_that_the_site_knows(self, settings):
        """Such a set would exclude nothing there, whatever other labels there are elsewhere."""
        found = seen(candidates(known=self.KNOWN, **settings), self.ROWS, self.CHANCES)
        assert found.target[torch.arange(3000), found.truth].all()
        assert found.target.any(0).tolist() == [True, True, False, True]
        assert found.target.sum(1).max() == 2

    def test_the_smallest_set_is_of_known_labels(self):
        found = seen(candidates(generate="uniform", q=0.0, min_size=2, known=self.KNOWN), self.ROWS)
        assert found.target.sum(1).unique().tolist() == [2]

    def test_the_confusion_of_classes_is_the_same_where_some_are_not_known(self):
        declared = candidates(generate="class", following=0.7, other=0.2, drop_full=False, known=self.KNOWN)
        found = seen(declared, self.ROWS)
        rates = [found.target[found.truth == c].float().mean(0).tolist() for c in (0, 1, 3)]
        assert rates[0] == pytest.approx([1, 0.7, 0, 0.2], abs=0.05)
        assert rates[1] == pytest.approx([0.2, 1, 0, 0.2], abs=0.05)  # the next class is the one it does not know
        assert rates[2] == pytest.approx([0.7, 0.2, 0, 1], abs=0.05)

    @pytest.mark.parametrize("generate", ["uniform", "superset", "class", "instance"])
    def test_one_known_label_makes_one_set(self, generate):
        found = seen(candidates(generate=generate, known=["bee"]), self.ROWS, self.CHANCES)
        assert found.target.tolist() == [[False, True, False, False]] * 1000

    def test_known_labels_bound_the_sets(self):
        found = seen(candidates(generate="uniform", q=0.5, known=["ant", "bee"]), self.ROWS)
        assert found.left_out == 2000
        assert not found.target[:, 2:].any()
        assert found.target[:, :2].any(1).all()

    def test_instance_sets_on_digits_are_about_as_large_as_the_rule_allows(self, tmp_path, one_thread):
        digits = load_dataset("digits", tmp_path)
        chances = clean_predictions(digits, seed=0)
        assert chances.shape == (1797, 10)
        assert (chances.argmax(1) == digits.train.y).mean() > 0.9
        assert chances.sum(1) == pytest.approx(np.ones(1797), abs=1e-5)

        def size(rho, **settings):
            declared, rng = candidates(generate="instance", rho=rho, **settings), np.random.default_rng(0)
            found = observe(digits.train, declared, LabelSpace(digits.labels), ViewContext("here"), chances, rng)
            return found.target.sum(1).float().mean().item()

        # docs/methods.md 5.14: bounded by 1 + 10 rho; up to rho = 0.1 no rate is cut off at 1, so this is the mean.
        assert size(0.1) == pytest.approx(2, abs=0.05)
        assert size(0.05) == pytest.approx(1.5, abs=0.05)
        assert 2 < size(0.2) < size(0.4) < 5
        assert size(0.4, normalise="none") < size(0.4) - 1  # the printed rule makes smaller sets


class TestRefusals:
    @pytest.mark.parametrize(
        ("declared", "rows", "told"),
        [
            (exact(known=["cow"]), None, "'cow' is not a label of this federation; known: ant, bee, cat, dog"),
            (coarse("siz"), None, "the data set names no grouping 'siz'; did you mean 'size'?"),
            (coarse({"x": ["cow"]}), None, "correspondence, coarse label 'x': 'cow' is not a label of this federation"),
            (TagsView(kind="tags"), None, "a view of tags needs data with an array 'Y'"),
            (candidates(), None, "the data has no candidate sets; give view.generate"),
            (exact(), Rows(X), "a view of kind 'exact' needs data with true classes, an array 'y'"),
            (coarse("size"), Rows(X), "a view of kind 'coarse' needs data with true classes, an array 'y'"),
            (candidates(generate="uniform"), Rows(X, candidates=ALL), "view.generate makes candidate sets from true"),
            (candidates(generate="uniform", min_size=4), None, "min_size is 4, but a candidate set of 4 classes holds"),
        ],
    )
    def test_they_name_the_site(self, declared, rows, told):
        assert refusal(declared, rows).startswith(f"site 'a': {told}")


class TestOwnFiles:
    """A file has label names of its own, in an order of its own."""

    def read(self, rows, declared, names=("dog", "cat", "ant", "bee")):
        return read_annotations(rows, names, declared, SPACE, ViewContext("site 'a', f.npz"))

    def refusal(self, *arguments, **options):
        with pytest.raises((ConfigError, DataError)) as caught:
            self.read(*arguments, **options)
        return str(caught.value)

    def test_exact_labels_by_name(self):
        found = self.read(Rows(X[:5], np.array([0, 1, 2, 3, -1])), exact())
        assert found.target.tolist() == found.truth.tolist() == [3, 2, 0, 1, -1]

    def test_coarse_labels_by_name(self):
        found = self.read(Rows(X[:3], np.array([0, 1, -1])), coarse(ANIMALS["size"]), ("large", "small"))
        assert found.target.tolist() == [1, 0, -1]
        assert found.truth is None

    def test_candidates_by_name(self):
        sets = np.array([[1, 0, 1, 0], [0, 0, 0, 1], [1, 1, 0, 0]], bool)
        found = self.read(Rows(X[:3], np.array([2, 3, -1]), candidates=sets), candidates())
        assert found.target.int().tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 1, 1]]
        assert found.truth.tolist() == [0, 1, -1]  # where a file does not know the truth, it is not the last class

    def test_tags_by_name(self):
        tags = np.array([[1, 0], [-1, 1]], np.int8)
        found = self.read(Rows(X[:2], tags=tags), TagsView(kind="tags", known=["ant", "cat"]), ("cat", "dog"))
        assert found.target.tolist() == [[-1, -1, 1, -1], [-1, -1, -1, -1]]

    def test_what_an_unlabelled_site_has_is_not_read(self):
        found = self.read(Rows(X, Y), UnlabelledView(kind="unlabelled"), ("what", "ever", "it", "is"))
        assert found.target.tolist() == [-1] * 8
        assert found.truth is None

    @pytest.mark.parametrize(
        ("rows", "declared", "names", "told"),
        [
            (Rows(X, Y), exact(), ("dog", "cow", "ant", "bee"), "'cow' is not one of the labels here; known: ant, bee"),
            (Rows(X, Y), exact(known=["ant"]), SPACE.names, "'bee' is not one of the labels here; known: ant"),
            (
                Rows(X, Y % 2),
                coarse(ANIMALS["size"]),
                ("small", "lage"),
                "'lage' is not one of the labels here; did you mean 'large'?",
            ),
            (
                Rows(X, candidates=ALL),
                candidates(),
                ("ant", "bees", "cat", "dog"),
                "'bees' is not one of the labels here; did you mean 'bee'?",
            ),
            (Rows(X, Y), candidates(), SPACE.names, "a view of candidates needs an array 'candidates'"),
            (Rows(X, Y), TagsView(kind="tags"), SPACE.names, "a view of tags needs an array 'Y'"),
            (Rows(X, tags=ALL), TagsView(kind="tags"), ("ant", "cow"), "'cow' is not a label of this federation"),
            (Rows(X), exact(), SPACE.names, "a view of kind 'exact' needs an array 'y'"),
        ],
    )
    def test_refusals_name_site_and_file(self, rows, declared, names, told):
        assert self.refusal(rows, declared, names=names).startswith(f"site 'a', f.npz: {told}")

    def test_a_file_without_names_is_told_how_to_give_them(self):
        assert self.refusal(Rows(X, Y), exact(), names=("0", "1", "2", "3")).startswith(
            "site 'a', f.npz: '0' is not one of the labels here; known: ant, bee, cat, dog; "
            "without an array 'label_names' a file's labels are called 0, 1, 2, ... (row "
        )

    def test_the_rows_are_named_and_the_rest_counted(self):
        y = np.array([1, 0, *[1] * 11])
        told = self.refusal(Rows(np.zeros((13, 2), np.float32), y), exact(), names=("ant", "cow"))
        assert told.endswith("(row 1, 3, 4, 5, 6, 7, 8, 9, 10, 11 and 2 more)")

    def test_a_label_that_is_named_but_never_used_is_no_mistake(self):
        assert self.read(Rows(X[:2], np.array([0, 2])), exact(), ("dog", "cow", "ant")).target.tolist() == [3, 0]
