"""Names from sites and files cannot control the terminal that shows them."""

import io

import pytest
from rich.table import Table
from rich.text import Text

from command_line import command
from fedaccord.plain_text import one_line, printable
from fedaccord.runs.folder import RunFolder
from fedaccord.terminal import Terminal

RED, TITLE, BACK = "\x1b[31m", "\x1b]0;owned\x07", "\x9b2J"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("cat", "cat"),
        ("Größe, 大小, 👩‍⚕️\tand\nso on", "Größe, 大小, 👩‍⚕️\tand\nso on"),
        (f"{RED}cat", r"\x1b[31mcat"),
        (f"{TITLE}cat", r"\x1b]0;owned\x07cat"),
        (f"{BACK}cat", r"\x9b2Jcat"),
        ("cat\rdog", r"cat\rdog"),
        ("cat\u202etac", r"cat\u202etac"),
        ("cat\ud800", r"cat\ud800"),
    ],
)
def test_control_characters_become_escapes_and_letters_of_every_language_stay(text, shown):
    assert printable(text) == shown


def test_one_line_of_a_site_has_no_control_character():
    assert one_line(f"{RED}round 1:\nall is well") == "[31mround 1: all is well"


@pytest.mark.parametrize("colours", ["standard", None])
def test_the_console_shows_escapes_in_text_tables_and_rules(colours):
    file = io.StringIO()
    console = Terminal(file=file, force_terminal=True, width=200, markup=False, color_system=colours)
    table = Table()
    table.add_column(Text(f"{TITLE}label"))
    table.add_row(Text(f"{TITLE}cat"))
    console.print(f"site {TITLE}a", highlight=False, soft_wrap=True)
    console.print(Text.assemble(("warning:", "yellow"), f" {TITLE}b"))
    console.print(table)
    console.rule(Text(f"{TITLE}c", "bold"))
    shown = file.getvalue()
    assert "\x1b]" not in shown
    assert "\x07" not in shown
    assert shown.count(r"\x1b]0;owned") == 5
    assert ("\x1b[33m" in shown) == (colours is not None)  # the colours of the console itself are kept


def test_check_and_run_show_no_escape_of_a_file_of_labels(tmp_path):
    for site in ("a", "b"):
        rows = [f"{number},{number % 3},{TITLE + 'ill' if number % 2 else 'well'}" for number in range(24)]
        (tmp_path / f"{site}.csv").write_text("\n".join(["age,dose,label", *rows]) + "\n", encoding="utf-8")
    sites = "".join(f'[[sites]]\nname = "{RED}{s}"\ndata = "{s}.csv"\nlabel = "label"\n' for s in ("a", "b"))
    sites = sites.replace("\x1b", "\\u001b")  # as TOML has it
    experiment = tmp_path / "odd.toml"
    experiment.write_text(f"{sites}[method]\nrounds = 1\nsteps = 1\n[run]\nworkers = 0\n", encoding="utf-8")
    for arguments in (("check", experiment), ("run", experiment, "--out", tmp_path / "run")):
        done = command(*arguments, cwd=tmp_path)
        assert done.code in (0, 1), done.err
        assert not {"\x1b", "\x07"}.intersection(done.out + done.err)
    assert r"\x1b[31ma" in done.out + command("check", experiment, cwd=tmp_path).out


def test_the_log_of_a_run_has_no_escapes(tmp_path):
    folder = RunFolder(tmp_path / "run")
    folder.log(f"site '{RED}a' joins")
    folder.close()
    assert (tmp_path / "run/log.txt").read_text(encoding="utf-8").endswith("site '\\x1b[31ma' joins\n")
