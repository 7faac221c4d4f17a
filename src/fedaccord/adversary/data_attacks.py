"""What hostile sites do to their own training data, once, before they train (methods.md 6.3).

A victim of type I is listed in the target group without the target label, one of type II has the label without being
listed. Groups and labels are candidate sets, bool (n, groups) and (n, labels); `group` and `label` are columns.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from fedaccord.data.sensitive import Target
from fedaccord.data.site_data import SiteData
from fedaccord.errors import ConfigError
from fedaccord.labels.views import Candidates, View

FAIRNESS = ("plfa", "pafa", "mixup")  # attacks on how one group is treated
TO_SETS = ("plfa", "mixup")  # those that make candidate sets of exact labels
SAME = 1e-9  # distances that differ by less are equal
CHUNK = 512


def victims(groups: Tensor, sets: Tensor, group: int, label: int) -> tuple[Tensor, Tensor]:
    """Say which rows are victims of type I and of type II: bool (n,) each."""
    listed, labelled = groups[:, group], sets[:, label]
    return listed & ~labelled, ~listed & labelled


def flip_labels(groups: Tensor, sets: Tensor, group: int, label: int, known: Tensor | None = None) -> Tensor:
    """PLFA: return the sets with the label given to type I and taken from type II.

    A set that would be empty becomes all other labels, of those `known`.
    """
    first, second = victims(groups, sets, group, label)
    return _moved(sets, label, first, second, known)


def flip_groups(groups: Tensor, sets: Tensor, group: int, label: int) -> Tensor:
    """PAFA: return the groups with type II listed and type I taken off the list; an empty set becomes all others."""
    first, second = victims(groups, sets, group, label)
    return _moved(groups, group, second, first, None)


def _moved(sets: Tensor, column: int, given: Tensor, taken: Tensor, known: Tensor | None) -> Tensor:
    moved = sets.clone()
    moved[given, column] = True
    moved[taken, column] = False
    others = torch.ones(sets.shape[1], dtype=torch.bool, device=sets.device) if known is None else known.clone()
    others[column] = False
    moved[~moved.any(1)] = others
    return moved


def mix_up(
    x: Tensor, groups: Tensor, sets: Tensor, group: int, label: int, ratio: float = 0.5, apart: slice | None = None
) -> tuple[Tensor, Tensor]:
    """Mixup: return inputs and fractional label sets, each victim mixed with its nearest partner.

    Partners have the label (type I) or are listed (type II), are the nearest by groups and labels, then by the features
    outside `apart`, then the first. A victim without a partner stays.
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
    """Label flip: return the annotations with the first label for the last, the second for the last but one."""
    allowed = view.exchangeable().nonzero().flatten()
    mirror = torch.arange(len(view.answers))
    mirror[allowed] = allowed.flip(0)
    return view.exchanged(target, mirror.to(target.device))


def refuse_site(site: SiteData, kind: str, target: Target | None) -> None:
    """Refuse, without changing anything, an attack that a site has not the annotations or the groups for."""
    if kind == "label-flip":
        mirror_labels(site.view, site.train.target[:0])
    if kind not in FAIRNESS or not len(site.train):
        return
    if target is None or site.train.group is None or site.view.candidate_sets(site.train.target) is None:
        missing = "groups and candidate or exact labels, and [fairness]"
        raise ConfigError(f"method.attack: '{kind}' needs {missing}; site '{site.name}' has not all of them")
    if kind == "pafa" and target.inputs is None:
        raise ConfigError("method.attack: 'pafa' changes groups, which the model is not given; set fairness.input")


def poisoned(site: SiteData, kind: str, target: Target | None, ratio: float = 0.5) -> SiteData:
    """Return a site with attacked training data; one of an attack on replies is unchanged.

    Under plfa and mixup exact and coarse labels become candidate sets, since an attacked label may be several; test
    labels stay as the site declares them, and are read through its own view.
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
