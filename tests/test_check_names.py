"""`fedaccord check` on names that files write in several ways: its findings, and the lines that mend them."""

import re

import numpy as np
import pytest

from command_line import command, write
from fedaccord.checks.federation import check_experiment_data, check_own_data
from fedaccord.checks.names import best_name, closest_names, merged
from fedaccord.config import load_experiment

HEAD = 'name = "names"\n'


def table(*labels, sexes=("f", "m"), times=4, more="x"):
    rows = [f"{i % 7},{sexes[i % len(sexes)]},{more},{label}\n" for i, label in enumerate(labels * times)]
    return "age,sex,ward,dx\n" + "".join(rows)


class Folder:
    """A federation in a folder whose file can be mended by pasting lines."""

    def __init__(self, folder, **tables):
        self.folder, self.parts = folder, {"": HEAD, "labels": "[labels]\n", "features": "[features]\n"}
        for name, text in tables.items():
            (folder / f"{name}.csv").write_text(text)
            self.parts[name] = f'[[sites]]\nname = "{name}"\ndata = "{name}.csv"\nlabel = "dx"\ntest = 0\n'

    @property
    def file(self):
        return write(self.folder, "\n".join(self.parts.values()))

    def report(self):
        return check_experiment_data(*load_experiment(self.file))

    def found(self):
        """Return the findings on names: in each part of the file, the line to paste."""
        report, lines = self.report(), {}
        for where, findings in [(site.name, site.findings) for site in report.sites] + [("", report.findings)]:
            for finding in findings:
                if pasted := re.search(r"under (\S+).*:\n((?:synonyms|missing) = .*)", finding.text):
                    lines[where or pasted[1].strip("[]")] = pasted[2]
        return lines

    def paste(self, lines):
        for part, line in lines.items():
            kept = [old for old in self.parts[part].splitlines() if not old.startswith(line.split(" = ")[0])]
            self.parts[part] = "\n".join([*kept, line, ""])
        return self


