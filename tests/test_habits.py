"""The project's own files agree with each other: versions, targets of make, commands of hooks, templates."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import yaml

import fedaccord

ROOT = Path(__file__).parents[1]


def read(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_every_place_names_one_version():
    project = tomllib.loads(read("pyproject.toml"))["project"]
    citation = yaml.safe_load(read("CITATION.cff"))
    assert {str(project["version"]), str(citation["version"])} == {fedaccord.__version__}
    assert citation["license"] == project["license"]
    assert set(citation["keywords"]) == set(project["keywords"])


def test_hosted_ci_calls_targets_of_make_on_every_version_that_is_named():
    jobs = yaml.safe_load(read(".github/workflows/ci.yml"))["jobs"]
    called = {step["run"].split()[1] for job in jobs.values() for step in job["steps"] if "run" in step}
    assert called == {"test", "test-slow", "coverage"}
    assert called <= set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    classifiers = tomllib.loads(read("pyproject.toml"))["project"]["classifiers"]
    named = [word.rpartition(" ")[2] for word in classifiers if word.startswith("Programming Language :: Python :: 3.")]
    assert jobs["test"]["strategy"]["matrix"]["python"] == named


def test_hooks_run_the_commands_of_make_lint():
    (repository,) = yaml.safe_load(read(".pre-commit-config.yaml"))["repos"]
    hooks = [hook["entry"].removeprefix(".venv/bin/").split(" --")[0] for hook in repository["hooks"]]
    (target,) = re.findall(r"^lint:.*\n((?:\t.*\n)+)", read("Makefile"), re.MULTILINE)
    lint = [line.removeprefix("\t$(BIN)/").removesuffix(" .").split(" --")[0] for line in target.splitlines()]
    assert hooks == lint


def test_templates_of_issues_are_forms():
    forms = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*_*.yml"))
    assert len(forms) == 2
    for form in forms:
        content = yaml.safe_load(form.read_text(encoding="utf-8"))
        assert content.keys() == {"name", "description", "labels", "body"}
        fields = [field for field in content["body"] if field["type"] != "markdown"]
        assert len({field["id"] for field in fields}) == len(fields) > 0
        assert all(field["attributes"]["label"] for field in fields)


def without_blocks(text):
    return re.sub(r"^```.*?^```", lambda block: "\n" * block[0].count("\n"), text, flags=re.MULTILINE | re.DOTALL)


def test_lines_of_prose_fit_into_120_characters():
    folders = (ROOT / "docs", ROOT / "docs/views", *(ROOT / "examples").iterdir())
    pages = [*ROOT.glob("*.md"), ROOT / "docs/results/standardise.md", *(p for f in folders for p in f.glob("*.md"))]
    written = [page for page in pages if page.name != "config.md"]  # the reference and other results are generated
    long = [
        f"{page.relative_to(ROOT)}, line {number}"
        for page in written
        for number, line in enumerate(without_blocks(page.read_text(encoding="utf-8")).splitlines(), 1)
        if len(line) > 120 and not line.startswith("|")  # a row of a table cannot be divided
    ]
    assert long == []


def test_no_two_files_of_tests_have_one_name():
    """Pytest imports them by name alone, so a second one fails only when both are collected."""
    names = [path.name for path in (ROOT / "tests").rglob("test_*.py")]
    assert sorted(names) == sorted(set(names))
