"""A view gives the likelihood of a site's annotations; each number here can be checked by hand."""

import itertools
import math
from importlib.metadata import EntryPoint

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from fedaccord import Federation, Site, View, ViewDeclaration, extensions
from fedaccord.errors import AnnotationError, ConfigError, UntrustedError
from fedaccord.extensions import trusting
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Coarse, Exact, Tags, Unlabelled, registry
from fedaccord.labels.views.pooled import Pooled, pooled_target
from fedaccord.labels.views.registry import VIEWS, make_view

SPACE = LabelSpace(["cat", "dog", "cow", "hen"])
PETS = {"pet": ["cat", "dog"], "farm": ["cow", "hen"]}
PROBABLE = {"pet": {"cat": 0.9, "dog": 0.6, "cow": 0.1}, "farm": {"cat": 0.1, "dog": 0.4, "cow": 0.9, "hen": 1}}

# Each view with every kind of annotation it can meet; the empty one is a sample without annotation.
CASES = {
    "exact": (Exact(SPACE), ["cat", "dog", "cow", "hen", ""]),
    "exact, some known": (Exact(SPACE, ["cat", "cow"]), ["cat", "cow", ""]),
    "candidates": (Candidates(SPACE), ["hen", "cat|dog", "cat|cow|hen", "cat|dog|cow|hen", ""]),
    "candidates, some known": (Candidates(SPACE, ["cat", "cow", "hen"]), ["cat", "cow|hen", "cat|cow|hen", ""]),
    "coarse": (Coarse(SPACE, PETS), ["pet", "farm", ""]),
    "coarse, overlapping": (Coarse(SPACE, PETS | {"furry": ["cat", "dog", "cow"]}), ["pet", "farm", "furry", ""]),
    "coarse, hens unseen": (Coarse(SPACE, {"pet": ["cat", "dog"], "farm": ["cow"]}), ["pet", "farm", ""]),
    "coarse, probable": (Coarse(SPACE, PROBABLE), ["pet", "farm", ""]),
    "tags": (Tags(SPACE), [["cat", "hen"], [], list(SPACE), ""]),
    "tags, some known": (Tags(SPACE, ["cat", "cow"]), [["cat"], [], ["cat", "cow"], ""]),
    "unlabelled": (Unlabelled(SPACE), ["", "cat"]),
}


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Tensors of four numbers are slower on many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def with_prior(view):
    confidences = torch.tensor([[0.7, 0.1, 0.1, 0.1], [0.2, 0.0, 0.8, 0.0]])
    return view.with_offset(view.prior_offset(confidences))


FORMS = {"own": lambda view: view, "prior": with_prior, "wide": lambda view: view.with_offset(None)}
every_case = pytest.mark.parametrize("name", CASES)
every_form = pytest.mark.parametrize("form", FORMS)
single_label_cases = pytest.mark.parametrize("name", [name for name in CASES if "tags" not in name])


def case(name, form="own"):
    view, raw = CASES[name]
    return FORMS[form](view), view.encode(raw)


def logits_for(target, seed=0, dtype=torch.float32):
    return torch.randn(len(target), len(SPACE), generator=torch.Generator().manual_seed(seed)).to(dtype)


def value_and_gradient(view, logits, target):
    logits = logits.clone().requires_grad_()
    loss = view.nll(logits, target)
    (gradient,) = torch.autograd.grad(loss.sum(), logits)
    return loss.detach(), gradient


# --- worked numbers


def test_the_restricted_softmax_of_example_1a():
    logits = torch.tensor([[1.0, 2.0, 0.5, -1.0]])
    full, some = Exact(SPACE), Exact(SPACE, ["cat", "dog"])
    assert full.answer(logits)[0].tolist() == pytest.approx([0.224208, 0.609460, 0.135989, 0.030343], abs=5e-7)
    assert some.answer(logits)[0].tolist() == pytest.approx([0.268941, 0.731059, 0, 0], abs=5e-7)
    first_two = full.answer(logits)[:, :2]
    torch.testing.assert_close(some.answer(logits)[:, :2], first_two / first_two.sum())
    assert some.nll(logits, some.encode(["dog"])).item() == pytest.approx(-math.log(0.731059), abs=1e-6)
    assert full.nll(logits, full.encode(["dog"])).item() == pytest.approx(-math.log(0.609460), abs=1e-6)


