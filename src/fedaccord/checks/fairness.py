"""Checks before fairness is measured: whether each rate has enough test rows."""

from __future__ import annotations

import torch
from torch import Tensor

from fedaccord.config import Experiment
from fedaccord.data.sites import FederationData
from fedaccord.evaluation.groups import known_groups
from fedaccord.federation.sharing import SHARE_ALL
from fedaccord.findings import Finding, warning
from fedaccord.methods.registry import make_recipe

SMALLEST_TEST_CELL = 20  # people; one of them is 5 points of a rate


def fairness_findings(experiment: Experiment, data: FederationData) -> list[Finding]:
    """Warn if too few test rows are in the group or outside it, in all or with the label.

    The run uses the server's test samples if they have groups and the server has the whole model, otherwise the test
    rows of all sites.
    """
    asked = experiment.fairness
    if asked is None or asked.group not in data.groups or asked.label not in data.space.names:
        return []  # a run refuses a wrong name, which is reported elsewhere
    recipe = make_recipe(experiment.method_name, experiment.settings)
    whole = recipe.aggregator is not None and SHARE_ALL.parts <= recipe.sharing.parts
    if whole and data.test is not None and data.test_groups is not None and data.test[1].dim() == 1:
        whose, parts = "the server's test samples", [(data.test[1], known_groups(*data.test_groups))]
    else:
        whose, parts = "all test parts together", _judged_parts(data)
    if not parts:
        kinds = sorted({site.view.kind for site in data.sites.values() if len(site.test)})
        why = f"test labels are {', '.join(kinds)} without truth" if kinds else "no site has a test part"
        return [warning(f"how '{asked.group}' is treated cannot be measured: {why}")]
    label, known = (torch.cat(columns) for columns in zip(*parts, strict=True))
    seen = (label >= 0) & (known >= 0)
    inside = seen & (known == data.groups.index(asked.group))
    given = label == data.space.names.index(asked.label)
    counts = {
        f"'{asked.group}'": inside,
        f"'{asked.group}' with the label '{asked.label}'": inside & given,
        "others": seen & ~inside,
        f"others with the label '{asked.label}'": seen & ~inside & given,
    }
    small = [f"{n} of {who}" for who, rows in counts.items() if (n := int(rows.sum())) < SMALLEST_TEST_CELL]
    if not small:
        return []
    return [
        warning(
            f"a rate of '{asked.group}' against others is too uncertain: {whose} have {', '.join(small)}; of fewer "
            f"than {SMALLEST_TEST_CELL} people it moves by more than 5 points with each"
        )
    ]


def _judged_parts(data: FederationData) -> list[tuple[Tensor, Tensor]]:
    """Return true labels and groups of the sites' test rows, for sites with both."""
    found = []
    for site in data.sites.values():
        truth = site.view.true_classes(site.test.target, site.test.truth)
        if len(site.test) and truth is not None and truth.dim() == 1 and site.test.group is not None:
            found.append((truth, known_groups(site.test.group, site.test.group_truth)))
    return found
