"""What federation brought a site: the mixture of its experts beside its model alone, on the same test rows.

Both models stay at the site. It sends the figure of the model alone, and the difference with the ends of its interval.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedaccord.evaluation.differences import Difference, Gain, paired_difference
from fedaccord.evaluation.intervals import Estimate, Resampling
from fedaccord.evaluation.metrics import finite
from fedaccord.evaluation.quality import Quality
from fedaccord.federation.experts import stored_experts
from fedaccord.federation.site_evaluation import Trial
from fedaccord.labels.judging import site_metrics
from fedaccord.models.network import predict_logits

ALONE, GAIN = "alone/", "gain/"  # before the name of the measure, in a reply
_ENDS = (".low", ".high")
_Numbers = dict[str, int | float]


def gain_numbers(trial: Trial, logits: Tensor, quality: Quality, resampling: Resampling) -> _Numbers:
    """Return a site's gain by its first figure as numbers of a reply; empty if it has no experts or no figure.

    `logits` and `quality` are those of the model that the site ends with.
    """
    experts = stored_experts(trial.work.memory)
    if experts is None or trial.is_other_task:
        return {}
    alone = predict_logits(experts.trained_alone(trial.work.model), trial.site.test.x).cpu()
    if not bool(torch.isfinite(alone).all()):
        return {}
    before, after = (finite(site_metrics(trial.view, each, trial.target, trial.truth)[0]) for each in (alone, logits))
    measure = next((name for name in trial.view.headlines if name in before and name in after), "")
    if not measure:
        return {}
    examined = trial.view.examine(alone, trial.target, trial.truth, trial.site.train.target.cpu(), resampling)
    difference = Estimate(after[measure] - before[measure])
    if measure in quality.measures and quality.replicates is not None and examined.replicates is not None:
        pair = quality.replicates, examined.replicates
        difference = paired_difference(measure, *pair, difference.value, quality.rows)
    numbers: _Numbers = {ALONE + measure: before[measure], GAIN + measure: difference.value}
    ends = zip(_ENDS, (difference.low, difference.high), strict=True)
    return numbers | {GAIN + measure + ending: value for ending, value in ends if value is not None}


def take_gain(numbers: dict[str, float], headlines: Sequence[str], rows: int) -> Gain | None:
    """Remove a site's gain from the numbers of its reply, and return it; None if it has none in a headline measure."""
    found = {name: numbers.pop(name) for name in list(numbers) if name.startswith((ALONE, GAIN))}
    for measure in headlines:
        alone, value = found.get(ALONE + measure), found.get(GAIN + measure)
        if alone is not None and value is not None:
            low, high = (found.get(GAIN + measure + ending) for ending in _ENDS)
            difference = Difference(measure, Estimate(value, low, high), rows, paired=True)
            return Gain(measure, alone, alone + value, difference)
    return None