def test_the_projection_of_example_2a():
    space = LabelSpace(["a", "b", "c"])
    view = Coarse(space, {"first": ["a", "b"], "second": ["c"]})
    logits = torch.tensor([[0.5, 0.2, 0.3]]).log()
    loss, gradient = value_and_gradient(view, logits, view.encode(["first"]))
    assert view.answer(logits)[0].tolist() == pytest.approx([0.7, 0.3])
    assert loss.item() == pytest.approx(0.356675, abs=5e-7)
    assert gradient[0].tolist() == pytest.approx([-0.214286, -0.085714, 0.300000], abs=5e-7)


def test_the_summarisation_loss_of_example_5a():
    view, logits = Candidates(SPACE), torch.tensor([[2.0, 1, 0, -1]])
    target = view.encode(["cat|cow"])
    assert view.nll(logits, target).item() == pytest.approx(0.313262, abs=5e-7)
    assert view.posterior(logits, target)[0].tolist() == pytest.approx([0.880797, 0, 0.119203, 0], abs=5e-7)


def test_tags_sum_their_binary_cross_entropies():
    view, logits = Tags(SPACE, ["cat", "dog"]), torch.tensor([[0.0, math.log(3), 5.0, -5.0]])
    # P(cat) = 1/2 and absent, P(dog) = 3/4 and present; cow and hen are not known.
    assert view.nll(logits, view.encode(["dog"])).item() == pytest.approx(-math.log(1 / 2) - math.log(3 / 4))


def test_a_site_prior_shifts_the_logits():
    view = Exact(SPACE).with_offset(torch.tensor([0.5, 0.25, 0.125, 0.125]).log())
    flat = torch.zeros(1, 4)
    assert view.answer(flat)[0].tolist() == pytest.approx([0.5, 0.25, 0.125, 0.125])
    assert view.nll(flat, view.encode(["dog"])).item() == pytest.approx(math.log(4))


def test_an_identity_correspondence_is_the_exact_view():
    coarse, exact = Coarse(SPACE, {name: [name] for name in SPACE}), Exact(SPACE)
    target = exact.encode(["cat", "hen", "dog", ""])
    logits = logits_for(target)
    torch.testing.assert_close(coarse.nll(logits, target), exact.nll(logits, target))


@pytest.mark.parametrize("scale", [1.0, 1e4, 1e30])
@pytest.mark.parametrize("known", [list(SPACE), ["cat", "dog"]])
def test_certain_sets_and_groups_are_the_exact_view(known, scale):
    # Also for large logits, where log P = z - logsumexp(z) has no digits left in float32.
    logits = torch.tensor([[scale, scale, -scale, 0.0]]) + torch.tensor([[1.0, 0, 0, 0]])
    exact = Exact(SPACE, known)
    for view in (Candidates(SPACE, known), Coarse(SPACE, {name: [name] for name in known})):
        for label in ("cat", "dog"):
            expected = value_and_gradient(exact, logits, exact.encode([label]))
            found = value_and_gradient(view, logits, view.encode([label]))
            torch.testing.assert_close(found, expected)


def test_a_full_candidate_set_teaches_nothing():
    for view in (Candidates(SPACE), Candidates(SPACE, ["cat", "dog"])):
        target = view.encode(["|".join(view.known or SPACE)])
        loss, gradient = value_and_gradient(view, logits_for(target), target)
        assert loss.item() == 0
        assert not gradient.any()


# --- gradients


@every_form
@every_case
def test_gradients_are_right(name, form):
    view, target = case(name, form)
    logits = logits_for(target, dtype=torch.float64).requires_grad_()
    assert view.nll(logits, target).dtype == torch.float64
    assert torch.autograd.gradcheck(lambda z: view.nll(z, target), logits)


@pytest.mark.parametrize("form", ["own", "prior"])
@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("exact, some known", [1, 0, 1, 0]),
        ("candidates, some known", [1, 0, 1, 1]),
        ("coarse, hens unseen", [1, 1, 1, 0]),
        ("tags, some known", [1, 0, 1, 0]),
        ("unlabelled", [0, 0, 0, 0]),
    ],
)
def test_only_known_rows_are_informed(name, known, form):
    view, target = case(name, "own")
    assert view.informs().int().tolist() == known
    view, target = case(name, form)
    _, gradient = value_and_gradient(view, logits_for(target), target)
    assert torch.equal(gradient.abs().sum(0) > 0, torch.tensor(known, dtype=torch.bool))


@pytest.mark.parametrize("form", ["own", "prior"])
@every_case
def test_samples_without_annotation_cost_and_teach_nothing(name, form):
    view, _ = case(name, form)
    target = view.encode([""] * 5)
    loss, gradient = value_and_gradient(view, logits_for(target), target)
    assert not loss.any()
    assert not gradient.any()


# --- saturation

