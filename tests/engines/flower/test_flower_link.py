"""The server's own process: what it does when a start was cut, when the SuperLink dies, and when an old one is left."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import click
import pytest

from fedaccord.engines.flower.link import register
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
