"""A real deployment on the loopback: SuperLink, gate and three authenticated nodes, started by what `deploy` wrote.

One server serves the whole module. First a run in which all goes well, with a tap on the wire and outsiders at the
door; then the same with other labels at another site; then one in which nearly everything goes wrong. The first and
the last end with the model of the embedded engine, bit for bit.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess

import numpy as np
import pytest
from fleet import BIN, Fleet, within
from replay import embedded, switch
from tap import Tap

from command_line import command, write
from fedaccord.deployment.certificates import make_node_key, write_secret

pytestmark = pytest.mark.timeout(900)

SITES = """
seed = 5

[labels]
classes = ["anteater", "bumblebee", "caterpillar", "dragonfly", "elephant", "flamingo", "gnatcatcher", "hedgehog",
           "ibisbill", "jackdaws"]

[data]
dataset = "digits"
samples = 200
partition = { kind = "quantity", sizes = [70, 65, 60] }
names = ["a", "b", "c"]

[model]
hidden = [16]
"""
PRIVATE = """
[data.views]
a = { known = ["anteater", "bumblebee", "caterpillar", "dragonfly"] }
b = { known = ["caterpillar", "dragonfly", "elephant", "flamingo", "gnatcatcher"] }
c = { known = ["gnatcatcher", "hedgehog", "ibisbill", "jackdaws", "anteater"] }

[method]
name = "private-labels"
rounds = 1
steps = 3
"""
OTHERWISE = PRIVATE.replace('"flamingo", "gnatcatcher"]', '"flamingo"]')  # site b knows less: all are still known
FAULTY = """
[data.views]
b = { kind = "candidates", generate = "uniform" }

[method]
name = "accord"
rounds = 5
steps = 3