SIGNS = torch.tensor(list(itertools.product([-1.0, 0.0, 1.0], repeat=len(SPACE))))


@every_form
@every_case
def test_a_saturated_model_stays_finite(name, form):
    view, target = case(name, form)
    for annotation, scale in itertools.product(target, (1e4, 1e30)):
        every_pattern = annotation.expand(len(SIGNS), *annotation.shape)
        assert_finite(view, scale * SIGNS, every_pattern)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(list(CASES)),
    form=st.sampled_from(list(FORMS)),
    row=st.lists(
        st.one_of(st.sampled_from([-1e30, -1e4, 0.0, 1e4, 1e30]), st.floats(-1e30, 1e30)),
        min_size=4,
        max_size=4,
    ),
)
def test_any_logits_stay_finite(name, form, row):
    view, target = case(name, form)
    assert_finite(view, torch.tensor([row] * len(target)), target)


def assert_finite(view, logits, target):
    loss, gradient = value_and_gradient(view, logits, target)
    assert torch.isfinite(loss).all()
    assert (loss >= -1e-6).all()
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(view.posterior(logits, target)).all()
    assert torch.isfinite(view.answer(logits)).all()


def test_half_precision_logits_do_not_overflow():
    view = Unlabelled(SPACE)
    logits = torch.full((1, 4), 6e4, dtype=torch.float16)
    assert view.nll(logits, view.encode([""])).tolist() == [0]


@every_form
@every_case
def test_other_precisions_can_be_asked(name, form):
    view, target = case(name, form)
    logits = logits_for(target)
    for dtype in (torch.bfloat16, torch.float64):
        for ask in (view.nll, view.posterior):
            torch.testing.assert_close(ask(logits.to(dtype), target).float(), ask(logits, target), rtol=0.05, atol=0.05)
        torch.testing.assert_close(view.answer(logits.to(dtype)).float(), view.answer(logits), rtol=0.05, atol=0.05)


# --- batches


@settings(max_examples=100, deadline=None)
@given(
    name=st.sampled_from(list(CASES)),
    form=st.sampled_from(list(FORMS)),
    picks=st.lists(st.integers(0, 100), max_size=6),
    seed=st.integers(0, 1000),
)
def test_a_batch_is_its_samples_one_by_one(name, form, picks, seed):
    view, known_targets = case(name, form)
    target = known_targets[torch.tensor(picks, dtype=torch.long) % len(known_targets)]
    logits = 5 * logits_for(target, seed)
    for ask in (view.nll, view.posterior):
        batch = ask(logits, target)
        assert len(batch) == len(picks)
        for row in range(len(picks)):
            torch.testing.assert_close(batch[row : row + 1], ask(logits[row : row + 1], target[row : row + 1]))


# --- what annotations may look like


def test_exact_labels_become_columns():
    target = Exact(SPACE).encode(["hen", " cat ", "", "  ", None, float("nan"), np.float32("nan"), "dog"])
    assert target.tolist() == [3, 0, -1, -1, -1, -1, -1, 1]
    assert target.dtype == torch.long


def test_labels_named_by_numbers():
    digits = LabelSpace(range(3))
    assert Exact(digits).encode([2, "0", np.int64(1)]).tolist() == [2, 0, 1]
    assert Candidates(digits).encode([2, "0|1", [0, 2]]).int().tolist() == [[0, 0, 1], [1, 1, 0], [1, 0, 1]]
    assert Tags(digits).encode([2, "0;1", [0]]).tolist() == [[0, 0, 1], [1, 1, 0], [1, 0, 0]]


def test_candidate_sets_are_names_between_bars_or_sequences():
    target = Candidates(SPACE).encode(["cat | hen", ["dog", "cow"], ("cat",), {"hen"}, np.array(["cat"]), "", None])
    assert target.dtype == torch.bool
    assert target.int().tolist() == [
        [1, 0, 0, 1],
        [0, 1, 1, 0],
        [1, 0, 0, 0],
        [0, 0, 0, 1],
        [1, 0, 0, 0],
        [1, 1, 1, 1],
        [1, 1, 1, 1],
    ]


def test_without_annotation_all_known_labels_are_candidates():
    assert Candidates(SPACE, ["cat", "cow"]).encode([""]).int().tolist() == [[1, 0, 1, 0]]


def test_tags_are_names_between_semicolons_or_sequences():
    target = Tags(SPACE).encode(["cat; hen", ["dog"], [], "", None])
    assert target.dtype == torch.int8
    assert target.tolist() == [[1, 0, 0, 1], [0, 1, 0, 0], [0, 0, 0, 0], [-1] * 4, [-1] * 4]