class TestLabels:
    def test_within_a_site_and_between_sites(self, tmp_path):
        north = table("mild", "Mild", "mild", "grave")
        both = Folder(tmp_path, north=north, south=table("MILD", "Grave!", "Graves"), west=table("mild", "grave"))
        lines = both.found()
        assert lines == {
            "north": 'synonyms = { mild = ["Mild"] }',
            "south": 'synonyms = { "Grave!" = ["Graves"] }',
            "labels": 'synonyms = { grave = ["Grave!"], mild = ["MILD"] }',
        }
        assert both.report().exit_code == 1
        assert both.paste(lines).found() == {}
        report = both.report()
        assert (report.exit_code, list(report.coverage)) == (0, ["grave", "mild"])

    def test_a_site_reads_of_its_own_names_only(self, tmp_path):
        both = Folder(tmp_path, north=table("mild", "Mild", "grave"), south=table("MILD", "secret"))
        (found,) = check_own_data(*load_experiment(both.file), "north").findings
        assert "synonyms = " in found.text
        done = command("check", both.file, "--site", "north", cwd=tmp_path)
        assert (done.code, "MILD" in done.out, "secret" in done.out) == (1, False, False)
        assert all("MILD" not in finding.text for site in both.report().sites for finding in site.findings)

    def test_yes_and_no(self, tmp_path):
        three = Folder(tmp_path, a=table("yes", "no"), b=table("1", "0"), c=table("True", "False"))
        lines = three.found()
        assert lines == {"labels": 'synonyms = { no = ["0", "False"], yes = ["1", "True"] }'}
        assert three.paste(lines).report().exit_code == 0

    @pytest.mark.parametrize(
        "labels",
        [("1", "2", "10"), ("A1", "A2"), ("grade 1", "grade 2"), ("C", "C++"), ("0", "1", "2"), ("HER2+", "HER2-")],
    )
    def test_codes_are_left_alone(self, tmp_path, labels):
        assert Folder(tmp_path, a=table(*labels), b=table(*labels)).report().exit_code == 0

    def test_names_that_are_different(self, tmp_path):
        """Listing the labels says that they are meant."""
        one = Folder(tmp_path, a=table("all", "ALL"))
        assert one.found() == {"a": 'synonyms = { all = ["ALL"] }'}
        one.parts["labels"] = '[labels]\nclasses = ["all", "ALL"]\n'
        assert one.found() == {}

    def test_declared_classes_and_words_that_are_not_among_them(self, tmp_path):
        one = Folder(tmp_path, a=table("mild", "Mild", "graev", "grave", "other"), b=table("mild", "grave"))
        one.parts["labels"] = '[labels]\nclasses = ["mild", "grave"]\n'
        report = one.report()
        assert report.findings[0].text == (
            "12 cells cannot be read: a.csv, line 3 and 3 more, column 'dx': 'Mild' is not one of the labels; did you "
            "mean 'mild'?; a.csv, line 4 and 3 more, column 'dx': 'graev' is not one of the labels; did you mean "
            "'grave'?; a.csv, line 6 and 3 more, column 'dx': 'other' is not one of the labels; known: mild, grave"
        )
        assert one.found() == {"a": 'synonyms = { mild = ["Mild"], grave = ["graev"] }'}
        one.paste(one.found() | {"a": 'synonyms = { mild = ["Mild", "other"], grave = ["graev"] }'})
        assert one.report().exit_code == 0

    def test_coarse_names_of_a_site(self, tmp_path):
        one = Folder(tmp_path, a=table("mild", "grave"), b=table("ill", "ILL", "fine"))
        one.parts["labels"] = '[labels]\nclasses = ["mild", "grave"]\n'
        one.parts["b"] += 'view = { kind = "coarse", correspondence = { ill = ["grave"], fine = ["mild"] } }\n'
        assert one.found() == {"b": 'synonyms = { ill = ["ILL"] }'}
        assert one.paste(one.found()).report().exit_code == 0

    def test_classes_of_a_correspondence_have_the_same_names(self, tmp_path):
        one = Folder(tmp_path, a=table("None", "mild", "MILD"), b=table("none", "mild"), c=table("well", "ill"))
        one.parts["c"] += 'view = { kind = "coarse", correspondence = { well = ["None"], ill = ["Mild"] } }\n'
        lines = one.found()
        assert lines == {
            "a": 'synonyms = { mild = ["MILD"] }',
            "labels": 'synonyms = { mild = ["Mild"], none = ["None"] }',
        }
        report = one.paste(lines).report()
        assert (report.exit_code, list(report.coverage)) == (0, ["mild", "none"])
        assert report.coverage["none"] == {"a": "exact", "b": "exact", "c": "coarse"}

    def test_codes_that_no_other_site_has(self, tmp_path):
        two = Folder(tmp_path, a=table("0", "1", "2"), b=table("none", "mild", "grave"))
        line = 'synonyms = { grave = ["..."], mild = ["..."], none = ["..."] }'
        assert (two.found(), two.report().exit_code) == ({"sites": line}, 1)
        (found,) = two.report().findings
        assert found.text.startswith(
            "site 'a' has no label in common with any other site: '0' (4), '1' (4), '2' (4). If these are its words "
            "for the others' labels, put this line under [[sites]] of 'a', with its words in place of the dots:"
        )
        two.parts["a"] += 'synonyms = { none = ["0"], mild = ["1"], grave = ["2"] }\n'
        assert two.report().exit_code == 0
        own = Folder(tmp_path, a=table("x", "y"), b=table("u", "v"))
        own.parts["b"] += 'view = { known = "own" }\n'
        own.parts["a"] += 'view = { known = ["x", "y"] }\n'
        assert not [finding for finding in own.report().findings if "in common" in finding.text]

    @pytest.mark.parametrize(("view", "mark"), [("exact", "|"), ("candidates", ";"), ("tags", ","), ("exact", "/")])
    def test_cells_of_several_names_that_are_read_as_one(self, tmp_path, view, mark):
        one = Folder(tmp_path, a=table(f'"mild{mark} grave"', "mild", "grave"))
        one.parts["a"] += f'view = {{ kind = "{view}" }}\n'
        (found,) = one.report().sites[0].findings
        assert found.text.startswith(
            f"'mild{mark} grave' (4) is read as one label, but made of other names: 'grave', 'mild'. "
        )

    def test_the_name_is_plainly_written_unless_that_is_rare(self):
        assert best_name(["MILD", "Mild", "mild"], (), {"MILD": 31, "Mild": 17, "mild": 20}) == "mild"
        assert best_name(["AML", "aml"], (), {"AML": 500, "aml": 3}) == "AML"
        assert best_name(["AML", "aml"], ["aml"], {"AML": 500, "aml": 3}) == "aml"
        assert best_name(["0", "No"], (), {"0": 90, "No": 10}) == "No"

    @pytest.mark.parametrize(("kind", "mark"), [("candidates", "|"), ("tags", ";")])
    def test_cells_of_several_names(self, tmp_path, kind, mark):
        one = Folder(tmp_path, a=table(f"mild{mark}grave", "Mild", "grave"))
        one.parts["a"] += f'view = {{ kind = "{kind}" }}\n'
        lines = one.found()
        assert lines == {"a": 'synonyms = { mild = ["Mild"] }'}
        assert one.paste(lines).found() == {}

    def test_a_line_that_is_there_already_is_repeated(self, tmp_path):
        one = Folder(tmp_path, a=table("mild", "light", "MILD", "grave"))
        one.parts["a"] += 'synonyms = { mild = ["light"] }\n'
        assert one.found() == {"a": 'synonyms = { mild = ["light", "MILD"] }'}
        assert "replace the line 'synonyms' under [[sites]] of 'a' by:" in one.report().sites[0].findings[0].text
        assert one.paste(one.found()).report().exit_code == 0
        assert merged({"Mild": ["m"], "x": ["y"]}, {"mild": ["Mild"]}) == {"x": ["y"], "mild": ["Mild", "m"]}

    def test_labels_called_like_missing_values(self, tmp_path):
        two = Folder(tmp_path, a=table("None", "ill", ""), b=table("NA", "ill"))
        (noted,) = two.report().findings
        assert (noted.level, two.found()) == ("note", {"labels": 'missing = ["None", "NA"]'})
        done = command("check", two.file, cwd=tmp_path)
        assert (done.code, "cells taken for 'not annotated': (empty) 4" in done.out) == (0, True)
        (own,) = check_own_data(*load_experiment(two.file), "b").findings
        assert own.text.endswith('missing = ["NA"]')
        two.paste({"labels": 'missing = ["NA"]'})
        assert "missing" not in two.found()
        assert "cells taken for 'not annotated': NA 4" in command("check", two.file, cwd=tmp_path).out

    @pytest.mark.parametrize("marked", [{}, {"is_test": np.arange(12) % 3 == 0}])
    def test_arrays_with_words_that_are_no_declared_classes(self, tmp_path, marked):
        y, names = np.arange(12) % 3, ["Mild", "grave", "other"]
        np.savez(tmp_path / "a.npz", x=np.ones((12, 2)) * y[:, None], y=y, label_names=names, **marked)
        labels = '[labels]\nclasses = ["mild", "grave"]\n'
        site = '[[sites]]\nname = "a"\ndata = "a.npz"\ntest = 0\n'
        report = check_experiment_data(*load_experiment(write(tmp_path, HEAD + labels + site)))
        assert any(text.text.endswith('\nsynonyms = { mild = ["Mild"] }') for text in report.sites[0].findings)
        errors = " ".join(finding.text for finding in report.findings if finding.level == "error")
        assert "'Mild' is not one of the labels here; did you mean 'mild'?" in errors
        assert "'other' is not one of the labels here; known: mild, grave" in errors
        done = command("run", tmp_path / "experiment.toml", cwd=tmp_path)
        assert (done.code, "is not one of the labels here" in done.err) == (2, True)

    def test_arrays_and_data_sets(self, tmp_path):
        y = np.arange(12) % 3
        np.savez(tmp_path / "a.npz", x=np.ones((12, 2)) * y[:, None], y=y, label_names=["mild", "Mild", "grave"])
        site = '[[sites]]\nname = "a"\ndata = "a.npz"\ntest = 0\n'
        (found,) = check_experiment_data(*load_experiment(write(tmp_path, HEAD + site))).sites[0].findings
        assert '\nsynonyms = { mild = ["Mild"] }\nIf they are different, list all labels' in found.text
        data = '[data]\ndataset = "a.npz"\npartition = { kind = "iid", sites = 1 }\n'
        (found,) = check_experiment_data(*load_experiment(write(tmp_path, HEAD + data))).findings
        assert 'under [labels]:\nsynonyms = { mild = ["Mild"] }' in found.text
        mended = HEAD + '[labels]\nsynonyms = { mild = ["Mild"] }\n' + data
        assert check_experiment_data(*load_experiment(write(tmp_path, mended))).exit_code == 0


