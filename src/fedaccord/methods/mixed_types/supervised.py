"""The server's own supervised steps, where it holds labelled samples (docs/methods.md 6.1)."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.methods.mixed_types.augment import Augmentation
from fedaccord.models.predicting import predict_logits
from fedaccord.seeds import derive
from fedaccord.training.batches import batches
from fedaccord.training.local import has_batch_norm, seeded
from fedaccord.training.solvers import SGD, SGDStepper

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

SERVER_ACCURACY = "server_accuracy"
"""The figure of a round that says how well the server's steps fit its own labelled samples."""
BEFORE_TUNING = "the model before fine-tuning"
"""In the method's state, once the model is fine-tuned: the sites' own heads belong to its encoder."""


@dataclass(frozen=True)
class SupervisedStep:
    """A server step: cross-entropy on the labelled samples, some epochs in each round, after a warm-up in steps."""

    lr: float
    rounds: int
    cosine: bool = False
    epochs: int = 5
    warmup: int = 0  # steps before the first round's epochs
    batch: int = 64
    sgd: SGD = field(default_factory=SGD)
    augmentation: Augmentation = field(default_factory=Augmentation)
    strong: bool = False  # samples are changed as strongly as those with pseudo-labels

    def __call__(self, server: Server) -> None:
        """Train the server's model in place of its last one, and note how well it fits."""
        self.warm_up(server)
        self.train(server)

    def warm_up(self, server: Server) -> None:
        """Take the first steps of all, before the first round."""
        assert server.labelled is not None
        if self.warmup and server.state.round == 0:
            self.fit(server, *server.labelled, "warm-up", steps=self.warmup)

    def train(self, server: Server) -> None:
        """Take the round's steps, and note how well the model fits."""
        assert server.labelled is not None
        x, classes = server.labelled
        if self.epochs:
            self.fit(server, x, classes, "server step", epochs=self.epochs)
        fitted = predict_logits(server.load_network(), x).argmax(-1) == classes
        server.figures[SERVER_ACCURACY] = float(fitted.float().mean())

    def fit(
        self,
        server: Server,
        x: Tensor,
        classes: Tensor,
        purpose: str,
        epochs: int | None = None,
        steps: int | None = None,
    ) -> None:
        """Take so many passes or steps; a model that is no longer finite is not taken over, and told."""
        network, round_ = server.load_network().train(), server.state.round + 1
        parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        stepper = SGDStepper(self.sgd, parameters, self._lr_at(round_))
        seed = derive(server.seed, purpose, round_)
        generator = torch.Generator().manual_seed(seed)
        single = has_batch_norm(network)
        changed = self.augmentation.strong if self.strong else self.augmentation.weak
        with seeded(seed):
            for drawn in batches(len(x), self.batch, generator, epochs, steps, drop_single=single):
                rows = drawn.to(x.device)
                loss = F.cross_entropy(network(changed(x.index_select(0, rows))), classes.index_select(0, rows))
                stepper.step(list(torch.autograd.grad(loss, parameters, materialize_grads=True)))
        model = server.layout.read(network.eval())
        if bool(torch.isfinite(model).all()):
            server.state.model = model
        else:
            server.warn("the server's own steps gave a model that is not finite, so it was left out; lower its lr")

    def _lr_at(self, round_: int) -> float:
        return self.lr * 0.5 * (1 + math.cos(math.pi * (round_ - 1) / self.rounds)) if self.cosine else self.lr


@dataclass(frozen=True)
class FineTuning:
    """A server step after the last round: all layers are trained on the labelled samples (FedTrans)."""

    step: SupervisedStep

    def __call__(self, server: Server) -> None:
        """Train once, when the last round has been combined."""
        if server.state.round + 1 == self.step.rounds and self.step.epochs:
            server.state.method.tensors[BEFORE_TUNING] = server.state.model.clone()
            self.step(server)


@dataclass(frozen=True)
class JointEncoder:
    """Two server steps: the server trains beside the sites, and its encoder joins the mean of theirs (FedRep)."""

    step: SupervisedStep
    weight: float | None = None  # None: that of one more site

    def prepare(self, server: Server) -> None:
        """Train a copy of the model that the sites are about to get; the first steps of all are in theirs as well."""
        self.step.warm_up(server)
        sent = server.state.model
        self.step.train(server)
        server.state.method.tensors[_OWN_MODEL], server.state.model = server.state.model, sent

    def refine(self, server: Server) -> None:
        """Average the encoders; the head is the server's own."""
        ours, replies = server.state.method.tensors[_OWN_MODEL], server.replies
        if replies is None or not len(replies):
            server.state.model = ours
            return
        weight = 1 / (len(replies) + 1) if self.weight is None else self.weight
        joint = (1 - weight) * server.state.model + weight * ours
        server.state.model = torch.where(server.layout.mask("head"), ours, joint)


def keep_head(server: Server) -> None:
    """Put back, as a server step, the head that was sent out: no site has trained it."""
    if server.replies is not None:
        head = server.layout.mask("head")
        server.state.model = torch.where(head, server.replies.previous, server.state.model)


_OWN_MODEL = "the server's own model"  # in the method's state
