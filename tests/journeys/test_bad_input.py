"""Every mistake a user can make in what is given to `fedaccord run`: one sentence that says where and what to do.

Each goes through the real command line. The sentence is the only line on stderr, the exit code is 2 (3 where the run
folder cannot be written), there is no traceback, and no run folder is left behind that the next try would trip over.
"""

from __future__ import annotations

import os
import zipfile

import numpy as np
import pytest

from command_line import SMALL, blobs, command, process, write
from fedaccord.data.registry import DATA_VARIABLE

DIGITS = "known: 0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
FRACTION = "method.participation: a fraction up to 1.0 or a whole number of sites, not"


@pytest.fixture(autouse=True)
def no_data_folder(monkeypatch):
    monkeypatch.delenv(DATA_VARIABLE, raising=False)


@pytest.fixture
def mistake(tmp_path):
    """Run an experiment file that is wrong, and return the sentence it gets."""

    def run(text=SMALL, *changes, code=2, arguments=()):
        path = write(tmp_path, text)
        options = [word for change in changes for word in ("--set", change)]
        return sentence(command("run", path.name, *options, *arguments, cwd=tmp_path), tmp_path, code)

    return run


def sentence(outcome, folder, code=2):
    assert outcome.code == code, outcome.err
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("error: ")
    assert "Traceback" not in outcome.err
    assert not (folder / "runs").exists() or not list((folder / "runs").iterdir())
    return lines[0].removeprefix("error: ")


def npz(folder, name="f.npz", n=40, **arrays):
    x, y = blobs(n)
    np.savez(folder / name, **({"x": x, "y": y} | arrays))
    return folder / name


def sites(*entries, also=""):
    """An experiment file of sites with their own files: (name, file, further lines)."""
    text = "".join(f'[[sites]]\nname = "{name}"\ndata = "{file}"\n{more}\n' for name, file, more in entries)
    return text + also + "\n[method]\nrounds = 1\n[run]\nworkers = 0\n"


def test_the_file_these_tests_spoil_is_right(tmp_path):
    done = command("run", write(tmp_path, SMALL), cwd=tmp_path)
    assert (done.code, done.err) == (0, "")


