"""docs/methods.md has a section for every method, and every citation of it names a section that exists."""

from __future__ import annotations

import re
from pathlib import Path

from fedaccord.methods.registry import METHODS

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "methods.md").read_text(encoding="utf-8")
SECTIONS = re.findall(r"^##+ (\d+(?:\.\d+)?) ", PAGE, re.MULTILINE)
NUMBER = r"\d+(?:\.\d+)?"
CITATION = re.compile(rf"docs/methods\.md ({NUMBER}(?:(?:, | and | to ){NUMBER})*)")


def citations() -> list[tuple[str, str]]:
    """Return the place and the cited section of every citation in the Python files."""
    found = []
    for folder in ("src", "tests", "papers", "benchmarks"):
        for path in sorted({*(ROOT / folder).rglob("*.py")} - {Path(__file__)}):
            text = re.sub(r"\s+#?\s*", " ", path.read_text(encoding="utf-8"))  # a citation may be wrapped
            sections = CITATION.findall(text)
            assert len(sections) == text.lower().count("methods.md"), (
                f"{path}: cite docs/methods.md with a section number"
            )
            numbers = [number for cited in sections for number in re.findall(NUMBER, cited)]
            found += [(path.relative_to(ROOT).as_posix(), number) for number in numbers]
    return found


def test_sections_are_numbered_in_order():
    numbers = [tuple(map(int, number.split("."))) for number in SECTIONS]
    assert numbers == sorted(set(numbers))
    assert len(SECTIONS) == len(re.findall(r"^##+ ", PAGE, re.MULTILINE))


def test_every_method_has_exactly_one_subsection():
    named = re.findall(rf"^### {NUMBER} [^`]+: `([^`]+)`$", PAGE, re.MULTILINE)
    assert sorted(named) == sorted(METHODS)


def test_every_citation_names_a_section():
    found = citations()
    assert len(found) >= 50
    assert not [(place, number) for place, number in found if number not in SECTIONS]
