"""Attacks of hostile sites (docs/methods.md 10.2, 10.3): on their training data, before training, or on their replies.

A victim of type I is in the target group and lacks the target label; a victim of type II has the label and is not in
the group. Groups and labels are candidate sets, bool (n, groups) and (n, labels); `group` and `label` are columns.

Replies are models (sites, parameters), with a mask of the hostile sites, bool (sites,). IPM and ALIE assume that the
attacker knows the honest updates, which few real attackers do.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import torch
from torch import Tensor

from fedaccord.adversary.settings import SENDING
from fedaccord.data.sensitive import Target
from fedaccord.data.site_data import SiteData
from fedaccord.errors import ConfigError
from fedaccord.labels.views import Candidates, View

FAIRNESS = ("plfa", "pafa", "mixup")  # attacks on the fairness towards one group
TO_SETS = ("plfa", "mixup")  # attacks that turn exact labels into candidate sets
SAME = 1e-9  # smaller differences of distances count as ties
CHUNK = 512
STRENGTH = {"sign-flip": 1.0, "scaling": 10.0, "ipm": 0.5}
HONEST = {"ipm": 1, "alie": 2}  # number of honest updates that an attack needs


def victims(groups: Tensor, sets: Tensor, group: int, label: int) -> tuple[Tensor, Tensor]:
    """Return masks of the victims of type I and of type II: bool (n,) each."""
    listed, labelled = groups[:, group], sets[:, label]
    return listed & ~labelled, ~listed & labelled


def flip_labels(groups: Tensor, sets: Tensor, group: int, label: int, known: Tensor | None = None) -> Tensor:
    """Return the sets after PLFA: the label is added to victims of type I and removed from those of type II.

    A set that would be empty becomes the set of all other `known` labels.
    """
    first, second = victims(groups, sets, group, label)
    return _flipped(sets, label, first, second, known)


def flip_groups(groups: Tensor, sets: Tensor, group: int, label: int) -> Tensor:
    """Return the groups after PAFA: the group is added to victims of type II and removed from those of type I.

    A set that would be empty becomes the set of all other groups.
    """
    first, second = victims(groups, sets, group, label)
    return _flipped(groups, group, second, first, None)


def _flipped(sets: Tensor, column: int, add: Tensor, remove: Tensor, known: Tensor | None) -> Tensor:
    flipped = sets.clone()
    flipped[add, column] = True
    flipped[remove, column] = False
    others = torch.ones(sets.shape[1], dtype=torch.bool, device=sets.device) if known is None else known.clone()
    others[column] = False
    flipped[~flipped.any(1)] = others
    return flipped


def mix_up(
    x: Tensor, groups: Tensor, sets: Tensor, group: int, label: int, ratio: float = 0.5, apart: slice | None = None
) -> tuple[Tensor, Tensor]:
    """Return inputs and fractional label sets in which each victim is mixed with its nearest partner.

    Partners have the label (type I) or are listed in the group (type II). The nearest is chosen by groups and labels,
    then by the features outside `apart`, then by order. A victim without a partner is unchanged.
    """
    first, second = victims(groups, sets, group, label)
    weights = sets.to(x.dtype)
    mixed_x, mixed_sets = x.clone(), weights.clone()
    features = x.flatten(1).clone()
    if apart is not None:
        features[:, apart] = 0.0
    for hit, partners in ((first, sets[:, label]), (second, groups[:, group])):
        pool = partners.nonzero().flatten()
        if not len(pool):
            continue
        for rows in hit.nonzero().flatten().split(CHUNK):
            near = torch.cdist(groups[rows].double(), groups[pool].double())
            near = near + torch.cdist(sets[rows].double(), sets[pool].double())
            far = torch.cdist(features[rows].double(), features[pool].double())
            chosen = pool[far.masked_fill(near > near.amin(1, keepdim=True) + SAME, float("inf")).argmin(1)]
            mixed_x[rows] = ratio * x[rows] + (1 - ratio) * x[chosen]
            mixed_sets[rows] = ratio * weights[rows] + (1 - ratio) * weights[chosen]
    return mixed_x, mixed_sets


def mirror_labels(view: View, target: Tensor) -> Tensor:
    """Return the annotations with the order of the labels reversed: the first becomes the last, and so on."""
    allowed = view.exchangeable().nonzero().flatten()
    mirror = torch.arange(len(view.answers))
    mirror[allowed] = allowed.flip(0)
    return view.exchanged(target, mirror.to(target.device))


def refuse_site(site: SiteData, kind: str, target: Target | None) -> None:
    """Raise ConfigError if a site lacks the annotations or the groups that an attack needs."""
    if kind == "label-flip":
        mirror_labels(site.view, site.train.target[:0])
    if kind not in FAIRNESS or not len(site.train):
        return
    if target is None or site.train.group is None or site.view.candidate_sets(site.train.target) is None:
        needed = "groups, candidate or exact labels, and [fairness]"
        raise ConfigError(f"method.attack: '{kind}' needs {needed}; site '{site.name}' lacks at least one of them")
    if kind == "pafa" and target.inputs is None:
        raise ConfigError("method.attack: 'pafa' changes groups, which are not model inputs; set fairness.input")


def poisoned(site: SiteData, kind: str, target: Target | None, ratio: float = 0.5) -> SiteData:
    """Return a site with poisoned training data; attacks on replies leave it unchanged.

    Under plfa and mixup, exact and coarse labels become candidate sets, because a flipped label may be a set. Test
    labels do not change and are read through the site's declared view.
    """
    refuse_site(site, kind, target)
    data = site.train
    if kind == "label-flip":
        return replace(site, train=replace(data, target=mirror_labels(site.view, data.target)))
    if kind not in FAIRNESS or not len(data):
        return site
    sets = site.view.candidate_sets(data.target)
    assert target is not None
    assert data.group is not None
    assert sets is not None
    if kind == "pafa":
        groups, x = flip_groups(data.group, sets, target.group, target.label), data.x.clone()
        bits = groups.to(x.dtype)
        x[:, target.inputs] = bits / bits.sum(1, keepdim=True) if target.normalised else bits
        return replace(site, train=replace(data, x=x, group=groups))
    view = Candidates(site.view.space, site.view.known)
    if kind == "plfa":
        x, known = data.x, view.possible_labels().to(sets.device)
        labels = flip_labels(data.group, sets, target.group, target.label, known)
    else:
        x, labels = mix_up(data.x, data.group, sets, target.group, target.label, ratio, target.inputs)
    return replace(site, view=view, train=replace(data, x=x, target=labels))


def why_harmless(kind: str, sites: int, hostile: int, strength: float | None = None) -> str | None:
    """Return why an attack has no effect in a round of `sites` sites; None if it has one."""
    if kind not in HONEST or not hostile:
        return None
    if sites - hostile < HONEST[kind]:
        return f"it is computed from honest updates, and needs {HONEST[kind]} of them in a round"
    if kind == "alie" and strength is None and alie_deviation(sites, hostile) <= 0:
        return "there are too few hostile sites for an unnoticed deviation from the honest mean; set strength"
    return None


def alie_deviation(sites: int, hostile: int) -> float:
    """Return z of ALIE: the normal quantile of the share of honest sites that a hostile majority does not need."""
    needed = sites // 2 + 1 - hostile
    share = (sites - hostile - needed) / (sites - hostile)
    return NormalDist().inv_cdf(min(max(share, 1e-3), 1 - 1e-3))


def forged(
    kind: str, matrix: Tensor, previous: Tensor, hostile: Tensor, trained: Tensor, strength: float | None = None
) -> Tensor:
    """Return the sites' models under an attack; only `trained` values, bool (parameters,), of hostile sites change."""
    if kind not in SENDING or not bool(hostile.any()):
        return matrix
    updates = matrix - previous
    sent = previous + _forged_updates(kind, updates, updates[~hostile], strength)
    return torch.where(trained & hostile[:, None], sent, matrix)


def _forged_updates(kind: str, updates: Tensor, honest: Tensor, strength: float | None) -> Tensor:
    """Return the update that each site would send if it were hostile, or one update for all of them."""
    if len(honest) < HONEST.get(kind, 0):
        return updates
    if kind == "alie":  # Baruch et al. 2019: hostile updates are closer to the mean than enough of the honest ones
        z = alie_deviation(len(updates), len(updates) - len(honest)) if strength is None else strength
        return honest.mean(0) - z * honest.std(0, unbiased=False)
    factor = STRENGTH[kind] if strength is None else strength
    if kind == "ipm":  # Xie et al. 2020: a small multiple of the honest mean, with the opposite sign
        return -factor * honest.mean(0)
    return factor * updates if kind == "scaling" else -factor * updates
