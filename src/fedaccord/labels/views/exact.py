"""The exact view, one true label for each sample, and the base of all views whose annotation is one name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from fedaccord.evaluation.intervals import Resampling
from fedaccord.evaluation.metrics import NOT_ANNOTATED, accuracy, confusion, confusions
from fedaccord.evaluation.quality import Quality, class_quality
from fedaccord.labels.space import LabelSpace, check_labels, is_missing, not_a_label, raise_problems
from fedaccord.labels.views.base import View
from fedaccord.labels.views.declaration import KnownDeclaration, LabelArrays
from fedaccord.labels.views.likelihoods import log_mask
from fedaccord.labels.views.sets import most_named
from fedaccord.lazy import Tensor, np, torch


class OneName(View):
    """One of the answers for each sample, as in exact, coarse and missing labels. Target: column (B,), -1 = none."""

    one_name = True
    stacks: ClassVar[tuple[str, ...] | None] = ()

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Read names."""
        space = LabelSpace(self.answers)
        column = {name: space.column(name) for name in self.allowed_names}
        found, problems = [], []
        for row, value in enumerate(raw, start=first):
            if is_missing(value):
                found.append(NOT_ANNOTATED)
            elif (name := str(value).strip()) in column:
                found.append(column[name])
            else:
                problems.append(not_a_label(str(value), row, self.allowed_names))
        raise_problems(problems, where)
        return torch.tensor(found, dtype=torch.long)

    def read_arrays(self, arrays: LabelArrays, where: str) -> Tensor:
        """Read the names of the numbers in `y`."""
        used = [] if arrays.y is None else [[arrays.names[c]] if c >= 0 else [] for c in arrays.y.tolist()]
        check_labels(used, arrays.names, self.allowed_names, where)
        return super().read_arrays(arrays, where)

    def annotated(self, target: Tensor) -> Tensor:
        """Return which samples have a name."""
        return target != NOT_ANNOTATED

    def exchanged(self, target: Tensor, order: Tensor) -> Tensor:
        """Return the columns of the exchanged names."""
        return torch.where(target >= 0, order[target.clamp(min=0)], target)

    def judge(self, logits: Tensor, target: Tensor, truth: Tensor | None) -> tuple[dict[str, float], Tensor]:
        """Return the accuracy in the site's own answers."""
        counts = confusion(target, self.answer(logits).argmax(-1), len(self.answers))
        return accuracy(counts), counts

    def examine(
        self, logits: Tensor, target: Tensor, truth: Tensor | None, trained: Tensor, resampling: Resampling
    ) -> Quality:
        """Return the figures in the site's own answers."""
        guess = most_named(self, trained)
        return class_quality(self.answer(logits).numpy(), target.numpy(), guess, resampling)

    def names_in(self, target: Tensor) -> Tensor:
        """Return the name of each annotation, one-hot."""
        return target[:, None] == torch.arange(len(self.answers))

    def marks(self, target: Tensor) -> list[object]:
        """Return a different mark for each label that the site knows, and None for the others."""
        return [name if known else None for name, known in zip(self.space, self.informs().tolist(), strict=True)]


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

    def judge_stack(self, logits: Tensor, target: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
        """Return accuracy and cross-entropy over the annotated samples of each site; NaN for a site without any."""
        if type(self) is not Exact:  # a subclass may judge in another way
            return None
        counts = confusions(target, self.answer(logits).argmax(-1), len(self.answers))
        annotated = self.annotated(target)
        number = annotated.sum(1)
        losses = torch.where(annotated, self.nll(logits, target), 0.0).sum(1)
        hits = counts.diagonal(dim1=1, dim2=2).sum(1)
        return {"accuracy": hits / number, "nll": losses / number}, counts

    def evidence(self, target: Tensor) -> Tensor:
        """Return zero at the label, minus infinity elsewhere; zero everywhere for a sample without annotation."""
        same = target[..., None] == torch.arange(len(self.space), device=target.device)
        return log_mask(same | (target == NOT_ANNOTATED)[..., None])

    def generate(self, arrays: LabelArrays, declared: Any, rng: np.random.Generator) -> Tensor:
        """Return the true classes."""
        assert arrays.y is not None
        return torch.from_numpy(arrays.y.copy())

    @classmethod
    def in_words(cls, described: Mapping[str, Any], taught: int, labels: int) -> str:
        """Return how a site labels."""
        return f"labels {taught} of {labels} classes" if 0 < taught < labels else cls.words
