"""What a site sees of its samples' labels: made from true classes in a study, or read from the site's own file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.dataset import Array, Rows
from fedaccord.errors import ConfigError, CorrespondenceError, DataError, UserError, did_you_mean
from fedaccord.labels import corruption
from fedaccord.labels.correspondence import readable_groups
from fedaccord.labels.declarations import AnyView, CandidatesView, CoarseView, ExactView, TagsView
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import NOT_ANNOTATED, Candidates, Coarse, Exact, Tags, Unlabelled, View

Groupings = Mapping[str, Mapping[str, Sequence[str]]]
Tell = Callable[[UserError], None]


@dataclass(frozen=True)
class Annotated:
    """Samples as a site sees them."""

    view: View
    x: Array
    target: Tensor
    truth: Tensor | None  # the true class where it is known; for evaluation only
    left_out: int = 0  # samples of classes the site does not know
    groups: Tensor | None = None  # candidates for the sensitive attribute, bool (n, groups)
    group: Tensor | None = None  # its true value


def refuse(error: UserError) -> None:
    """Raise an error: what becomes of one that nobody wants to collect."""
    raise error


def declared_view(declared: AnyView, space: LabelSpace, groupings: Groupings, where: str, tell: Tell = refuse) -> View:
    """Build the view that a declaration asks for.

    `tell` takes the error of a wrong correspondence; if it returns, the view is one that comes close to it.
    """
    try:
        if isinstance(declared, CoarseView):
            groups = declared.correspondence
            if groups is None:
                return Coarse(space, names=declared.names)
            if isinstance(groups, str):
                if groups not in groupings:
                    hint = did_you_mean(groups, groupings)
                    raise ConfigError(f"the data set names no grouping '{groups}'; {hint}")
                groups = {name: list(members) for name, members in groupings[groups].items()}
            try:
                return Coarse(space, groups)
            except CorrespondenceError as error:
                tell(error.at(where))
                return Coarse(space, readable_groups(groups, space))
        if isinstance(declared, ExactView | CandidatesView | TagsView):
            kinds: dict[str, type[View]] = {"exact": Exact, "candidates": Candidates, "tags": Tags}
            return kinds[declared.kind](space, declared.known)
    except CorrespondenceError:
        raise
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    return Unlabelled(space)


def observe(
    rows: Rows,
    declared: AnyView,
    space: LabelSpace,
    groupings: Groupings,
    chances: Array | None,
    rng: np.random.Generator,
    where: str,
    tell: Tell = refuse,
) -> Annotated:
    """Let a site observe samples whose true classes a study knows; `chances` are a clean classifier's predictions."""
    view = declared_view(declared, space, groupings, where, tell)
    if isinstance(view, Tags):
        if rows.tags is None:
            raise DataError(f"{where}: a view of tags needs data with an array 'Y' of tags")
        known = torch.from_numpy(rows.tags).masked_fill(~view.informs(), NOT_ANNOTATED)
        return Annotated(view, rows.x, known, None, 0, *_groups(rows))
    if rows.y is None:
        if isinstance(view, Unlabelled):
            return Annotated(view, rows.x, torch.full((len(rows),), NOT_ANNOTATED), None, 0, *_groups(rows))
        if not (isinstance(view, Candidates) and rows.candidates is not None):
            raise DataError(f"{where}: a view of kind '{view.kind}' needs data with true classes, an array 'y'")
    keep = np.flatnonzero(_known_rows(view, rows, generated=getattr(declared, "generate", None) is not None))
    left_out = len(rows) - len(keep)
    rows, chances = rows.take(keep), None if chances is None else chances[keep]
    truth = None if rows.y is None else torch.from_numpy(rows.y)
    target = _target(view, declared, rows, chances, rng, where)
    return Annotated(view, rows.x, target, truth, left_out, *_groups(rows))


def _groups(rows: Rows) -> tuple[Tensor | None, Tensor | None]:
    """Return candidate and true groups of rows, where they have some."""
    sets, true = (None if values is None else torch.from_numpy(values) for values in (rows.groups, rows.group))
    return sets, true


def _known_rows(view: View, rows: Rows, generated: bool) -> Array:
    """Say which samples the site can annotate: of a class it knows, and with a candidate it knows."""
    seen, known = np.ones(len(rows), dtype=bool), view.informs().numpy()
    if isinstance(view, Unlabelled) or (isinstance(view, Coarse) and view.groups is None):
        return seen
    if rows.y is not None:
        seen &= known[rows.y]
    if isinstance(view, Candidates) and rows.candidates is not None and not generated:
        seen &= (rows.candidates & known).any(1)
    return seen


