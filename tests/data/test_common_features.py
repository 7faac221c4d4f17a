"""Which feature columns sites have in common: every difference between all sites is listed in one pass."""

import pandas as pd
import pytest

from command_line import command
from fedaccord.config import parse_experiment
from fedaccord.data.common_features import describe_differences
from fedaccord.errors import DataError
from fedaccord.experiment import load_federation, read_federation


def test_the_same_columns():
    assert describe_differences({"a": ["x", "y"], "b": ["y", "x"]}) is None


def test_every_difference_between_all_sites():
    columns = {
        "north": ["age", "bp", "sex"],
        "south": ["Age", "bp", "sex"],
        "east": ["age", "sex", "room", "ward"],
        "west": ["age", "blood pressure", "sex"],
    }
    assert describe_differences(columns, ["id"]) == (
        "the sites do not have the same feature columns: site 'south' lacks 'age' (is its 'Age' the same?); "
        "site 'east' lacks 'bp' and also has 'room', 'ward'; site 'west' lacks 'bp' and also has 'blood pressure'; "
        "rename columns in the files, or leave them out with "
        'ignore = ["id", "age", "bp", "Age", "room", "ward", "blood pressure"] in [features]'
    )


def test_in_a_tie_the_first_site_is_the_measure():
    said = describe_differences({"a": ["x", "y"], "b": ["x", "z"]})
    assert "columns: site 'b' lacks 'y' and also has 'z'; rename" in said


def experiment(*sites, more=""):
    sections = "".join(f'\n[[sites]]\nname = "{name}"\ndata = "{name}.csv"\nlabel = "dx"\ntest = 0\n' for name in sites)
    return '[labels]\nclasses = ["a", "b"]\n' + more + sections


@pytest.fixture
def files(tmp_path):
    def write(**texts):
        for name, text in texts.items():
            (tmp_path / f"{name}.csv").write_text(text)
        return tmp_path

    return write


def test_one_check_finds_columns_kinds_dates_and_labels(files):
    folder = files(
        x="age,size,on,dx\n30,1,2021-03-04,a\n40,2,2021-03-05,b\n",
        y="Age,size,on,dx\n30,big,04.03.2021,a\n40,small,05.03.2021,c\n",
        z="age,size,on,room,dx\n30,1,3,7,a\n40,2,4,8,b\n",
    )
    (folder / "all.toml").write_text(experiment("x", "y", "z"))
    done = command("check", "all.toml", cwd=folder)
    errors = [line for line in done.out.splitlines() if line.startswith("error: ")]
    assert done.code == 2
    assert errors[0].startswith(
        "error: the sites do not have the same feature columns: "
        "site 'y' lacks 'age' (is its 'Age' the same?); site 'z' also has 'room'; rename"
    )
    assert errors[1] == (
        "error: column 'on' holds dates at sites 'x', 'y' (x.csv, line 2, column 'on': '2021-03-04'), and a date is "
        'not a feature; leave it out with ignore = ["on"] in [features], or replace it in the files by a number, such '
        "as an age or the days since a fixed day"
    )
    assert errors[2].startswith("error: column 'size' holds numbers at sites 'x', 'z' but words at site 'y';")
    assert "'c' is not one of the labels" in errors[3]
    assert len(errors) == 4


def test_a_run_refuses_what_differs(files):
    folder = files(x="age,dx\n30,a\n", y="Age,dx\n30,b\n")
    with pytest.raises(DataError, match=r"site 'y' lacks 'age' \(is its 'Age' the same\?\)"):
        load_federation(parse_experiment(experiment("x", "y")), folder)


def test_columns_that_the_file_asks_for_and_several_sites_lack(files):
    folder = files(x="age,dx\n30,a\n", y="Age,bp,dx\n30,1,b\n", z="age,bp,dx\n1,2,a\n")
    text = experiment("x", "y", "z", more='[features]\nnumbers = ["age", "bp"]\n')
    (flaw,) = read_federation(parse_experiment(text), folder).flaws
    assert str(flaw.error) == (
        "'x.csv' has no column 'bp'; known: age, dx; 'y.csv' has no column 'age'; did you mean 'Age'?"
    )


