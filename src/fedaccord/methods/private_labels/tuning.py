"""Tuning on the server's unlabelled inputs (docs/methods.md 4.2 and 4.3).

Central tuning trains the aggregated model to agree with the sites; balance shifts the head's biases so that the mean
prediction has given label frequencies. `q` is the prediction of the global model over all labels, `site_q` that of a
site over its known labels; both are probabilities, (samples, labels).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.errors import ConfigError
from fedaccord.messages.checks import all_finite
from fedaccord.methods.private_labels.settings import PrivateLabelsSettings
from fedaccord.models.network import predict_features, predict_logits
from fedaccord.seeds import derive
from fedaccord.training.local import batches
from fedaccord.training.solvers import SGD, SGDStepper

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

TINY = 1e-12
NO_INPUTS = "the server has no unlabelled data; give [server] unlabelled"


def mse_agreement(q: Tensor, site_q: Tensor, known: Tensor, renormalise: bool = False) -> Tensor:
    """Return the mean squared difference over the site's known labels.

    `renormalise` compares with the global prediction conditioned on the known labels, like the site's softmax. The
    published form compares directly and is zero only if no mass lies outside the known labels.
    """
    inside = q[:, known]
    if renormalise:
        inside = inside / inside.sum(-1, keepdim=True).clamp(min=TINY)
    return (site_q[:, known] - inside).square().mean()


def pairwise_agreement(q: Tensor, site_q: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of `(site_q_y q_v - site_q_v q_y)^2` over pairs `y, v` of the labels; zero without a pair."""
    global_part, site_part = q[:, labels], site_q[:, labels]
    count = global_part.shape[1]
    if count < 2:
        return q.sum() * 0.0
    products = site_part[:, :, None] * global_part[:, None, :]
    first, second = torch.triu_indices(count, count, offset=1, device=q.device)
    return (products[:, first, second] - products[:, second, first]).square().mean()


@dataclass(frozen=True)
class CentralTuning:
    """A server step: one pass of SGD over the unlabelled inputs that reduces the disagreement with the sites."""

    settings: PrivateLabelsSettings

    def __call__(self, server: Server) -> None:
        """Tune the aggregated model."""
        replies, x = server.replies, server.unlabelled
        if replies is None or len(replies) == 0:
            return
        if x is None or not len(x):
            if server.state.round == 0:
                server.drop("", "tuning", "", NO_INPUTS)
            return
        predictions = self._site_predictions(server)
        finite = [number for number, site_q in enumerate(predictions) if all_finite(site_q)]
        for number in set(range(len(predictions))) - set(finite):
            server.drop(replies.sites[number], "tuning", "", "the predictions of its model are not finite")
        if not finite:
            return
        informs, weights = replies.informs[finite].to(x.device), replies.weights[finite].to(x.device)
        present = informs.any(0)
        offset = torch.zeros(len(present), device=x.device)
        if self.settings.mask_absent:
            offset = offset.masked_fill(~present, float("-inf"))
            predictions = [_conditioned(site_q, present) for site_q in predictions]
        shares = (weights / weights.sum()).float()

        server.load_network()
        network = server.network.eval()
        whole_model = self.settings.tune == "all"
        tuned = network if whole_model else network.head
        parameters: list[Tensor] = [p for p in tuned.parameters() if p.requires_grad]
        inputs = x if whole_model else predict_features(network, x)  # the encoder is fixed
        stepper = SGDStepper(SGD(self.settings.tuning_momentum), parameters, self.settings.tuning_lr)
        generator = torch.Generator().manual_seed(derive(server.seed, "tuning", server.state.round + 1))
        for drawn in batches(len(x), self.settings.tuning_batch, generator, epochs=1):
            rows = drawn.to(x.device)
            q = torch.softmax(tuned(inputs[rows]) + offset, -1)
            loss = torch.stack(
                [
                    share * self.disagreement(q, predictions[number][rows], known, present)
                    for share, number, known in zip(shares, finite, informs, strict=True)
                ]
            ).sum()
            stepper.step(list(torch.autograd.grad(loss, parameters, materialize_grads=True)))
        adopt_tuned(server, server.layout.read(network))

    def disagreement(self, q: Tensor, site_q: Tensor, known: Tensor, present: Tensor) -> Tensor:
        """Return the loss against one site."""
        labels = known
        if self.settings.tuning_labels == "all" or self.settings.pairs == "zero-padded":
            labels = present if self.settings.mask_absent else torch.ones_like(known)
        if self.settings.tuning == "mse":
            return mse_agreement(q, site_q, labels, self.settings.norm == "renorm")
        return pairwise_agreement(q, site_q, labels)

    def _site_predictions(self, server: Server) -> list[Tensor]:
        """Return the predictions of each site's model on the unlabelled inputs."""
        replies = server.replies
        assert replies is not None
        assert server.unlabelled is not None
        predictions = []
        for row, known in zip(replies.matrix, replies.informs, strict=True):
            server.layout.load(server.network, row)
            logits = predict_logits(server.network, server.unlabelled)
            if self.settings.labels == "private":
                logits = logits.masked_fill(~known.to(logits.device), float("-inf"))
            predictions.append(torch.softmax(logits, -1))
        return predictions


