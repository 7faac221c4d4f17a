"""A site with data in memory: arrays with annotations, or a pandas frame."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from fedaccord.api.frames import AnyView, FrameSite, make_frame_site
from fedaccord.data.declarations import Fairness
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.errors import ConfigError, DataError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.synonyms import Synonyms, rename_annotation, renaming
from fedaccord.labels.views import Candidates, Exact, View
from fedaccord.seeds import derive

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Site:
    """A site with samples in memory: one row of features and one annotation per sample, and the view."""

    name: str
    x: Any = field(repr=False)  # in no message or notebook
    labels: Iterable[Any] = field(repr=False)
    view: View
    test: float = 0.2
    truth: Iterable[str] | None = field(default=None, repr=False)  # true class names, for evaluation only
    groups: Iterable[Any] | None = field(
        default=None, repr=False
    )  # of a sensitive attribute: names, or `a|b` where several may be true
    joins: int | None = None  # first round with the site
    leaves: int | None = None  # first round without the site
    synonyms: Synonyms | None = None  # its words for labels, by name; applied before those of the federation

    @classmethod
    def from_frame(
        cls,
        name: str,
        frame: pd.DataFrame,
        label: str | int | Sequence[str] | None = None,
        view: AnyView = "exact",
        *,
        test: float = 0.2,
        sensitive: str | None = None,
        joins: int | None = None,
        leaves: int | None = None,
        synonyms: Synonyms | None = None,
    ) -> FrameSite:
        """Return a site from a pandas frame of numbers, words, text and missing values, read like a site's file.

        `label` is the label column; for tags also a list of 0/1 columns. All other columns are features, unless the
        federation's `features` select some. `view` is a kind such as "exact", a table as in an experiment file, such
        as {"kind": "coarse", "correspondence": {...}}, or a view. `sensitive` names the column of sensitive groups,
        `synonyms` the site's words for labels: {"mild": ["Mild", "1"]}.
        """
        words = None if synonyms is None else {label: list(words) for label, words in synonyms.items()}
        others = {"test": test, "sensitive": sensitive, "joins": joins, "leaves": leaves, "synonyms": words}
        return make_frame_site(name, frame, label, view, **others)


def without_words(values: Iterable[Any], missing: Sequence[str]) -> list[Any]:
    """Return raw annotations with None for the words that mean: not annotated."""
    return [None if isinstance(value, str) and value.strip() in missing else value for value in values]


def site_data(
    site: Site,
    seed: int,
    synonyms: Synonyms,
    missing: Sequence[str] = (),
    groups: Sequence[str] = (),
    fairness: Fairness | None = None,
) -> SiteData:
    """Return the samples of a site with arrays, its test rows set aside.

    `synonyms`, and the words in `missing` for "not annotated", are the federation's.
    """
    x, own = read_samples(site.x, f"site '{site.name}'"), site.synonyms or {}
    names = renaming(own) if site.view.has_own_names else renaming(own, synonyms)
    labels = [rename_annotation(value, site.view.separator, names) for value in without_words(site.labels, missing)]
    target = site.view.encode(labels, f"site '{site.name}'")
    if len(target) != len(x):
        raise DataError(f"site '{site.name}' has {len(x)} samples but {len(target)} labels")
    truth = site.view.true_classes(target)
    if site.truth is not None:
        names = renaming(synonyms) if site.view.has_own_names else names
        classes = [rename_annotation(value, None, names) for value in without_words(site.truth, missing)]
        truth = Exact(site.view.space).encode(classes, f"site '{site.name}', truth")
    listed = None if site.groups is None else Candidates(LabelSpace(groups)).encode(site.groups, f"site '{site.name}'")
    if listed is not None and len(listed) != len(x):
        raise DataError(f"site '{site.name}' has {len(x)} samples but {len(listed)} groups")
    if fairness is not None and fairness.input:
        if listed is None or x.ndim != 2:
            what = "has no groups" if listed is None else "has samples that are no rows of numbers"
            raise ConfigError(f"fairness: site '{site.name}' {what}; set input to False to keep groups out of it")
        bits = listed.to(x.dtype)
        x = torch.cat([x, bits / bits.sum(1, keepdim=True).clamp(min=1) if fairness.normalise else bits], 1)
    order = torch.from_numpy(np.random.default_rng(derive(seed, "test", site.name)).permutation(len(x)))
    test_size = int(site.test * len(x))

    def part(rows: Tensor) -> Samples:
        rows = rows.sort().values
        known = (None if values is None else values[rows] for values in (truth, listed))
        return Samples(x[rows], target[rows], *known)

    return SiteData(site.name, site.view, part(order[test_size:]), part(order[:test_size]))


def read_samples(x: Any, where: str) -> Tensor:
    """Return samples as a float32 tensor of at least two dimensions; raise DataError for anything else."""
    try:
        with np.errstate(over="ignore"):  # infinite values are reported below
            given = x.detach() if isinstance(x, Tensor) else torch.from_numpy(np.array(x, dtype=np.float32))
        samples = given.to(torch.float32)
    except (ValueError, TypeError) as error:
        raise DataError(f"{where}: samples are rows of numbers, and these are not: {error}") from None
    if samples.ndim < 2 or not len(samples):
        raise DataError(f"{where}: samples are rows of numbers, not an array of shape {tuple(samples.shape)}")
    if not bool(torch.isfinite(samples).all()):
        raise DataError(f"{where}: the samples hold NaN or infinite values; fill them in first")
    return samples
