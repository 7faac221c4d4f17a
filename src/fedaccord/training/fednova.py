"""The site's side of FedNova (Wang et al. 2020): it counts its steps, so that the server can take them out again."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from fedaccord.messages.message import Message
from fedaccord.training.scaffold import effective_steps
from fedaccord.training.solvers import Solver, Stepper
from fedaccord.training.work import LocalWork

EFFECTIVE_STEPS = "effective_steps"  # in a reply: the sum of all gradients' weights, ||a||_1


@dataclass(frozen=True)
class Counted:
    """Another solver whose steps are counted; with heavy-ball momentum a gradient lasts longer than one step."""

    inner: Solver
    momentum: float = 0.0

    @property
    def steps_apart(self) -> bool:
        """Whether the other solver's steps never run the model."""
        return bool(getattr(self.inner, "steps_apart", False))

    def start(self, work: LocalWork) -> Stepper:
        """Begin to count."""
        return _Counter(self.inner.start(work), self.momentum)


class _Counter(Stepper):
    def __init__(self, inner: Stepper, momentum: float) -> None:
        self.inner, self.momentum, self.steps = inner, momentum, 0

    def step(self, gradients: list[Tensor]) -> None:
        self.inner.step(gradients)
        self.steps += 1

    def finish(self, work: LocalWork, reply: Message) -> None:
        self.inner.finish(work, reply)
        reply.numbers[EFFECTIVE_STEPS] = effective_steps(self.steps, self.momentum)
