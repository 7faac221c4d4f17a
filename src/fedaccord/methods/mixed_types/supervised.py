"""Supervised training of the server on its labelled samples (docs/methods.md 6.1, 6.7 and 6.8)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from fedaccord.messages.checks import all_finite
from fedaccord.methods.mixed_types.augment import strongly_augmented, weakly_augmented
from fedaccord.methods.mixed_types.settings import FedRepSettings, SupercentreSettings
from fedaccord.models.network import predict_logits
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
    """A server step: epochs of cross-entropy on the labelled samples, in the first round after a warm-up."""

    settings: SupercentreSettings

    def __call__(self, server: Server) -> None:
        """Train the model and record its accuracy."""
        self.warm_up(server)
        self.train(server)

    def warm_up(self, server: Server) -> None:
        """Take the warm-up steps before the first round."""
        if self.settings.warmup and server.state.round == 0:
            self.fit(server, "warm-up", steps=self.settings.warmup)

    def train(self, server: Server) -> None:
        """Train for one round and record the accuracy."""
        assert server.labelled is not None
        x, classes = server.labelled
        if self.settings.server_epochs:
            self.fit(server, "server step", epochs=self.settings.server_epochs)
        correct = predict_logits(server.load_network(), x).argmax(-1) == classes
        server.figures[SERVER_ACCURACY] = float(correct.float().mean())

    def fit(self, server: Server, purpose: str, epochs: int | None = None, steps: int | None = None) -> None:
        """Train for `epochs` passes or `steps` steps; discard a model that is not finite, with a warning."""
        assert server.labelled is not None
        (x, classes), settings, round_ = server.labelled, self.settings, server.state.round + 1
        network = server.load_network().train()
        parameters: list[Tensor] = [p for p in network.parameters() if p.requires_grad]
        sgd = SGD(settings.momentum, settings.weight_decay, settings.clip)
        stepper = SGDStepper(sgd, parameters, settings.server_lr_at(round_))
        seed = derive(server.seed, purpose, round_)
        generator = torch.Generator().manual_seed(seed)
        drop_single = has_batch_norm(network)
        augmented = strongly_augmented if settings.server_augment == "strong" else weakly_augmented
        with seeded(seed):
            for drawn in batches(len(x), settings.server_batch, generator, epochs, steps, drop_single=drop_single):
                rows = drawn.to(x.device)
                logits = network(augmented(x.index_select(0, rows), settings))
                loss = F.cross_entropy(logits, classes.index_select(0, rows))
                stepper.step(list(torch.autograd.grad(loss, parameters, materialize_grads=True)))
        model = server.layout.read(network.eval())
        if all_finite(model):
            server.state.model = model
        else:
            server.warn(
                "the server's steps led to a model that is not finite; they are discarded, lower method.server_lr"
            )


class FineTuning(SupervisedStep):
    """A server step after the last round: train all layers on the labelled samples (FedTrans)."""

    def __call__(self, server: Server) -> None:
        """Train the aggregated model of the last round."""
        if server.state.round + 1 == self.settings.rounds and self.settings.server_epochs:
            server.state.method.tensors[BEFORE_TUNING] = server.state.model.clone()
            super().__call__(server)


@dataclass(frozen=True)
class JointEncoder:
    """Two server steps: train in parallel with the sites, then average the encoders (FedRep)."""

    settings: FedRepSettings

    def prepare(self, server: Server) -> None:
        """Train a copy of the model that is sent; sites also receive the warm-up steps."""
        step = SupervisedStep(self.settings)
        step.warm_up(server)
        sent = server.state.model
        step.train(server)
        server.state.method.tensors[SERVER_MODEL], server.state.model = server.state.model, sent

    def refine(self, server: Server) -> None:
        """Average the encoders; the head is the server's."""
        trained, replies = server.state.method.tensors[SERVER_MODEL], server.replies
        if replies is None or not len(replies):
            server.state.model = trained
            return
        share = self.settings.server_weight
        weight = 1 / (len(replies) + 1) if share is None else share
        joint = (1 - weight) * server.state.model + weight * trained
        server.state.model = torch.where(server.layout.mask("head"), trained, joint)


def restore_head(server: Server) -> None:
    """Restore the head that was sent, because no site trains it: a server step."""
    if server.replies is not None:
        head = server.layout.mask("head")
        server.state.model = torch.where(head, server.replies.previous, server.state.model)