def test_tags_a_site_does_not_know_are_not_annotated():
    assert Tags(SPACE, ["cat", "cow"]).encode(["cat", []]).tolist() == [[1, -1, 0, -1], [0, -1, 0, -1]]


def test_coarse_names_become_their_own_columns():
    assert Coarse(SPACE, PETS).encode(["farm", "pet", ""]).tolist() == [1, 0, -1]


def test_an_unlabelled_site_reads_nothing():
    assert Unlabelled(SPACE).encode(["cat", "what is this", None]).tolist() == [-1, -1, -1]


@every_case
def test_no_samples_give_an_empty_target_of_the_same_kind(name):
    view, target = case(name)
    empty = view.encode([])
    assert empty.shape == (0, *target.shape[1:])
    assert empty.dtype == target.dtype
    assert view.nll(torch.zeros(0, 4), empty).shape == (0,)


@pytest.mark.parametrize(
    ("view", "raw", "message"),
    [
        (
            Exact(SPACE),
            ["cat", "dgo", "zebra"],
            "annotations: 2 cannot be read: row 2: 'dgo' is not one of the labels; did you mean 'dog'?; "
            "row 3: 'zebra' is not one of the labels; known: cat, dog, cow, hen",
        ),
        (
            Exact(SPACE, ["cat", "cow"]),
            ["cat", "hen"],
            "annotations: 1 cannot be read: row 2: 'hen' is not one of the labels; known: cat, cow",
        ),
        (
            Coarse(SPACE, PETS),
            ["cat", "pett"],
            "annotations: 2 cannot be read: row 1: 'cat' is not one of the labels; known: pet, farm; "
            "row 2: 'pett' is not one of the labels; did you mean 'pet'?",
        ),
        (
            Candidates(SPACE),
            ["cat|dogg", "cat", ["cow", "zebra"]],
            "annotations: 2 cannot be read: row 1: 'dogg' is not one of the labels; did you mean 'dog'?; "
            "row 3: 'zebra' is not one of the labels; known: cat, dog, cow, hen",
        ),
        (
            Candidates(SPACE, ["cat", "cow"]),
            ["cat|hen"],
            "annotations: 1 cannot be read: row 1: 'hen' is not one of the labels; known: cat, cow",
        ),
        (
            Exact(SPACE),
            ["Cat", "dog", "Cat", "emu", "Cat"],
            "annotations: 4 cannot be read: row 1 and 2 more: 'Cat' is not one of the labels; did you mean 'cat'?; "
            "row 4: 'emu' is not one of the labels; known: cat, dog, cow, hen",
        ),
        (Candidates(SPACE), ["cat", []], "annotations: 1 cannot be read: row 2: the candidate set is empty"),
        (
            Candidates(SPACE),
            [7, "cat;dog", "cat|"],
            "annotations: 3 cannot be read: row 1: '7' is not one of the labels; known: cat, dog, cow, hen; "
            "row 2: 'cat;dog' is not one of the labels; did you mean 'dog'?; "
            "row 3: a name is missing after the last bar of 'cat|'",
        ),
        (
            Tags(SPACE, ["cat", "cow"]),
            ["cat;coww;hen"],
            "annotations: 2 cannot be read: row 1: 'coww' is not one of the labels; did you mean 'cow'?; "
            "row 1: 'hen' is not one of the labels; known: cat, cow",
        ),
    ],
)
def test_every_value_that_means_nothing_is_named(view, raw, message):
    with pytest.raises(AnnotationError) as error:
        view.encode(raw)
    assert str(error.value) == message


@pytest.mark.parametrize("view", [Exact(SPACE), Candidates(SPACE), Coarse(SPACE, PETS), Tags(SPACE)])
def test_of_many_problems_ten_are_shown_and_the_rest_counted(view):
    with pytest.raises(AnnotationError) as error:
        view.encode([f"zebra {n}" for n in range(1, 14)], "site 'north', train.csv")
    assert str(error.value).startswith("site 'north', train.csv: 13 cannot be read: row 1: 'zebra 1'")
    assert "row 10: 'zebra 10'" in str(error.value)
    assert "row 11" not in str(error.value)
    assert str(error.value).endswith("; and 3 more")
    assert len(error.value.problems) == 13


@pytest.mark.parametrize("view", [Exact, Candidates, Tags, Unlabelled])
def test_known_labels_must_be_labels_of_the_space(view):
    with pytest.raises(ConfigError, match=r"'dogg' is not a label of this federation; did you mean 'dog'\?"):
        view(SPACE, ["cat", "dogg"])