class TestFeatures:
    def test_abbreviations_are_found_and_mended(self, tmp_path):
        north, south = table("a", "b", sexes=("M", "F")), table("a", "b", sexes=("male", "female", "Female"))
        two = Folder(tmp_path, north=north, south=south)
        lines = two.found()
        assert lines == {"features": 'synonyms = { sex = { female = ["F", "Female"], male = ["M"] } }'}
        assert two.paste(lines).report().exit_code == 0
        assert ["sex", "category, 2 values"] in [[use.name, use.taken_as] for use in two.report().columns]

    def test_numbers_at_one_site_and_words_at_another(self, tmp_path):
        two = Folder(tmp_path, a=table("a", "b", sexes=("yes", "no")), b=table("a", "b", sexes=("1", "0")))
        assert two.report().exit_code == 2
        assert two.found() == {"features": 'synonyms = { sex = { no = ["0"], yes = ["1"] } }'}
        assert two.paste(two.found()).report().exit_code == 0

    def test_declared_values(self, tmp_path):
        one = Folder(tmp_path, a=table("a", "b", sexes=("M", "female")))
        one.parts["features"] += 'ignore = ["age"]\ncategories = { sex = ["male", "female"], ward = ["x"] }\n'
        one.parts["features"] = one.parts["features"].replace('ignore = ["age"]\n', "")
        assert one.report().exit_code == 2
        assert one.found() == {"features": 'synonyms = { sex = { male = ["M"] } }'}
        assert one.paste(one.found()).report().exit_code == 0

    @pytest.mark.parametrize("words", [("A1", "A2"), ("1x", "10x"), ("T", "M", "F"), ("stage I", "stage II")])
    def test_codes_are_left_alone(self, tmp_path, words):
        assert Folder(tmp_path, a=table("a", "b", sexes=words)).report().exit_code == 0

    def test_synonyms_of_a_column_that_is_no_feature_have_no_effect(self, tmp_path):
        one = Folder(tmp_path, a=table("a", "b", sexes=("M", "F")))
        one.parts["features"] += 'synonyms = { sex = { male = ["M"] } }\nnumbers = ["age"]\n'
        (found,) = [finding.text for finding in one.report().findings]
        assert found == "features.synonyms has no effect on 'sex', which the model does not use"

    def test_a_prediction_knows_them(self, tmp_path):
        two = Folder(tmp_path, a=table("a", "b", sexes=("M", "F")), b=table("a", "b", sexes=("male", "female")))
        two.parts["more"] = '[method]\nname = "fedavg"\nrounds = 1\n[run]\nworkers = 0\n'
        assert command("run", two.paste(two.found()).file, cwd=tmp_path).code == 0
        for name, sexes in {"short": ("M", "F"), "long": ("male", "female")}.items():
            (tmp_path / f"{name}.csv").write_text(table("a", "b", sexes=sexes))
            done = command("predict", "runs/names", f"{name}.csv", "--out", f"{name}-out.csv", cwd=tmp_path)
            assert (done.code, done.err) == (0, "")
        assert (tmp_path / "short-out.csv").read_text() == (tmp_path / "long-out.csv").read_text()

    @pytest.mark.parametrize(
        ("synonyms", "message"),
        [
            ('{ sx = { male = ["M"] } }', "features.synonyms: no site has a column 'sx'; did you mean 'sex'?"),
            (
                '{ sex = { male = ["M"], man = ["M"] } }',
                "features: column 'sex': synonyms: 'M' stands for both",
            ),
        ],
    )
    def test_mistakes(self, tmp_path, synonyms, message):
        one = Folder(tmp_path, a=table("a", "b"))
        one.parts["features"] += f"synonyms = {synonyms}\n"
        done = command("check", one.file, cwd=tmp_path)
        assert (done.code, message in done.err) == (2, True), done.err


