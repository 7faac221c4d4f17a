"""Quick commands stay quick: what takes seconds to import is imported when work begins, not before.

Counted in imports, not in seconds, which would depend on the machine.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig

import pytest

from command_line import SMALL, write

SLOW = {"torch", "flwr", "plotly", "pandas", "sklearn", "scipy", "pyarrow"}


def imported(*arguments, cwd):
    """Return a Python process's exit code and the packages it imported."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *map(str, arguments)], cwd=cwd, capture_output=True, text=True, timeout=120
    )
    names = [line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if line.startswith("import time:")]
    return done.returncode, {name.partition(".")[0] for name in names}


def test_the_package_alone(tmp_path):
    code, packages = imported("-c", "import fedaccord", cwd=tmp_path)
    assert code == 0
    assert "fedaccord" in packages
    assert not packages & (SLOW | {"numpy", "pydantic", "rich"})


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["methods"], ["datasets"], ["models"]], ids=str)
def test_commands_that_only_tell(tmp_path, arguments):
    code, packages = imported("-m", "fedaccord", *arguments, cwd=tmp_path)
    assert code == 0
    assert "typer" in packages
    assert not packages & SLOW


@pytest.mark.parametrize("change", ["method.rouns=3", "method.name=fedavgg", "model.name=mpl", "data.dataset=digit"])
def test_a_wrong_experiment_file(tmp_path, change):
    wrong = write(tmp_path, SMALL)
    code, packages = imported("-m", "fedaccord", "run", wrong, "--set", change, cwd=tmp_path)
    assert code == 2
    assert "pydantic" in packages
    assert not packages & SLOW


def test_the_installed_command(tmp_path):
    command = shutil.which("fedaccord", path=sysconfig.get_path("scripts"))
    assert command, "the package is not installed: its command is missing"
    code, packages = imported(command, "--version", cwd=tmp_path)
    assert code == 0
    assert "typer" in packages
    assert not packages & SLOW
