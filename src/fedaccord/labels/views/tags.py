"""The tags view: any number of labels at once."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar, Literal

from pydantic import Field

from fedaccord.errors import DataError
from fedaccord.evaluation.intervals import Resampling
from fedaccord.evaluation.metrics import NOT_ANNOTATED, THRESHOLD, tag_metrics
from fedaccord.evaluation.quality import Quality, tag_quality
from fedaccord.labels.space import LabelSpace, columns_of, plain, raise_problems, split_names
from fedaccord.labels.views.base import View
from fedaccord.labels.views.declaration import LabelArrays, Names, ViewDeclaration
from fedaccord.lazy import Array, Tensor, np, torch

_FLAGS = {"0": 0, "1": 1, "false": 0, "true": 1, "no": 0, "yes": 1}


class TagsView(ViewDeclaration):
    """Any number of labels at once."""

    kind: Literal["tags"] = "tags"
    known: Names | None = Field(None, description="tags that the site knows; left out: all")


class Tags(View):
    """Any number of labels at once. Target: int8 (B, C): 1 present, 0 absent, -1 not annotated or not known."""

    kind = "tags"
    Declaration = TagsView
    one_label = False
    judges_unannotated = True
    headlines = ("map",)  # not the share of right decisions: most tags are absent, and a model may say so of all
    beside_headline = ("macro_f1",)
    separator = ";"
    takes_columns = True
    names_are_labels = True
    stacks: ClassVar[tuple[str, ...] | None] = ("_knows",)
    letter, colour, words = "T", "#edcfdf", "several tags per sample"
    counts_heading = "rows that have it"

    def __init__(self, space: LabelSpace, known: Iterable[str] | None = None) -> None:
        super().__init__(space, known)
        self._knows = super().informs()
        self.offset = None  # tags are decided one by one: an unknown tag is left out, not excluded

    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Read tags written `a;b` or given as sequences; a sample with an empty value has no annotation at all."""
        values, columns, problems = list(raw), self.space.columns(self.allowed_names), list[str]()
        target = np.full((len(values), len(self.space)), NOT_ANNOTATED, dtype=np.int8)
        for row, value in enumerate(values):
            names = split_names(value, ";")
            if names is not None:
                target[row, columns] = 0
                target[row, columns_of(names, self.space, self.allowed_names, row + first, problems)] = 1
        raise_problems(problems, where)
        return torch.from_numpy(target)

    def parse(self, cell: str) -> Any:
        """Return the tags of a cell; `;` alone means that no tag is present."""
        return [name for name in super().parse(cell) if name]

    def parse_flag(self, cell: str) -> int | None:
        """Return whether a tag's own column says that it is present."""
        return _FLAGS.get(plain(cell).lower())

    def read_arrays(self, arrays: LabelArrays, where: str) -> Tensor:
        """Read the array `Y`."""
        if arrays.tags is None:
            raise DataError(f"{where}: a view of tags needs an array 'Y'")
        target = torch.full((arrays.rows, len(self.space)), NOT_ANNOTATED, dtype=torch.int8)
        for column, name in enumerate(arrays.names):
            target[:, self.space.column(name, where)] = torch.from_numpy(arrays.tags[:, column])
        return target.masked_fill(~self.informs(), NOT_ANNOTATED)

    def observable(self, arrays: LabelArrays, declared: Any) -> Array:
        """Return all samples."""
        if arrays.tags is None:
            raise DataError("a view of tags needs data with an array 'Y' of tags")
        return np.ones(arrays.rows, dtype=bool)

    def generate(self, arrays: LabelArrays, declared: Any, rng: np.random.Generator) -> Tensor:
        """Return the true tags that the site knows."""
        assert arrays.tags is not None
        return torch.from_numpy(arrays.tags).masked_fill(~self.informs(), NOT_ANNOTATED)

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the sum of the binary cross-entropies of the annotated, known tags."""
        counted = (target != NOT_ANNOTATED) & self._knows.to(target.device)
        z = self.adjusted(logits)
        wanted = target.clamp(min=0).to(z.dtype)
        loss = torch.nn.functional.binary_cross_entropy_with_logits(z, wanted, reduction="none")
        return torch.where(counted, loss, torch.zeros_like(loss)).sum(-1)

    def annotated(self, target: Tensor) -> Tensor:
        """Return which samples have an annotated tag."""
        return (target != NOT_ANNOTATED).any(-1)

    def informs(self) -> Tensor:
        """Return the tags that the site knows."""
        return self._knows

    def posterior(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return P(tag present): the annotation if there is one, else the model's score."""
        scores = torch.sigmoid(self.adjusted(logits))
        return torch.where(target == NOT_ANNOTATED, scores, target.to(scores.dtype))

    def prior_offset(self, confidences: Tensor, pseudo_count: float = 1.0) -> Tensor:
        """Return the log odds of the tags; zero for a tag that the site does not know."""
        present = confidences.double().sum(0) + pseudo_count
        absent = len(confidences) - confidences.double().sum(0) + pseudo_count
        return (present / absent).log().float().masked_fill(~self.informs(), 0.0)

    def answer(self, logits: Tensor) -> Tensor:
        """Return the probability of each tag."""
        return torch.sigmoid(self.adjusted(logits))

    def choose(self, probabilities: Tensor) -> list[tuple[str, float]]:
        """Return all likely tags, joined by `;`, and the probability of exactly these."""
        likely = probabilities >= THRESHOLD
        chance = torch.where(likely, probabilities, 1 - probabilities).prod(-1)
        names = [";".join(n for n, on in zip(self.answers, row, strict=True) if on) for row in likely.tolist()]
        return list(zip(names, chance.tolist(), strict=True))

    def judge(self, logits: Tensor, target: Tensor, truth: Tensor | None) -> tuple[dict[str, float], Tensor]:
        """Return the metrics of tags, such as precision and recall; tags have no confusion counts."""
        names = len(self.answers)
        return tag_metrics(self.answer(logits), target), torch.zeros(names, names, dtype=torch.int64)

    def examine(
        self, logits: Tensor, target: Tensor, truth: Tensor | None, trained: Tensor, resampling: Resampling
    ) -> Quality:
        """Return the figures of tags."""
        return tag_quality(self.answer(logits).numpy(), target.numpy(), resampling)

    def names_in(self, target: Tensor) -> Tensor:
        """Return the tags that are present."""
        return target == 1

    def marks(self, target: Tensor) -> list[object]:
        """Return a different mark for each tag that the site knows, and None for the others."""
        return [name if known else None for name, known in zip(self.space, self.informs().tolist(), strict=True)]
