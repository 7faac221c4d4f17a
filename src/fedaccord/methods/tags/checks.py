"""Findings of `fedaccord check` about methods for tags."""

from __future__ import annotations

from fedaccord.data.sites import FederationData
from fedaccord.findings import Finding, warning
from fedaccord.methods.tags.settings import FedHarmonySettings


def check(settings: FedHarmonySettings, data: FederationData) -> list[Finding]:
    """Return warnings about blocks that leave no pair of tags to align."""
    blocks, tags = settings.block_count, len(data.space)
    if settings.blocks == "off" or blocks is None or blocks < tags:
        return []
    few = f"method.block_count is {blocks}, and there are {tags} tags: a block of one tag has no correlation to align"
    return [warning(f"{few}; use fewer blocks, or leave it out")]
