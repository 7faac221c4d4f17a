"""The parts of `accord` that a federation switches on."""

from __future__ import annotations

from collections.abc import Sequence

from fedaccord.federation.pooled_correspondence import matrix_brief
from fedaccord.federation.server import Server, SiteCard
from fedaccord.labels.views import View, view_class
from fedaccord.messages.message import Message
from fedaccord.methods.accord.labelled_server import labelled_site
from fedaccord.methods.accord.objective import CONFIDENT
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.training.settings import Prior

PERSONAL = {
    "mixture": "shared model, own head and a model alone, weighed on rows kept apart",
    "cheap": "shared model, own head and a model alone, with fixed weights",
}


def brief_additions(settings: AccordSettings, server: Server, card: SiteCard) -> Message:
    """Return the additions to a site's brief: whether label confidences are used, and the meaning of its names."""
    words = {CONFIDENT: "on"} if settings.confidences and _mostly_ambiguous(server) else {}
    return Message(matrix_brief(server, card).tensors if card.unexplained else {}, words=words)


def parts_of(settings: AccordSettings, server: Server) -> list[str]:
    """Return a sentence on each part that is switched on, with the sites that are the reason."""
    cards = [card for card in server.cards.values() if card.teaches and card.samples]
    kinds = [view_class(card.view) for card in cards]
    found = []
    if (labelled := labelled_site(server)) is not None:
        found.append(f"the server's {len(labelled.train)} labelled samples: one more site in every round")
    if unexplained := sum(card.unexplained for card in cards):
        found.append(f"{_sites(unexplained)} with names of unknown meaning: correspondence by EM over all sites")
    ambiguous = sum(kind.ambiguous for kind in kinds)
    if settings.confidences and _mostly_ambiguous(server):
        found.append(f"{_sites(ambiguous)} with candidate sets: label confidences")
    found += _prior_words(settings.prior, kinds)
    if settings.regularise and len(server.input_shape) == 1:
        found.append("rows of features: noise and dropout in training, except for texts")
    if kinds and settings.personal != "off":
        found.append(f"{_sites(len(kinds))} with annotations: {PERSONAL[settings.personal]}")
    return found


def _prior_words(setting: Prior, kinds: Sequence[type[View]]) -> list[str]:
    """Return sentences on the sites that use their label frequencies as a prior, and until when."""
    fading = sum(not kind.ambiguous for kind in kinds) if setting == "fading" else 0
    lasting = {"off": 0, "exact-sites": sum(kind.exact for kind in kinds)}.get(setting, len(kinds)) - fading
    found = [f"{_sites(fading)}: own label frequencies as a prior in the first half of the rounds"] if fading else []
    return [*found, f"{_sites(lasting)}: own label frequencies as a prior"] if lasting else found


def _mostly_ambiguous(server: Server) -> bool:
    """Return whether at least half of the sites that teach have candidate sets."""
    teaching = [view_class(card.view).ambiguous for card in server.cards.values() if card.teaches and card.samples]
    return 2 * sum(teaching) >= len(teaching) > 0


def _sites(number: int) -> str:
    return f"{number} site{'s' if number != 1 else ''}"