class TestKeysAndValues:
    """Told before torch is loaded."""

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            # unknown keys, at every level
            ("nam=x", "unknown key 'nam'; did you mean 'name'?"),
            ("methods.name=x", "[methods] is not a section; did you mean 'method'?"),
            ("labels.clases=['a']", "unknown key 'labels.clases'; did you mean 'classes'?"),
            ("data.tst=0.3", "unknown key 'data.tst'; did you mean 'test'?"),
            ("data.partition.sits=3", "unknown key 'data.partition.sits'; did you mean 'sites'?"),
            ("data.partition.alpha=3", "unknown key 'data.partition.alpha'; known: kind, sites, stratified"),
            ("data.view.knwn=['1']", "unknown key 'data.view.knwn'; did you mean 'known'?"),
            ("data.views.site-0.knwn=['1']", "unknown key 'data.views.site-0.knwn'; did you mean 'known'?"),
            ("server.tset=x", "unknown key 'server.tset'; did you mean 'test'?"),
            ("model.hiden=[3]", "model: the model 'mlp' has no setting 'hiden': did you mean 'hidden'?"),
            ("method.lrr=1", "unknown key 'method.lrr'; did you mean 'lr'?"),
            ("method.mu=1", "unknown key 'method.mu'; known: rounds, epochs,"),  # another method's
            ("run.workrs=1", "unknown key 'run.workrs'; did you mean 'workers'?"),
            # unknown names
            ("method.name=fedavgg", "method.name: unknown method 'fedavgg'; did you mean 'fedavg'?"),
            ("method.name=3", "method.name: unknown method '3'; known: accord, fedavg,"),
            ("model.name=mpl", "model: unknown model 'mpl': did you mean 'mlp'?"),
            ("model.name=a:b:c", "model: model.name: 'a:b:c' is not of the form 'package.module:name'"),
            ("data.dataset=digit", "data.dataset: there is no data set 'digit' "),
            ("data.view.kind=exat", "data.view.kind is 'exat'; did you mean 'exact'?"),
            ("data.views.site-1.kind=exat", "data.views.site-1.kind is 'exat'; did you mean 'exact'?"),
            ("data.partition.kind=idd", "data.partition.kind is 'idd'; did you mean 'iid'?"),
            ("data.view={kind='candidates',generate='uni'}", "data.view.generate is 'uni'; did you mean 'uniform'?"),
            ("data.standardise=pool", "data.standardise is 'pool'; known: federation, site, none"),
            ("method.prior=alle", "method.prior is 'alle'; did you mean 'all'?"),
            ("method.sites=exakt", "method.sites is 'exakt', but should be 'all' or 'exact' or a list"),
            ("run.device=gpu", 'run.device: "cpu" or "cuda" is needed, not "gpu"'),
            # missing
            ("data.partition={sites=3}", "the key 'data.partition.kind' is missing"),
            ("data.partition.kind=dirichlet", "the key 'data.partition.alpha' is missing"),
            ("data.view={kind='coarse'}", "data.view: a coarse view needs 'correspondence', or 'names' alone"),
            # out of range
            ("data.test=1.0", "data.test is 1.0, but should be below 1"),
            ("data.test=-0.1", "data.test is -0.1, but should be at least 0"),
            ("data.samples=0", "data.samples is 0, but should be at least 1"),
            ("data.partition.sites=0", "data.partition.sites is 0, but should be at least 1"),
            ("data.partition={kind='quantity',sizes=[5,0]}", "data.partition.sizes[1] is 0, but should be at least 1"),
            ("data.partition={kind='quantity',sizes=[]}", "data.partition.sizes is [], but should be of at least 1 "),
            ("data.partition={kind='dirichlet',sites=2,alpha=0}", "data.partition.alpha is 0, but should be above 0"),
            ("data.partition={kind='gamma',sites=2,gamma=1.0}", "data.partition.gamma is 1.0, but should be below 1"),
            ("data.view={kind='candidates',generate='uniform',q=1.5}", "data.view.q is 1.5, but should be at most 1"),
            ("data.view.known=[]", "data.view.known is [], but should be of at least 1 entry or 'own'"),
            ("data.view={kind='coarse',correspondence={}}", "data.view.correspondence is {}, but should be of at "),
            ("labels.classes=[]", "labels.classes is [], but should be of at least 1 entry"),
            ("method.participation=0", f"{FRACTION} 0"),
            ("method.participation=-2", f"{FRACTION} -2"),
            ("method.participation=0.0", f"{FRACTION} 0.0"),
            ("method.participation=1.5", f"{FRACTION} 1.5"),
            ("method.rounds=0", "method.rounds is 0, but should be at least 1"),
            ("method.lr=0", "method.lr is 0, but should be above 0"),
            ("method.lr=inf", "method.lr is inf, but should be a finite number"),
            ("method.weight_decay=nan", "method.weight_decay is nan, but should be a finite number"),
            ("method.momentum=1.0", "method.momentum is 1.0, but should be below 1"),
            ("model.hidden=[0]", "model: the setting 'hidden' of model 'mlp' is [0], but must be a non-empty list of "),
            ("run.workers=-1", "run.workers is -1, but should be at least 0"),
            ("run.deadline=0", "run.deadline is 0, but should be above 0"),
            ("seed=-1", "seed is -1, but should be at least 0"),
            # of another type
            ("seed=zero", "seed is 'zero', but should be a whole number"),
            ("data.test=much", "data.test is 'much', but should be a number"),
            ("data.partition=iid", "data.partition is 'iid', but should be a table"),
            ("data.views={x=3}", "data.views.x is 3, but should be a table"),
            ("data.names=site", "data.names is 'site', but should be a list"),
            ("data.names=['a','']", "data.names[1] is '', but should be of at least 1 letter"),
            ("method=fedavg", "method is 'fedavg', but should be a table"),
            ("model=mlp", "model is 'mlp', but should be a table"),
            ("model.name=3", "model.name is 3, but should be a string"),
            ("model.since=2020-01-01", "model.since is a date or a time; write it in quotes, as text"),
            # names
            ("name=a b", "name: 'a b' should be letters, digits, '.', '_' and '-', and not begin with '.' or '-'"),
            ("name=../up", "name: '../up' should be letters, digits,"),
            ("name='..'", "name: '..' should be letters, digits,"),
            ("data.names=['a','a']", "two sites are named 'a'"),
            ("labels.classes=['a','b','a']", "labels.classes: the label 'a' is named twice"),
            # parts that do not go together
            ("method.epochs=2", "method: give steps or epochs, not both"),
            ("sites=[{name='a',data='a.npz'}]", "both [data] and [[sites]] are given; use [data] to split one data"),
            ("server.unlabelled=0", "server.unlabelled: 0 gives the server no inputs; leave the key out"),
            # at the top of the file
            (
                "training.lr=0.1",
                "[training] is not a section; the method, its learning rate, rounds, epochs and batch ",
            ),
            ("clients=[{name='a'}]", "[clients] is not a section; sites with their own files are [[sites]]"),
            ("rounds=3", "unknown key 'rounds'; it belongs in [method]"),
            ("workers=2", "unknown key 'workers'; it belongs in [run]"),
            ("nmae=x", "unknown key 'nmae'; did you mean 'name'?"),
        ],
    )
    def test_a_wrong_key(self, mistake, change, told):
        assert mistake(SMALL, change).startswith(f"experiment.toml: {told}")

    def test_a_gpu_and_workers(self, mistake):
        told = mistake(SMALL, "run.device=cuda", "run.workers=2")
        assert told == 'experiment.toml: run: workers is 2, but device = "cuda" needs workers = 0'

    def test_a_name_too_long_for_a_folder(self, mistake):
        assert mistake(SMALL, "name=" + "x" * 300).endswith("but should be of at most 100 letters")

    def test_no_sites_at_all(self, mistake):
        told = "experiment.toml: neither [data] nor [[sites]] is given; use [data] to split one data set, or [[sites]]"
        assert mistake("seed = 1\n").startswith(told)

    @pytest.mark.parametrize(
        ("line", "told"),
        [
            ("tst = 0.1", "unknown key 'sites[1].tst'; did you mean 'test'?"),
            ("test = 1.5", "sites[1].test is 1.5, but should be below 1"),
            ('view = { kind = "coarce" }', "sites[1].view.kind is 'coarce'; did you mean 'coarse'?"),
            ('view = { known = "own", labels = 3 }', "unknown key 'sites[1].view.labels'; known: kind, known"),
        ],
    )
    def test_a_wrong_key_of_one_site(self, mistake, line, told):
        assert mistake(sites(("a", "a.npz", ""), ("b", "b.npz", line))) == f"experiment.toml: {told}"

    def test_two_sites_of_one_name(self, mistake):
        told = mistake(sites(("a", "a.npz", ""), ("a", "b.npz", "")))
        assert told == "experiment.toml: two sites are named 'a'"

    def test_a_site_without_its_file(self, mistake):
        assert mistake('[[sites]]\nname = "a"\n') == "experiment.toml: the key 'sites[0].data' is missing"

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ("rounds", "--set takes section.key=value, not 'rounds'"),
            ("=3", "--set takes section.key=value, not '=3'"),
            ("data.names=[a,b]", "--set data.names: [a,b] is not a TOML value"),
            ("name.x=3", "--set name.x: 'name' is not a table"),
        ],
    )
    def test_set_used_wrongly(self, mistake, change, told):
        assert mistake(SMALL, change).startswith(told)


