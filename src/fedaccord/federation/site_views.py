"""The view that a site trains and is evaluated with, and its prior."""

from __future__ import annotations

from operator import itemgetter

import torch
from torch import Tensor, nn

from fedaccord.data.site_data import SiteData
from fedaccord.federation.recipe import Recipe
from fedaccord.labels.views import View
from fedaccord.labels.views.fitted_offset import fit_offset
from fedaccord.messages.message import Message
from fedaccord.models.network import predict_logits
from fedaccord.training.settings import TrainingSettings

FADED = 0.5  # share of the rounds after which a fading prior is gone
MOST_ROWS = 2_000  # training rows that an offset is fitted on


def training_view(site: SiteData, settings: TrainingSettings) -> View:
    """Return the view that a site trains with: the declared one, or with the softmax over all labels."""
    return site.view.with_offset(None) if settings.softmax == "full" else site.view


def usable_samples(site: SiteData, recipe: Recipe) -> int:
    """Return the number of samples that a site can train on: the annotated ones if the objective uses labels."""
    return int(site.view.annotated(site.train.target).sum()) if recipe.objective.uses_labels else len(site.train)


def owned_labels(site: SiteData, recipe: Recipe) -> Tensor:
    """Return the labels that a site informs: bool (labels,)."""
    if recipe.sharing.owners == "all":
        return torch.ones(len(site.view.space), dtype=torch.bool)
    # A view whose correspondence will be estimated informs all labels, because its loss has a gradient for all.
    view = site.view if recipe.sharing.owners == "declared" else site_view(site, recipe, Message(), Message())
    return view.informs()


def site_view(site: SiteData, recipe: Recipe, memory: Message, brief: Message) -> View:
    """Return the training view, with the correspondence matrix that the site received or estimated.

    An estimated matrix replaces a declared one, which then only serves to evaluate the estimate.
    """
    return recipe.objective.site_view(training_view(site, recipe.settings), brief, memory)


def evaluation_view(site: SiteData, trained: View) -> View:
    """Return the view for a site's evaluation: the declared one, with the prior of the trained one."""
    if trained.estimated:
        return trained
    if site.view.offset is None or trained.offset is None:
        return site.view if trained.offset is None else trained
    return trained.with_offset(trained.offset.masked_fill(~torch.isfinite(site.view.offset), float("-inf")))


def annotated_rows(site: SiteData) -> Tensor | None:
    """Return the indices of the annotated training rows; None if all are."""
    annotated = site.view.annotated(site.train.target)
    return None if bool(annotated.all()) else annotated.nonzero().flatten()


def estimate_prior(
    site: SiteData,
    view: View,
    model: nn.Module,
    settings: TrainingSettings,
    confidences: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor | None:
    """Return the log prior of a site, (labels,), from its annotations and a model; None if it uses no prior.

    `confidences`, (n, labels), are the site's stored label confidences, which replace the model's posterior. `rows` are
    those to count; None: all.
    """
    if not uses_prior(settings.prior, site.view):
        return None
    data = site.train if rows is None else site.train.map(itemgetter(rows))
    confidences = confidences if confidences is None or rows is None else confidences[rows.to(confidences.device)]
    sets = None if confidences is None else view.candidate_sets(data.target)
    truth = view.true_classes(data.target)
    if truth is not None:
        posterior = torch.nn.functional.one_hot(truth[truth >= 0], len(view.space)).float()
    elif confidences is not None and sets is not None:
        posterior = confidences.to(sets.device) * sets  # some losses also weight labels outside the set
    else:
        posterior = view.posterior(predict_logits(model, data.x), data.target)
    # The support comes from the view and not from the last prior, so that unknown labels remain unknown.
    return training_view(site, settings).prior_offset(posterior.cpu(), settings.prior_count)


def uses_prior(setting: str, view: View) -> bool:
    """Return whether a site with this view adds its log label frequencies to the logits."""
    return setting in ("all", "fading") or (setting == "exact-sites" and view.exact)


def prior_fades(setting: str, view: View) -> bool:
    """Return whether a site's prior fades in training, so that its offset is fitted to the model at the end.

    The prior stays where annotations are ambiguous, because it decides between the candidates.
    """
    return setting == "fading" and not view.ambiguous


def faded(prior: Tensor, share: float) -> Tensor:
    """Return a prior, (labels,), after a share of the rounds; labels that the site does not know remain unknown."""
    strength = max(0.0, 1 - share / FADED)
    return torch.where(torch.isfinite(prior), strength * prior, prior)


def answering_offset(
    site: SiteData, view: View, model: nn.Module, settings: TrainingSettings, rows: Tensor | None = None
) -> Tensor | None:
    """Return the offset that a site answers with: its prior, or the fitted one if the prior fades; None: neither.

    `rows` are the training rows to count; None: all that are annotated.
    """
    if not prior_fades(settings.prior, site.view):
        return estimate_prior(site, view, model, settings, rows=rows)
    rows = annotated_rows(site) if rows is None else rows
    rows = torch.arange(len(site.train), device=site.train.x.device) if rows is None else rows
    start = view.with_offset(training_view(site, settings).offset)
    if not len(rows):
        return start.offset
    if len(rows) > MOST_ROWS:  # at random, because files may list their classes in turns
        rows = rows[torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))[:MOST_ROWS].to(rows.device)]
    return fit_offset(start, predict_logits(model, site.train.x[rows]), site.train.target[rows])
