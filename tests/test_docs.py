"""The documents tell the truth: every command and every snippet in them is run, every link and message is looked up.

How a page is written:

- Blocks marked `toml file=NAME`, `csv file=NAME` or `python file=NAME` are written to NAME in the page's own folder.
- Blocks marked `console` hold lines `$ command`, run in order in that folder, which also has the project's `examples`.
  A command ends with code 0, or with that of a trailing `# exit N`. The lines below it occur in its output in that
  order; `...` stands for anything.
- Blocks marked `python` are run, all of a page in one namespace. Blocks marked `text` are pictures,
  those marked `math` equations.

Commands run in this process where that is possible, and without workers, which change nothing but the time.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

import fedaccord
from command_line import Outcome, cli, command
from fedaccord.methods.registry import METHODS

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "examples" / "messy_hospitals" / "README.md",
]
FOR_NEW_USERS = [ROOT / "README.md", ROOT / "docs" / "tutorial.md"]
EXAMPLES = sorted((ROOT / "examples").rglob("*.md"))  # what they tell to run is run by the examples' own tests
FENCE = re.compile(r"^```([^\n`]*)\n(.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
TRAINING = ("run", "resume", "demo")
SOURCES = sorted(Path(fedaccord.__file__).parent.rglob("*.py"))


@dataclass(frozen=True)
class Block:
    """A fenced block of a page: what its info string says, its text, and the line it begins in."""

    language: str
    file: str | None
    text: str
    line: int


@dataclass(frozen=True)
class Step:
    """One command of a console block."""

    words: str
    code: int
    expected: tuple[str, ...]


def blocks(text: str) -> Iterator[Block]:
    for found in FENCE.finditer(text):
        language, _, rest = found[1].strip().partition(" ")
        file = rest.removeprefix("file=") if rest.startswith("file=") else None
        yield Block(language, file, found[2], text.count("\n", 0, found.start()) + 1)


def steps(text: str) -> Iterator[Step]:
    words, code, expected = "", 0, list[str]()
    for line in [*text.splitlines(), "$ "]:
        if not line.startswith("$ "):
            assert words, f"output without a command: {line}"
            expected.append(line)
            continue
        if words:
            yield Step(words, code, tuple(expected))
        ending = re.fullmatch(r"(.*?)\s+# exit (\d+)", line)
        words, code, expected = (ending[1] if ending else line)[2:], int(ending[2]) if ending else 0, []


def missing_line(expected: tuple[str, ...], output: str) -> str | None:
    """Return the first expected line that does not occur in the output after those before it."""
    lines = iter([" ".join(line.split()) for line in output.splitlines()])
    for line in expected:
        pattern = ".*".join(map(re.escape, " ".join(line.split()).split("...")))
        if not any(re.search(pattern, found) for found in lines):
            return line
    return None


def carry_out(words: str, folder: Path) -> Outcome:
    """Run one command of a page."""
    parts = shlex.split(os.path.expandvars(words))
    name = Path(parts[0]).name
    if any(part in ("|", ">", ">>", "&&", ";") for part in parts) or name not in ("fedaccord", "python", "make"):
        return shell(words, folder)
    if name == "make":
        return Outcome(0 if all(part in make_targets() for part in parts[1:]) else 2, "", "")
    if name == "python":
        return script(parts[1], folder) if parts[1].endswith(".py") else shell(words, folder)
    arguments = parts[1:]
    if arguments and arguments[0] in TRAINING and "--workers" not in arguments and "--help" not in arguments:
        arguments += ["--workers", "0"]
    return command(*arguments, cwd=folder)


def shell(words: str, folder: Path) -> Outcome:
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    done = subprocess.run(
        ["bash", "-c", words],
        cwd=folder,
        env=os.environ | {"PATH": path, "LC_ALL": "C.UTF-8"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def script(name: str, folder: Path) -> Outcome:
    """Run a Python file as the interpreter would, in this process."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    caught = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
    path = [str((folder / name).parent), *sys.path]
    with contextlib.chdir(folder), mock.patch.object(sys, "path", path), caught[0], caught[1]:
        try:
            runpy.run_path(name, run_name="__main__")
        except SystemExit as end:
            code = int(end.code or 0)
        except Exception:
            traceback.print_exc()
            code = 1
    return Outcome(code, out.getvalue(), err.getvalue())


