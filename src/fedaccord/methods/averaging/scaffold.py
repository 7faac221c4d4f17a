"""SCAFFOLD (Karimireddy et al. 2020; docs/methods.md 3.4), also for sites that know some of the labels only.

The server stores a control `c`, each site a control `c_i`. `c` is the mean of the `c_i` over all sites that may train,
with the weights of the models. If head rows are averaged over their owners, so are their controls. With private label
sets, a site receives and sends the controls of the encoder and of its own head rows only, as for the model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedaccord.aggregation.mean import with_server_step
from fedaccord.aggregation.replies import Aggregator
from fedaccord.errors import TooFewSitesError
from fedaccord.federation.membership import ALWAYS
from fedaccord.federation.recipe import Exchange, Recipe, equal_weights
from fedaccord.federation.sharing import Sharing
from fedaccord.federation.side_tensors import SideTensors
from fedaccord.messages.checks import all_finite
from fedaccord.messages.message import Message, SiteId
from fedaccord.methods.averaging.fednova import effective_steps
from fedaccord.methods.averaging.settings import ScaffoldSettings
from fedaccord.methods.common_model import proximal_objective, require_sgd, shared_model_recipe
from fedaccord.training.solvers import SGD, SGDStepper, Stepper, clip_norm
from fedaccord.training.work import LocalWork

if TYPE_CHECKING:
    from fedaccord.federation.server import Server, SiteCard

CONTROL = "control"  # prefix in messages and memories; name of `c` in the method's state


def scaffold(settings: ScaffoldSettings) -> Recipe:
    """Return the recipe of SCAFFOLD, option II: FedAvg with control variates in every local step."""
    recipe = with_control_variates(shared_model_recipe(settings, proximal_objective(settings.mu, settings.loss)))
    assert recipe.aggregator is not None
    return replace(recipe, aggregator=with_server_step(recipe.aggregator, settings.server_lr))


def with_control_variates(recipe: Recipe, rows_by_owner: bool = False) -> Recipe:
    """Return the recipe with SCAFFOLD's control variates: the local rule of `scaffold`."""
    assert recipe.aggregator is not None
    sgd = require_sgd(recipe.settings, "control variates correct steps of SGD")
    controls = ControlVariates(recipe.sharing, recipe.aggregator, sgd, rows_by_owner)
    return replace(
        recipe,
        solver=controls,
        prepare=(controls.prepare, *recipe.prepare),
        exchange=recipe.exchange.merge(Exchange(controls.brief, controls.side_tensors.expected)),
        refine=(controls.refine, *recipe.refine),
    )


