"""The contract of a view: how a site observes the true label.

A new kind of view subclasses `View`, gives `encode` and `evidence`, and overrides what differs from the defaults. The
rest of the library asks a view by these methods and attributes only. docs/new-view.md writes one from nothing.

The `offset` of a view is added to the logits before anything else. It holds the site prior `log pi(y)`, and minus
infinity for labels that the site does not know: a softmax restricted to the known labels has a prior of zero elsewhere.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Self

from fedaccord.errors import ConfigError, DataError
from fedaccord.evaluation.intervals import Resampling
from fedaccord.evaluation.quality import Quality
from fedaccord.evaluation.ranges import Range
from fedaccord.extensions import is_ours
from fedaccord.labels.space import LabelSpace, plain
from fedaccord.labels.views import sets
from fedaccord.labels.views.declaration import LabelArrays, ViewContext, ViewDeclaration, arguments
from fedaccord.labels.views.likelihoods import below_top, log_prior
from fedaccord.labels.views.stacking import stacked
from fedaccord.lazy import Array, Tensor, np, torch


class View(ABC):
    """What a site's annotations say about the true label; the base of every kind of view.

    Shapes: B samples, C labels of the federation, A answers (`len(answers)`, equal to C unless a view has its own
    names). A target holds one row for each sample, in whatever form the view's `encode` returns.
    """

    kind: ClassVar[str]  # the name in config files; a class outside FedAccord gets "package.module:Class"
    Declaration: ClassVar[type[ViewDeclaration]] = ViewDeclaration
    special_keys: ClassVar[tuple[str, ...]] = ()  # keys that are not arguments and attributes of the view

    # What kind of annotation it is.
    one_label: ClassVar[bool] = True  # exactly one label is true: a softmax decides between the labels
    one_name: ClassVar[bool] = False  # a target is (B,), the column of one of the answers, or -1
    exact: ClassVar[bool] = False  # an annotation is the true label
    ambiguous: ClassVar[bool] = False  # judged also by how often the most likely label of an annotation is the true one
    judges_unannotated: ClassVar[bool] = False  # samples without annotation count in the evaluated loss
    has_annotations: ClassVar[bool] = True
    has_own_names: ClassVar[bool] = False  # annotations use names that are not the federation's labels
    is_known: bool = True  # what the answers stand for is declared, or has been estimated
    estimated: bool = False  # what the answers stand for was estimated, or will be
    headlines: ClassVar[tuple[str, ...]] = ("accuracy", "in_set")  # a site is judged by the first of these that it has
    beside_headline: ClassVar[tuple[str, ...]] = ()  # metrics that are always shown beside it
    figures: ClassVar[Mapping[str, Range]] = {}  # further metrics of `judge` and `examine`, with their ranges

    # How files are read.
    separator: ClassVar[str | None] = None  # between the names in a table cell
    takes_columns: ClassVar[bool] = False  # a table may have a 0/1 column for each label
    names_are_labels: ClassVar[bool] = False  # the names in a file are labels of the federation

    # Tensors that `nll` uses besides logits, target and offset, by attribute name; each broadcasts against (B, C).
    # They are stacked so that many sites train as one program. None: sites of this view train one by one.
    stacks: ClassVar[tuple[str, ...] | None] = None

    # How `check` and the report present it.
    letter: ClassVar[str] = "?"
    colour: ClassVar[str] = "#d7dce1"
    words: ClassVar[str] = ""  # by default its kind
    counts_heading: ClassVar[str] = "rows"
    unannotated_words: ClassVar[str] = "not annotated"
    silent_warning: ClassVar[str] = "none of its training rows is annotated, so it teaches nothing"

    def __init_subclass__(cls, **keywords: Any) -> None:
        super().__init_subclass__(**keywords)
        if "kind" not in vars(cls):
            cls.kind = f"{cls.__module__}:{cls.__qualname__}"
        if not is_ours(cls.__module__):
            cls.Declaration = cls.Declaration.of_any_kind()

    def __init__(self, space: LabelSpace, known: Iterable[str] | None = None) -> None:
        self.space = space
        self.known = None if known is None else space.subspace(known).names
        self.offset: Tensor | None = None
        if self.known is not None:
            self.offset = torch.full((len(space),), float("-inf"))
            self.offset[space.columns(self.known)] = 0.0

    # ------------------------------------------------------------------------------------- declaration and reading

    @classmethod
    def from_declaration(cls, declared: Any, space: LabelSpace, context: ViewContext) -> View:
        """Build the view that a validated declaration asks for."""
        return cls(space, **arguments(cls, declared))

    def describe(self) -> dict[str, Any]:
        """Return the view as a config file writes it; `make_view` builds it again.

        By default each key of the declaration is the attribute of the same name.
        """
        keys = self.Declaration.argument_keys(self.special_keys)
        if lost := [key for key in keys if not hasattr(self, key)]:
            raise ConfigError(f"the view '{self.kind}' has the key '{lost[0]}', but no attribute of that name")
        settings = {key: getattr(self, key) for key in dict.fromkeys([*keys, "known"])}
        plain = {key: list(value) if isinstance(value, tuple) else value for key, value in settings.items()}
        return {"kind": self.kind} | {key: value for key, value in plain.items() if value is not None}

    @abstractmethod
    def encode(self, raw: Iterable[Any], where: str = "annotations", first: int = 1) -> Tensor:
        """Return the target of raw annotations; None and empty text mean that a sample is not annotated.

        Raises AnnotationError with one line for each value that cannot be read; rows count from `first`.
        """

    def parse(self, cell: str) -> Any:
        """Return what `encode` takes for the text of one table cell; `2.0` is the label 2 if no label is `2.0`."""
        parts = [cell] if self.separator is None else [part.strip() for part in cell.split(self.separator)]
        names = [part if part in self.allowed_names else plain(part) for part in parts]
        return names[0] if self.separator is None else names

    def parse_flag(self, cell: str) -> int | None:
        """Return 1 or 0 for a cell in a label's own column, None for a cell that cannot be read."""
        raise ConfigError(f"a view of kind '{self.kind}' has one label column")

    def read_arrays(self, arrays: LabelArrays, where: str) -> Tensor:
        """Return the target of a site's own arrays: by default `y`, the numbers of annotations in `arrays.names`."""
        if arrays.y is None:
            raise DataError(f"{where}: a view of kind '{self.kind}' needs an array 'y'")
        return self.encode([arrays.names[c] if c >= 0 else None for c in arrays.y.tolist()], where)

    def truth_in(self, arrays: LabelArrays, target: Tensor, where: str) -> Tensor | None:
        """Return the true classes in a site's own arrays, for evaluation; None if they are not there."""
        return self.true_classes(target)

    @classmethod
    def class_names(cls, declared: Any, cells: Callable[[], set[str]]) -> set[str]:
        """Return the federation's labels in a site's declaration or, as names, in its `cells()`."""
        known = getattr(declared, "known", None)
        return set(known) if isinstance(known, list) else cells() if cls.names_are_labels else set()

    @property
    def title(self) -> str:
        """The kind as `check` shows it: of a class outside FedAccord its name alone."""
        return self.kind.rpartition(":")[2]

    @property
    def declared_names(self) -> tuple[str, ...]:
        """The names that the declaration lists for annotations; empty if it lists none."""
        return self.known or ()

    @property
    def allowed_names(self) -> tuple[str, ...]:
        """The names that an annotation may use."""
        return self.declared_names or self.space.names

    # --------------------------------------------------------------------------------- studies: made from true labels

    def observable(self, arrays: LabelArrays, declared: Any) -> Array:
        """Return which samples of a study the site can annotate, by default those of a class it informs.

        Raises DataError if the data lack what the view needs.
        """
        if arrays.y is None:
            raise DataError(f"a view of kind '{self.kind}' needs data with true classes, an array 'y'")
        return self.informs().numpy()[arrays.y]

    def generate(self, arrays: LabelArrays, declared: Any, rng: np.random.Generator) -> Tensor:
        """Return targets for samples whose true labels a study knows; all of them are observable."""
        raise ConfigError(
            f"a view of kind '{self.kind}' cannot generate annotations from true labels; give [[sites]] with files"
        )

    # ------------------------------------------------------------------------------------------- likelihood

    def evidence(self, target: Tensor) -> Tensor:
        """Return log P(annotation | true label), up to a constant for each row: (..., C) for a target of (..., *)."""
        raise ConfigError(f"a view of kind '{self.kind}' has no evidence about one true label")

    def nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return -log P(annotation) of each sample: logits (..., B, C) -> (..., B)."""
        z = below_top(self.adjusted(logits))
        return torch.logsumexp(z, -1) - torch.logsumexp(z + self.evidence(target), -1)

    def mean_nll(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return the mean of `nll` over a batch whose samples are all annotated: the loss of a site."""
        return self.nll(logits, target).mean()

    def adjusted(self, logits: Tensor) -> Tensor:
        """Return the logits with the site's prior, and minus infinity for labels it does not know."""
        if logits.dtype in (torch.float16, torch.bfloat16):
            logits = logits.float()  # a likelihood of half-precision logits overflows
        return logits if self.offset is None else logits + self.offset.to(logits.device)

    def posterior(self, logits: Tensor, target: Tensor) -> Tensor:
        """Return P(true label | sample, annotation): (B, C)."""
        return torch.softmax(self.adjusted(logits) + self.evidence(target).to(logits.device), -1)

    def informs(self) -> Tensor:
        """Return for each label whether this site's annotations can teach its head row: bool (C,)."""
        return self.possible_labels()

    def possible_labels(self) -> Tensor:
        """Return the labels that the view's softmax runs over: bool (C,)."""
        if self.offset is None:
            return torch.ones(len(self.space), dtype=torch.bool)
        return torch.isfinite(self.offset)

    def annotated(self, target: Tensor) -> Tensor:
        """Return for each sample whether its annotation favours any label: bool (B,)."""
        evidence = self.evidence(target)[..., self.possible_labels().to(target.device)]
        return (evidence != evidence[..., :1]).any(-1)

    def candidate_sets(self, target: Tensor) -> Tensor | None:
        """Return the labels that each annotation leaves possible, bool (B, C).

        None if annotations are not sets: probabilities weigh the labels, and tags do not choose between them.
        """
        if not (self.one_label and self.has_annotations):
            return None
        evidence = self.evidence(target)
        sets = torch.isfinite(evidence)
        if bool((evidence[sets] != 0).any()):
            return None
        return sets & self.possible_labels().to(sets.device)

    def candidate_shares(self, target: Tensor) -> Tensor | None:
        """Return `candidate_sets`, or shares between 0 and 1 if a hostile site has mixed its sets: (B, C)."""
        return self.candidate_sets(target)

    def true_classes(self, target: Tensor, truth: Tensor | None = None) -> Tensor | None:
        """Return the true class of each row, (B,): the annotation itself if it is exact, else `truth`."""
        return target if self.exact else truth

    def prior_offset(self, confidences: Tensor, pseudo_count: float = 1.0) -> Tensor:
        """Return the logit offset of a site prior from P(label | sample) rows (n, C): smoothed log frequencies."""
        # Not `informs()`: a site without annotations teaches no label, but any label may be the true one there.
        return log_prior(confidences, self.possible_labels(), pseudo_count)

    # ------------------------------------------------------------------------------------------- variants

    def with_offset(self, offset: Tensor | None) -> Self:
        """Return this view with another logit offset, e.g. a site prior; None: a softmax over all labels."""
        view = copy.copy(self)
        view.offset = offset
        return view

    def shifted(self, shift: Tensor) -> Self:
        """Return this view with `shift`, (C,), added to the logits beside the offset that it has."""
        return self.with_offset(shift if self.offset is None else self.offset + shift)

    def with_matrix(self, matrix: Tensor | None) -> View:
        """Return this view with an estimate of `matrix` in place of a declared one; None: not estimated yet."""
        raise ConfigError(f"a view of kind '{self.kind}' has no names of its own to estimate the meaning of")

    def in_classes(self) -> View:
        """Return the view that answers in the federation's labels."""
        return self

    @classmethod
    def stack(cls, views: Sequence[Self], device: torch.device | None = None) -> Self:
        """Return one view of several sites with the same `stacking_key`, for logits (sites, B, C)."""
        return stacked(views, cls.stacks or (), device)

    def stacking_key(self) -> str | None:
        """Return a key that views must share to be stacked; None if this view cannot be stacked."""
        if self.stacks is None:
            return None
        shapes = [tuple(getattr(self, name).shape) for name in self.stacks]
        return f"{type(self).__module__}.{type(self).__qualname__} {shapes}"

    # ------------------------------------------------------------------------------------------- answers

    @property
    def answers(self) -> tuple[str, ...]:
        """The names that the site's own task decides between."""
        return self.space.names

    @property
    def matrix(self) -> Tensor:
        """P(answer | label): (A, C)."""
        return torch.eye(len(self.space))

    def answer(self, logits: Tensor) -> Tensor:
        """Return the probabilities of the answers: (B, A)."""
        return torch.softmax(self.adjusted(logits), -1)

    def choose(self, probabilities: Tensor) -> list[tuple[str, float]]:
        """Return the predicted answer of each row of probabilities (B, A), with its probability."""
        best = probabilities.max(-1)
        return [(self.answers[at], p) for at, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)]

    def names_digest(self) -> str | None:
        """Return a digest of the view's own names, by which a server recognises sites that share them; else None."""
        return None

    # ------------------------------------------------------------------------------------------- attacks

    def exchangeable(self) -> Tensor:
        """Return which answers an attacker may exchange with each other: bool (A,)."""
        return self.possible_labels()

    def exchanged(self, target: Tensor, order: Tensor) -> Tensor:
        """Return the target of a label-flip attack: answer `a` becomes answer `order[a]`."""
        raise ConfigError(f"method.attack: 'label-flip' needs one label for each sample, not {self.kind}")

    # ------------------------------------------------------------------------------------------- evaluation

    def judge(self, logits: Tensor, target: Tensor, truth: Tensor | None) -> tuple[dict[str, float], Tensor]:
        """Return metrics of a model on the site's own task, and the confusion counts of its answers: int64 (A, A).

        By default `in_set` is the share of predictions that the annotations allow, `accuracy` is against the truth.
        """
        return sets.judge(self, logits, target, truth)

    def examine(
        self, logits: Tensor, target: Tensor, truth: Tensor | None, trained: Tensor, resampling: Resampling
    ) -> Quality:
        """Return figures with intervals on the site's own task; `trained` is the target of its training samples."""
        return sets.examine(self, logits, target, truth, trained, resampling)

    def judge_stack(self, logits: Tensor, target: Tensor) -> tuple[dict[str, Tensor], Tensor] | None:
        """Return `judge` of each stacked site with its mean `nll`: metrics (sites,), counts int64 (sites, A, A).

        Logits are (sites, B, C); a target of -1 pads a site with fewer samples. None: sites are judged one by one.
        """
        return None

    # ------------------------------------------------------------------------------------------- check and report

    def names_in(self, target: Tensor) -> Tensor:
        """Return which answers each annotation names, bool (B, A): by default those that it leaves possible."""
        possible = torch.isfinite(self.evidence(target)) & self.possible_labels()
        return possible & self.annotated(target)[:, None]

    def marks(self, target: Tensor) -> list[object]:
        """Return a mark for each label; the site's annotations do not distinguish labels with equal marks."""
        return [column.numpy().tobytes() for column in self.evidence(target).T.contiguous()]

    def set_size(self, target: Tensor) -> float | None:
        """Return the mean number of labels in an annotation, for views whose annotations are sets."""
        return None

    def warnings(self, site: str) -> list[str]:
        """Return sentences on what is wrong with the declaration of a site's view."""
        return []

    @classmethod
    def in_words(cls, described: Mapping[str, Any], taught: int, labels: int) -> str:
        """Return how a site labels, in words that need no knowledge of the field, from what `describe` returned."""
        words = cls.words or str(described.get("kind", ""))
        return f"{words}, {taught} of {labels} classes" if 0 < taught < labels else words
