"""Attacks on a site's own data: worked examples of docs/methods.md 10.2, empty sets, and properties."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedaccord.adversary.attacks import flip_groups, flip_labels, mirror_labels, mix_up, poisoned, victims
from fedaccord.adversary.settings import hostile_sites
from fedaccord.data.sensitive import Target
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.errors import ConfigError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import Candidates, Coarse, Exact, Tags

SPACE = LabelSpace(["low", "medium", "high"])
GROUPS = torch.tensor([[1, 0, 0], [1, 0, 1], [0, 1, 0], [0, 1, 0]]).bool()
SETS = torch.tensor([[1, 0, 0], [0, 0, 1], [0, 1, 1], [0, 0, 1]]).bool()
TARGET = Target(("a", "b", "c"), 0, 2, block=2)


def test_plfa_of_the_worked_example():
    assert flip_labels(GROUPS, SETS, 0, 2).int().tolist() == [[1, 0, 1], [0, 0, 1], [0, 1, 0], [1, 1, 0]]


def test_pafa_of_the_worked_example():
    assert flip_groups(GROUPS, SETS, 0, 2).int().tolist() == [[0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 1, 0]]


def test_mixup_of_the_worked_example():
    groups = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 1, 0], [1, 0, 0]]).bool()
    sets = torch.tensor([[1, 0, 0], [0, 0, 1], [1, 0, 1], [1, 1, 1]]).bool()
    near = torch.cdist(groups[:1].double(), groups[1:].double()) + torch.cdist(sets[:1].double(), sets[1:].double())
    assert near[0].tolist() == pytest.approx([2.414214, 2.414214, 1.414214], abs=1e-6)
    x = torch.tensor([[1.0, 0, 1, 3], [7, 7, 7, 7], [9, 9, 9, 9], [0, 1, 1, 5]])
    mixed, labels = mix_up(x, groups, sets, 0, 2)
    assert mixed[0].tolist() == [0.5, 0.5, 1.0, 4.0]
    assert labels[0].tolist() == [1.0, 0.5, 0.5]
    assert mixed[1].tolist() == [7.0] * 4
    # The third has the label without being listed: its partner is the nearest that is listed, the second.
    assert mixed[2].tolist() == [8.0] * 4


def test_mixup_breaks_ties_by_features_outside_the_groups_and_then_by_order():
    groups = torch.tensor([[1, 0]] * 4).bool()
    sets = torch.tensor([[1, 0], [0, 1], [0, 1], [0, 1]]).bool()
    x = torch.tensor([[0.0, 1, 0], [5, 1, 0], [1, 9, 9], [1, 0, 0]])
    assert mix_up(x, groups, sets, 0, 1, apart=slice(1, 3))[0][0].tolist() == [0.5, 5.0, 4.5]
    assert mix_up(x, groups, sets, 0, 1)[0][0].tolist() == [0.5, 0.5, 0.0]


def test_a_victim_without_a_partner_stays():
    groups, sets = torch.tensor([[1, 0], [0, 1]]).bool(), torch.tensor([[1, 0], [1, 0]]).bool()
    x = torch.tensor([[1.0], [2.0]])
    assert mix_up(x, groups, sets, 0, 1)[0].tolist() == x.tolist()


@given(st.lists(st.tuples(*[st.booleans()] * 5), min_size=1, max_size=12), st.integers(0, 1), st.integers(0, 2))
def test_attacked_sets_are_never_empty_and_only_victims_change(rows, group, label):
    table = torch.tensor(rows)
    groups, sets = table[:, :2].clone(), table[:, 2:].clone()
    groups[~groups.any(1)] = True
    sets[~sets.any(1)] = True
    first, second = victims(groups, sets, group, label)
    assert not bool((first & second).any())
    labels, listed = flip_labels(groups, sets, group, label), flip_groups(groups, sets, group, label)
    calm = ~(first | second)
    assert bool(labels.any(1).all() and listed.any(1).all())
    assert torch.equal(labels[calm], sets[calm])
    assert torch.equal(listed[calm], groups[calm])
    # Afterwards whoever is listed may have the label, and whoever is not may not.
    assert torch.equal(labels[:, label], groups[:, group] | (labels[:, label] & groups[:, group]))
    assert torch.equal(listed[:, group], sets[:, label])


def test_an_emptied_set_becomes_the_other_labels_that_the_site_knows():
    known = torch.tensor([True, False, True])
    assert flip_labels(GROUPS[3:], SETS[3:], 0, 2, known).int().tolist() == [[1, 0, 0]]


def samples(target):
    x = torch.cat([torch.arange(8.0).reshape(4, 2), GROUPS.float()], 1)
    return Samples(x, target, torch.tensor([0, 2, 1, 2]), GROUPS)


def site(view, target):
    return SiteData("s", view, samples(target), samples(target))


def test_a_poisoned_site_tests_on_what_is_true():
    honest = site(Candidates(SPACE), SETS)
    hit = poisoned(honest, "pafa", TARGET)
    assert torch.equal(hit.train.group, flip_groups(GROUPS, SETS, 0, 2))
    assert torch.equal(hit.train.x[:, 2:], hit.train.group.float())
    assert torch.equal(hit.train.x[:, :2], honest.train.x[:, :2])
    assert torch.equal(hit.test.x, honest.test.x)
    assert torch.equal(hit.test.target, honest.test.target)
    assert torch.equal(honest.train.group, GROUPS)  # what was handed over is not written to


def test_flipped_groups_share_one_where_honest_ones_do():
    hit = poisoned(site(Candidates(SPACE), SETS), "pafa", replace(TARGET, normalised=True))
    groups = flip_groups(GROUPS, SETS, 0, 2).float()
    assert torch.equal(hit.train.x[:, 2:], groups / groups.sum(1, keepdim=True))
    assert 0.5 in hit.train.x[:, 2:]


def test_exact_labels_are_read_as_sets_of_one():
    hit = poisoned(site(Exact(SPACE), torch.tensor([0, 2, 1, 2])), "plfa", TARGET)
    assert isinstance(hit.view, Candidates)
    assert hit.train.target.int().tolist() == [[1, 0, 1], [0, 0, 1], [0, 1, 0], [1, 1, 0]]
    assert hit.test.target.tolist() == [0, 2, 1, 2]


def test_mixed_sets_are_shares_that_the_view_weighs():
    hit = poisoned(site(Candidates(SPACE), SETS), "mixup", TARGET, ratio=0.25)
    assert hit.train.target.is_floating_point()
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = -(hit.train.target * torch.softmax(logits, -1)).sum(-1).log()
    assert torch.allclose(hit.view.nll(logits, hit.train.target), expected, atol=1e-6)


def test_mixed_sets_are_trained_on_though_no_label_is_left_out():
    """In the worked example the set comes to (1, 1/2, 1/2), which tells the first label from the others."""
    mixed = torch.tensor([[1.0, 0.5, 0.5], [0.5, 0.5, 1.0], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0], [0.0, 1.0, 1.0]])
    assert Candidates(SPACE).annotated(mixed).tolist() == [True, True, False, False, True]
    two = site(Candidates(LabelSpace(["no", "yes"])), torch.tensor([[1, 0], [0, 1], [1, 0], [0, 1]], dtype=torch.bool))
    hit = poisoned(two, "mixup", replace(TARGET, label=1))
    assert (hit.train.target > 0).all(-1).any()  # with two labels every mixed set holds both
    assert hit.view.annotated(hit.train.target).all()


def test_what_has_no_group_or_no_sets_cannot_be_attacked():
    plain = site(Exact(SPACE), torch.tensor([0, 2, 1, 2]))
    bare = SiteData("s", plain.view, Samples(plain.train.x, plain.train.target), plain.test)
    with pytest.raises(ConfigError, match="site 's' lacks at least one of them"):
        poisoned(bare, "plfa", TARGET)
    with pytest.raises(ConfigError, match="and \\[fairness\\]"):
        poisoned(plain, "plfa", None)
    with pytest.raises(ConfigError, match=r"fairness\.input"):
        poisoned(plain, "pafa", Target(("a", "b", "c"), 0, 2))
    tags = site(Tags(SPACE), SETS.to(torch.int8))
    with pytest.raises(ConfigError, match="lacks at least one of them"):
        poisoned(tags, "mixup", TARGET)
    with pytest.raises(ConfigError, match="not tags"):
        poisoned(tags, "label-flip", TARGET)
    assert poisoned(plain, "sign-flip", None) is plain


def test_flipped_labels_are_mirrored_among_those_that_the_site_knows():
    assert mirror_labels(Exact(SPACE), torch.tensor([0, 1, 2, -1])).tolist() == [2, 1, 0, -1]
    assert mirror_labels(Exact(SPACE, ["low", "medium"]), torch.tensor([0, 1])).tolist() == [1, 0]
    assert mirror_labels(Candidates(SPACE), SETS[:1]).int().tolist() == [[0, 0, 1]]
    coarse = Coarse(SPACE, {"fine": ["low"], "risky": ["medium", "high"]})
    assert mirror_labels(coarse, torch.tensor([0, 1, 1])).tolist() == [1, 0, 0]
    once = site(Exact(SPACE), torch.tensor([0, 2, 1, 2]))
    assert poisoned(once, "label-flip", None).train.target.tolist() == [2, 0, 1, 0]


def test_hostile_sites_are_drawn_by_seed_or_named():
    names = [f"site-{n}" for n in range(10)]
    drawn = hostile_sites(0.3, names, seed=4)
    assert len(drawn) == 3
    assert drawn == hostile_sites(3, list(reversed(names)), seed=4)
    assert len({hostile_sites(3, names, seed) for seed in range(20)}) > 10
    assert hostile_sites(0.29, [str(n) for n in range(100)], 0).__len__() == 29
    assert hostile_sites(0.05, names, 0).__len__() == 1
    assert hostile_sites(["site-7", "site-2"], names, 0) == ("site-2", "site-7")
    assert hostile_sites(0.3, names, 4, able=list(reversed(names))) == drawn
    some = {hostile_sites(0.3, names, seed, able=names[:4]) for seed in range(20)}
    assert {name for few in some for name in few} == set(names[:4])
    assert all(len(few) == 3 for few in some)  # a share of all that train
    with pytest.raises(ConfigError, match="asks for 3 hostile sites, but only 2 of 10 know the target label"):
        hostile_sites(3, names, 0, able=names[:2])
    with pytest.raises(ConfigError, match="there is no site 'site-x'; did you mean"):
        hostile_sites(["site-x"], names, 0)
    with pytest.raises(ConfigError, match="asks for 11 hostile sites, but only 10 may train"):
        hostile_sites(11, names, 0)