def test_known_labels_take_the_order_of_the_space():
    assert Exact(SPACE, ["cow", "cat", "cow"]).known == ("cat", "cow")
    assert Exact(SPACE).known is None


# --- the true label given the annotation


@every_form
@single_label_cases
def test_the_posterior_sums_to_one_and_is_zero_outside_the_evidence(name, form):
    view, target = case(name, form)
    posterior = view.posterior(logits_for(target), target)
    torch.testing.assert_close(posterior.sum(-1), torch.ones(len(target)))
    possible = torch.isfinite(view.evidence(target) + view.adjusted(torch.zeros(4)))
    assert torch.equal(posterior > 0, possible)


def test_the_posterior_weighs_the_classes_of_a_coarse_label():
    space = LabelSpace(["a", "b", "c"])
    view = Coarse(space, {"first": ["a", "b"], "second": ["b", "c"]})
    logits = torch.tensor([[0.5, 0.2, 0.3]]).log()
    # M p restricted to the row of 'first': (1 * 0.5, 0.5 * 0.2, 0).
    assert view.posterior(logits, view.encode(["first"]))[0].tolist() == pytest.approx([0.5 / 0.6, 0.1 / 0.6, 0])
    assert view.posterior(logits, view.encode([""]))[0].tolist() == pytest.approx([0.5, 0.2, 0.3])


def test_the_posterior_of_tags_is_what_was_annotated_and_else_the_score():
    view, logits = Tags(SPACE, ["cat", "dog"]), torch.zeros(2, 4)
    target = view.encode(["cat", ""])
    assert view.posterior(logits, target).tolist() == [[1, 0, 0.5, 0.5], [0.5] * 4]


def test_tags_have_no_evidence_about_one_label():
    view = Tags(SPACE)
    with pytest.raises(ConfigError, match="a view of kind 'tags' has no evidence about one true label"):
        view.evidence(view.encode(["cat"]))


def test_the_evidence_of_each_view():
    def likelihood(view, raw):
        return view.evidence(view.encode([raw])).exp()[0].tolist()

    assert likelihood(Exact(SPACE), "dog") == [0, 1, 0, 0]
    assert likelihood(Exact(SPACE), "") == [1, 1, 1, 1]
    assert likelihood(Candidates(SPACE), "dog|hen") == [0, 1, 0, 1]
    assert likelihood(Coarse(SPACE, PETS | {"furry": ["cat", "cow"]}), "farm") == [0, 0, 0.5, 1]
    assert likelihood(Coarse(SPACE, PETS), "") == [1, 1, 1, 1]
    assert likelihood(Unlabelled(SPACE), "") == [1, 1, 1, 1]


# --- offsets


def test_a_class_under_no_coarse_label_is_not_known():
    view = Coarse(SPACE, {"pet": ["cat", "dog"], "farm": ["cow"]})
    assert view.informs().tolist() == [True, True, True, False]
    flat = torch.zeros(1, 4)
    assert view.nll(flat, view.encode(["pet"])).item() == pytest.approx(-math.log(2 / 3))
    assert view.answer(flat)[0].tolist() == pytest.approx([2 / 3, 1 / 3])


def test_a_widened_view_sees_all_labels():
    view = Exact(SPACE, ["cat", "dog"])
    flat, target = torch.zeros(1, 4), view.encode(["dog"])
    assert view.nll(flat, target).item() == pytest.approx(math.log(2))
    assert view.with_offset(None).nll(flat, target).item() == pytest.approx(math.log(4))
    assert view.with_offset(None).informs().all()
    with pytest.raises(AnnotationError):  # it still reads only what the site knows
        view.with_offset(None).encode(["hen"])


def test_a_widened_view_still_holds_that_the_label_is_a_known_one():
    flat, sets = torch.zeros(1, 4), Candidates(SPACE, ["cat", "dog"])
    assert sets.with_offset(None).nll(flat, sets.encode([""])).item() == pytest.approx(math.log(2))
    coarse = Coarse(SPACE, {"pet": ["cat", "dog"], "farm": ["cow"]})
    assert coarse.with_offset(None).nll(flat, coarse.encode(["pet"])).item() == pytest.approx(math.log(2))
    assert coarse.with_offset(None).answer(flat)[0].tolist() == [0.5, 0.25]  # hens have no coarse name


def test_tags_know_the_same_tags_when_widened():
    view, target = Tags(SPACE, ["cat"]), Tags(SPACE).encode([["cat", "dog"]])
    assert torch.equal(view.with_offset(None).informs(), torch.tensor([True, False, False, False]))
    assert view.with_offset(None).nll(torch.zeros(1, 4), target).item() == pytest.approx(math.log(2))


