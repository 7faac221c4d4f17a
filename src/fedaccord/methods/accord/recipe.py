"""accord: one model from sites whose annotations differ in kind.

Every site minimises the likelihood of what it saw, through its own view. The encoder is averaged over all sites; the
head row of a label only over the sites whose annotations inform that label, by sample count. A site may add its own
label frequencies to the logits (`prior`), which stay with it.
"""

from __future__ import annotations

from fedaccord.federation.recipe import Recipe
from fedaccord.methods.accord.settings import AccordSettings
from fedaccord.methods.common_model import combining, share_model


def accord(settings: AccordSettings) -> Recipe:
    """Return the recipe."""
    return combining(Recipe(settings, None, sharing=share_model(settings)), settings, rows_of_owners=True)
