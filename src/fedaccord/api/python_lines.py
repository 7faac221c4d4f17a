"""Findings in the words of Python: arguments in place of the lines that an experiment file would need."""

from __future__ import annotations

import re
import tomllib

# A line that a finding offers: where it belongs, and the line itself.
_PASTED = re.compile(
    r"(?:put this line under|replace the line '(?P<old>\w+)' under) "
    r"(?:\[(?P<section>labels|features)\]|\[\[sites\]\] of '(?P<site>[^']*)')"
    r"(?: by)?(?P<more>, [^:]*)?:\n(?P<line>[^\n]+)"
)
_IN_FEATURES = re.compile(r"(?P<line>(?:ignore|missing|numbers|categories|text) = \[[^\n]*?\]) in \[features\]")
_NAMES = (
    ("labels.classes", "classes"),
    ("labels.missing", "missing"),
    ("labels.synonyms", "synonyms"),
    ("[labels]", "the arguments of Federation"),
    ("[features]", "the features of Federation"),
)


def in_python(text: str) -> str:
    """Return the text of a finding with arguments of `Federation` and `Site` in place of lines and sections."""
    text = _PASTED.sub(_argument, text)
    text = _IN_FEATURES.sub(lambda found: f"features={_table(found['line'])!r} of Federation", text)
    for name, argument in _NAMES:
        text = text.replace(name, argument)
    return text


def _argument(found: re.Match[str]) -> str:
    whose = "Federation" if found["site"] is None else f"site '{found['site']}'"
    ((key, value),) = _table(found["line"]).items()
    put = "pass this argument to" if found["old"] is None else "replace this argument of"
    line = f"features={ {key: value}!r}" if found["section"] == "features" else f"{key}={value!r}"
    return f"{put} {whose}{found['more'] or ''}:\n{line}"


def _table(line: str) -> dict[str, object]:
    return tomllib.loads(line)
