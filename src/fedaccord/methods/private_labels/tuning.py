"""Central tuning: after the average, the server brings its model to agree with the sites' on unlabelled inputs.

The losses are those of "Federated Learning with Heterogeneous and Private Label Sets" (arXiv 2508.18774). `h` is the
global prediction over all labels, `peer` a site's over the labels it knows; both are probabilities, (samples, labels).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.errors import ConfigError
from fedaccord.messages.checks import all_finite
from fedaccord.models.predicting import predict_logits
from fedaccord.seeds import derive
from fedaccord.training.batches import batches
from fedaccord.training.solvers import SGD, SGDStepper

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

TINY = 1e-12


def mse_agreement(h: Tensor, peer: Tensor, known: Tensor, renormalise: bool = False) -> Tensor:
    """Return the mean squared difference over the labels the site knows.

    `renormalise` compares with the global prediction given that the label is one of these, which is what a site's
    restricted softmax predicts; the published form compares directly and is zero only if no mass lies elsewhere.
    """
    inside = h[:, known]
    if renormalise:
        inside = inside / inside.sum(-1, keepdim=True).clamp(min=TINY)
    return (peer[:, known] - inside).square().mean()


def pairwise_agreement(h: Tensor, peer: Tensor, among: Tensor) -> Tensor:
    """Return the mean over pairs of labels of `(peer_y h_y' - peer_y' h_y)^2`; zero where there is no pair."""
    ours, theirs = h[:, among], peer[:, among]
    labels = ours.shape[1]
    if labels < 2:
        return h.sum() * 0.0
    products = theirs[:, :, None] * ours[:, None, :]
    first, second = torch.triu_indices(labels, labels, offset=1, device=h.device)
    return (products[:, first, second] - products[:, second, first]).square().mean()


@dataclass(frozen=True)
class CentralTuning:
    """A server step: one pass over the unlabelled inputs that lowers the disagreement with this round's sites."""

    loss: str = "mse"  # or "pairwise"
    renormalise: bool = False
    zero_padded: bool = False  # pairwise: pairs of all labels, a site's prediction being zero outside its own
    mask_absent: bool = True  # leave out labels that no site of the round knows
    whole_model: bool = False
    peers_know_all: bool = False  # the sites' softmax runs over all labels (public label sets)
    all_labels: bool = False  # compare over all labels, which such sites predict, instead of those that a site knows
    lr: float = 0.01
    momentum: float = 0.9
    batch: int = 64

    def __call__(self, server: Server) -> None:
        """Tune the model that was just combined."""
        replies, x = server.replies, server.unlabelled
        if replies is None or len(replies) == 0:
            return
        if x is None or not len(x):
            if server.state.round == 0:
                server.drop("", "tuning", "", "the server has no unlabelled data; give [server] unlabelled")
            return
        peers = self._peers(server)
        heard = [number for number, peer in enumerate(peers) if all_finite(peer)]
        for number in set(range(len(peers))) - set(heard):
            server.drop(replies.sites[number], "tuning", "", "the predictions of its model are not finite")
        if not heard:
            return
        informs, weights = replies.informs[heard].to(x.device), replies.weights[heard].to(x.device)
        present = informs.any(0)
        offset = torch.zeros(len(present), device=x.device)
        if self.mask_absent:
            offset = offset.masked_fill(~present, float("-inf"))
            peers = [_within(peer, present) for peer in peers]
        shares = (weights / weights.sum()).float()

        server.load_network()
        network = server.network.eval()
        moving = [*network.parameters()] if self.whole_model else [*network.head.parameters()]
        parameters: list[Tensor] = [p for p in moving if p.requires_grad]
        inputs = x if self.whole_model else _features(server, x)
        stepper = SGDStepper(SGD(self.momentum), parameters, self.lr)
        generator = torch.Generator().manual_seed(derive(server.seed, "tuning", server.state.round + 1))
        for drawn in batches(len(x), self.batch, generator, epochs=1):
            rows = drawn.to(x.device)
            logits = network(inputs[rows]) if self.whole_model else network.head(inputs[rows])
            h = torch.softmax(logits + offset, -1)
            loss = torch.stack(
                [
                    share * self.disagreement(h, peers[number][rows], known, present)
                    for share, number, known in zip(shares, heard, informs, strict=True)
                ]
            ).sum()
            stepper.step(list(torch.autograd.grad(loss, parameters, materialize_grads=True)))
        _take(server, server.layout.read(network))

    def disagreement(self, h: Tensor, peer: Tensor, known: Tensor, present: Tensor) -> Tensor:
        """Return the loss against one site."""
        among = known
        if self.all_labels or (self.zero_padded and self.loss == "pairwise"):
            among = present if self.mask_absent else torch.ones_like(known)
        if self.loss == "mse":
            return mse_agreement(h, peer, among, self.renormalise)
        return pairwise_agreement(h, peer, among)

    def _peers(self, server: Server) -> list[Tensor]:
        """Return each site's prediction on the unlabelled inputs, with the model it just sent."""
        replies = server.replies
        assert replies is not None
        assert server.unlabelled is not None
        peers = []
        for row, known in zip(replies.matrix, replies.informs, strict=True):
            server.layout.load(server.network, row)
            logits = predict_logits(server.network, server.unlabelled)
            if not self.peers_know_all:
                logits = logits.masked_fill(~known.to(logits.device), float("-inf"))
            peers.append(torch.softmax(logits, -1))
        return peers


