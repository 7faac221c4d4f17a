"""The server's labelled samples: one more site in every round, and more training after the last (docs/methods.md 3.1).

Both train with an offset that is fitted to the model before each round, because the class mix among a few labelled
samples says nothing about the mix at the sites.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.validation_rows import split_rows
from fedaccord.federation.round import Progress
from fedaccord.federation.server_training import work_at_server
from fedaccord.federation.site_views import training_view
from fedaccord.labels.views import Exact, View, view_class
from fedaccord.labels.views.fitted_offset import fit_offset
from fedaccord.messages.checks import all_finite
from fedaccord.models.network import predict_logits
from fedaccord.seeds import derive
from fedaccord.training.local import seeded, train_locally

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

SERVER = "(server)"  # the server's name in place of a site's
NOT_FINITE = "the server's steps led to a model that is not finite and were discarded; lower method.lr"


def labelled_site(server: Server) -> SiteData | None:
    """Return the labelled samples as an exact site that knows the classes among them; None if they teach nothing.

    They teach nothing with fewer than two classes, and beside tags, where a sample may have several labels.
    """
    if server.labelled is None:
        return None
    x, classes = server.labelled
    present = [server.space.names[column] for column in classes.unique().tolist()]
    has_tags = any(not view_class(card.view).one_label for card in server.cards.values())
    if len(present) < 2 or has_tags:
        return None
    samples = Samples(x, classes, classes)
    return SiteData(SERVER, Exact(server.space, present), samples, samples)


def parts_to_train_on(server: Server) -> tuple[SiteData, SiteData, SiteData] | None:
    """Return the labelled samples, those to train on first, and those kept apart; None if the model is left as it is.

    It is left if sites that label with the classes themselves teach all classes of the samples, or if there are too
    few samples to keep some apart.
    """
    site = labelled_site(server)
    if site is None:
        return None
    taught = torch.zeros(len(server.space), dtype=torch.bool)
    for name in server.trainers(server.state.round):
        card = server.cards[name]
        if not view_class(card.view).has_own_names:
            taught |= card.informs
    classes = site.train.target.cpu()
    rows, apart = split_rows(classes >= 0, classes, derive(server.seed, SERVER))
    if not len(apart) or not bool((site.view.informs() & ~taught).any()):
        return None
    return site, _part(site, rows), _part(site, apart)


@dataclass(frozen=True)
class OneMoreSite:
    """A server step after the aggregation: train on the labelled samples, and count the result as one more site."""

    reads_replies: ClassVar[bool] = False

    def __call__(self, server: Server) -> None:
        """Move the model towards the trained one; discard one that is not finite, with a warning."""
        site, aggregated = labelled_site(server), server.state.model
        if site is None:
            return
        trained = _train(server, site, aggregated, server.state.round + 1)
        if all_finite(trained):
            server.state.model = torch.lerp(aggregated, trained, _shares(server, site))
        else:
            server.warn(NOT_FINITE)


@dataclass(frozen=True)
class TrainOn:
    """After the last round, train the global model on the labelled samples, if rows kept apart say that it helps.

    The rounds before have seen these rows too, so that the comparison favours to leave the model as it is. It always
    stays if sites that label with the classes themselves teach all classes of the samples: their rows are more, and
    they know the class mix.
    """

    def __call__(self, server: Server) -> Iterator[Progress]:
        """Train for as many rounds as the run had, first without the rows kept apart, then with all rows."""
        before, rounds, parts = server.state.model, server.state.round, parts_to_train_on(server)
        if parts is None or not rounds:
            return
        site, rest, judged = parts
        tried = before
        for done in range(1, rounds + 1):
            tried = _train(server, rest, tried, done, rounds)
            yield _progress(done, 2 * rounds, changes=False)
        losses = [_loss(server, model, rest, judged) for model in (before, tried)]
        helps = losses[1] < losses[0]
        model = before
        for done in range(1, rounds + 1) if helps else ():
            model = _train(server, site, model, done, rounds)
            yield _progress(rounds + done, 2 * rounds, changes=True)
        helps = helps and all_finite(model)
        server.concluded.append(
            f"the server's {len(site.train)} labelled samples {'train' if helps else 'do not train'} the global model "
            f"after the last round: loss on {len(judged.train)} rows kept apart {losses[0]:.3g} before and "
            f"{losses[1]:.3g} after"
        )
        if helps:
            server.state.model = model


def _train(server: Server, site: SiteData, model: Tensor, round_: int, rounds: int | None = None) -> Tensor:
    """Return a model after a round of training on labelled samples; `rounds` replaces those of the schedule."""
    recipe = server.recipe
    view = _fitted(server, site, model)
    work = work_at_server(server, site, round_=round_, rounds=rounds)
    work.view = view
    with seeded(derive(server.seed, SERVER, round_)):
        train_locally(work, recipe.objective, recipe.site_solver, recipe.settings)
    return server.layout.read(server.network.eval())


def _fitted(server: Server, site: SiteData, model: Tensor) -> View:
    """Load a model, and return the view of labelled samples with the offset that fits it."""
    server.layout.load(server.network, model)
    view = training_view(site, server.recipe.settings)
    return view.with_offset(fit_offset(view, predict_logits(server.network, site.train.x), site.train.target))


def _loss(server: Server, model: Tensor, fitted: SiteData, judged: SiteData) -> float:
    """Return the mean loss of a model on labelled samples, with the offset that fits other samples."""
    view = _fitted(server, fitted, model)
    loss = view.nll(predict_logits(server.network, judged.train.x), judged.train.target).mean()
    return float(loss.nan_to_num(nan=float("inf")))


def _shares(server: Server, site: SiteData) -> Tensor:
    """Return the weight of the labelled samples beside the sites of the round, for each value of the model.

    A head row counts the sites that inform its label, as in the aggregation.
    """
    dropped = {drop.site for drop in server.dropped[server.recorded_drops :]}
    teaching = [server.cards[n] for n in server.sample_sites() if n not in server.silent and n not in dropped]
    samples, layout = len(site.train), server.layout
    shares = torch.full((layout.size,), samples / (samples + sum(card.samples for card in teaching)))
    owned = torch.zeros(len(server.space))
    for card in teaching:
        owned += card.samples * card.informs
    rows = torch.where(site.view.informs(), samples / (samples + owned), torch.zeros(()))
    shares[layout.head_rows()] = rows[:, None]
    return shares


def _part(site: SiteData, rows: Tensor) -> SiteData:
    samples = site.train.map(itemgetter(rows.to(site.train.x.device)))
    return SiteData(site.name, site.view, samples, samples)


def _progress(done: int, total: int, changes: bool) -> Progress:
    return Progress("training on the server's labelled samples", done, total, changes=changes)
