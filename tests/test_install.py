"""`make demo` shows what pip is doing: its lines in a few words, and all of them if it fails."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tools.install import step

SCRIPT = Path(__file__).parents[1] / "tools" / "install.py"


@pytest.mark.parametrize(
    ("line", "shown"),
    [  # as pip 23 and later print them
        (
            "  Downloading torch-2.13.0-cp311-cp311-manylinux_2_28_x86_64.whl (821.2 MB)",
            ("downloading torch 2.13.0 (821.2 MB)", True),
        ),
        (
            "  Downloading https://host/whl/torch-2.13.0%2Bcpu-cp311-cp311-linux_x86_64.whl.metadata (29 kB)",
            ("downloading torch 2.13.0%2Bcpu (29 kB)", False),
        ),
        ("  Using cached typer-0.20.0-py3-none-any.whl (47 kB)", ("using cached typer 0.20.0 (47 kB)", False)),
        ("  Downloading package-1.0.tar.gz (1.2 GB)", ("downloading package 1.0 (1.2 GB)", True)),
        ("Collecting numpy>=1.26 (from fedaccord==0.2.0)", ("looking for numpy>=1.26", False)),
        ("Installing collected packages: a, b, c", ("installing 3 packages", True)),
        ("  Preparing metadata (pyproject.toml): started", ("preparing metadata (pyproject.toml)", False)),
        ("Requirement already satisfied: pip in /usr/lib", None),
        ("Successfully installed a-1.0", None),
        ("", None),
    ],
)
def test_a_line_of_pip_in_a_few_words(line, shown):
    assert step(line) == shown


def install(*arguments):
    return subprocess.run([sys.executable, SCRIPT, *arguments], capture_output=True, text=True, timeout=60)


def test_it_installs_and_says_how_long_it_took(tmp_path):
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    done = install("--no-index", "--target", tmp_path / "there", wheel)
    assert (done.returncode, done.stderr) == (0, "")
    first, last = done.stdout.splitlines()
    assert first == "installing 1 package"
    assert last.startswith("installed in ")
    assert (tmp_path / "there" / "tiny-1.0.dist-info").is_dir()


def test_the_words_of_pip_are_shown_if_it_fails(tmp_path):
    done = install("--no-index", "no-such-package-anywhere")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No matching distribution found for no-such-package-anywhere" in done.stderr