class TestTheFileItself:
    def test_it_is_not_there(self, tmp_path):
        told = sentence(command("run", "none.toml", cwd=tmp_path), tmp_path)
        assert told == "there is no file 'none.toml'"

    def test_a_run_to_resume_that_is_not_there(self, tmp_path):
        told = sentence(command("resume", "none", cwd=tmp_path), tmp_path, code=3)
        assert told == "'none' cannot be resumed: there is no such folder"

    def test_it_is_a_folder(self, tmp_path):
        (tmp_path / "e.toml").mkdir()
        told = sentence(command("run", "e.toml", cwd=tmp_path), tmp_path)
        assert told == "'e.toml' cannot be read: Is a directory"

    def test_it_is_not_text(self, tmp_path):
        (tmp_path / "e.toml").write_bytes(b'name = "\xff\xfe"')
        told = sentence(command("run", "e.toml", cwd=tmp_path), tmp_path)
        assert told == "'e.toml' cannot be read: it is not UTF-8 text"

    def test_it_cannot_be_read(self, tmp_path):
        (tmp_path / "e.toml").symlink_to("/proc/self/mem")  # which even root cannot read from its beginning
        told = sentence(command("run", "e.toml", cwd=tmp_path), tmp_path)
        assert told == "'e.toml' cannot be read: Input/output error"

    def test_it_is_not_toml(self, mistake):
        told = mistake(SMALL + "\n[run\n")
        assert told.startswith("experiment.toml is not valid TOML: ")
        assert "line 21" in told

    def test_a_table_written_twice(self, mistake):
        told = mistake(SMALL + "\n[method]\nlr = 1\n")
        assert told.startswith("experiment.toml is not valid TOML: ")
        assert "method" in told


