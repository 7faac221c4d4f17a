"""Code outside FedAccord: who may name it, and that it runs only if a person said so."""

from __future__ import annotations

import sys

import pytest

from command_line import SMALL, command, process, register, write
from fedaccord.config import check_experiment
from fedaccord.errors import ConfigError, UntrustedError
from fedaccord.extensions import INSTALLED, importable, installed, load_outside, trusted, trusting
from fedaccord.methods.registry import method_entry

METHOD = """
from dataclasses import replace

from fedaccord import FigureSection, Recipe, site_setting
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.shared_settings import ClassicSettings


def renamed(settings: ClassicSettings) -> Recipe:
    \"\"\"FedAvg under another name.\"\"\"
    return fedavg(settings)


def bare(settings):
    return fedavg(settings)


def unregistered(settings: ClassicSettings) -> Recipe:
    return fedavg(settings)


class DrawnSettings(ClassicSettings):
    report_sections = (FigureSection("Strange figures", "Half of them.", {"half": "always a half"}),)
    correspondence: str = site_setting("known", "a key that a method of the package has as well")


def half(server):
    server.figures["half"] = 0.5


def drawn(settings: DrawnSettings) -> Recipe:
    return replace(fedavg(settings), refine=(half,))


NUMBER = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder on the path in which a package with a method, a model and a view seems to be installed."""
    (tmp_path / "strange.py").write_text(METHOD)
    names = {"methods": {"strange-avg": "strange:renamed"}, "models": {"strange-net": "strange:net"}}
    register(tmp_path, "strange-dist", **names, views={"strange-view": "strange:View"})
    monkeypatch.syspath_prepend(str(tmp_path))
    installed.cache_clear()
    yield tmp_path
    installed.cache_clear()
    sys.modules.pop("strange", None)


def test_trust_ends_with_its_context():
    with trusting(["a.b"]), trusting(["c"]):
        assert trusted() == ["a.b", "c"]
    assert trusted() == []


@pytest.mark.parametrize(("trust", "allowed"), [("strange", True), ("stran", False), ("strange.x", False), ("", False)])
def test_a_package_is_trusted_by_its_whole_name(folder, trust, allowed):
    with trusting([trust]):
        if allowed:
            assert method_entry("strange:renamed").summary == "FedAvg under another name."
        else:
            with pytest.raises(UntrustedError, match="allow it with --trust strange "):
                method_entry("strange:renamed")
    assert ("strange" in sys.modules) is allowed


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("strange:absent", "the module 'strange' has no 'absent'"),
        ("strange:bare", "must annotate its argument with a class of settings"),
        ("strange:NUMBER", "is not a function that returns a recipe"),
        ("strange:a.b", "is not of the form 'package.module:name'"),
        ("fedaccord.methods.averaging.recipe:fedavg", "points inside FedAccord"),
        ("__main__:mine", "is a function of another Python process"),
        ("strange:outer.<locals>.mine", "is a function of another Python process"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_a_name_that_cannot_be_used_is_told(name, told):
    with trusting(["strange", "fedaccord", "__main__"]), pytest.raises(ConfigError, match=told):
        method_entry(name)


def test_a_folder_is_searched_only_if_something_is_trusted(tmp_path):
    """Otherwise a file there could stand in for an optional dependency."""
    with importable(tmp_path):
        assert str(tmp_path) not in sys.path
    with trusting(["x"]), importable(tmp_path):
        assert sys.path[-1] == str(tmp_path)
    assert str(tmp_path) not in sys.path


class TestInstalled:
    @pytest.mark.parametrize("what", ["methods", "models", "views"])
    def test_it_is_listed_without_being_imported(self, folder, what):
        (folder / "strange.py").write_text("raise SystemExit(9)")
        done = command(what, cwd=folder)
        assert done.code == 0, done.err
        assert any(" ".join(line.split()).endswith("from the package strange-dist") for line in done.out.splitlines())

    @pytest.mark.usefixtures("folder")
    def test_its_short_name_needs_no_more_than_the_word_of_the_person_who_installed_it(self):
        with pytest.raises(UntrustedError):
            load_outside("strange-avg", "methods", "method.name")
        with trusting([INSTALLED]):
            assert load_outside("strange-avg", "methods", "method.name").__name__ == "renamed"
            assert load_outside("strange:renamed", "methods", "method.name").__name__ == "renamed"
            with pytest.raises(UntrustedError):
                load_outside("strange:unregistered", "methods", "method.name")  # nobody registered that

    def test_a_run_by_its_short_name_with_workers(self, folder):
        path = write(folder, SMALL.replace('"fedavg"', '"strange-avg"'))
        done = process("run", path, "--workers", "2", "--out", "run", cwd=folder, PYTHONPATH=path_with(folder))
        assert done.code == 0, done.err
        assert 'name = "strange-avg"' in (folder / "run/config.toml").read_text()

    def test_a_wrong_name_is_compared_with_it(self, folder):
        done = command("check", write(folder, SMALL.replace('"fedavg"', '"strange-agv"')), cwd=folder)
        assert done.code == 2
        assert "did you mean 'strange-avg'?" in done.err


def test_a_run_of_a_method_beside_the_experiment(folder):
    path = write(folder, SMALL.replace('"fedavg"', '"strange:unregistered"'))
    for arguments in (["check", path], ["run", path, "--out", "none"]):
        done = command(*arguments, cwd=folder)
        assert done.code == 2
        assert done.err.count("--trust strange") == 1
    assert not (folder / "none").exists()
    done = command("run", path, "--out", "run", "--trust", "strange", cwd=folder)
    assert done.code == 0, done.err
    (folder / "run/summary.json").unlink()
    done = command("resume", "run", cwd=folder)
    assert done.code == 2
    assert "--trust strange" in done.err


def test_the_report_draws_the_figures_that_the_settings_describe(folder):
    path = write(folder, SMALL.replace('"fedavg"', '"strange:drawn"'))
    done = command("run", path, "--out", "run", "--trust", "strange", cwd=folder)
    assert done.code == 0, done.err
    page = folder / "run/report.html"
    assert all(words in page.read_text() for words in ("Strange figures", "Half of them.", "always a half"))
    for trust, shown in (
        (["--trust", "strange"], True),
        ([], False),
    ):  # the report of a run needs no code of its method
        assert command("report", "run", *trust, cwd=folder).code == 0
        assert ("Strange figures" in page.read_text()) is shown


@pytest.mark.usefixtures("folder")
def test_a_key_that_another_method_has_as_well_is_not_checked_as_its_own():
    site = {"name": "a", "data": "a.csv", "label": "y", "view": {"kind": "coarse", "names": ["x"]}}
    with trusting(["strange"]):
        assert (
            check_experiment({"sites": [site], "method": {"name": "strange:drawn"}}).method["correspondence"] == "known"
        )


def path_with(folder):
    import os

    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
