"""The summary of a finished run: figures, messages, experts, drops and warnings."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedaccord.config import Experiment
from fedaccord.engines.network import SimulatedNetwork
from fedaccord.federation.defence import ALL_LEFT_OUT
from fedaccord.federation.server import Server
from fedaccord.federation.state import model_digest
from fedaccord.recording import RunOutcome
from fedaccord.runs.examined import describe_experts

UNTRAINED = "no reply of a site was valid, so the model is untrained; see the dropped replies"
UNTRUSTED = "the defence '{}' excluded every valid reply, so the model is untrained"


def summarise(
    experiment: Experiment, server: Server, outcome: RunOutcome, workers: int, federation: dict[str, Any]
) -> dict[str, Any]:
    """Return `summary.json` without quality, parts of the method, problems and verdict."""
    return {
        "name": experiment.name,
        "method": experiment.method_name,
        "engine": experiment.run.engine,
        "workers": workers,
        "seed": experiment.seed,
        "rounds": server.state.round,
        "seconds": round(outcome.seconds, 3),
        "stopped": outcome.stopped or None,
        "final": outcome.figures,
        "best": outcome.best.summary(),
        "bytes": {
            "sent": sum(sent for sent, _ in outcome.bytes.values()),
            "received": sum(received for _, received in outcome.bytes.values()),
            "sites": {site: list(both) for site, both in sorted(outcome.bytes.items())},
        },
        **_simulated(server, outcome),
        **describe_experts(server),
        "dropped": len(server.dropped),
        "dropped_replies": [drop.as_dict() for drop in server.dropped],
        "warnings": [*server.warnings, *untrained(experiment, server, outcome)],
        **({"fairness": experiment.fairness.model_dump()} if experiment.fairness is not None else {}),
        **({"hostile": list(server.hostile)} if server.hostile else {}),
        "set_sizes": {name: site["set_size"] for name, site in federation["sites"].items() if "set_size" in site},
        "model_sha256": model_digest(server.state.model),
        "settings": experiment.method,
    }


def untrained(experiment: Experiment, server: Server, outcome: RunOutcome) -> list[str]:
    """Return the reason if the model was never updated."""
    if outcome.replies or server.trains:
        return []
    defence = getattr(experiment.settings, "defence", None)
    if defence is not None and ALL_LEFT_OUT.format(defence.kind) in server.warnings:
        return [UNTRUSTED.format(defence.kind)]
    return [UNTRAINED]


def _simulated(server: Server, outcome: RunOutcome) -> dict[str, Any]:
    """Return the summary of a simulated network, if any."""
    if outcome.simulated is None or not isinstance(server.engine, SimulatedNetwork):
        return {}
    summary = asdict(outcome.simulated) | {"seconds": round(outcome.simulated.seconds, 3)}
    del summary["seen"]
    summary["sites_work"] = server.recipe.sites_train
    return {"simulated": summary | {"sites": {site: asdict(link) for site, link in server.engine.links.items()}}}
