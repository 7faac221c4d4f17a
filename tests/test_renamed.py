"""A key with a new name: an old file is refused in one sentence, and `fedaccord upgrade` rewrites nothing but names."""

from __future__ import annotations

import json
import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from command_line import SMALL, command, write
from fedaccord import renamed
from fedaccord.config import check_experiment, load_experiment
from fedaccord.errors import ConfigError
from fedaccord.renamed import Rename, find_keys, upgrade_text
from fedaccord.runs.checkpoint import config_digest

OLD = """# the first comment stays
name = 'old' # hidden = "no key"

[method]   # so does this one
turns = 2  # was renamed
name  = "plain"
steps = 2

[model]
hidden = [
  16,  # an array over lines, with turns = in a comment
]

[data]
dataset = "digits"
samples = 200
partition = { type = "iid", sites = 2 }
views.site-0 = { kind = "exact", seen = ["0", "1"] }
views."site-1" = { kind = "exact", "seen" = ["2", '''turns = 1'''] }

[run]
workers = 0
"""


@pytest.fixture
def renames(monkeypatch):
    monkeypatch.setattr(
        renamed,
        "RENAMES",
        [
            Rename("method.turns", "method.rounds", since="0.2"),
            Rename("method.name", "method.name", since="0.2", values={"plain": "fedavg"}),
            Rename("data.partition.type", "data.partition.kind", since="0.2"),
            Rename("data.views.*.seen", "data.views.*.known", since="0.2"),
            Rename("sites.column", "sites.label", since="0.2"),
        ],
    )


def test_the_table_keeps_keys_in_their_tables_and_new_names_are_known():
    for rename in renamed.RENAMES:
        assert rename.old.split(".")[:-1] == rename.new.split(".")[:-1]
        assert rename.old != rename.new or rename.values
        assert rename.since


def test_the_old_names_of_standardisation_keep_their_meaning(tmp_path):
    text = 'features.scale = "none"\n' + SMALL.replace("[data]", '[data]\nstandardise = "auto"')
    path = write(tmp_path, text)
    assert command("upgrade", path.name, cwd=tmp_path).code == 0
    experiment, _ = load_experiment(path)
    assert (experiment.data.standardise, experiment.features.standardise) == ("site", "none")


@pytest.mark.usefixtures("renames")
class TestOldFile:
    def test_it_is_refused_in_a_sentence_that_says_what_to_run(self, tmp_path):
        path = write(tmp_path, SMALL.replace("rounds", "turns"))
        with pytest.raises(ConfigError) as error:
            load_experiment(path)
        assert str(error.value) == f"{path}: 'method.turns' is now 'method.rounds'; run: fedaccord upgrade {path}"

    def test_so_is_an_old_value(self, tmp_path):
        path = write(tmp_path, SMALL.replace("fedavg", "plain"))
        with pytest.raises(ConfigError, match=r"method.name = 'plain' is now 'fedavg'; run: fedaccord upgrade"):
            load_experiment(path)

    def test_an_old_name_that_is_not_in_a_file_needs_no_upgrade(self, tmp_path):
        with pytest.raises(ConfigError) as error:
            load_experiment(write(tmp_path, SMALL), ["method.turns=3"])
        assert str(error.value).endswith("'method.turns' is now 'method.rounds'")
        with pytest.raises(ConfigError, match=r"'method.turns' is now 'method.rounds'$"):
            check_experiment({"method": {"turns": 3}})

    def test_only_names_change(self):
        new, changes = upgrade_text(OLD, "old.toml")
        expected = OLD.replace("turns = 2 ", "rounds = 2 ").replace('"plain"', '"fedavg"').replace("{ type", "{ kind")
        expected = expected.replace(" seen ", " known ").replace('"seen"', "known")
        assert new == expected
        assert [change.line for change in changes] == [5, 6, 17, 18, 19]
        assert (changes[0].old, changes[0].new) == ("turns = 2  # was renamed", "rounds = 2  # was renamed")
        assert upgrade_text(new, "old.toml") == (new, [])

    def test_every_site_of_a_list(self):
        text = '[[sites]]\ncolumn = "a"\n[[sites]]\n"column" = "b"\n[sites.view]\ncolumn = 1\n'
        new, _ = upgrade_text(text, "old.toml")
        assert new == '[[sites]]\nlabel = "a"\n[[sites]]\nlabel = "b"\n[sites.view]\ncolumn = 1\n'

    def test_a_table_is_renamed_wherever_it_stands(self, monkeypatch):
        monkeypatch.setattr(renamed, "RENAMES", [Rename("data.parts", "data.views", since="0.2")])
        new, _ = upgrade_text("[data.parts.a]\nx = 1\n[data]\nparts.b.x = 1\n", "old.toml")
        assert new == "[data.views.a]\nx = 1\n[data]\nviews.b.x = 1\n"

    def test_both_names_at_once(self):
        with pytest.raises(ConfigError, match=r"both 'method.turns' and its new name 'method.rounds' are given"):
            upgrade_text("[method]\nturns = 1\nrounds = 2\n", "old.toml")

    def test_a_file_that_is_no_toml(self):
        with pytest.raises(ConfigError, match=r"old.toml is not valid TOML"):
            upgrade_text("[method", "old.toml")


