"""The exact view: one true label for each sample, out of all labels or of the known ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from fedaccord.labels.views.base import NOT_ANNOTATED
from fedaccord.labels.views.context import LabelArrays
from fedaccord.labels.views.declaration import KnownDeclaration
from fedaccord.labels.views.likelihoods import log_mask
from fedaccord.labels.views.one_name import OneName
from fedaccord.lazy import Tensor, np, torch


class ExactView(KnownDeclaration):
    """One true label for each sample."""

    kind: Literal["exact"] = "exact"


class Exact(OneName):
    """One true label for each sample. Target: column (B,), -1 = not annotated."""

    kind = "exact"
    Declaration = ExactView
    exact = True
    names_are_labels = True
    letter, colour, words = "E", "#b9d9ec", "labels exactly"

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the cross-entropy, restricted to the known labels."""
        # Flattened: cross_entropy takes the second axis for the classes, we always the last.
        z = self.adjusted(logits).flatten(0, -2)
        loss = torch.nn.functional.cross_entropy(z, target.flatten(), ignore_index=NOT_ANNOTATED, reduction="none")
        return loss.view(target.shape)

    def mean_nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean cross-entropy in one call, which saves a tenth of a small model's step."""
        return torch.nn.functional.cross_entropy(self.adjusted(logits), target, ignore_index=NOT_ANNOTATED)

    def evidence(self, target: Tensor) -> Tensor:
        """Return zero at the label, minus infinity elsewhere; zero everywhere for a sample without annotation."""
        same = target[..., None] == torch.arange(len(self.space), device=target.device)
        return log_mask(same | (target == NOT_ANNOTATED)[..., None])

    def generate(self, arrays: LabelArrays, declared: Any, rng: np.random.Generator) -> Tensor:
        """Return the true classes."""
        assert arrays.y is not None
        return torch.from_numpy(arrays.y.copy())

    def marks(self, target: Tensor) -> list[object]:
        """Return a mark of its own for each label that the site knows."""
        return [name if known else None for name, known in zip(self.space, self.informs().tolist(), strict=True)]

    @classmethod
    def in_words(cls, described: Mapping[str, Any], taught: int, labels: int) -> str:
        """Return how a site labels."""
        return f"labels {taught} of {labels} classes" if 0 < taught < labels else cls.words