@every_case
def test_another_offset_leaves_the_view_as_it_was(name):
    view, target = case(name)
    logits, offset = logits_for(target), torch.tensor([0.1, -0.2, 0.3, 0.0])
    before = view.answer(logits)
    moved = view.with_offset(offset)
    assert type(moved) is type(view)
    assert moved.describe() == view.describe()
    torch.testing.assert_close(moved.adjusted(logits), logits + offset)
    torch.testing.assert_close(moved.answer(logits), moved.with_offset(None).answer(logits + offset))
    assert torch.equal(view.answer(logits), before)


def test_an_offset_may_be_more_precise_than_the_logits():
    for view, raw in CASES.values():
        precise = view.with_offset(torch.tensor([0.1, -0.2, 0.3, 0.0], dtype=torch.float64))
        target = view.encode(raw)
        assert torch.isfinite(precise.nll(logits_for(target), target)).all()
        assert torch.isfinite(precise.answer(logits_for(target))).all()


# --- the site's own answers


@pytest.mark.parametrize("form", ["own", "prior"])
@single_label_cases
def test_answers_are_probabilities_of_the_named_answers(name, form):
    view, target = case(name, form)
    answer = view.answer(logits_for(target))
    assert answer.shape == (len(target), len(view.answers))
    torch.testing.assert_close(answer.sum(-1), torch.ones(len(target)))


def test_the_answers_of_each_view():
    logits = torch.tensor([[4.0, 3, 2, 1]]).log()

    def answer(view):
        return dict(zip(view.answers, view.answer(logits)[0].tolist(), strict=True))

    assert answer(Exact(SPACE)) == pytest.approx({"cat": 0.4, "dog": 0.3, "cow": 0.2, "hen": 0.1})
    assert answer(Exact(SPACE, ["cat", "hen"])) == pytest.approx({"cat": 0.8, "dog": 0, "cow": 0, "hen": 0.2})
    assert answer(Candidates(SPACE)) == pytest.approx({"cat": 0.4, "dog": 0.3, "cow": 0.2, "hen": 0.1})
    assert answer(Coarse(SPACE, PETS)) == pytest.approx({"pet": 0.7, "farm": 0.3})
    assert answer(Coarse(SPACE, PETS | {"tame": ["dog"]})) == pytest.approx({"pet": 0.55, "farm": 0.3, "tame": 0.15})
    assert answer(Tags(SPACE)) == pytest.approx({"cat": 4 / 5, "dog": 3 / 4, "cow": 2 / 3, "hen": 1 / 2})
    assert answer(Unlabelled(SPACE)) == pytest.approx({"cat": 0.4, "dog": 0.3, "cow": 0.2, "hen": 0.1})


# --- samples of several views in one place


@every_form
@single_label_cases
def test_pooled_samples_keep_their_own_view(name, form):
    view, target = case(name, form)
    pooled, carried = Pooled(SPACE), pooled_target(view, target)
    logits = logits_for(target, dtype=torch.float64).requires_grad_()
    torch.testing.assert_close(pooled.nll(logits, carried), view.nll(logits, target))
    assert torch.equal(pooled.evidence(carried), view.evidence(target))
    assert torch.autograd.gradcheck(lambda z: pooled.nll(z, carried), logits)
    for scale in (1e4, 1e30):
        for annotation in carried:
            loss, gradient = value_and_gradient(pooled, scale * SIGNS, annotation.expand(len(SIGNS), 2, 4))
            assert torch.isfinite(loss).all()
            assert torch.isfinite(gradient).all()


def test_pooled_samples_keep_their_digits():
    logits = torch.tensor([[1e4 + 1, 1e4, 0, 0]])
    view = Exact(SPACE)
    carried = pooled_target(view, view.encode(["cat"]))
    assert Pooled(SPACE).nll(logits, carried).item() == pytest.approx(math.log(1 + math.exp(-1)))


def test_a_pooled_view_reads_no_annotations():
    with pytest.raises(ConfigError, match="a pooled view reads no annotations of its own"):
        Pooled(SPACE).encode(["cat"])
    with pytest.raises(ConfigError, match="a view of kind 'tags' has no evidence about one true label"):
        pooled_target(Tags(SPACE), Tags(SPACE).encode(["cat"]))


# --- views as the experiment file writes them


@every_case
def test_a_view_can_be_written_and_made_again(name):
    view, target = case(name)
    again = make_view(view.describe(), SPACE)
    assert type(again) is type(view)
    assert again.describe() == view.describe()
    assert again.answers == view.answers
    assert torch.equal(again.informs(), view.informs())
    logits = logits_for(target)
    assert torch.equal(again.nll(logits, target), view.nll(logits, target))