def _conditioned(site_q: Tensor, present: Tensor) -> Tensor:
    """Return a prediction conditioned on these labels; unchanged if it has no mass outside them."""
    if not bool((site_q[:, ~present] > 0).any()):
        return site_q
    inside = site_q.masked_fill(~present, 0.0)
    return inside / inside.sum(-1, keepdim=True).clamp(min=TINY)


def adopt_tuned(server: Server, model: Tensor) -> None:
    """Adopt a tuned model if it is finite, because training cannot recover from one that is not."""
    if all_finite(model):
        server.state.model = model
    else:
        server.drop("", "tuning", "", "the tuned model is not finite, so the combined one is kept")


@dataclass(frozen=True)
class Balancing:
    """A server step after the last round: balance the mean prediction on the unlabelled inputs."""

    settings: PrivateLabelsSettings

    def refuse_unfit(self, server: Server) -> None:
        """Raise ConfigError for a wrong number of frequencies, or a head without biases."""
        given, labels = self.settings.frequencies, len(server.space)
        if isinstance(given, list) and len(given) != labels:
            raise ConfigError(f"method.frequencies: there are {labels} labels, so {labels} numbers, not {len(given)}")
        if server.network.head.bias is None:
            raise ConfigError("method.tuning: 'balance' shifts the head's biases, and the head of this model has none")

    def __call__(self, server: Server) -> None:
        """Balance the model after the last round."""
        x = server.unlabelled
        if server.state.round + 1 < self.settings.rounds:
            return
        if x is None or not len(x):
            server.drop("", "tuning", "", NO_INPUTS)
            return
        trained = self._trained_labels(server)
        logits = predict_logits(server.load_network(), x).cpu()[:, trained]
        shift = balancing_shift(logits, self._target(server)[trained])
        model = server.state.model.clone()
        server.layout.named(model)["head.bias"][trained] += shift
        adopt_tuned(server, model)

    def _trained_labels(self, server: Server) -> Tensor:
        """Return which labels some site has trained, including sites that have left: bool (C,)."""
        trained = [card.informs for card in server.cards.values() if card.samples > 0]
        return torch.stack(trained).any(0) if trained else torch.zeros(len(server.space), dtype=torch.bool)

    def _target(self, server: Server) -> Tensor:
        """Return the wanted frequencies of all labels, not normalised."""
        if isinstance(self.settings.frequencies, list):
            return torch.tensor(self.settings.frequencies, dtype=torch.float32)
        if self.settings.frequencies == "uniform":
            return torch.ones(len(server.space))
        cards = [server.cards[site] for site in sorted(server.cards)]  # including sites that have left
        return torch.stack([c.samples * c.informs.float() / max(1, int(c.informs.sum())) for c in cards]).sum(0)


def balancing_shift(logits: Tensor, frequencies: Tensor, steps: int = 30, damping: float = 0.5) -> Tensor:
    """Return the bias under which the mean prediction has these frequencies, by damped fixed-point steps.

    Frequencies need not sum to one.
    """
    frequencies = frequencies.clamp(min=TINY) / frequencies.clamp(min=TINY).sum()
    shift = torch.zeros_like(frequencies)
    for _ in range(steps):
        mean = torch.softmax(logits + shift, -1).mean(0)
        shift = shift + damping * (frequencies.log() - mean.clamp(min=TINY).log())
    return shift - shift.mean()
