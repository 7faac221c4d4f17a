"""Defences: the server scores each reply by its treatment of a group and excludes hostile sites.

A defence is a score per site, a rule that turns the scores of a round into verdicts, and optionally a confidence in
each site over the rounds (docs/methods.md 10.4, 10.5). Running values and confidences are stored in the run's state.
Rows that the inversion defences reconstruct exist in memory during one round only.
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
from fedaccord.adversary.settings import INITIAL_CONFIDENCE, DefenceSettings, share_of
from fedaccord.adversary.verdicts import FEWEST, minority, next_confidence, peeling, two_means
from fedaccord.aggregation.replies import Replies
from fedaccord.data.sensitive import Target
from fedaccord.errors import ConfigError
from fedaccord.federation.robustness import largest_round
from fedaccord.models.network import Network
from fedaccord.seeds import derive

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

# In the method's state, followed by a site's name: running means of the score, and of two parts of group-update+.
RUNNING, SHARED, SIZE = "running score", "running product", "running size"
CONFIDENCE = "confidence"  # in the method's state and in a round's figures, followed by a site's name
SCORE, EXCLUDED = "score", "excluded"  # in a round's figures, followed by a site's name; `EXCLUDED` alone: the share
FALSE_EXCLUSIONS, FOUND = "false_exclusions", "hostile_excluded"  # in a study: shares of honest and of hostile sites
ROWS = 8  # random inputs for the check that logits are finite
NOBODY_JUDGED = "the defence '{}' could score no site in some rounds: no update depends on the group"
ALL_LEFT_OUT = "the defence '{}' excluded every site of a round, so the model did not change"


@dataclass(frozen=True)
class Defence:
    """The defence that the settings describe."""

    reads_updates: ClassVar[bool] = True
    settings: DefenceSettings

    def validate(self, server: Server) -> None:
        """Raise ConfigError if the defence cannot work with the server's target, network or number of sites."""
        kind = self.settings.kind
        if server.target is None:
            raise ConfigError(f"method.defence: '{kind}' scores the treatment of a group; name it in [fairness]")
        if server.target.inputs is None:
            raise ConfigError(f"method.defence: '{kind}' needs groups among the model's inputs; set fairness.input")
        if len(server.target.groups) < 2:
            raise ConfigError(f"method.defence: '{kind}' compares a group with others, but the data have one only")
        if kind.startswith("group-update"):
            self._validate_network(server.network)
        if self.settings.device != "cpu" and not torch.cuda.is_available():
            raise ConfigError('method.defence.device is a GPU, but torch finds none here; use "cpu"')
        self._validate_site_count(server)

    def _validate_site_count(self, server: Server) -> None:
        """Raise ConfigError if the defence could exclude no site even in the largest round."""
        number = largest_round(server)
        if number is not None and number < FEWEST:
            raise ConfigError(
                f"method.defence: fewer than {FEWEST} sites in a round cannot be compared, and there are {number}; "
                "remove `defence`"
            )
        if (
            number is not None
            and self.settings.verdict_rule != "two-means"
            and not share_of(self.settings.most, number)
        ):
            raise ConfigError(
                f"method.defence.most: a share of {self.settings.most:g} of {number} sites in a round is no site; "
                f"{math.ceil(100 / number) / 100:g} would be one site"
            )

    def _validate_network(self, network: Network) -> None:
        """Raise ConfigError if the update of the input weights does not reveal the influence of a group's rows."""
        kind, chain = self.settings.kind, linear_chain(network)
        if chain is None:
            raise ConfigError(
                f"method.defence: '{kind}' reads the weights of the inputs, so the network must consist of linear "
                "layers with ReLU between; use 'probe'"
            )
        bias = chain[0][1]
        if kind == "group-update+" and (len(chain) < 2 or bias is None or len(network.get_parameter(bias)) < 2):
            raise ConfigError(
                "method.defence: 'group-update+' compares the influence of a group and of all rows on a hidden layer, "
                "so the network needs one with a bias and two units or more; use 'group-update' or 'probe'"
            )

    def __call__(self, server: Server, replies: Replies) -> Replies:
        """Return the replies of trusted sites; add each site's score to the round's figures."""
        assert server.target is not None
        site_scores = self.score(server, replies, server.target)
        if bool(torch.isnan(site_scores).all()):
            server.warn(NOBODY_JUDGED.format(self.settings.kind))
        hostile = self._verdicts(server, replies.sites, site_scores)
        # A model that overflows is excluded even if the site is trusted.
        excluded = self._excluded(server, replies.sites, hostile) | torch.isinf(site_scores)
        self._record(server, replies.sites, site_scores, excluded)
        for site, score in zip(replies.sites, site_scores.tolist(), strict=True):
            if math.isinf(score):
                server.drop(site, "train", "", "its model overflows, so the defence excluded it")
        if bool(excluded.all()):
            server.warn(ALL_LEFT_OUT.format(self.settings.kind))
        return replace(replies.keep(~excluded), left_out=replies.left_out + int(excluded.sum()))

    def score(self, server: Server, replies: Replies, target: Target) -> Tensor:
        """Return each site's score, float64 (sites,): NaN if the model did not change, infinite if it overflows."""
        device = torch.device(self.settings.device)
        network = copy.deepcopy(server.network).to(device).eval()  # a copy, since `to` moves a module in place
        common, starts, models = (part.to(device) for part in (replies.previous, replies.starts, replies.matrix))
        if self.settings.kind == "group-update+":
            push = scores.group_push(Models(network, models - starts), Models(network, common), target)
            site_scores = self._adjusted_score(server, replies.sites, push.cpu())
        else:
            site_scores = self.score_models(server, network, models, starts, common, target).cpu()
        moved = (models - starts)[:, Models(network, models).trained].abs().amax(1).cpu() > 0
        rows = torch.randn(ROWS, _width(target), generator=self._generator(server, "rows")).to(device)
        overflowing = scores.logits_overflow(Models(network, models), rows).cpu()
        return site_scores.masked_fill(~moved, math.nan).masked_fill(overflowing, math.inf)

    def _adjusted_score(self, server: Server, sites: tuple[str, ...], push: scores.Push) -> Tensor:
        """Return the score of group-update+, which uses running means over the rounds."""
        unknown = (push.size == 0) | push.overflowed
        shared, size = (
            self._running(server, name, sites, value.masked_fill(unknown, math.nan))
            for name, value in ((SHARED, push.shared), (SIZE, push.size))
        )
        return scores.adjusted_group_update(push, shared, size).masked_fill(push.overflowed, math.inf)

    def score_models(
        self, server: Server, network: Network, models: Tensor, starts: Tensor, common: Tensor, target: Target
    ) -> Tensor:
        """Return the scores of models (sites, parameters), on their device.

        `starts` are the models that the sites received, `common` is the broadcast model.
        """
        updates, kind = models - starts, self.settings.kind
        if kind == "group-update":
            site_scores = scores.group_update(Models(network, updates), Models(network, common), target)
        elif kind == "probe":
            generator = self._generator(server, "probe")
            rows = torch.randn(self.settings.probes, _width(target), generator=generator).to(models.device)
            site_scores = scores.counterfactual_gap(Models(network, models), rows, target)
        else:
            dummies = self.reconstruct(server, network, models, starts, target)
            if kind == "inversion":
                site_scores = scores.dummy_fairness(Models(network, models), dummies, target)
            else:
                site_scores = scores.label_gap(dummies, target)
        return site_scores

    def reconstruct(self, server: Server, network: Network, models: Tensor, starts: Tensor, target: Target) -> Dummies:
        """Return rows reconstructed from every site's update."""
        s, sites = self.settings, len(models)
        sign = s.sign or ("printed" if s.kind == "inversion" else "corrected")
        directions = models - starts if sign == "printed" else starts - models
        directions = directions * server.layout.trainable_mask().to(models.device)
        starting_points = 1 if s.start == "common" else sites
        generator = self._generator(server, "dummies")
        shape = (starting_points, s.dummies)
        x = torch.randn(*shape, _width(target), generator=generator)
        logits = torch.randn(*shape, len(server.space), generator=generator)
        start = Dummies(*(part.expand(sites, -1, -1).to(models.device) for part in (x, logits)))
        invert = Inversion(s.steps, s.step_size, s.variation)
        return invert(network, starts if s.at == "global" else models, directions, start, target.inputs)

    def _generator(self, server: Server, purpose: str) -> torch.Generator:
        return torch.Generator().manual_seed(derive(server.seed, purpose, server.state.round + 1))

    def _verdicts(self, server: Server, sites: tuple[str, ...], site_scores: Tensor) -> Tensor:
        if self.settings.verdict_rule == "two-means":
            return two_means(site_scores)
        rule = peeling if self.settings.verdict_rule == "peeling" else minority
        return rule(self._running(server, RUNNING, sites, site_scores), self.settings.gate_ratio, self.settings.most)

    def _running(self, server: Server, name: str, sites: tuple[str, ...], values: Tensor) -> Tensor:
        """Return each site's running mean of a value, including this round; NaN for a site without any value.

        An infinite value is returned as it is and does not enter the running mean.
        """
        numbers, share = server.state.method.numbers, self.settings.memory_weight
        running = []
        for site, value in zip(sites, values.tolist(), strict=True):
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
        for site, is_hostile in zip(sites, hostile.tolist(), strict=True):
            past = float(numbers.get(f"{CONFIDENCE}/{site}", INITIAL_CONFIDENCE))
            now = next_confidence(past, is_hostile, s.rho, s.low, s.high, s.freeze == "absolute")
            numbers[f"{CONFIDENCE}/{site}"] = now
            trusted.append(now > s.trust)
        return ~torch.tensor(trusted, dtype=torch.bool)

    def _record(self, server: Server, sites: tuple[str, ...], site_scores: Tensor, excluded: Tensor) -> None:
        figures, numbers = server.figures, server.state.method.numbers
        for site, score, out in zip(sites, site_scores.tolist(), excluded.tolist(), strict=True):
            figures |= {f"{SCORE}/{site}": score, f"{EXCLUDED}/{site}": float(out)}
            if self.settings.uses_confidence:
                figures[f"{CONFIDENCE}/{site}"] = float(numbers[f"{CONFIDENCE}/{site}"])
        figures[EXCLUDED] = float(excluded.double().mean())
        # Only a study knows which sites are hostile.
        if server.attack is not None:
            truth = torch.tensor([site in server.hostile for site in sites])
            for name, rows in ((FALSE_EXCLUSIONS, ~truth), (FOUND, truth)):
                if bool(rows.any()):
                    figures[name] = float(excluded[rows].double().mean())


def _width(target: Target) -> int:
    """Return the number of inputs; the groups are the last ones."""
    assert target.inputs is not None
    return int(target.inputs.stop)
