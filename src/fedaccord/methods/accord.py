"""accord: one model from sites whose annotations differ in kind.

Every site minimises the likelihood of what it saw, through its own view. The encoder is averaged over all sites; the
head row of a label only over the sites whose annotations inform that label, by sample count. A site may add its own
label frequencies to the logits (`prior`), which stay with it.
"""

from __future__ import annotations

from fedaccord.aggregation.mean import per_label
from fedaccord.federation.recipe import Recipe
from fedaccord.methods.classic import batch_norm, share_model
from fedaccord.methods.settings import AccordSettings


def accord(settings: AccordSettings) -> Recipe:
    """Return the recipe."""
    return Recipe(settings, batch_norm(per_label, settings), sharing=share_model(settings))