@pytest.mark.usefixtures("renames")
class TestCommand:
    def test_it_writes_in_place_keeps_the_old_text_and_says_what_changed(self, tmp_path):
        path = tmp_path / "old.toml"
        path.write_bytes(OLD.replace("\n", "\r\n").encode())
        done = command("upgrade", "old.toml", cwd=tmp_path)
        assert (done.code, done.err) == (0, "")
        assert "line 5\n- turns = 2  # was renamed" in done.out.replace("\r", "")
        assert "+ rounds = 2  # was renamed" in done.out
        assert done.out.endswith("written: old.toml; as it was: old.toml.bak\n")
        assert (tmp_path / "old.toml.bak").read_bytes() == OLD.replace("\n", "\r\n").encode()
        assert path.read_bytes() == upgrade_text(OLD, "")[0].replace("\n", "\r\n").encode()
        assert load_experiment(path)[0].settings.rounds == 2
        again = command("upgrade", "old.toml", cwd=tmp_path)
        assert (again.code, again.out) == (0, "old.toml: nothing to change\n")

    def test_an_older_backup_is_never_overwritten(self, tmp_path):
        write(tmp_path, OLD, "old.toml")
        write(tmp_path, "precious", "old.toml.bak")
        command("upgrade", "old.toml", cwd=tmp_path)
        assert (tmp_path / "old.toml.bak").read_text() == "precious"
        assert (tmp_path / "old.toml.bak1").read_text() == OLD

    def test_check_writes_nothing(self, tmp_path):
        write(tmp_path, OLD, "old.toml")
        assert command("upgrade", "old.toml", "--check", cwd=tmp_path).code == 1
        assert [path.name for path in tmp_path.iterdir()] == ["old.toml"]
        write(tmp_path, SMALL, "old.toml")
        assert command("upgrade", "old.toml", "--check", cwd=tmp_path).code == 0

    def test_out_leaves_the_file_alone(self, tmp_path):
        write(tmp_path, OLD, "old.toml")
        assert command("upgrade", "old.toml", "--out", "new.toml", cwd=tmp_path).code == 0
        assert (tmp_path / "old.toml").read_text() == OLD
        assert (tmp_path / "new.toml").read_text() == upgrade_text(OLD, "")[0]
        assert sorted(path.name for path in tmp_path.iterdir()) == ["new.toml", "old.toml"]

    def test_a_run_folder_still_knows_its_configuration(self, tmp_path):
        write(tmp_path, OLD, "config.toml")
        write(tmp_path, json.dumps({"run": "abc", "config": config_digest(OLD)}), "run.json")
        assert command("upgrade", "config.toml", cwd=tmp_path).code == 0
        new = (tmp_path / "config.toml").read_text()
        assert json.loads((tmp_path / "run.json").read_text())["config"] == config_digest(new) != config_digest(OLD)

    @pytest.mark.parametrize("arguments", [("no.toml",), ("old.toml", "--out", "no/folder.toml")])
    def test_what_cannot_be_read_or_written(self, arguments, tmp_path):
        write(tmp_path, OLD, "old.toml")
        done = command("upgrade", *arguments, cwd=tmp_path)
        assert (done.code, done.err.count("\n")) == (2, 1)


KEYS = st.from_regex(r"[a-z0-9_-]{1,4}", fullmatch=True) | st.text(st.characters(exclude_categories=["C"]), max_size=4)
SCALARS = st.sampled_from(
    [
        "1",
        "-1.5e3",
        "true",
        '"a # [x] = \\""',
        "'b = {'",
        '"""\nc = 1\n"" "\\"""""',
        "'''d''' # = [",
        "1979-05-27 07:32:00.5",
    ]
).map(lambda text: text.removesuffix(" # = ["))
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[ # [\n" + ",\n".join(items) + "\n]")
        | st.dictionaries(KEYS, inner, max_size=3).map(
            lambda table: (
                "{ " + ", ".join(f"{json.dumps(k, ensure_ascii=False)} = {v}" for k, v in table.items()) + " }"
            )
        )
    ),
    max_leaves=6,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4), st.dictionaries(KEYS, st.dictionaries(KEYS, VALUES, max_size=3)))
def test_keys_are_found_where_tomllib_finds_them(top, tables):
    lines = [f"{json.dumps(key, ensure_ascii=False)} = {value} # x = 1" for key, value in top.items()]
    for name, table in tables.items():
        if name not in top:
            lines += [f"[{json.dumps(name, ensure_ascii=False)}] # [y]"]
            lines += [f"{json.dumps(key, ensure_ascii=False)}={value}" for key, value in table.items()]
    text = "\n".join(lines)
    read = tomllib.loads(text)
    keys = find_keys(text)
    expected = [path for path, _ in renamed._entries(read)]
    assert sorted(key.path for key in keys) == sorted(expected)
    for key in keys:
        if len(key.path) == 1 and key.value is not None:
            assert tomllib.loads(f"value = {text[slice(*key.value)]}")["value"] == read[key.path[0]]