class TestTheFederation:
    """Mistakes that show when the data is there."""

    @pytest.mark.parametrize(
        ("changes", "told"),
        [
            # labels
            (["data.view.known=['x']"], f"site 'site-0': 'x' is not a label of this federation; {DIGITS}"),
            (["labels.classes=['a','b']"], "labels.classes has 2 names, but 'digits' has 10 labels: 0, 1,"),
            (
                ["data.views.site-1={kind='coarse',correspondence={low=['0','1x']}}"],
                "site 'site-1': correspondence, coarse label 'low': '1x' is not a label of this federation; did you",
            ),
            (
                ["data.view={kind='coarse',correspondence={a={0=0.5},b={0=0.4}}}"],
                "site 'site-0': correspondence: the probabilities given class '0' sum to 0.9, not to 1",
            ),
            (
                ["data.view={kind='coarse',correspondence={a=['0'],b={1=1.0}}}"],
                "site 'site-0': correspondence mixes lists of classes with tables of probabilities; use one form",
            ),
            (
                ["data.view={kind='coarse',correspondence='shap'}"],
                "site 'site-0': the data set names no grouping 'shap'; did you mean 'shape'?",
            ),
            (
                ["data.view={kind='coarse',correspondence={a=[]}}"],
                "site 'site-0': correspondence: the coarse label 'a' maps to no class",
            ),
            (["data.view={kind='candidates'}"], "site 'site-0': the data has no candidate sets; give view.generate"),
            (
                ["data.view={kind='candidates',generate='uniform',min_size=11}"],
                "site 'site-0': min_size is 11, but a candidate set of 10 classes holds 9 at most",
            ),
            (["data.view={kind='tags'}"], "site 'site-0': a view of tags needs data with an array 'Y'"),
            # sites
            (["data.partition.sites=300"], "data.partition: 300 sites cannot be made from 200 samples"),
            (
                ["data.partition={kind='quantity',sizes=[150,100]}"],
                "data.partition: the sizes add up to 250, but there are only 200 samples",
            ),
            (
                ["data.partition={kind='classes',sites=2,classes=11}"],
                "data.partition: classes per site must be a whole number from 1 to 10, not 11",
            ),
            (
                ["data.partition={kind='label-sets',sites=2,labels=3}"],
                "data.partition: 2 sites with 3 labels each cannot cover 10 labels",
            ),
            (["data.partition={kind='natural',by='user'}"], "data.partition.by: 'digits' has no column 'user'"),
            (["data.names=['a']"], "data.names has 1 names, but the partition makes 2 sites"),
            (["data.views.site-9.kind=exact"], "data.views: there is no site 'site-9'; did you mean 'site-"),
            (  # each site has samples of one class, and both know the same one only
                ["data.partition={kind='classes',sites=2,classes=1}", "data.view.known=['0']"],
                "site 'site-1' has no samples: all 20 are of classes that it does not know (it knows 0)",
            ),
            # method, model, run
            (["method.sites=['site-7']"], "method.sites: there is no site 'site-7'; did you mean 'site-"),
            (["method.sites=[]"], "no site that may train has labelled samples"),
            (["data.view.kind=unlabelled"], "no site has annotations, so there is nothing to learn from"),
            (["model={name='no_such_package:make'}"], "model.name: 'no_such_package:make' would run code"),
            (["model={name='fedaccord.errors:make'}"], "experiment.toml: model: model.name: 'fedaccord.errors"),
            # files
            (["data.dataset=mnist"], "data.dataset: 'mnist' is read from the folder named by the environment variable"),
            (["server.test=none.npz"], "server.test: the file '"),
        ],
    )
    def test_a_wrong_federation(self, mistake, changes, told):
        assert mistake(SMALL, *changes).startswith(told)

    def test_a_gpu_that_is_not_there(self, mistake, monkeypatch):
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)  # where these tests run there may be one
        told = mistake(SMALL, "run.device=cuda")
        assert told == "run.device is 'cuda', but torch finds no GPU here; use device = \"cpu\""

    def test_a_mistake_leaves_the_folder_free_for_the_next_try(self, tmp_path):
        path = write(tmp_path, SMALL)
        wrong = command("run", path, "--set", "data.partition.sites=300", "--out", "here", cwd=tmp_path)
        assert wrong.code == 2
        right = command("run", path, "--out", "here", cwd=tmp_path)
        assert (right.code, right.err) == (0, "")
        assert (tmp_path / "here" / "summary.json").exists()


