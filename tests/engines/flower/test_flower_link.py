"""The server's own process: what it does when a start was cut, when the SuperLink dies, and when an old one is left."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import sys
from types import SimpleNamespace

import click
import pytest
from fleet import Fleet, within

from command_line import SMALL
from fedaccord.engines.flower.link import compact, register
from fedaccord.errors import EngineError


class TestKeys:
    """Flower's own command, as far as this goes: it refuses a key that it has."""

    @pytest.fixture
    def folder(self, tmp_path):
        for site in "abc":
            (tmp_path / f"{site}.pub").write_text(f"key of {site}\n")
        return tmp_path

    @pytest.fixture
    def held(self, monkeypatch):
        held = []

        def command(words, standalone_mode):
            file = words[2]
            if file in held:
                raise click.ClickException("[code: 23] Public key already in use.")
            if len(held) == self.room:
                raise KeyboardInterrupt
            if file.endswith("c.pub"):
                raise click.ClickException("The SuperLink is unavailable.")
            held.append(file)

        self.room = 9
        monkeypatch.setitem(sys.modules, "flwr.cli.app", SimpleNamespace(app=command))
        return held

    def test_a_start_that_was_cut_goes_on_where_it_was(self, folder, held):
        keys = {site: f"{site}.pub" for site in "ab"}
        self.room = 1
        with pytest.raises(KeyboardInterrupt):
            register(folder, keys)
        assert json.loads((folder / "registered.json").read_text()) == {"a": "key of a"}
        (folder / "registered.json").unlink()  # it may have been cut before that was written
        self.room = 9
        register(folder, keys)
        assert json.loads((folder / "registered.json").read_text()) == {"a": "key of a", "b": "key of b"}
        assert held == [str(folder / file) for file in keys.values()]

    @pytest.mark.usefixtures("held")
    def test_what_else_goes_wrong_is_said(self, folder):
        with pytest.raises(EngineError, match=r"the key of site 'c' cannot be registered: The SuperLink is unavail"):
            register(folder, {"c": "c.pub"})


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_server_ends_with_its_superlink_and_does_not_take_an_old_one_for_its_own(tmp_path):
    """With the real SuperLink: killed, started again with keys it has, left behind by a process that was killed."""
    with Fleet(tmp_path / "d", SMALL) as fleet:
        fleet.start()
        fleet.kill("bin/flower-superlink")
        assert fleet.processes["server"].wait(30) == 1
        assert "error: the SuperLink ended with exit code -9, so the server ends too" in fleet.said("server")
        (fleet.server / "registered.json").unlink()  # as if the start had been cut before it was written
        (fleet.folder / "server.out").unlink()
        fleet.start()
        fleet.kill("fedaccord.engines.flower.link")
        fleet.processes["server"].wait(30)
        assert fleet.pids("bin/flower-superlink")
        assert fleet.start_server().wait(30) == 1
        assert f"error: port {fleet.port + 1} of the loopback interface is in use" in fleet.said("server")
    within(10, lambda: not fleet.pids(), "all processes are gone")


class TestCompact:
    def emptied(self, folder):
        """Make a database as a SuperLink leaves it: its messages are removed, its file is as large as before."""
        path = folder / "state.db"
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE message (content BLOB)")
            connection.executemany("INSERT INTO message VALUES (?)", [(bytes(10**5),)] * 20)
            connection.execute("INSERT INTO message VALUES (?)", (b"kept",))
            connection.commit()
            connection.execute("DELETE FROM message WHERE length(content) > 10")
            connection.commit()
        return path

    def test_the_space_of_removed_messages_is_given_back(self, tmp_path):
        path = self.emptied(tmp_path)
        assert path.stat().st_size > 2_000_000
        compact(path)
        assert path.stat().st_size < 50_000
        with contextlib.closing(sqlite3.connect(path)) as connection:
            assert connection.execute("SELECT content FROM message").fetchall() == [(b"kept",)]

    def test_a_database_in_use_stays_as_it_is(self, tmp_path, capsys):
        path = self.emptied(tmp_path)
        with contextlib.closing(sqlite3.connect(path)) as other:
            other.execute("BEGIN EXCLUSIVE")
            compact(path)
        assert path.stat().st_size > 2_000_000
        assert "was not compacted: database is locked" in capsys.readouterr().out

    def test_what_is_no_database_ends_nothing(self, tmp_path, capsys):
        (tmp_path / "state.db").write_bytes(b"nonsense" * 1000)
        compact(tmp_path / "state.db")
        compact(tmp_path / "none.db")
        assert not (tmp_path / "none.db").exists()
        assert "was not compacted: file is not a database" in capsys.readouterr().out
