"""Checks for sites that know one label only, which a softmax over the known labels cannot learn from."""

from __future__ import annotations

from pydantic import ValidationError

from fedaccord.data.sites import FederationData
from fedaccord.errors import listed_sites
from fedaccord.findings import Finding, warning
from fedaccord.training.settings import TrainingSettings


def single_label_findings(settings: TrainingSettings, data: FederationData) -> list[Finding]:
    """Warn of sites with one known label: the softmax over it is always 1, so their loss is 0 and nothing trains."""
    teaching = {name: s.view for name, s in data.sites.items() if s.view.one_label and s.view.has_annotations}
    alone = [name for name, view in teaching.items() if int(view.possible_labels().sum()) == 1]
    if settings.softmax == "full" or not alone or len(data.space) == 1:
        return []
    everywhere = len(alone) == len(teaching)
    who = "every site knows" if everywhere else f"{listed_sites(alone)} {'knows' if len(alone) == 1 else 'know'}"
    so = "the model stays as it was initialised" if everywhere else "nothing is learned there"
    why = "the softmax over one known label is always 1 and its loss 0"
    way = ""
    if _can_be_full(settings):
        way = '; method.softmax = "full" compares it with all labels, which is right if no row there has another label'
    return [warning(f"{who} one label only: {why}, so {so}{way}")]


def _can_be_full(settings: TrainingSettings) -> bool:
    """Return whether the method allows a softmax over all labels."""
    try:
        type(settings).model_validate({**settings.model_dump(exclude_unset=True), "softmax": "full"})
    except ValidationError:
        return False
    return True