class TestDataFiles:
    def told(self, mistake, path):
        return mistake(SMALL, "data.samples=40", f"data.dataset={path.name}")

    def test_it_is_not_there(self, mistake, tmp_path):
        gone = tmp_path / "none.npz"
        assert self.told(mistake, gone) == f"data.dataset: the file '{gone}' is not there"

    def test_it_is_a_folder(self, mistake, tmp_path):
        (tmp_path / "f.npz").mkdir()
        assert self.told(mistake, tmp_path / "f.npz") == f"data.dataset: '{tmp_path}/f.npz' is a folder, not a file"

    def test_it_is_not_an_npz_file(self, mistake, tmp_path):
        path = write(tmp_path, "x,y\n1,2\n", "f.npz")
        told = f"data.dataset: '{path}' is not an .npz file, as numpy.savez writes it, or damaged"
        assert self.told(mistake, path) == told

    def test_it_holds_python_objects(self, mistake, tmp_path):
        path = npz(tmp_path, names=np.array([{"a": 1}], dtype=object))
        told = f"data.dataset: '{path}' cannot be read: it holds Python objects; save plain numbers and strings"
        assert self.told(mistake, path) == told

    def test_it_is_an_archive_of_something_else(self, mistake, tmp_path):
        with zipfile.ZipFile(tmp_path / "f.npz", "w") as archive:
            archive.writestr("readme.txt", "hello")
        assert self.told(mistake, tmp_path / "f.npz").startswith("'f.npz' has no array 'x' of samples")

    @pytest.mark.parametrize(
        ("arrays", "told"),
        [
            ({"y": np.zeros(9, int)}, "'f.npz': 'y' has 9 rows, the samples 40"),
            ({"y": np.full(40, 0.5)}, "'f.npz': 'y' holds float64 values; class names, or numbers from 0, are needed"),
            ({"y": np.arange(40) - 1}, "'f.npz': 'y' holds numbers below 0; a data set that is split needs"),
            ({"x": np.full((40, 2), "a")}, "'f.npz': the samples are of type <U1 and shape (40, 2); numbers by row"),
            ({"is_test": np.ones(40)}, "'f.npz' has no training samples"),
            ({"is_test": np.ones(4)}, "'f.npz': 'is_test' has 4 rows, the samples 40"),
            ({"label_names": np.array(["a"])}, "'f.npz' names 1 labels but uses 3"),
        ],
    )
    def test_its_arrays_do_not_fit(self, mistake, tmp_path, arrays, told):
        assert self.told(mistake, npz(tmp_path, **arrays)).startswith(told)

    def test_it_has_no_samples(self, mistake, tmp_path):
        np.savez(tmp_path / "f.npz", y=np.zeros(9, int))
        assert self.told(mistake, tmp_path / "f.npz") == "'f.npz' has no array 'x' of samples; it has y"

    def test_an_image_model_on_samples_that_are_no_images(self, mistake, tmp_path):
        told = mistake(SMALL, "model={name='lenet5'}", f"data.dataset={npz(tmp_path)}", "data.samples=40")
        assert told.startswith("the model 'lenet5' needs images of shape (channels, height, width), but the samples")
        assert "use 'mlp' or 'linear'" in told

    def test_the_data_folder_lacks_the_file(self, mistake, tmp_path, monkeypatch):
        monkeypatch.setenv(DATA_VARIABLE, str(tmp_path))
        told = mistake(SMALL, "data.dataset=mnist")
        assert told == f"data.dataset: 'mnist', by {DATA_VARIABLE}: the file '{tmp_path}/mnist/mnist.npz' is not there"