[run]
deadline = 20
evaluate_every = 5
checkpoint_every = 1
"""
SIMULATED = SITES + '\n[method]\nname = "accord"\nrounds = 2\nsteps = 3\n'


@pytest.fixture(scope="module")
def fleet(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fl") / "d"
    with Fleet(folder, SITES + PRIVATE) as fleet:
        fleet.start()
        yield fleet
    assert fleet.pids() == []


@pytest.fixture(scope="module")
def tap(fleet):
    """The node of site a reaches the server through a tap; so it is started here."""
    link = json.loads((fleet.site("a") / "link.json").read_text())
    port = fleet.port + 8
    (fleet.site("a") / "link.json").write_text(json.dumps(link | {"address": f"localhost:{port}"}))
    with Tap(fleet.folder, port, fleet.port, fleet.environment) as tap:
        for name in "abc":
            fleet.start_node(name)
        yield tap


@pytest.fixture(scope="module")
def outsiders(fleet, tap):
    """Two at the door, while the run is going on: each has the authority's certificate, and no key that is known."""
    key = fleet.folder / "stranger.key"
    private, public = make_node_key()
    write_secret(key, private)
    said = (fleet.folder / "stranger.out").open("wb")
    node = subprocess.Popen(
        [
            BIN / "flower-supernode",
            "--superlink",
            f"localhost:{fleet.port}",
            "--root-certificates",
            fleet.server / "tls/ca.crt",
            "--auth-supernode-private-key",
            key,
            "--host",
            "127.0.0.1",
            "--port",
            str(fleet.port + 9),
            "--node-config",
            f"site={json.dumps(str(fleet.site('b')))}",
        ],
        env=fleet.environment,
        stdout=said,
        stderr=said,
    )
    home = fleet.folder / "stranger"
    home.mkdir()
    ca = json.dumps(str(fleet.server / "tls/ca.crt"))
    told = f'[superlink]\ndefault = "x"\n[superlink.x]\naddress = "localhost:{fleet.port}"\nroot-certificates = {ca}\n'
    (home / "config.toml").write_text(told)
    submit = subprocess.Popen(
        [BIN / "flwr", "run", fleet.server / "app", "x", "--format", "json"],
        env=fleet.environment | {"FLWR_HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    yield node, submit
    for outsider in (node, submit):
        outsider.kill()
        outsider.wait()
    submit.stdout.close()
    said.close()


@pytest.fixture(scope="module")
def went_well(fleet, tap, outsiders):
    fleet.begin()
    return fleet.finish(150)


class TestAllGoesWell:
    def test_the_model_is_that_of_the_embedded_engine(self, fleet, went_well, tmp_path):
        ours = embedded(tmp_path, SITES + PRIVATE)
        assert went_well["model_sha256"] == ours["model_sha256"]
        assert (went_well["engine"], ours["engine"]) == ("flower", "embedded")
        assert went_well["dropped"] == 0
        assert went_well["final"]["sites"]["each"] == ours["final"]["sites"]["each"]
        assert (fleet.run_folder() / "report.html").stat().st_size > 10_000

    def test_the_bytes_of_each_site_are_those_of_the_embedded_engine(self, fleet, went_well, tmp_path):
        embedded(tmp_path, SITES + PRIVATE)
        (line,) = [json.loads(t) for t in (tmp_path / "run/metrics.jsonl").read_text().splitlines()[:1]]
        (ours,) = fleet.lines()
        assert ours["bytes"] == line["bytes"]
        assert set(ours["bytes"]) == {"a", "b", "c"}

    def test_a_tap_on_the_wire_tells_of_no_other_label(self, tap, went_well):
        sent = [header for header, _ in tap.messages()]
        headers = [{name: told for name, told in m.items() if name != "__metadata__"} for m in sent]
        shapes = [{name: tuple(told["shape"]) for name, told in header.items()} for header in headers]
        heads = [shape["model/head.weight"] for shape in shapes if "model/head.weight" in shape]
        # train, evaluate, the final model and its examination: the rows of its own four labels
        assert heads == [(4, 16)] * 4
        assert [shape["model/head.bias"] for shape in shapes if "model/head.bias" in shape] == [(4,)] * 4
        words = [json.loads(m["__metadata__"]["fedaccord"]) for m in sent]
        assert {*(name for told in words for name in (*told["numbers"], *told["words"]))} == {
            "round",
            "run",
            "resamples",
        }
        for label in ("elephant", "flamingo", "gnatcatcher", "hedgehog", "ibisbill", "jackdaws"):
            assert label.encode() not in tap.seen

    def test_nothing_in_a_sites_folder_tells_of_another_label(self, fleet, went_well):
        held = {path: path.read_bytes() for path in fleet.site("a").rglob("*") if path.is_file()}
        assert any(b"anteater" in content for content in held.values())
        for label in ("elephant", "flamingo", "gnatcatcher", "hedgehog", "ibisbill", "jackdaws"):
            assert [path for path, content in held.items() if label.encode() in content] == []

    def test_a_site_predicts_from_its_own_folder_as_the_embedded_engine_does(self, fleet, went_well, tmp_path):
        write(tmp_path, SITES + PRIVATE)
        assert command("run", "experiment.toml", "--out", "here", "--workers", "0", cwd=tmp_path).code == 0
        np.savez(tmp_path / "new.npz", x=np.arange(4 * 64).reshape(4, 8, 8).astype(np.uint8) % 17)
        assert command("predict", fleet.site("a"), "new.npz", "--out", "there.csv", cwd=tmp_path).code == 0
        assert command("predict", "here", "new.npz", "--site", "a", "--out", "here.csv", cwd=tmp_path).code == 0
        there, here = ((tmp_path / name).read_text().splitlines() for name in ("there.csv", "here.csv"))
        assert there[1:] == here[1:]
        assert there[0].startswith("prediction,probability,anteater,bumblebee,caterpillar,dragonfly,(label 4)")

    def test_a_node_with_a_key_that_is_not_registered_is_refused(self, outsiders, went_well, fleet):
        node, _ = outsiders
        assert node.wait(60) != 0
        assert "2004" in (fleet.folder / "stranger.out").read_text()  # Flower's code for a key it does not know
        assert went_well["dropped"] == 0

    def test_the_authoritys_certificate_alone_begins_no_run(self, outsiders, went_well, fleet):
        _, submit = outsiders
        said, _ = submit.communicate(timeout=60)
        assert '"success": true' not in said.lower()
        assert "403 Forbidden" in said
        assert "/v1/control/start-run" in said
        assert len(list(fleet.runs().iterdir())) == 1

    def test_the_run_cannot_be_resumed_as_if_its_sites_were_here(self, fleet, went_well, tmp_path):
        cut = shutil.copytree(fleet.run_folder(), tmp_path / "cut")
        (cut / "summary.json").unlink()
        done = command("resume", cut, cwd=tmp_path)
        assert done.code == 3
        assert "is a run of a deployment: resume it with run.sh in the server's folder" in done.err

    def test_the_check_finds_nothing(self, fleet, went_well):
        done = command("deploy", "--check", fleet.folder, cwd=fleet.folder)
        assert (done.code, done.out.strip()) == (0, "nothing is wrong")


@pytest.fixture(scope="module")
def otherwise(fleet, tap, went_well, tmp_path_factory):
    """The same run but for another site's labels; returns where its bytes on the wire begin."""
    since = len(tap.seen)
    switch(fleet, SITES + OTHERWISE, tmp_path_factory.mktemp("otherwise"))
    fleet.begin()
    fleet.finish(150, 2)
    return since


@pytest.mark.slow
def test_another_sites_labels_do_not_change_a_byte_of_the_first_briefs_on_the_wire(tap, otherwise):
    ours, theirs = tap.messages()[:2], tap.messages(otherwise)[:2]  # who it is, and the first training
    assert "model/head.weight" in ours[1][0]
    run, other = (json.loads(sent[0][0]["__metadata__"]["fedaccord"])["words"]["run"] for sent in (ours, theirs))
    assert run != other  # drawn by lot for each run, and all that differs
    assert [content.replace(other.encode(), run.encode()) for _, content in theirs] == [content for _, content in ours]


@pytest.fixture(scope="module")
def simulated(fleet, tmp_path_factory):
    """A simulation, begun while the faulty run waits for Flower to notice that a node is dead."""
    folder = tmp_path_factory.mktemp("sim")
    write(folder, SIMULATED)
    going = []

    def begin():
        words = [BIN / "fedaccord", "run", "experiment.toml", "--engine", "flower", "--out", "run"]
        going.append(
            subprocess.Popen(words, cwd=folder, env=fleet.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )

    def end():
        (process,) = going
        said, _ = process.communicate(timeout=300)
        assert process.returncode == 0, said.decode()
        return json.loads((folder / "run/summary.json").read_text())

    return begin, end


@pytest.fixture(scope="module")
def went_wrong(fleet, otherwise, simulated, tmp_path_factory):
    """A run through: a node that lags behind, one killed and back, one gone for good, NaN, and the server killed."""
    switch(fleet, SITES + FAULTY, tmp_path_factory.mktemp("other"))
    link = json.loads((fleet.server / "link.json").read_text())
    (fleet.server / "link.json").write_text(json.dumps(link | {"patience": 45}))
    keeper = fleet.pids("fedaccord.engines.flower.node", "/sites/c")
    fleet.begin()
    within(90, lambda: len(list(fleet.runs().glob("*/federation.json"))) == 3, "all have joined")
    for pid in keeper:
        os.kill(pid, signal.SIGSTOP)  # site c is at its task of round 1, and stays at it for two rounds
    within(90, lambda: len(fleet.lines()) == 1, "round 1")
    within(20, lambda: received(fleet.said("b")) > sent(fleet.said("b")), "site b is at work in round 2")
    fleet.kill("flower.supernode", "/sites/b")
    simulated[0]()
    within(90, lambda: len(fleet.lines()) == 2, "round 2")
    for pid in keeper:
        os.kill(pid, signal.SIGCONT)
    within(90, lambda: list((fleet.run_folder() / "checkpoints").glob("*4.checkpoint")), "a checkpoint of round 4")
    fleet.kill("flwr-serverapp")
    for words in (("flower.node", "/sites/c"), ("flower.supernode", "/sites/c")):
        fleet.kill(*words)
    poison(fleet.site("a"))
    fleet.begin()
    return fleet.finish(240, 3)


def received(said):
    return said.count("Receiving: train")


def sent(said):
    return said.count("Sending: train")


@pytest.mark.slow
class TestNearlyAllGoesWrong:
    def drops(self, fleet):
        return {(d["round"], d["site"], d["task"]): d["reason"] for line in fleet.lines() for d in line["dropped"]}

    def test_the_model_is_the_one_that_the_admitted_replies_make(self, fleet, went_wrong, tmp_path):
        """The embedded engine, made to lose the same replies, ends with the same model."""
        drops = set(self.drops(fleet))
        ours = embedded(tmp_path / "1", SITES + FAULTY, drops)
        assert went_wrong["model_sha256"] == ours["model_sha256"]
        assert went_wrong["rounds"] == 5
        # Would the model tell if site b had lost its memory when its node was killed?
        assert ours["model_sha256"] != embedded(tmp_path / "2", SITES + FAULTY, drops, forget=("b", 5))["model_sha256"]

    def test_the_node_two_rounds_behind_is_dropped_its_late_answers_ignored_and_then_heard_again(
        self, fleet, went_wrong
    ):
        for number in (1, 2):
            assert self.drops(fleet)[number, "c", "train"] == "no reply within 20 s"
            assert f"round {number}: site 'c' dropped from train: no reply within 20 s" in fleet.log()
        back = [line["round"] for line in fleet.lines()[2:4] if (line["round"], "c", "train") not in self.drops(fleet)]
        assert back  # a busy machine may need another round for it

    def test_the_node_that_was_killed_mid_round_is_back(self, fleet, went_wrong):
        assert (2, "b", "train") in self.drops(fleet)
        last = fleet.lines()[-1]
        assert "b" in last["asked"]
        assert (5, "b", "train") not in self.drops(fleet)
        assert "the node ended with exit code" in (fleet.site("b") / "log.txt").read_text()

    def test_the_node_that_never_comes_back_is_left_out(self, fleet, went_wrong):
        assert self.drops(fleet)[5, "c", "train"] in ("its node is not connected", "no reply within 20 s")
        assert went_wrong["final"]["sites"]["each"].keys() <= {"a", "b"}

    def test_a_message_with_nan_does_not_reach_the_model(self, fleet, went_wrong):
        assert self.drops(fleet)[5, "a", "train"].startswith("it holds NaN or infinite values") or any(
            "NaN" in reason for (round_, site, _), reason in self.drops(fleet).items() if (round_, site) == (5, "a")
        )

    def test_the_server_went_on_from_its_checkpoint(self, fleet, went_wrong):
        assert "resumed after round 4" in fleet.log()
        assert [line["round"] for line in fleet.lines()] == [1, 2, 3, 4, 5]

    def test_the_check_says_what_is_wrong_now(self, fleet, went_wrong):
        (fleet.site("b") / "node.key").chmod(0o644)
        done = command("deploy", "--check", fleet.folder, cwd=fleet.folder)
        assert done.code == 1
        assert "sites/a: a training sample has a value that is not finite" in done.out
        assert "sites/b: other users of this machine can read node.key: chmod 600 node.key" in done.out


@pytest.mark.slow
def test_the_simulation_ends_with_the_same_model(simulated, went_wrong, tmp_path):
    there, here = simulated[1](), embedded(tmp_path, SIMULATED)
    assert there["model_sha256"] == here["model_sha256"]
    assert there["engine"] == "flower"
    assert there["final"] == here["final"]


def poison(site):
    """Put a NaN into every array of samples, as a broken sensor would."""
    files = json.loads((site / "site.json").read_text())["tensors"]
    for name, file in files.items():
        if name.endswith("/x"):
            x = np.load(site / "data" / file, allow_pickle=False)
            x[:, ..., 0] = np.nan
            np.save(site / "data" / file, x, allow_pickle=False)
    (site / "site.json").touch()  # so that the host that is kept ready is built anew
