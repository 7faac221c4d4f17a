"""The server of a live report: what it answers, to whom, and what it never shows."""

import http.client
import json
import shutil
import signal
import socket
import subprocess
import sys
import urllib.parse

import pytest

from command_line import SMALL
from fedaccord.config import parse_experiment
from fedaccord.errors import RunFolderError, UserError
from fedaccord.experiment import run_experiment
from fedaccord.runs.folder import FolderLock, RunFolder
from fedaccord.runs.watching import serving


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("watched") / "run"
    run = RunFolder(folder)
    run_experiment(parse_experiment(SMALL), folder.parent, run)
    run.close()
    return folder


@pytest.fixture
def cut(finished, tmp_path):
    """The folder of a run that was killed after its first round."""
    folder = shutil.copytree(finished, tmp_path / "cut")
    lines = (folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    kept = [line for line in lines if json.loads(line)["round"] == 1]
    (folder / "metrics.jsonl").write_text("".join(kept) + '{"round": 2, "sco')
    for name in ("summary.json", "report.html"):
        (folder / name).unlink()
    return folder


def ask(address, path="/", method="GET", **headers):
    """Return status, headers and body of an answer."""
    place = urllib.parse.urlsplit(address).netloc
    connection = http.client.HTTPConnection(place, timeout=20)
    connection.request(method, path, headers={name.replace("_", "-"): value for name, value in headers.items()})
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, body


def test_it_answers_on_loopback_with_the_report_and_nothing_else(finished):
    with serving(finished) as address:
        assert address.startswith("http://127.0.0.1:")
        status, headers, page = ask(address)
        assert (status, headers["Cache-Control"]) == (200, "no-store")
        assert "<h1>small</h1>" in page
        assert 'class="progress"' not in page
        for path in ("/report.html", "/config.toml", "/../run/config.toml", "/?x"):
            assert ask(address, path)[0] == 404
        assert ask(address, method="POST")[0] == 501
        assert ask(address, method="HEAD")[2] == ""
    with pytest.raises(ConnectionRefusedError):
        ask(address)


def test_it_refuses_the_name_of_a_foreign_page(finished):
    """A page of another site that rebinds its own name to 127.0.0.1 sends that name."""
    with serving(finished) as address:
        port = urllib.parse.urlsplit(address).port
        for name in (f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", ""):
            status, _, body = ask(address, Host=name)
            assert (status, "small" in body) == (421, False)
        assert ask(address, Host=f"localhost:{port}")[0] == 200


def test_a_page_is_sent_again_only_after_a_change(cut):
    with serving(cut) as address:
        version = ask(address)[1]["ETag"]
        assert ask(address, If_None_Match=version)[::2] == (304, "")
        lock = FolderLock(cut)  # another process resumes the run
        status, headers, page = ask(address, If_None_Match=version)
        assert (status, headers["ETag"] != version) == (200, True)
        assert "Round 1 of 2, running" in page
        lock.release()
        assert ask(address)[1]["ETag"] == version


def test_the_page_says_how_a_cut_run_is_continued(cut):
    with serving(cut) as address:
        assert f"Round 1 of 2, cut off; continue it with: fedaccord resume {cut}" in ask(address)[2]


def test_a_damaged_file_is_told_and_the_server_goes_on(cut):
    with serving(cut) as address:
        whole = (cut / "federation.json").read_text()
        (cut / "federation.json").write_text(whole[:-30])
        status, _, body = ask(address)
        assert (status, body) == (503, f"{cut / 'federation.json'} is not JSON")
        (cut / "federation.json").write_text(whole)
        assert ask(address)[0] == 200


def test_folders_and_ports_that_cannot_be_used(finished, tmp_path):
    with pytest.raises(RunFolderError, match="there is no folder"), serving(tmp_path / "none"):
        pass
    with pytest.raises(RunFolderError, match=r"is not a run folder: it has no config\.toml"), serving(tmp_path):
        pass
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = f"port {port} cannot be used: Address already in use"
        with pytest.raises(UserError, match=told), serving(finished, port):
            pass


def test_the_command_ends_with_a_signal_and_exit_code_0(finished, cut):
    """Both at once, because each imports torch."""
    watched = [(finished, "round 2 of 2, finished", signal.SIGINT), (cut, "round 1 of 2, cut", signal.SIGTERM)]
    started = [
        subprocess.Popen([sys.executable, "-m", "fedaccord", "watch", folder], stdout=subprocess.PIPE, text=True)
        for folder, _, _ in watched
    ]
    try:
        for process, (folder, state, number) in zip(started, watched, strict=True):
            assert process.stdout.readline() == f"{folder}: {state}\n"
            address = process.stdout.readline().removeprefix("report: ").strip()
            assert ask(address)[0] == 200
            process.send_signal(number)
            assert process.wait(20) == 0
    finally:
        for process in started:
            process.kill()
            process.communicate()