class TestSitesFiles:
    NAMES = np.array(["ant", "bee", "cat"])
    CLASSES = '[labels]\nclasses = ["ant", "bee", "cat"]\n'
    GROUPS = 'view = { kind = "coarse", correspondence = { low = ["ant"], mid = ["bee"], high = ["cat"] } }'

    @pytest.fixture
    def right(self, tmp_path):
        npz(tmp_path, "a.npz", label_names=self.NAMES)
        return ("a", "a.npz", "")

    def test_the_file_of_a_site_is_not_there(self, mistake, right, tmp_path):
        told = mistake(sites(right, ("b", "none.npz", "")))
        assert told == f"site 'b': the file '{tmp_path}/none.npz' is not there"

    def test_shapes_that_differ(self, mistake, right, tmp_path):
        npz(tmp_path, "b.npz", x=np.ones((40, 7)), label_names=self.NAMES)
        told = mistake(sites(right, ("b", "b.npz", "")))
        assert told == "the sites' samples differ in shape (a: (4,), b: (7,))"

    @pytest.mark.parametrize(
        ("names", "view", "told"),
        [
            ("ant bee cow", "", "'cow' is not one of the labels here; known: ant, bee, cat"),
            ("", "", "'0' is not one of the labels here; known: ant, bee, cat; without an array 'label_names'"),
            ("ant bee cat", 'view = { known = ["bee"] }', "'ant' is not one of the labels here; known: bee"),
            ("ant bee cat", 'view = { kind = "candidates" }', "a view of candidates needs an array 'candidates'"),
            ("ant bee cat", 'view = { kind = "tags" }', "a view of tags needs an array 'Y'"),
            ("low mid hgh", GROUPS, "'hgh' is not one of the labels here; did you mean 'high'?"),
            (
                "low mid high",
                GROUPS.replace("bee", "bees"),
                "correspondence, coarse label 'mid': 'bees' is not a label of this federation; did you mean 'bee'?",
            ),
            (
                "low mid high",
                'view = { kind = "coarse", correspondence = "parity" }',
                "the data set names no grouping 'parity'; none is known",
            ),
        ],
    )
    def test_labels_that_mean_nothing_here(self, mistake, right, tmp_path, names, view, told):
        npz(tmp_path, "b.npz", **({"label_names": np.array(names.split())} if names else {}))
        text = sites(right, ("b", "b.npz", view), also=self.CLASSES)
        assert mistake(text).startswith(f"site 'b', b.npz: {told}")

    def test_no_site_names_the_classes(self, mistake, tmp_path):
        npz(tmp_path, "b.npz", label_names=self.NAMES)
        told = mistake(sites(("b", "b.npz", 'view = { kind = "unlabelled" }')))
        assert told == "labels.classes is needed: no site's file names the classes of the federation"

    def test_a_server_test_of_another_shape(self, mistake, right, tmp_path):
        npz(tmp_path, "t.npz", x=np.ones((40, 7)), label_names=self.NAMES)
        told = mistake(sites(right, also='[server]\ntest = "t.npz"\n'))
        assert told == f"server.test: the samples of '{tmp_path}/t.npz' have shape (7,), the sites' have (4,)"


