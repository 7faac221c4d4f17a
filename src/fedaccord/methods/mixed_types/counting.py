"""A site's counts of coarse names by class, for estimates that sites make together (docs/methods.md 6.3)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedaccord.errors import FedAccordError
from fedaccord.labels.estimation import CORRESPONDENCE, estimate_by_counts, expected_counts
from fedaccord.messages.message import Message
from fedaccord.models.predicting import predict_logits
from fedaccord.training.work import LocalWork

COUNT = "count coarse names"  # the task
COUNTS = "counts"  # in the answer
EXCHANGE, EXCHANGES = "exchange", "exchanges"  # in the brief: index and number of exchanges in this round
SCORES = "class probabilities"  # in a site's memory between the exchanges of a round, with the round's number


@dataclass(frozen=True)
class CountNames:
    """A task: return one J x K matrix, no samples.

    With a matrix in the brief it contains the E-step's counts under that matrix. Otherwise it is the site's estimate
    from confident samples, with zeros in empty columns. The model comes with the first exchange of a round; its scores
    are stored until the last one.
    """

    threshold: float = 0.95
    smoothing: float = 0.0

    def __call__(self, work: LocalWork) -> Message:
        """Return the counts under the model that was sent in this round."""
        view, target = work.view, work.site.train.target
        probabilities = _scores(work)
        matrix = work.brief.tensors.get(CORRESPONDENCE)
        if matrix is not None:
            counts = expected_counts(probabilities, target, matrix.to(probabilities.device))
        else:
            empty = torch.zeros(len(view.answers), len(view.space), device=probabilities.device)
            counts, _ = estimate_by_counts(probabilities, target, self.threshold, empty, self.smoothing)
        return Message({COUNTS: counts.cpu()})


def _scores(work: LocalWork) -> Tensor:
    """Return P(class | sample) under the round's model, stored from the first exchange of a round to the last."""
    memory, numbers = work.memory, work.brief.numbers
    if not numbers.get(EXCHANGE, 0):
        scores = torch.softmax(predict_logits(work.model, work.site.train.x), -1)
    elif memory.numbers.get(SCORES) == work.round:
        scores = memory.tensors[SCORES].to(work.site.train.x.device)
    else:
        raise FedAccordError(f"site '{work.site.name}' was asked to count without the model of round {work.round}")
    if numbers.get(EXCHANGE, 0) + 1 < numbers.get(EXCHANGES, 1):
        memory.tensors[SCORES], memory.numbers[SCORES] = scores.cpu(), work.round
    else:
        memory.tensors.pop(SCORES, None)
        memory.numbers.pop(SCORES, None)
    return scores
