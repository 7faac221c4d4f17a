"""What a deployed run is compared with, and how a running deployment is given another experiment."""

from __future__ import annotations

import json
import shutil

from command_line import command, write
from fedaccord.config import parse_experiment
from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.experiment import RemoteSites, load_federation, run_experiment
from fedaccord.messages.message import Failure
from fedaccord.runs.folder import RunFolder
from fedaccord.session import describe_host


def embedded(folder, text, drops=frozenset(), forget=None):
    """Carry out an experiment with the embedded engine, which is made to lose some replies."""
    folder.mkdir(exist_ok=True)
    experiment = parse_experiment(text, ["run.workers=0"])
    data = load_federation(experiment, folder)
    engine = Losing(describe_host(experiment, data), list(data.sites), 0)
    engine.drops, engine.forget = drops, forget
    return run_experiment(experiment, folder, RunFolder(folder / "run"), remote=RemoteSites(data, engine))


class Losing(EmbeddedEngine):
    """Loses the replies of (round, site, task), and if told so, one site's memory before a round."""

    drops, forget = frozenset(), None

    def stream(self, task, briefs, deadline=None, as_views=False):
        lost = {site for site, brief in briefs.items() if (brief.numbers["round"], site, task) in self.drops}
        if self.forget and any(brief.numbers["round"] == self.forget[1] for brief in briefs.values()):
            self.restore({site: kept for site, kept in self.memories().items() if site != self.forget[0]})
        replies = dict(super().stream(task, {site: brief for site, brief in briefs.items() if site not in lost}))
        failed = {site: Failure(site, task, "lost") for site in lost}
        yield from ((site, (replies | failed)[site]) for site in sorted(briefs))


def switch(fleet, text, folder):
    """Give a running deployment another experiment with the same sites."""
    done = command("deploy", write(folder, text), folder / "d", cwd=folder)
    assert done.code == 0, done.err
    for name in ("config.toml", "known.json", "known.safetensors"):
        shutil.copy(folder / "d/server" / name, fleet.server / name)
    told = json.loads((fleet.server / "link.json").read_text())
    for site in told["keys"]:
        shutil.rmtree(fleet.site(site) / "data")
        shutil.copytree(folder / "d/sites" / site / "data", fleet.site(site) / "data")
        description = json.loads((folder / "d/sites" / site / "site.json").read_text())
        (fleet.site(site) / "site.json").write_text(json.dumps(description | {"deployment": told["deployment"]}))