def _target(
    view: View, declared: AnyView, rows: Rows, chances: Array | None, rng: np.random.Generator, where: str
) -> Tensor:
    if isinstance(view, Candidates):
        if isinstance(declared, CandidatesView) and declared.generate is not None:
            try:
                return torch.from_numpy(_generate(declared, rows, view.informs().numpy(), chances, rng))
            except ConfigError as error:
                raise ConfigError(f"{where}: {error}") from None
        elif rows.candidates is None:
            raise DataError(f"{where}: the data has no candidate sets; give view.generate to make them")
        else:
            sets = rows.candidates
        return torch.from_numpy(sets & view.informs().numpy())
    assert rows.y is not None
    if isinstance(view, Coarse):
        if view.groups is None:
            raise ConfigError(f"{where}: view.names is for sites with their own files; [data] needs a correspondence")
        return torch.from_numpy(corruption.coarse_annotations(rows.y, view.matrix.numpy(), rng))
    if isinstance(view, Unlabelled):
        return torch.full((len(rows),), NOT_ANNOTATED)
    return torch.from_numpy(rows.y.copy())


def _generate(
    declared: CandidatesView, rows: Rows, known: Array, chances: Array | None, rng: np.random.Generator
) -> Array:
    """Draw candidate sets among the labels that the site knows, bool (labels,): no set is meant to hold any other."""
    if rows.y is None:
        raise ConfigError("view.generate makes candidate sets from true classes, and the data has no array 'y'")
    columns = np.flatnonzero(known)
    y = np.searchsorted(columns, rows.y)  # the samples of other classes were left out
    sets = np.zeros((len(y), len(known)), dtype=bool)
    sets[:, columns] = _draw(declared, y, columns, len(known), chances, rng)
    return sets


def _draw(
    declared: CandidatesView, y: Array, columns: Array, labels: int, chances: Array | None, rng: np.random.Generator
) -> Array:
    least, drop = declared.min_size, declared.drop_full
    if declared.generate == "uniform":
        return corruption.uniform_candidates(y, len(columns), declared.q, rng, least, drop)
    if declared.generate == "superset":
        alone = np.ones((len(y), 1), dtype=bool)  # of one label there is one set
        return alone if len(columns) == 1 < labels else corruption.superset_candidates(y, len(columns), rng)
    if declared.generate == "class":
        flips = corruption.cyclic_flips(labels, declared.following, declared.other)[np.ix_(columns, columns)]
        return corruption.class_dependent_candidates(y, flips, rng, least, drop)
    assert chances is not None
    return corruption.instance_candidates(
        chances[:, columns], y, declared.rho, rng, declared.normalise, least, drop, declared.temperature
    )


def read_annotations(
    rows: Rows, names: Sequence[str], declared: AnyView, space: LabelSpace, where: str, tell: Tell = refuse
) -> Annotated:
    """Read the annotations in a site's own arrays through its view; `names` are the file's own label names."""
    view = declared_view(declared, space, {}, where, tell)
    if isinstance(view, Tags):
        if rows.tags is None:
            raise DataError(f"{where}: a view of tags needs an array 'Y'")
        target = torch.full((len(rows), len(space)), NOT_ANNOTATED, dtype=torch.int8)
        for column, name in enumerate(names):
            target[:, space.column(name, where)] = torch.from_numpy(rows.tags[:, column])
        return Annotated(view, rows.x, target.masked_fill(~view.informs(), NOT_ANNOTATED), None)
    if isinstance(view, Unlabelled):
        return Annotated(view, rows.x, torch.full((len(rows),), NOT_ANNOTATED), None)
    if isinstance(view, Candidates):
        if rows.candidates is None:
            raise DataError(f"{where}: a view of candidates needs an array 'candidates'")
        sets = [[names[c] for c in np.flatnonzero(row).tolist()] for row in rows.candidates]
        _check_labels(sets, names, view.known or space.names, where)
        truth = None if rows.y is None else Exact(space).encode(_read_classes(rows.y, names, space.names, where), where)
        return Annotated(view, rows.x, view.encode(sets, where), truth)
    if rows.y is None:
        raise DataError(f"{where}: a view of kind '{view.kind}' needs an array 'y'")
    target = view.encode(_read_classes(rows.y, names, view.known or view.answers, where), where)
    return Annotated(view, rows.x, target, target if isinstance(view, Exact) else None, 0, *_groups(rows))


def _read_classes(y: Array, names: Sequence[str], allowed: Sequence[str], where: str) -> list[str | None]:
    """Return the name of each row's class, None where it has none; a name that is not allowed is an error."""
    found = [names[c] if c >= 0 else None for c in y.tolist()]
    _check_labels([[] if name is None else [name] for name in found], names, allowed, where)
    return found


def _check_labels(used: Sequence[Sequence[str]], names: Sequence[str], allowed: Sequence[str], where: str) -> None:
    """Refuse a label that is not allowed in a row, `used` being the labels of each; rows are counted from 1."""
    for name in names:
        if name not in allowed and (rows := [n for n, row in enumerate(used, start=1) if name in row]):
            numbers = list(names) == [str(n) for n in range(len(names))]
            hint = "; without an array 'label_names' a file's labels are called 0, 1, 2, ..." if numbers else ""
            more = f" and {len(rows) - 10} more" if len(rows) > 10 else ""
            at = f" (row {', '.join(map(str, rows[:10]))}{more})"
            raise DataError(f"{where}: '{name}' is not one of the labels here; {did_you_mean(name, allowed)}{hint}{at}")
