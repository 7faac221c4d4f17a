"""The examination of the model after the last round, and the verdict, for the summary of a run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedaccord.federation.examination import RESAMPLED, examine
from fedaccord.federation.experts import stored_experts
from fedaccord.federation.server import Server
from fedaccord.labels.views import View
from fedaccord.messages.message import Message, to_bytes
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.gains import compared_gains, run_verdict
from fedaccord.runs.reading import RESAMPLES, Federation, Summary, parse_table, read_resamples
from fedaccord.runs.records import describe_gains, describe_quality, quality_lines


def examine_run(server: Server, views: Mapping[str, View], folder: RunFolder) -> dict[str, Any]:
    """Examine the final model, write the figures, and return the summary's parts on quality and gains."""
    found = examine(server)
    folder.append_metrics(quality_lines(found, server.state.round, views))
    memories = server.engine.memories().items()  # sites on other machines keep their resamples
    resampled = {site: m.tensors[RESAMPLED] for site, m in memories if RESAMPLED in m.tensors and site in found.sites}
    if resampled:
        folder.write(RESAMPLES, to_bytes(Message(resampled)))
    gains = describe_gains(found.gains)
    return {"quality": describe_quality(found, views), **({"gains": gains} if gains else {})}


def describe_experts(server: Server) -> dict[str, Any]:
    """Return the experts of each site on this machine and their weights; those of other machines stay there."""
    found = {site: stored_experts(memory) for site, memory in sorted(server.engine.memories().items())}
    described = {site: experts.describe() for site, experts in found.items() if experts is not None}
    return {"experts": described} if described else {}


def conclude(
    folder: Path, alone: Path | None, summary: Mapping[str, Any], federation: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the verdict on a run, from its summary and federation and the folder of a run without federation."""
    read, described = parse_table(summary, Summary), parse_table(federation, Federation)
    gains = compared_gains(read, described, read_resamples(folder), alone)
    return run_verdict(read, described, gains)


def recorded_alone(folder: Path) -> Path | None:
    """Return the folder of the run without federation that a run was compared with, if both can still be read."""
    try:
        return alone_folder(json.loads((folder / "run.json").read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def alone_folder(run: Mapping[str, Any]) -> Path | None:
    """Return the folder of the run without federation that run.json names, if it still exists."""
    alone = None if run.get("alone") is None else Path(run["alone"])
    return alone if alone is not None and (alone / "summary.json").is_file() else None
