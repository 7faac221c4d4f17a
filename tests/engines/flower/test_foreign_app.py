"""A site runs its own ClientApp, whatever app the server sends."""

from __future__ import annotations

import io
import json
import time
import zipfile
from importlib import resources

import pytest
from fleet import TWO_SITES, Fleet, within

pytest.importorskip("flwr")

from fedaccord.engines.flower.supernode import foreign_code

CLIENT = "fedaccord_app/client_app.py"
REJECTED = f"rejected the app that the server sent, because {CLIENT} is not part of FedAccord"


def bundle(**changes: str) -> bytes:
    """Return the app of a deployment as Flower bundles it, with other text in some files."""
    folder = resources.files("fedaccord") / "deployment/templates/server/app"
    names = ["__init__", "client_app", "server_app"]
    files = {f"fedaccord_app/{name}.py": (folder / f"fedaccord_app/{name}.py.in").read_text() for name in names}
    files |= {"pyproject.toml": (folder / "pyproject.toml").read_text(), ".info/CONTENT": "a list"} | changes
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as file:
        for name, text in files.items():
            file.writestr(name, text)
    return target.getvalue()


def test_the_app_of_a_deployment_is_ours():
    assert foreign_code(bundle()) == []


@pytest.mark.parametrize("name", [CLIENT, "fedaccord_app/__init__.py", "fedaccord_app/more.py", "../evil.py", "a/b.py"])
def test_other_code_is_named(name):
    assert foreign_code(bundle(**{name: "print('evil')\n"})) == [name]


def test_code_of_the_same_length_is_named():
    with zipfile.ZipFile(io.BytesIO(bundle())) as ours:
        changed = ours.read(CLIENT).decode().replace("app", "bpp")
    assert foreign_code(bundle(**{CLIENT: changed})) == [CLIENT]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_line_that_the_server_adds_to_the_app_runs_at_no_site(tmp_path):
    folder, ran = tmp_path / "d", tmp_path / "ran"
    with Fleet(folder, TWO_SITES) as fleet:
        link = json.loads((fleet.server / "link.json").read_text())
        (fleet.server / "link.json").write_text(json.dumps(link | {"patience": 20}))
        client = fleet.server / "app" / CLIENT
        ours = client.read_text()
        client.write_text(f"{ours}\nopen({str(ran)!r}, 'w').close()\n")
        fleet.start("north", "south")
        fleet.begin()
        for site in ("north", "south"):
            log = fleet.site(site) / "log.txt"
            within(150, lambda log=log: log.exists() and REJECTED in log.read_text(), f"{site} rejects the app")
        within(90, lambda: not fleet.pids("flwr-serverapp"), "the run ends without sites")
        assert not ran.exists()
        assert not list(fleet.runs().glob("*/summary.json"))
        for site in ("north", "south"):
            assert (fleet.site(site) / "log.txt").read_text().count("\n") == 1  # once, however often it is asked
            assert not (fleet.site(site) / "flower/apps").exists()  # where Flower installs apps
        assert REJECTED in "".join(path.read_text() for path in fleet.server.rglob("log.txt")) + fleet.said("server")
        client.write_text(ours)  # the nodes still run, and serve the app that is ours
        fleet.begin()
        assert fleet.finish(150)["dropped"] == 0
        assert not ran.exists()
        began = time.monotonic()
    assert time.monotonic() - began < 30