class TestColumns:
    def test_every_column_is_named_with_its_use(self, tmp_path):
        one = Folder(tmp_path, a=table("a", "b"), b=table("a", "b"))
        one.parts["features"] += 'ignore = ["ward"]\n'
        one.parts["b"] += 'sensitive = "sex"\n'
        uses = {use.name: (use.taken_as, use.why) for use in one.report().columns}
        assert uses == {
            "age": ("number", "its cells are numbers"),
            "sex": ("sensitive", "declared by 'b'"),
            "ward": ("ignored", "in features.ignore"),
            "dx": ("label", "declared by every site that has it"),
        }
        one.parts["features"] = '[features]\nnumbers = ["age"]\n'
        uses = {use.name: (use.taken_as, use.why) for use in one.report().columns}
        assert (uses["age"], uses["ward"]) == (
            ("number", "in features.numbers"),
            ("ignored", "not named in [features]"),
        )

    def test_all_shortens_no_list(self, tmp_path):
        names = [f"c{number:02d}" for number in range(40)]
        rows = [",".join([*map(str, range(40)), f"label{row % 25:02d}"]) for row in range(50)]
        (tmp_path / "a.csv").write_text("\n".join([",".join([*names, "dx"]), *rows]) + "\n")
        site = '[[sites]]\nname = "a"\ndata = "a.csv"\nlabel = "dx"\ntest = 0\n'
        file = write(tmp_path, HEAD + '[labels]\nclasses = ["x", "y"]\n' + site)
        cut, full = (command("check", file, *option, cwd=tmp_path).out for option in ((), ("--all",)))
        assert ("and 11 more; --all shows them" in cut, "; and 15 more" in cut) == (True, True)
        assert "more" not in full
        assert "a.csv, line 2, 27, column 'dx': 'label00' is not one of the labels" in full
        assert all(name in full for name in [*names, *(f"'label{number:02d}'" for number in range(25))])