def test_how_views_are_written():
    assert Exact(SPACE).describe() == {"kind": "exact"}
    assert Tags(SPACE, ["cow", "cat"]).describe() == {"kind": "tags", "known": ["cat", "cow"]}
    assert Coarse(SPACE, PETS).describe() == {"kind": "coarse", "correspondence": PETS}
    assert {type(view).kind for view, _ in CASES.values()} == set(VIEWS) - {"pooled"}  # which has its own tests


def test_a_view_is_exact_unless_said_otherwise():
    assert isinstance(make_view({}, SPACE), Exact)
    assert make_view({"known": ["hen"]}, SPACE).known == ("hen",)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"kind": "candidate"}, r"unknown kind of view 'candidate'; did you mean 'candidates'\?"),
        ({"kind": "oracle"}, "unknown kind of view 'oracle'; known: exact, candidates, coarse, tags, unlabelled"),
        ({"kind": "coarse"}, "a coarse view needs 'correspondence', or 'names' alone; neither is given"),
        ({"kind": "exact", "labels": []}, "a view of kind 'exact': unknown key 'labels'; known: kind, known"),
        ({"kind": "coarse", "correspondence": {"pet": ["kat"]}}, r"coarse label 'pet': 'kat' .* did you mean 'cat'\?"),
        ({"kind": "coarse", "correspondence": {}}, "correspondence is {}, but should be of at least 1 entry"),
    ],
)
def test_a_view_that_cannot_be_made(spec, message):
    with pytest.raises(ConfigError, match=message):
        make_view(spec, SPACE)


# --- views outside FedAccord


class Noisier(Exact):
    """A subclass with a key of its own."""

    class Declaration(Exact.Declaration):
        share: float = 0.1

    def __init__(self, space, known=None, share=0.1):
        super().__init__(space, known)
        self.share = share


class Doubtful(Candidates):
    class Declaration(Candidates.Declaration):
        doubt: int = 1

    def __init__(self, space, known=None, doubt=1):
        super().__init__(space, known)
        self.doubt = doubt


class Rough(Coarse):
    class Declaration(Coarse.Declaration):
        rough: bool = False

    def __init__(self, space, correspondence=None, names=None, rough=False):
        super().__init__(space, correspondence, names)
        self.rough = rough


class MoreTags(Tags):
    pass


class Nothing(Unlabelled):
    pass


class Evidence(View):
    def encode(self, raw, where="annotations", first=1):
        return torch.tensor([self.space.column(name) for name in raw])

    def evidence(self, target):
        return torch.nn.functional.one_hot(target, len(self.space)).float()


class Kinded(Evidence):
    kind = "exact"


class Unregistered(Evidence):
    kind = "unregistered"


class Narrow(Evidence):
    def evidence(self, target):
        return torch.zeros(len(target), 2)


class Undeclared(Evidence):
    def __init__(self, space, chance=0.5):
        super().__init__(space)
        self.chance = chance


class Unused(Evidence):
    class Declaration(ViewDeclaration):
        chance: float = 0.5


class Forgetful(Evidence):
    class Declaration(ViewDeclaration):
        chance: float = 0.5

    def __init__(self, space, chance=0.5):
        super().__init__(space)


SUBCLASSES = [
    Noisier(SPACE, ["cat", "cow"], 0.2),
    Doubtful(SPACE, ["cat", "cow"], 2),
    Rough(SPACE, PETS, rough=True),
    Rough(SPACE, names=["a", "b"]),
    MoreTags(SPACE, ["hen"]),
    Nothing(SPACE),
]


@pytest.mark.parametrize("view", SUBCLASSES, ids=lambda view: view.title)
def test_a_subclass_of_a_built_in_view_is_declared_and_made_again(view):
    with trusting([__name__]):
        again = make_view(view.describe(), SPACE)
        declared = TypeAdapter(registry.ViewConfig).validate_python(view.describe())
    assert type(again) is type(view)
    assert again.describe() == view.describe()
    assert declared.kind == f"{__name__}:{type(view).__name__}"
    assert set(vars(again)) == set(vars(view))


def test_a_subclass_keeps_the_keys_of_a_study():
    with trusting([__name__]):
        declared = registry.declare({"kind": f"{__name__}:Doubtful", "generate": "uniform", "q": 0.1, "doubt": 3})
        assert registry.build_view(declared, SPACE).doubt == 3
        with pytest.raises(ConfigError, match="following has no effect unless generate"):
            registry.declare({"kind": f"{__name__}:Doubtful", "following": 0.1})


