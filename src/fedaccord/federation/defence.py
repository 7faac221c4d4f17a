"""The `defence` slot: the server judges each site's reply by how it treats a group, and leaves hostile ones out.

A defence is a score for each site, a rule that turns the round's scores into verdicts, and, if asked for, a confidence
in each site over the rounds (docs/methods.md 10.4, 10.5). Running values and confidences of sites are part of the run's
state. Rows that the inversion defences reconstruct live in this process's memory for one round only.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from fedaccord.adversary import scores
from fedaccord.adversary.inversion import Dummies, Inversion
from fedaccord.adversary.many_models import Models, linear_chain
from fedaccord.adversary.settings import INITIAL_CONFIDENCE, DefenceSettings
from fedaccord.adversary.verdicts import FEWEST, minority, next_confidence, peeling, share_of, two_means
from fedaccord.aggregation.replies import Replies
from fedaccord.data.sensitive import Target
from fedaccord.errors import ConfigError
from fedaccord.federation.robustness import largest_round
from fedaccord.models.network import Network
from fedaccord.seeds import derive

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

RUNNING = "running score"  # in the method's state, with a site's name behind it
SHARED, SIZE = "running product", "running size"  # likewise: what group-update+ knows of a site's updates
CONFIDENCE = "confidence"  # in the method's state and among a round's figures, with a site's name behind it
SCORE, EXCLUDED = "score", "excluded"  # among a round's figures, with a site's name behind it; alone: the share
FALSE_EXCLUSIONS, FOUND = "false_exclusions", "hostile_excluded"  # of a study: shares of honest and hostile sites
ROWS = 8  # made-up ones, which every model should be able to answer
NOBODY_JUDGED = "the defence '{}' could judge nobody in some rounds: no site's update says anything of the group"
ALL_LEFT_OUT = "the defence '{}' left out every site of a round, and the model stayed as it was"


@dataclass(frozen=True)
class Defence:
    """A defence as the settings describe it."""

    reads_updates: ClassVar[bool] = True
    settings: DefenceSettings

    def validate(self, server: Server) -> None:
        """Refuse, before the first round, a defence that has nothing to look at."""
        kind = self.settings.kind
        if server.target is None:
            raise ConfigError(f"method.defence: '{kind}' looks at how a group is treated; name it in [fairness]")
        if server.target.inputs is None:
            raise ConfigError(f"method.defence: '{kind}' needs groups among the model's inputs; set fairness.input")
        if len(server.target.groups) < 2:
            raise ConfigError(f"method.defence: '{kind}' compares a group with others, and the data name only one")
        if kind.startswith("group-update"):
            self._refuse_network(server.network)
        if self.settings.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError('method.defence.device is a GPU, but torch finds none here; use "cpu"')
        self._refuse_too_few(server)

    def _refuse_too_few(self, server: Server) -> None:
        """Refuse a defence that could leave out nobody, since not even the fullest round has sites enough."""
        number = largest_round(server)
        if number is not None and number < FEWEST:
            raise ConfigError(
                f"method.defence: among fewer than {FEWEST} sites in a round nobody can be told apart, and there are "
                f"{number}; leave `defence` out"
            )
        if (
            number is not None
            and self.settings.verdict_rule != "two-means"
            and not share_of(self.settings.most, number)
        ):
            raise ConfigError(
                f"method.defence.most: a share of {self.settings.most:g} of {number} sites in a round is nobody; "
                f"{math.ceil(100 / number) / 100:g} would be one site"
            )

    def _refuse_network(self, network: Network) -> None:
        """Refuse a network whose input weights do not tell how rows of a group pushed it."""
        kind, chain = self.settings.kind, linear_chain(network)
        if chain is None:
            raise ConfigError(
                f"method.defence: '{kind}' looks at the weights of the inputs, so the network must be linear layers "
                "with ReLU between; use 'probe'"
            )
        bias = chain[0][1]
        if kind == "group-update+" and (len(chain) < 2 or bias is None or len(network.get_parameter(bias)) < 2):
            raise ConfigError(
                "method.defence: 'group-update+' compares what a group and what all rows do to a hidden layer, so the "
                "network must have one, of two units or more and with a bias; use 'group-update' or 'probe'"
            )

    def __call__(self, server: Server, replies: Replies) -> Replies:
        """Return the replies of the sites that are trusted; what was found of each joins the round's figures."""
        assert server.target is not None
        found = self.score(server, replies, server.target)
        if bool(torch.isnan(found).all()):
            server.warn(NOBODY_JUDGED.format(self.settings.kind))
        hostile = self._verdicts(server, replies.sites, found)
        # Trust earned before is no reason to take a model that nothing can be computed with.
        excluded = self._excluded(server, replies.sites, hostile) | torch.isinf(found)
        self._tell(server, replies.sites, found, excluded)
        for site, score in zip(replies.sites, found.tolist(), strict=True):
            if math.isinf(score):
                server.drop(site, "train", "", "its model is too large to compute with, so the defence left it out")
        if bool(excluded.all()):
            server.warn(ALL_LEFT_OUT.format(self.settings.kind))
        return replace(replies.keep(~excluded), left_out=replies.left_out + int(excluded.sum()))

    def score(self, server: Server, replies: Replies, target: Target) -> Tensor:
        """Return each site's score, float64 (sites,): NaN where a model has not moved, infinite where it overflows."""
        device = torch.device(self.settings.device)
        network = copy.deepcopy(server.network).to(device).eval()  # the server's own stays where it is
        common, starts, models = (part.to(device) for part in (replies.previous, replies.starts, replies.matrix))
        if self.settings.kind == "group-update+":
            push = scores.group_push(Models(network, models - starts), Models(network, common), target)
            found = self._freed(server, replies.sites, push.cpu())
        else:
            found = self.score_models(server, network, models, starts, common, target).cpu()
        moved = (models - starts)[:, Models(network, models).trained].abs().amax(1).cpu() > 0
        rows = torch.randn(ROWS, _width(target), generator=self._generator(server, "rows")).to(device)
        overflowing = scores.logits_overflow(Models(network, models), rows).cpu()
        return found.masked_fill(~moved, math.nan).masked_fill(overflowing, math.inf)

    def _freed(self, server: Server, sites: tuple[str, ...], push: scores.Push) -> Tensor:
        """Return the score that knows how sites' updates went in the rounds before."""
        unknown = (push.size == 0) | push.overflowed
        shared, size = (
            self._running(server, name, sites, now.masked_fill(unknown, math.nan))
            for name, now in ((SHARED, push.shared), (SIZE, push.size))
        )
        return scores.adjusted_group_update(push, shared, size).masked_fill(push.overflowed, math.inf)

    def score_models(
        self, server: Server, network: Network, models: Tensor, starts: Tensor, common: Tensor, target: Target
    ) -> Tensor:
        """Return the scores of models (sites, parameters), computed and left on the device that they are on.

        `starts` is what each site began from, `common` the model of all.
        """
        updates, kind = models - starts, self.settings.kind
        if kind == "group-update":
            found = scores.group_update(Models(network, updates), Models(network, common), target)
        elif kind == "probe":
            generator = self._generator(server, "probe")
            rows = torch.randn(self.settings.probes, _width(target), generator=generator).to(models.device)
            found = scores.counterfactual_gap(Models(network, models), rows, target)
        else:
            dummies = self.reconstruct(server, network, models, starts, target)
            if kind == "inversion":
                found = scores.dummy_fairness(Models(network, models), dummies, target)
            else:
                found = scores.label_gap(dummies, target)
        return found

    def reconstruct(self, server: Server, network: Network, models: Tensor, starts: Tensor, target: Target) -> Dummies:
        """Return what can be reconstructed of every site's data in this round."""
        s, sites = self.settings, len(models)
        sign = s.sign or ("printed" if s.kind == "inversion" else "corrected")
        directions = models - starts if sign == "printed" else starts - models
        directions = directions * server.layout.trainable_mask().to(models.device)
        many = 1 if s.start == "common" else sites
        generator = self._generator(server, "dummies")
        shape = (many, s.dummies)
        x = torch.randn(*shape, _width(target), generator=generator)
        logits = torch.randn(*shape, len(server.space), generator=generator)
        start = Dummies(*(part.expand(sites, -1, -1).to(models.device) for part in (x, logits)))
        invert = Inversion(s.steps, s.step_size, s.variation)
        return invert(network, starts if s.at == "global" else models, directions, start, target.inputs)

    def _generator(self, server: Server, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive(server.seed, purpose, server.state.round + 1))

    def _verdicts(self, server: Server, sites: tuple[str, ...], found: Tensor) -> Tensor:
        if self.settings.verdict_rule == "two-means":
            return two_means(found)
        rule = peeling if self.settings.verdict_rule == "peeling" else minority
        return rule(self._running(server, RUNNING, sites, found), self.settings.gate_ratio, self.settings.most)

    def _running(self, server: Server, name: str, sites: tuple[str, ...], now: Tensor) -> Tensor:
        """Return each site's running mean of a value, this round's included; NaN for a site that never had one.

        A value that is infinite now is so whatever was before, and is not remembered: it says nothing of other rounds.
        """
        numbers, share = server.state.method.numbers, self.settings.memory_weight
        running = []
        for site, value in zip(sites, now.tolist(), strict=True):
            past = numbers.get(f"{name}/{site}")
            if math.isfinite(value):
                numbers[f"{name}/{site}"] = past = value if past is None else share * past + (1 - share) * value
            running.append(value if math.isinf(value) else math.nan if past is None else float(past))
        return torch.tensor(running, dtype=torch.float64)

    def _excluded(self, server: Server, sites: tuple[str, ...], hostile: Tensor) -> Tensor:
        if not self.settings.uses_confidence:
            return hostile
        s, numbers = self.settings, server.state.method.numbers
        trusted = []
        for site, guilty in zip(sites, hostile.tolist(), strict=True):
            past = float(numbers.get(f"{CONFIDENCE}/{site}", INITIAL_CONFIDENCE))
            now = next_confidence(past, guilty, s.rho, s.low, s.high, s.freeze == "absolute")
            numbers[f"{CONFIDENCE}/{site}"] = now
            trusted.append(now > s.trust)
        return ~torch.tensor(trusted, dtype=torch.bool)

    def _tell(self, server: Server, sites: tuple[str, ...], found: Tensor, excluded: Tensor) -> None:
        figures, numbers = server.figures, server.state.method.numbers
        for site, score, out in zip(sites, found.tolist(), excluded.tolist(), strict=True):
            figures |= {f"{SCORE}/{site}": score, f"{EXCLUDED}/{site}": float(out)}
            if self.settings.uses_confidence:
                figures[f"{CONFIDENCE}/{site}"] = float(numbers[f"{CONFIDENCE}/{site}"])
        figures[EXCLUDED] = float(excluded.double().mean())
        # Who is hostile is known where a study chose them; elsewhere nobody can count what was wrong.
        if server.attack is not None:
            truth = torch.tensor([site in server.hostile for site in sites])
            for name, rows in ((FALSE_EXCLUSIONS, ~truth), (FOUND, truth)):
                if bool(rows.any()):
                    figures[name] = float(excluded[rows].double().mean())


def _width(target: Target) -> int:
    """Return the number of a row's inputs, the last of which are its groups."""
    assert target.inputs is not None
    return int(target.inputs.stop)
