"""accord: one model from sites with different kinds of annotations (docs/methods.md 3.1).

Every site minimises the negative log-likelihood of its annotations under its view. The encoder is averaged over all
sites, each head row over the sites whose annotations inform its label, by sample count. A site may add the log of its
label frequencies to the logits (`prior`); they never leave the site.
"""

from __future__ import annotations

from fedaccord.federation.recipe import Recipe
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.common_model import share_model, with_aggregation


def accord(settings: AccordSettings) -> Recipe:
    """Return the recipe of `accord`."""
    return with_aggregation(Recipe(settings, None, sharing=share_model(settings)), settings, rows_by_owner=True)
