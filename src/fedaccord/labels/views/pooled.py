"""The view of samples from several views in one place: each sample carries its own offset and evidence."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fedaccord.errors import ConfigError
from fedaccord.labels.views.base import View
from fedaccord.labels.views.likelihoods import below_top
from fedaccord.lazy import Tensor, torch


class Pooled(View):
    """Samples of several single-label views in one place, made by a study and not declared in a config file.

    Target: float (B, 2, C), offset and evidence.
    """

    kind = "pooled"

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Refuse: pooled targets are made from targets of other views."""
        raise ConfigError("a pooled view reads no annotations of its own")

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each sample's own view."""
        z = below_top(logits + target[:, 0])
        return torch.logsumexp(z, -1) - torch.logsumexp(z + target[:, 1], -1)

    def annotated(self, target: Tensor) -> Tensor:
        """Return for each sample whether its evidence favours any label."""
        return (target[:, 1] != 0).any(-1)

    def evidence(self, target: Tensor) -> Tensor:
        """Return the evidence carried along."""
        return target[:, 1]

    def candidate_sets(self, target: Tensor) -> Tensor | None:
        """Return None: the known labels differ between samples."""
        return None


def pooled_target(view: View, target: Tensor) -> Tensor:
    """Turn a view's targets into pooled ones."""
    evidence = view.evidence(target)
    offset = torch.zeros(len(view.space)) if view.offset is None else view.offset
    return torch.stack([offset.expand_as(evidence), evidence], dim=1)


def pool(views: Sequence[View], targets: Sequence[Tensor]) -> tuple[View, Tensor]:
    """Return one view of all samples of several views, and its target."""
    if all(view.one_label for view in views):
        return Pooled(views[0].space), torch.cat([pooled_target(v, t) for v, t in zip(views, targets, strict=True)])
    if len({type(view) for view in views}) > 1:
        raise ConfigError("samples with tags and samples with one label each cannot be pooled")
    return type(views[0])(views[0].space), torch.cat(list(targets))
