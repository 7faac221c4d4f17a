"""What a site says it is when it joins, and whether the server believes it."""

from __future__ import annotations

import re

import torch

from fedaccord.federation.state import SiteCard
from fedaccord.messages.checks import MOST_SAMPLES, Problem
from fedaccord.messages.message import Message, SiteId


def read_card(
    site: SiteId, reply: Message, labels: int, known: SiteCard | None = None, before: SiteCard | None = None
) -> SiteCard | Problem:
    """Return the card that a site's answer to `join` makes, or what is wrong with it.

    Of a site elsewhere `known` is what the server knows itself; how many samples it has is for the site to say, once in
    a run: `before` is the card with which it joined before the run was cut.
    """
    samples = reply.numbers.get("samples", -1)
    if not 0 <= samples <= MOST_SAMPLES:
        return Problem("samples", f"joined with {samples} samples")
    informs = reply.tensors.get("informs", torch.zeros(0))
    if informs.shape != (labels,):
        return Problem("informs", f"the shape is {tuple(informs.shape)}, but there are {labels} labels")
    names = reply.words.get("names", "")
    if not re.fullmatch(r"(\d{1,6}:[0-9a-f]{16})?", names):
        return Problem("names", f"the digest of its names is '{names[:40]}'")
    card = SiteCard(site, int(samples), reply.words.get("view", ""), informs.bool(), names)
    if known is None:  # its data are here and were compared already
        return card
    if card.view != known.view:
        return Problem("view", f"is '{card.view}', but the site is known to have '{known.view}'")
    if bool((card.informs & ~known.informs).any()):
        return Problem("informs", "claims labels that are not the site's own")
    if before is not None and not card.is_same(before):
        return Problem("", "its data are not those it joined the run with; put them back, or start a new run")
    return card