@dataclass(frozen=True)
class ControlVariates:
    """The parts of SCAFFOLD: the `solver` of the sites; `prepare`, `brief` and `refine` of the server."""

    batchable: ClassVar[bool] = True
    model: Sharing  # the parts of the model that are sent; controls are sent for its parameters
    aggregator: Aggregator  # of the changes of the controls; a robust rule protects these too
    sgd: SGD
    per_label: bool = False  # the control of a head row is averaged over the label's owners

    @property
    def side_tensors(self) -> SideTensors:
        """The controls in messages."""
        return SideTensors(self.model, CONTROL)

    # At a site

    def start(self, work: LocalWork) -> Stepper:
        """Return the stepper of a round at one site."""
        return _Site(self, work)

    # At the server

    def prepare(self, server: Server) -> None:
        """Initialise the control with zero; after sites have joined or left, make it the mean over the members."""
        state, round_ = server.state.method.tensors, server.state.round + 1
        if CONTROL not in state:
            state[CONTROL] = torch.zeros(server.layout.size)
        if round_ == 1 or not server.memberships:
            return
        before, now = server.trainers(round_ - 1), server.trainers(round_)
        if before != now:
            total = state[CONTROL] * self._samples(server, before)
            for site in before:
                if site not in now and _name(site) in state:
                    total = total - state.pop(_name(site)) * self._samples(server, [site])
            samples = self._samples(server, now)
            state[CONTROL] = torch.where(samples > 0, total / samples.clamp(min=1), 0.0)

    def brief(self, server: Server, card: SiteCard) -> Message:
        """Return the server's control for the parameters that the site receives."""
        return Message(self.side_tensors.outgoing(server, card, server.state.method.tensors[CONTROL]))

    def refine(self, server: Server) -> None:
        """Update the control: `c <- c + (share of the sites that replied) * mean change`, per parameter."""
        replies = server.replies
        if replies is None or not len(replies):
            return
        zeros = torch.zeros(server.layout.size)
        changes = self.side_tensors.replies(server, replies, zeros)
        try:
            mean = self.aggregator(changes)
        except TooFewSitesError:  # reported when the models were aggregated
            return
        share = self._samples(server, replies.sites) / self._samples(server, server.trainers()).clamp(min=1)
        state = server.state.method.tensors
        control = state[CONTROL] + share * mean
        if all_finite(control):
            state[CONTROL] = control
        for site, change in zip(replies.sites, changes.matrix, strict=True):
            if server.memberships.get(site, ALWAYS).leaves is not None:  # `prepare` subtracts it later
                state[_name(site)] = state.get(_name(site), torch.zeros_like(change)) + change

    def _samples(self, server: Server, sites: Iterable[SiteId]) -> Tensor:
        """Return the sum of the sites' weights per parameter, (parameters,): sample counts, or 1 with equal weights."""
        equal = equal_weights in server.recipe.admit
        counts = [(1.0 if equal else float(card.samples), card) for card in (server.cards[site] for site in sites)]
        samples = torch.full((server.layout.size,), float(sum(count for count, _ in counts)))
        if self.per_label:
            rows = server.layout.head_rows()
            owned = sum((count * card.informs.float() for count, card in counts), torch.zeros(len(rows)))
            samples[rows] = owned[:, None].expand_as(rows).contiguous()
        return samples


class CorrectedSGD(Stepper):
    """Steps at a site by option II, with controls `c` and `c_i`.

        y   <- y - eta (g - c_i + c)
        c_i <- c_i - c + (x - y) / (K eta)

    `x` is the received model, `y` the local model and `K` the number of steps. The new control is the mean of the
    gradients of the round after clipping, including a proximal term and weight decay.
    """

    def __init__(self, settings: SGD, parameters: list[Tensor], lr: float, correction: list[Tensor]) -> None:
        # The correction `c - c_i` is constant within a round.
        self.settings, self.parameters, self.lr, self.correction = settings, parameters, lr, correction
        self.steps = 0
        self._sgd = SGDStepper(SGD(settings.momentum, settings.weight_decay), parameters, lr)

    def step(self, gradients: list[Tensor]) -> None:
        """Take one step."""
        if self.settings.clip:
            gradients = clip_norm(gradients, self.settings.clip)
        self._sgd.step(list(torch._foreach_add(gradients, self.correction)))
        self.steps += 1

    def control(self, received: list[Tensor]) -> list[Tensor] | None:
        """Return the site's new control by option II; None if no step was taken or it is not finite."""
        if not self.steps:
            return None
        control = torch._foreach_sub(received, [p.detach() for p in self.parameters])
        torch._foreach_div_(control, effective_steps(self.steps, self.settings.momentum) * self.lr)
        torch._foreach_sub_(control, self.correction)
        return list(control) if all(bool(torch.isfinite(part).all()) for part in control) else None


class _Site(CorrectedSGD):
    """The steps of one round of SCAFFOLD at one site."""

    def __init__(self, parts: ControlVariates, work: LocalWork) -> None:
        self.side_tensors = parts.side_tensors
        server_control, self.old_control = (
            self.side_tensors.read(work, message) for message in (work.brief, work.memory)
        )
        correction = [c - c_i for c, c_i in zip(server_control, self.old_control, strict=True)]
        super().__init__(parts.sgd, work.parameters, work.lr, correction)

    def finish(self, work: LocalWork, reply: Message) -> None:
        """Store the new control and send its change; a control that is not finite is discarded."""
        new = self.control(work.received) or self.old_control
        changes = [after - before for after, before in zip(new, self.old_control, strict=True)]
        reply.tensors |= self.side_tensors.write(work, changes)
        work.memory.tensors.update(self.side_tensors.write(work, new))


def _name(site: SiteId) -> str:
    return f"{CONTROL} of {site}"