@dataclass(frozen=True)
class Balancing:
    """A server step after the last round: shift the head's biases so that the mean prediction has given frequencies."""

    rounds: int
    frequencies: Sequence[float] | None = None  # None: uniform
    from_sites: bool = False  # instead: every site's samples spread evenly over the labels it knows
    steps: int = 30
    damping: float = 0.5

    def refuse_unfit(self, server: Server) -> None:
        """Refuse, before the first round, frequencies of other labels, and a head that has no biases to shift."""
        given, labels = self.frequencies, len(server.space)
        if given is not None and len(given) != labels:
            raise ConfigError(f"method.frequencies: there are {labels} labels, so {labels} numbers, not {len(given)}")
        if server.network.head.bias is None:
            raise ConfigError("method.tuning: 'balance' shifts the head's biases, and the head of this model has none")

    def __call__(self, server: Server) -> None:
        """Balance once, when the last round has been combined."""
        x = server.unlabelled
        if server.state.round + 1 < self.rounds:
            return
        if x is None or not len(x):
            server.drop("", "tuning", "", "the server has no unlabelled data; give [server] unlabelled")
            return
        taught = self._taught(server)
        logits = predict_logits(server.load_network(), x).cpu()[:, taught]
        shift = balancing_shift(logits, self._target(server)[taught], self.steps, self.damping)
        model = server.state.model.clone()
        server.layout.named(model)["head.bias"][taught] += shift
        _take(server, model)

    def _taught(self, server: Server) -> Tensor:
        """Mark the labels that some site has taught, be it gone by now; the row of another is as it was drawn."""
        taught = [card.informs for card in server.cards.values() if card.samples > 0]
        return torch.stack(taught).any(0) if taught else torch.zeros(len(server.space), dtype=torch.bool)

    def _target(self, server: Server) -> Tensor:
        """Return the frequencies of all labels, which count among those that were taught."""
        if self.frequencies is not None:
            return torch.tensor(self.frequencies, dtype=torch.float32)
        if not self.from_sites:
            return torch.ones(len(server.space))
        cards = [server.cards[site] for site in sorted(server.cards)]  # what one that has left taught is still there
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


def _within(peer: Tensor, present: Tensor) -> Tensor:
    """Return a prediction given that the label is one of these; one over no others is as it was."""
    if not bool((peer[:, ~present] > 0).any()):
        return peer
    inside = peer.masked_fill(~present, 0.0)
    return inside / inside.sum(-1, keepdim=True).clamp(min=TINY)


def _take(server: Server, model: Tensor) -> None:
    """Take a tuned model, unless it is not finite: from there no round would lead back."""
    if all_finite(model):
        server.state.model = model
    else:
        server.drop("", "tuning", "", "the tuned model is not finite, so the combined one is kept")


@torch.no_grad()
def _features(server: Server, x: Tensor) -> Tensor:
    """Return what the head sees of the inputs; the encoder does not move while only the head is tuned."""
    return torch.cat([server.network.features(part) for part in x.split(1024)])
