"""The server's supervised step on its labelled samples (docs/methods.md 3.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.federation.server_training import work_at_server
from fedaccord.federation.site_views import estimate_prior, training_view
from fedaccord.labels.views import Exact, view_class
from fedaccord.messages.checks import all_finite
from fedaccord.seeds import derive
from fedaccord.training.local import seeded, train_locally

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

SERVER = "(server)"  # the server's name in place of a site's


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


@dataclass(frozen=True)
class SupervisedStep:
    """A server step after the aggregation: train on the labelled samples for as long as a site does in a round.

    After it, because the labels of few samples would be lost in the training of sites whose annotations cannot tell
    the same classes apart.
    """

    reads_replies: ClassVar[bool] = False

    def __call__(self, server: Server) -> None:
        """Train the model; discard one that is not finite, with a warning."""
        site, recipe = labelled_site(server), server.recipe
        if site is None:
            return
        network = server.load_network()
        work = work_at_server(server, site)
        view = training_view(site, recipe.settings)
        prior = estimate_prior(site, view, network, recipe.settings)
        work.view = view if prior is None else view.with_offset(prior)
        with seeded(derive(server.seed, SERVER, work.round)):
            train_locally(work, recipe.objective, recipe.site_solver, recipe.settings)
        model = server.layout.read(network.eval())
        if all_finite(model):
            server.state.model = model
        else:
            server.warn("the server's steps led to a model that is not finite and were discarded; lower method.lr")
