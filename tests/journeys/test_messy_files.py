"""Two hospitals with differently written files, from `check` to predictions and a deployment."""

import tomllib

import pytest

from command_line import command

TEXT = """
name = "messy"

[server]
test = "held.csv"

[[sites]]
name = "north"
data = "north.csv"
label = "dx"

[[sites]]
name = "south"
data = "south.csv"
label = "dx"
read = { encoding = "cp1252", thousands = "." }

[model]
hidden = [4]

[method]
name = "fedavg"
rounds = 2
steps = 2

[run]
workers = 0
"""


def rows(decimal, separator, n=24):
    lines = [separator.join(("größe", "kosten", "dx"))]
    for i in range(n):
        size, cost = f"{1.5 + i / 100:.2f}".replace(".", decimal), f"{1000 + 50 * i}"
        if decimal == ",":
            cost = f"{cost[0]}.{cost[1:]}"
        lines.append(separator.join((size, cost, "leicht" if i % 2 else "schwer")))
    return "\n".join(lines) + "\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("messy")
    (folder / "messy.toml").write_text(TEXT)
    (folder / "north.csv").write_text(rows(".", ","))
    (folder / "south.csv").write_bytes(rows(",", ";").encode("cp1252"))
    (folder / "held.csv").write_bytes(rows(",", "\t").encode("utf-16"))
    (folder / "new.csv").write_bytes(rows(",", ";").encode("cp1252"))
    return folder


def test_check_says_how_each_file_was_read(folder):
    done = command("check", "messy.toml", cwd=folder)
    assert "read as ','-separated UTF-8 text\n" in done.out
    assert "read as ';'-separated cp1252 text with decimal commas and thousands grouped by '.'\n" in done.out
    assert "note: server.test: read as tab-separated UTF-16 text with decimal commas" in done.out
    assert "warning: held.csv, line 2, column 'kosten': '1.000' was taken for 1000" in done.out
    assert done.code == 1
    done = command("check", "messy.toml", "--set", 'server.read={ thousands = "." }', cwd=folder)
    assert (done.code, done.out.splitlines()[-1]) == (0, "sound")
    own = command("check", "messy.toml", "--site", "south", cwd=folder)
    assert "read as ';'-separated cp1252" in own.out


def test_predictions_of_a_file_that_is_written_otherwise(folder):
    assert command("run", "messy.toml", "--out", "run", cwd=folder).code == 0
    done = command("predict", "run", "new.csv", "--out", "a.csv", cwd=folder)
    assert "note: read as ';'-separated cp1252 text with decimal commas" in done.out
    assert "was taken for 1000" in done.out
    assert command("predict", "run", "north.csv", "--out", "b.csv", cwd=folder).out.startswith(
        "predictions for 24 rows"
    )
    assert (folder / "a.csv").read_text() == (folder / "b.csv").read_text()
    told = command("predict", "run", "new.csv", "--read", '{ encoding = "cp1252", thousands = "." }', cwd=folder)
    assert "was taken" not in told.out
    wrong = command("predict", "run", "new.csv", "--read", "{ decimal = ';' }", cwd=folder)
    assert (wrong.code, wrong.err) == (2, "error: --read: decimal is ';'; known: ., ,\n")
    wrong = command("predict", "run", "new.csv", "--read", "decimal", cwd=folder)
    assert "--read takes a table such as '{ separator = \";\", decimal = \",\" }', not 'decimal'" in wrong.err


def test_a_deployed_site_has_its_own_reading_only(folder):
    done = command("deploy", "messy.toml", "deployed", cwd=folder)
    assert done.code == 0, done.err
    for site, read in (("north", None), ("south", {"encoding": "cp1252", "thousands": "."})):
        (section,) = tomllib.loads((folder / f"deployed/sites/{site}/site.toml").read_text())["sites"]
        assert section.get("read") == read
    alone = command("deploy", "messy.toml", "deployed/sites/south", "--site", "south", cwd=folder)
    assert "labels.classes is needed" in alone.err


@pytest.mark.parametrize(
    ("read", "message"),
    [
        ('{ separator = ";;" }', "read.separator is ';;', but should be of at most 1 letter"),
        ('{ decimal = ",", thousands = "," }', "decimal and thousands are both ','"),
        ('{ encoding = "ascii-art" }', "Python knows no text encoding 'ascii-art'"),
        ('{ encoding = "zlib" }', "Python knows no text encoding 'zlib'"),
        ('{ seperator = ";" }', "did you mean 'separator'?"),
        ('{ sheet = "one" }', "site 'south': read.sheet has no effect on 'south.csv'; leave it out"),
    ],
)
def test_wrong_readings_are_named(folder, read, message):
    text = TEXT.replace('{ encoding = "cp1252", thousands = "." }', read)
    (folder / "wrong.toml").write_text(text)
    done = command("check", "wrong.toml", cwd=folder)
    assert (done.code, message in done.err) == (2, True), done.err
