"""The unlabelled view: no annotations at all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from fedaccord.evaluation.metrics import NOT_ANNOTATED
from fedaccord.labels.views.declaration import LabelArrays, ViewDeclaration
from fedaccord.labels.views.exact import OneName
from fedaccord.lazy import Array, Tensor, np, torch


class UnlabelledView(ViewDeclaration):
    """No annotations."""

    needs_label: ClassVar[bool] = False

    kind: Literal["unlabelled"] = "unlabelled"


class Unlabelled(OneName):
    """No annotation at all. Target: -1 (B,)."""

    kind = "unlabelled"
    Declaration = UnlabelledView
    has_annotations = False
    letter, words = "", "no labels"

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Count the samples; the values are not read."""
        return torch.full((sum(1 for _ in raw),), NOT_ANNOTATED)

    def read_arrays(self, arrays: LabelArrays, where: str) -> Tensor:
        """Count the samples."""
        return torch.full((arrays.rows,), NOT_ANNOTATED)

    def observable(self, arrays: LabelArrays, declared: Any) -> Array:
        """Return all samples."""
        return np.ones(arrays.rows, dtype=bool)

    def generate(self, arrays: LabelArrays, declared: Any, rng: np.random.Generator) -> Tensor:
        """Count the samples."""
        return torch.full((arrays.rows,), NOT_ANNOTATED)

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return zero, still connected to the logits so that a loss made of it has a gradient."""
        return (logits * 0.0).sum(-1)  # in this order, for the sum of large logits overflows

    def evidence(self, target: Tensor) -> Tensor:
        """Return zero everywhere."""
        return torch.zeros(*target.shape, len(self.space), device=target.device)

    def informs(self) -> Tensor:
        """Return no label."""
        return torch.zeros(len(self.space), dtype=torch.bool)