@cache
def make_targets() -> set[str]:
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))


def follow(text: str, folder: Path, where: str = "page") -> None:
    """Do what a page says, from top to bottom."""
    names: dict[str, object] = {"__name__": "__page__"}
    for block in blocks(text):
        here = f"{where}, line {block.line}"
        if block.file is not None:
            assert block.language in ("toml", "csv", "python"), f"{here}: a file in {block.language}?"
            (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
            (folder / block.file).write_text(block.text, encoding="utf-8")
        elif block.language == "console":
            for step in steps(block.text):
                done = carry_out(step.words, folder)
                told = f"{here}: $ {step.words}\n{done.out}{done.err}"
                assert done.code == step.code, f"{told}\nended with {done.code}, not {step.code}"
                missing = missing_line(step.expected, done.out + done.err)
                assert missing is None, f"{told}\ndoes not say: {missing}"
        elif block.language == "python":
            with contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
                exec(compile("\n" * block.line + block.text, where, "exec"), names)
        else:
            assert block.language in ("text", "math"), f"{here}: a block of '{block.language}' is run by nobody"


def page_id(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """One folder for the pages that a new user follows one after the other; their runs must not collide."""
    return tmp_path_factory.mktemp("clone")


@pytest.mark.parametrize("page", PAGES, ids=page_id)
@pytest.mark.usefixtures("one_thread")
def test_a_page_does_what_it_says(page, tmp_path, clone):
    here = clone if page in FOR_NEW_USERS else tmp_path
    for folder in ("examples", "papers"):
        if not (here / folder).exists():
            (here / folder).symlink_to(ROOT / folder)
    follow(page.read_text(encoding="utf-8"), here, page_id(page))


def test_pages_name_their_experiments_differently():
    """A reader who follows two pages in one folder gets the runs that each page speaks of."""
    named: dict[str, set[str]] = {}
    for page in PAGES:
        for block in re.findall(r"```toml file=\S+\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
            for name in re.findall(r'\Aname *= *"([^"]+)"', block):
                named.setdefault(name, set()).add(page_id(page))
    assert len(named) > 10
    assert {name: pages for name, pages in named.items() if len(pages) > 1} == {}


def offenders(faults_of: Callable[[Path, str], Iterator[str]]) -> str:
    """Return a line for each fault that a rule finds in the running text of a page."""
    found = ""
    for page in dict.fromkeys([*PAGES, *EXAMPLES]):
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        found += "".join(f"\n  {page_id(page)}: {fault}" for fault in faults_of(page, text))
    return found


def test_links_lead_somewhere():
    def faults(page, text):
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"https?://", target):
                continue
            file, _, anchor = target.partition("#")
            path = (page.parent / file).resolve() if file else page
            if not path.exists():
                yield f"{target} is not there"
            elif anchor and anchor not in anchors(path.read_text(encoding="utf-8")):
                yield f"no heading for {target}"

    found = offenders(faults)
    assert not found, found


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_commands_in_a_sentence_exist():
    """`fedaccord NAME --option` in running text names a real command and a real option."""
    known = cli.typer.main.get_command(cli.app).commands

    def faults(page, text):
        for words in re.findall(r"`(?:\.venv/bin/)?fedaccord ([a-z][^`]*)`", text):
            name = words.split()[0]
            if name not in known:
                yield f"there is no command 'fedaccord {name}'"
                continue
            options = {option for parameter in known[name].params for option in parameter.opts} | {"--help"}
            unknown = set(re.findall(r"--[a-z-]+", words)) - options
            if unknown:
                yield f"'fedaccord {name}' has no {sorted(unknown)}"

    found = offenders(faults)
    assert not found, found


def test_no_command_hides_outside_a_block():
    def faults(page, text):
        yield from re.findall(r"^(?:    |\t)(?:\$ |\S*fedaccord |make |pip ).*$", text, re.MULTILINE)

    found = offenders(faults)
    assert not found, found


@cache
def templates() -> str:
    """Return every string of the source, one in a line, with `…` for what is filled in."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                parts = [part.value if isinstance(part, ast.Constant) else "…" for part in node.values]
                found.append("".join(map(str, parts)))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return "\n".join(found)


def quoted_messages() -> list[str]:
    text = FENCE.sub("", (ROOT / "docs" / "errors.md").read_text(encoding="utf-8"))
    return [found.replace("\\|", "|") for found in re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE)]


def test_a_quoted_message_is_one_of_ours():
    foreign = [message for message in quoted_messages() if message not in templates()]
    assert not foreign, "no string of the source reads like these; `…` stands for what is filled in"


def test_the_decision_table_names_every_method_and_no_other():
    text = (ROOT / "docs" / "method-list.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| [^|`]+ \| (`[^|]+) \|", text, re.MULTILINE)
    assert len(cells) >= 8
    assert {cell.split("`")[1] for cell in cells} == set(METHODS)


def test_the_robust_rules_name_every_method_that_takes_one():
    text = (ROOT / "docs" / "hostile-sites.md").read_text(encoding="utf-8")
    (about,) = re.findall(r"^- \*\*State sent with the model\*\*.*?(?=^- )", text, re.MULTILINE | re.DOTALL)
    named = set(re.findall(r"`([^`]+)`", about))
    taking = {name for name, method in METHODS.items() if "aggregation" in method.settings.model_fields}
    assert named == taking - {"representation"}  # which refuses it


def test_messages_are_quoted():
    assert len(quoted_messages()) >= 10
    assert "the folder '…' is not empty; give another one with --out" in templates()


PAGE = """
```csv file=data/a.csv
x,y
1,2
```

```console
$ cat data/a.csv
x,y
...2
$ fedaccord run none.toml  # exit 2
error: there is no file ...none.toml'
$ python one.py
```

```python
value = 1
```

```python
assert value == 1
```
"""


class TestTheFollower:
    def page(self, folder, text=PAGE):
        (folder / "one.py").write_text("import sys\nprint(__name__, file=sys.stderr)\n")
        follow(text, folder)

    def test_it_follows_a_page(self, tmp_path):
        self.page(tmp_path)
        assert (tmp_path / "data" / "a.csv").read_text() == "x,y\n1,2\n"

    @pytest.mark.parametrize(
        ("old", "new", "told"),
        [
            ("x,y\n...2", "...2\nx,y", "does not say: x,y"),
            ("  # exit 2", "", "ended with 2, not 0"),
            ("$ python one.py", "$ python one.py\nother", "does not say: other"),
            ("$ python one.py", "$ make coffee", "ended with 2, not 0"),
            ("$ cat data/a.csv", "$ cat data/b.csv", "ended with 1, not 0"),
            ("assert value == 1", "assert value == 2, 'wrong'", "wrong"),
            ("```csv", "```yaml", "a file in yaml"),
            ("```python\nvalue", "```julia\nvalue", "is run by nobody"),
        ],
    )
    def test_it_notices_what_is_wrong(self, tmp_path, old, new, told):
        assert PAGE.count(old) == 1
        with pytest.raises(AssertionError, match=re.escape(told)):
            self.page(tmp_path, PAGE.replace(old, new))


def test_the_index_links_every_page():
    folder = ROOT / "docs"
    index = (folder / "README.md").read_text(encoding="utf-8")
    linked = {(folder / link).resolve() for link in re.findall(r"\]\(([^)#]+)", index)}
    assert {page for page in folder.rglob("*.md") if page.name != "README.md"} <= linked