class TestSitesThatKnowOneLabel:
    def text(self, folder, softmax="", **others):
        parts = Folder(folder, a=table("mild"), b=table("grave"), **others).parts
        for name, label in {"a": "mild", "b": "grave"}.items():
            parts[name] += f'view = {{ kind = "exact", known = ["{label}"] }}\n'
        return "\n".join([*parts.values(), f'[method]\nname = "accord"\n{softmax}\n'])

    def findings(self, folder, softmax=""):
        return check_experiment_data(*load_experiment(write(folder, self.text(folder, softmax)))).findings

    def test_they_train_nothing_unless_the_softmax_is_full(self, tmp_path):
        (found,) = [f.text for f in self.findings(tmp_path) if "knows one label only" in f.text]
        assert found == (
            "every site knows one label only: the softmax over one known label is always 1 and its loss 0, so the "
            'model stays as it was initialised; method.softmax = "full" compares it with all labels, which is right '
            "if no row there has another label"
        )
        full = [f.text for f in self.findings(tmp_path, 'softmax = "full"')]
        assert not [text for text in full if "knows one label only" in text or "no site connects" in text]

    def test_they_are_named_beside_a_site_that_knows_more(self, tmp_path):
        file = write(tmp_path, self.text(tmp_path, c=table("mild", "grave")))
        found = [finding.text for finding in check_experiment_data(*load_experiment(file)).findings]
        (warned,) = [text for text in found if "one label only" in text]
        assert warned.startswith("sites 'a', 'b' know one label only: ")
        assert "so nothing is learned there; " in warned


def test_unknown_words_and_their_closest_names():
    allowed = ["mild", "grave", "A1", "yes"]
    assert closest_names(["MILD", "gravee", "A2", "1", "x", "mild"], allowed) == {"mild": ["MILD"], "grave": ["gravee"]}