class TestRunFolder:
    def test_a_folder_that_is_not_empty(self, mistake, tmp_path):
        (tmp_path / "here").mkdir()
        (tmp_path / "here" / "mine.txt").write_text("mine")
        told = mistake(arguments=["--out", "here"])
        assert told == "the folder 'here' is not empty; give another one with --out"
        assert [path.name for path in (tmp_path / "here").iterdir()] == ["mine.txt"]

    def test_a_folder_that_cannot_be_made(self, mistake, tmp_path):
        (tmp_path / "file").write_text("mine")
        told = mistake(arguments=["--out", "file/run"], code=3)
        assert told == "the run folder 'file/run' cannot be created: Not a directory"

    def test_runs_is_a_file(self, tmp_path):
        (tmp_path / "runs").write_text("mine")
        done = command("run", write(tmp_path, SMALL), cwd=tmp_path)
        assert done.code == 3
        assert done.err.startswith("error: the run folder 'runs/small' cannot be created: ")


class TestOfTheCommandLine:
    @pytest.mark.parametrize(
        "line", ["rnu", "run", "run a.toml --wrokers 2", "run a.toml --workers -1", "run a.toml b.toml"]
    )
    def test_wrong_usage_is_told_and_leads_to_the_help(self, tmp_path, line):
        done = command(*line.split(), cwd=tmp_path)
        assert done.code == 2
        assert "Traceback" not in done.err
        assert "--help" in done.err

    def test_brackets_and_colons_in_a_message_are_not_markup(self, mistake):
        told = mistake(SMALL, "data.dataset=x[bold]:smile:[/]\\[y")
        assert "there is no data set 'x[bold]:smile:[/]\\[y'" in told

    def test_a_message_is_one_line_even_if_a_name_is_not(self, mistake):
        assert "no data set 'a b' (an" in mistake(SMALL, 'data.dataset="a\\nb"')


class TestAsAProcess:
    """The same, from outside."""

    def test_a_wrong_key(self, tmp_path):
        path = write(tmp_path, SMALL)
        told = sentence(process("run", path, "--set", "method.rouns=3", cwd=tmp_path), tmp_path)
        assert told == f"{path}: unknown key 'method.rouns'; did you mean 'rounds'?"

    def test_a_file_that_is_not_there(self, tmp_path):
        assert sentence(process("run", "no.toml", cwd=tmp_path), tmp_path) == "there is no file 'no.toml'"

    def test_data_that_does_not_fit(self, tmp_path):
        path = write(tmp_path, SMALL)
        told = sentence(process("run", path, "--set", "data.partition.sites=300", cwd=tmp_path), tmp_path)
        assert told == "data.partition: 300 sites cannot be made from 200 samples"
        assert os.listdir(tmp_path / "runs") == []
