"""Supervised training of the server on its labelled samples (docs/methods.md 6.1, 6.7 and 6.8)."""

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
from fedaccord.training.local import batches, has_batch_norm, seeded
from fedaccord.training.solvers import SGD, SGDStepper

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

SERVER_ACCURACY = "server_accuracy"  # of a round, on the server's labelled samples
SERVER_MODEL = "the server's own model"  # in the method's state
BEFORE_TUNING = "the model before fine-tuning"  # in the method's state; the sites' heads belong to its encoder


@dataclass(frozen=True)
class SupervisedStep:
    """A server step: `epochs` passes of cross-entropy on the labelled samples, in the first round after a warm-up."""

    lr: float
    rounds: int
    cosine: bool = False
    epochs: int = 5
    warmup: int = 0  # steps before the first round
    batch: int = 64
    sgd: SGD = field(default_factory=SGD)
    augmentation: Augmentation = field(default_factory=Augmentation)
    strong: bool = False  # use the strong augmentation

    def __call__(self, server: Server) -> None:
        """Train the model and record its accuracy."""
        self.warm_up(server)
        self.train(server)

    def warm_up(self, server: Server) -> None:
        """Take the warm-up steps before the first round."""
        assert server.labelled is not None
        if self.warmup and server.state.round == 0:
            self.fit(server, *server.labelled, "warm-up", steps=self.warmup)

    def train(self, server: Server) -> None:
        """Train for one round and record the accuracy."""
        assert server.labelled is not None
        x, classes = server.labelled
        if self.epochs:
            self.fit(server, x, classes, "server step", epochs=self.epochs)
        correct = predict_logits(server.load_network(), x).argmax(-1) == classes
        server.figures[SERVER_ACCURACY] = float(correct.float().mean())

    def fit(
        self,
        server: Server,
        x: Tensor,
        classes: Tensor,
        purpose: str,
        epochs: int | None = None,
        steps: int | None = None,
    ) -> None:
        """Train for `epochs` passes or `steps` steps; discard a model that is not finite, with a warning."""
        network, round_ = server.load_network().train(), server.state.round + 1
        parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        stepper = SGDStepper(self.sgd, parameters, self._lr_at(round_))
        seed = derive(server.seed, purpose, round_)
        generator = torch.Generator().manual_seed(seed)
        drop_single = has_batch_norm(network)
        augment = self.augmentation.strong if self.strong else self.augmentation.weak
        with seeded(seed):
            for drawn in batches(len(x), self.batch, generator, epochs, steps, drop_single=drop_single):
                rows = drawn.to(x.device)
                loss = F.cross_entropy(network(augment(x.index_select(0, rows))), classes.index_select(0, rows))
                stepper.step(list(torch.autograd.grad(loss, parameters, materialize_grads=True)))
        model = server.layout.read(network.eval())
        if bool(torch.isfinite(model).all()):
            server.state.model = model
        else:
            server.warn(
                "the server's steps led to a model that is not finite; they are discarded, lower method.server_lr"
            )

    def _lr_at(self, round_: int) -> float:
        return self.lr * 0.5 * (1 + math.cos(math.pi * (round_ - 1) / self.rounds)) if self.cosine else self.lr


@dataclass(frozen=True)
class FineTuning:
    """A server step after the last round: train all layers on the labelled samples (FedTrans)."""

    step: SupervisedStep

    def __call__(self, server: Server) -> None:
        """Train the aggregated model of the last round."""
        if server.state.round + 1 == self.step.rounds and self.step.epochs:
            server.state.method.tensors[BEFORE_TUNING] = server.state.model.clone()
            self.step(server)


@dataclass(frozen=True)
class JointEncoder:
    """Two server steps: train in parallel with the sites, then average the encoders (FedRep)."""

    step: SupervisedStep
    weight: float | None = None  # of the server's encoder; None: that of one more site

    def prepare(self, server: Server) -> None:
        """Train a copy of the model that is sent; sites also receive the warm-up steps."""
        self.step.warm_up(server)
        sent = server.state.model
        self.step.train(server)
        server.state.method.tensors[SERVER_MODEL], server.state.model = server.state.model, sent

    def refine(self, server: Server) -> None:
        """Average the encoders; the head is the server's."""
        trained, replies = server.state.method.tensors[SERVER_MODEL], server.replies
        if replies is None or not len(replies):
            server.state.model = trained
            return
        weight = 1 / (len(replies) + 1) if self.weight is None else self.weight
        joint = (1 - weight) * server.state.model + weight * trained
        server.state.model = torch.where(server.layout.mask("head"), trained, joint)


def restore_head(server: Server) -> None:
    """Restore the head that was sent, because no site trains it: a server step."""
    if server.replies is not None:
        head = server.layout.mask("head")
        server.state.model = torch.where(head, server.replies.previous, server.state.model)