def test_all_files_that_cannot_be_read_are_named(files):
    folder = files(x="age,dx\n30\n", y="age,dxx\n30,b\n", z="age,dx\n1,a\n")
    with pytest.raises(DataError) as caught:
        load_federation(parse_experiment(experiment("x", "y", "z", "w")), folder)
    said = str(caught.value)
    assert said.startswith("the files of 3 sites cannot be used: site 'w': the file '")
    assert "line 2 has 1 cells" in said
    assert "'y.csv' has no column 'dxx'" not in said
    assert "'y.csv' has no column 'dx'; did you mean 'dxx'?" in said


def test_a_file_without_any_feature(files):
    folder = files(x="dx\na\nb\n", y="age,dx\n1,a\n")
    with pytest.raises(
        DataError, match=r"'x.csv' has a single column, 'dx', so site 'x' has no features; if its cells"
    ):
        load_federation(parse_experiment(experiment("x", "y")), folder)


def test_dates_in_parquet_and_dates_that_are_declared_as_words(files):
    folder = files()
    frame = pd.DataFrame({"on": pd.to_datetime(["2021-03-04", None]), "age": [1, 2], "dx": ["a", "b"]})
    frame.to_parquet(folder / "x.parquet")
    text = experiment("x").replace("x.csv", "x.parquet")
    with pytest.raises(DataError, match=r"x.parquet, row 1, column 'on': '2021-03-04 00:00:00'\), and a date is not"):
        load_federation(parse_experiment(text), folder)
    words = experiment("x", more='[features]\ncategories = ["on"]\n').replace("x.csv", "x.parquet")
    assert load_federation(parse_experiment(words), folder).features.names == ["on = 2021-03-04 00:00:00"]


def test_numbers_read_as_words_are_suspected_at_their_site(files):
    rows = "".join(f"{40 + n} kg,{n},{'ab'[n % 2]}\n" for n in range(6))
    folder = files(x=f"weight,age,dx\n{rows}", y=f"weight,age,dx\n{rows.replace(' kg', ' kilos')}")
    data = read_federation(parse_experiment(experiment("x", "y")), folder)
    assert data.doubts["x"] == [
        "column 'weight' is read as words, although 6 of 6 cells hold numbers: '40 kg' (1 cell), '41 kg' (1 cell), "
        "'42 kg' (1 cell), '43 kg' (1 cell) and 2 more; to find the wrong cells put this line under "
        '[features]:\nnumbers = ["weight", "age"]\nIf it is a column of words, name it in categories'
    ]
    assert "kilos" in data.doubts["y"][0]
    two = files(x="weight,size,dx\n" + "".join(f"{n} kg,{n} cm,{'ab'[n % 2]}\n" for n in range(6)))
    lines = [doubt.split("\n", 1)[1] for doubt in read_federation(parse_experiment(experiment("x")), two).doubts["x"]]
    assert lines == ['numbers = ["weight", "size"]\nIf it is a column of words, name it in categories'] * 2
    mixed = files(x='size;dx\n"1,5";a\n1.5;b\n"2,5";a\n')
    doubts = read_federation(parse_experiment(experiment("x")), mixed).doubts["x"]
    assert doubts[0].startswith("x.csv: numbers are written with a comma, as in '1,5'")
    assert doubts[1].endswith('for decimal commas add read = { decimal = "," } to the site')


def test_words_among_numbers_come_with_the_line_that_declares_them_missing(files):
    rows = "".join(f"{n},{n},{'ab'[n % 2]}\n" for n in range(30))
    folder = files(x=f"crp,age,dx\nn.d.,1,a\n{rows}", y="crp,age,dx\n" + "<5,3 y,a\n" * 3 + rows)
    line = 'missing = ["", "?", "NA", "N/A", "nan", "NaN", "null", "None", "n.d.", "<5"]'
    (noted,) = read_federation(parse_experiment(experiment("x", "y")), folder).notes
    assert noted == f"if 'n.d.', '<5' mean that a value is missing, put this line under [features]:\n{line}"
    mended = read_federation(parse_experiment(experiment("x", "y", more=f"[features]\n{line}\n")), folder)
    assert "'3 y' is not a number" in str(mended.flaws[0].error)
    assert mended.notes == []