@pytest.mark.parametrize("name", ["Noisier", "Evidence"])
def test_a_view_outside_fedaccord_trains_from_python(name):
    view, labels = globals()[name](SPACE), [*SPACE] * 5
    result = Federation([Site("a", torch.randn(20, 3), labels, view)]).train(rounds=1)
    assert type(result.trained.site("a").view) is type(view)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (Kinded(SPACE), "the view NAME:Kinded has the kind 'exact', which does not stand for it; leave out its 'kind'"),
        (Unregistered(SPACE), "the view NAME:Unregistered has the kind 'unregistered', which does not stand for it"),
        (Narrow(SPACE), r"the evidence of the view NAME:Narrow has shape \(2, 2\) .* should have \(2, 4\)"),
        (Undeclared(SPACE), "the constructor of the view 'NAME:Undeclared' takes 'chance', which is no declared key"),
        (Forgetful(SPACE), "the view 'NAME:Forgetful' has the key 'chance', but no attribute of that name"),
        (Evidence(SPACE, ["cat"]), "a view of kind 'NAME:Evidence': unknown key 'known'"),
    ],
    ids=lambda value: value.title if isinstance(value, View) else "",
)
def test_a_mistake_of_a_views_author_is_named(view, message):
    with pytest.raises(ConfigError, match=message.replace("NAME", __name__)):
        Federation([Site("a", torch.randn(20, 3), [*SPACE] * 5, view)]).train(rounds=1)


def test_a_declared_key_that_the_constructor_does_not_take_is_named():
    with trusting([__name__]), pytest.raises(ConfigError, match="Unused' has the key 'chance', which its constructor"):
        make_view({"kind": f"{__name__}:Unused"}, SPACE)


def test_a_view_may_have_the_kind_under_which_it_is_registered(monkeypatch):
    point = EntryPoint("unregistered", f"{__name__}:Unregistered", "fedaccord.views")
    for module in (registry, extensions):
        monkeypatch.setattr(module, "installed", lambda group: {point.name: point} if group == "views" else {})
    with trusting([extensions.INSTALLED]):
        registry.check_outside(Unregistered(SPACE), torch.tensor([0, 1]))
    point = EntryPoint("exact", f"{__name__}:Kinded", "fedaccord.views")
    with trusting([extensions.INSTALLED]), pytest.raises(ConfigError, match="leave out its 'kind'"):
        registry.check_outside(Kinded(SPACE), torch.tensor([0, 1]))  # the built-in views keep their names


def test_an_installed_package_registers_a_view_that_runs_only_if_trusted(monkeypatch):
    point = EntryPoint("fractions", "fractions:Fraction", "fedaccord.views")
    for module in (registry, extensions):
        monkeypatch.setattr(module, "installed", lambda group: {"fractions": point} if group == "views" else {})
    with pytest.raises(UntrustedError, match="--trust fractions"):
        make_view({"kind": "fractions"}, SPACE)
    with trusting(["fractions"]), pytest.raises(ConfigError, match="'fractions' is not a subclass of"):
        make_view({"kind": "fractions"}, SPACE)
    with pytest.raises(ConfigError, match=r"unknown kind of view 'fraction'; did you mean 'fractions'\?"):
        make_view({"kind": "fraction"}, SPACE)


@pytest.mark.parametrize("top", [1e38, 3e38])
@pytest.mark.parametrize("name", CASES)
def test_logits_at_the_end_of_the_float_range_have_gradients(name, top):
    view, raw = CASES[name]
    target = view.encode(raw)
    logits = torch.full((len(target), len(SPACE)), -top)
    logits[:, 0] = top
    logits.requires_grad_()
    view.nll(logits, target).clamp(max=1e38).sum().backward()
    assert torch.isfinite(logits.grad).all()


@pytest.mark.parametrize("name", CASES)
def test_half_precision_logits_of_every_view_stay_finite(name):
    view, raw = CASES[name]
    target = view.encode(raw)
    logits = torch.full((len(target), len(SPACE)), -6e4, dtype=torch.float16)
    logits[:, 0] = 6e4
    assert torch.isfinite(view.nll(logits, target)).all()


def test_exact_labels_take_the_last_axis_for_the_classes_as_every_view_does():
    view = Exact(SPACE)
    logits = torch.randn(2, 3, len(SPACE), generator=torch.Generator().manual_seed(0))
    target = torch.tensor([[0, 1, 0], [1, 0, 1]])
    flat = view.nll(logits.reshape(6, -1), target.reshape(6)).reshape(2, 3)
    assert torch.equal(view.nll(logits, target), flat)
