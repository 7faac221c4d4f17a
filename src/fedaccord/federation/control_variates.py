"""SCAFFOLD (Karimireddy et al. 2020) between server and sites, also where each site knows some labels only.

The server keeps a control `c`, every site its own `c_i`; `c` is the mean of the `c_i`, weighed as the models are, over
all sites that may train, and where head rows belong to their owners, row by row over these. With private label sets a
site is sent, and sends, controls of the encoder and of its own head rows only, as it is with the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Aggregator
from fedaccord.errors import TooFewSitesError
from fedaccord.federation.membership import ALWAYS
from fedaccord.federation.reply_weights import equal_weights
from fedaccord.federation.sharing import Sharing
from fedaccord.federation.side_tensors import SideTensors
from fedaccord.messages.checks import TensorSpec, all_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.training.corrected_sgd import CorrectedSGD
from fedaccord.training.solvers import SGD, Stepper
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

CONTROL = "control"  # prefix of controls in messages and memories, and the name of `c` in the method's state


@dataclass(frozen=True)
class ControlVariates:
    """SCAFFOLD's parts of a recipe: `solver` at the sites; `prepare`, `brief`, `extras` and `refine` at the server."""

    batchable: ClassVar[bool] = True
    model: Sharing  # how the model travels; controls travel like it, without buffers
    aggregator: Aggregator  # combines the changes of the controls, so that a robust rule protects these too
    sgd: SGD
    per_label: bool = False  # a head row's control is that of the label's owners

    @property
    def side_tensors(self) -> SideTensors:
        """How controls travel."""
        return SideTensors(self.model, CONTROL)

    # At a site

    def start(self, work: LocalWork) -> Stepper:
        """Begin a round at one site: the `solver` slot."""
        return _Site(self, work)

    # At the server

    def prepare(self, server: Server) -> None:
        """Begin with a control of zero; when sites have joined or left, make it the mean of those who are there."""
        kept, at = server.state.method.tensors, server.state.round + 1
        if CONTROL not in kept:
            kept[CONTROL] = torch.zeros(server.layout.size)
        if at == 1 or not server.memberships:
            return
        before, now = server.trainers(at - 1), server.trainers(at)
        if before != now:
            total = kept[CONTROL] * self._samples(server, before)
            for site in before:
                if site not in now and _name(site) in kept:
                    total = total - kept.pop(_name(site)) * self._samples(server, [site])
            samples = self._samples(server, now)
            kept[CONTROL] = torch.where(samples > 0, total / samples.clamp(min=1), 0.0)

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the server's control, as far as the site shares the model."""
        return Message(self.side_tensors.outgoing(server, card, server.state.method.tensors[CONTROL]))

    def extras(self, server: Server, card: SiteCard) -> dict[str, TensorSpec]:
        """Return what a reply holds beside the model: by how much the site's control changed."""
        return self.side_tensors.expected(server, card)

    def refine(self, server: Server) -> None:
        """Let the server's control follow: `c <- c + (share of the sites that replied) * mean change`, row by row."""
        replies = server.replies
        if replies is None or not len(replies):
            return
        changes = self.side_tensors.replies(
            server, replies, torch.zeros(server.layout.size)
        )  # zero where a site has none
        try:
            mean = self.aggregator(changes)
        except TooFewSitesError:  # told where the model was to be combined
            return
        share = self._samples(server, replies.sites) / self._samples(server, server.trainers()).clamp(min=1)
        kept = server.state.method.tensors
        control = kept[CONTROL] + share * mean
        if all_finite(control):
            kept[CONTROL] = control
        for site, change in zip(replies.sites, changes.matrix, strict=True):
            if server.memberships.get(site, ALWAYS).leaves is not None:  # its part is to be taken out again
                kept[_name(site)] = kept.get(_name(site), torch.zeros_like(change)) + change

    def _samples(self, server: Server, sites: Iterable[SiteId]) -> Tensor:
        """Return the samples behind each parameter at these sites, (parameters,); where all are equal, the sites."""
        equal = equal_weights in server.recipe.admit
        counts = [(1.0 if equal else float(card.samples), card) for card in (server.cards[site] for site in sites)]
        samples = torch.full((server.layout.size,), float(sum(count for count, _ in counts)))
        if self.per_label:
            rows = server.layout.head_rows()
            owned = sum((count * card.informs.float() for count, card in counts), torch.zeros(len(rows)))
            samples[rows] = owned[:, None].expand_as(rows).contiguous()
        return samples


class _Site(CorrectedSGD):
    """A round of SCAFFOLD at one site."""

    def __init__(self, parts: ControlVariates, work: LocalWork) -> None:
        self.side_tensors = parts.side_tensors
        theirs, self.ours = (self.side_tensors.read(work, message) for message in (work.brief, work.memory))
        correction = [c - own for c, own in zip(theirs, self.ours, strict=True)]
        super().__init__(parts.sgd, work.parameters, work.lr, correction)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Keep the new control and send the change; a control that is not finite would spoil every later round."""
        new = self.control(work.received) or self.ours
        changes = [after - before for after, before in zip(new, self.ours, strict=True)]
        reply.tensors |= self.side_tensors.write(work, changes)
        work.memory.tensors.update(self.side_tensors.write(work, new))


def _name(site: SiteId) -> str:
    return f"{CONTROL} of {site}"
