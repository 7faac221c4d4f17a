"""docs/config.md is what the code says, and the code says something of every key."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Literal

import pytest
from pydantic import Field

from fedaccord.config import Experiment
from fedaccord.methods.registry import METHODS
from fedaccord.models.registry import MODELS
from tools import config_reference
from tools.config_reference import in_words, reference, undescribed

ROOT = Path(__file__).parents[1]


def test_the_page_is_not_stale():
    written = (ROOT / "docs/config.md").read_text(encoding="utf-8")
    assert written == reference(), "stale: python tools/config_reference.py > docs/config.md"


def test_every_key_has_a_description():
    assert undescribed() == []


def test_a_key_without_description_is_noticed(monkeypatch):
    class Bare(METHODS["local"].settings):
        new: int = 3

    monkeypatch.setattr(
        config_reference, "METHODS", {"bare": METHODS["local"].__class__("bare", Bare, "x:y", summary="bare")}
    )
    assert sorted(undescribed()) == ["method bare", "method bare.new"]


def test_every_section_method_and_model_is_there():
    page = reference()
    for section in Experiment.model_fields:
        assert section in ("name", "seed") or f"\n## `[{section}]`\n" in page or f"\n## `[[{section}]]`\n" in page
    for name in METHODS:
        assert page.count(f"# `{name}`\n") == 1
    for name in MODELS:
        assert f"\n| `{name}` | " in page


def test_a_shared_setting_is_documented_once_and_says_where_it_belongs():
    page = reference()
    assert page.count("\n| `hostile` | ") == 1
    assert "\n| `iterations` | whole number (at least 1) | left out | server | " in page
    own = page.partition("# `fedmt+`\n")[2].partition("\n#")[0]
    assert "[every method](#every-method), " in own
    assert "[`fedmt`](#fedmt)" in own
    assert [line.split("`")[1] for line in own.splitlines() if line.startswith("| `")] == [
        "epochs",
        "warmup",
        "server_epochs",
        "threshold",
        "estimator",
        "pseudo_label",
        "lambda2",
    ]


@pytest.mark.parametrize(
    ("annotation", "words"),
    [
        (int | None, "whole number"),
        (Annotated[float, Field(ge=0, lt=1)], "number (at least 0, below 1)"),
        (Annotated[list[str], Field(min_length=1)] | Literal["own"] | None, 'non-empty list of texts or `"own"`'),
        (dict[str, tuple[float, float]], "table of lists of 2 numbers"),
        (Literal["a", "b"], '`"a"` or `"b"`'),
        (list[Annotated[int, Field(ge=1)]], "list of whole numbers (at least 1)"),
    ],
)
def test_types_in_words(annotation, words):
    assert in_words(annotation) == words


def test_the_command_prints_it_without_torch():
    code = (
        "import sys, runpy; runpy.run_path('tools/config_reference.py', run_name='__main__'); "
        "sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, reference())
