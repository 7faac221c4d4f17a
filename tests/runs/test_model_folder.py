"""The model folder: what is rebuilt from it predicts as the run did, bit for bit, wherever it lies."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from command_line import blobs, command
from fedaccord.config import parse_experiment
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import read_table
from fedaccord.errors import DataError, RunFolderError, UserError
from fedaccord.experiment import load_federation, run_experiment
from fedaccord.extensions import trusting
from fedaccord.federation import round as round_
from fedaccord.federation.host import SiteHost
from fedaccord.methods.averaging import recipe as averaging
from fedaccord.methods.candidate_sets.recipe import with_personal_layer
from fedaccord.models.network import Network, predict_logits
from fedaccord.runs.folder import RunFolder
from fedaccord.runs.trained_model import TrainedModel

pytestmark = pytest.mark.usefixtures("one_thread")
MIXED = """
name = "mixed"
seed = 4

[data]
dataset = "digits"
samples = 260
partition = { kind = "quantity", sizes = [80, 70, 60, 50] }
names = ["exact", "../groups", "crowd", "dark"]
test = 0.25

[data.views]
exact = { known = ["0", "1", "2", "3", "4", "5", "6"] }
"../groups" = { kind = "coarse", correspondence = "shape" }
crowd = { kind = "candidates", generate = "uniform" }
dark = { kind = "unlabelled" }

[model]
name = "lenet5"

[method]
name = "accord"
rounds = 2
steps = 3

[run]
workers = 0
"""


@dataclass
class Trained:
    """A run that was watched: its folder, its data, and what its last evaluation saw."""

    path: Path
    data: FederationData
    logits: dict = field(default_factory=dict)  # by site, None for the server
    views: dict = field(default_factory=dict)

    @property
    def model(self):
        return TrainedModel.load(self.path, trust=["test_model_folder"])

    def x(self, site):
        return self.data.test[0] if site is None else self.data.sites[site].test.x


def watched(base, text, *changes):
    """Carry out an experiment and keep the logits and views its evaluations used."""
    experiment = parse_experiment(text, list(changes), "a test")
    path = base / "run"
    trained = Trained(path, load_federation(experiment, base))
    honest, judge = SiteHost._evaluate, round_.class_metrics

    def evaluate(host, work):
        reply = honest(host, work)
        trained.views[work.site.name] = work.view
        answering, _ = host.recipe.objective.evaluation_model(work, work.view)
        trained.logits[work.site.name] = predict_logits(answering, work.site.test.x)
        return reply

    def class_metrics(logits, truth):
        trained.logits[None] = logits
        return judge(logits, truth)

    folder = RunFolder(path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SiteHost, "_evaluate", evaluate)
        patch.setattr(round_, "class_metrics", class_metrics)
        run_experiment(experiment, base, folder)
    folder.close()
    return trained


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    return watched(tmp_path_factory.mktemp("mixed"), MIXED)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """Training alone, where one site never trains."""
    changes = ['method.name="local"', 'method.sites=["exact", "crowd"]', 'model.name="mlp"']
    return watched(tmp_path_factory.mktemp("alone"), MIXED, *changes)


@pytest.fixture
def copied(mixed, tmp_path):
    """The model folder of a run, to be spoilt."""
    return Path(shutil.copytree(mixed.path / "model", tmp_path / "model"))


def spoil(folder, **changes):
    path = folder / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


class TestAsInTheRun:
    def test_the_common_model(self, mixed):
        assert torch.equal(mixed.model.predict(mixed.x(None)), torch.softmax(mixed.logits[None], -1))

    @pytest.mark.parametrize("site", ["exact", "../groups", "crowd", "dark"])
    def test_a_site_s_model_with_its_prior(self, mixed, site):
        view = mixed.views[site]
        assert (view.offset is None) == (site == "dark")  # nothing tells the frequencies of a site without annotations
        found = mixed.model.predict(mixed.x(site), site, "own")
        assert torch.equal(found, view.answer(mixed.logits[site]))
        classes = mixed.model.predict(mixed.x(site), site)
        assert torch.equal(classes, torch.softmax(view.adjusted(mixed.logits[site]), -1))

    def test_a_site_knows_no_other_labels(self, mixed):
        found = mixed.model.predict(mixed.x("exact"), "exact")
        assert (found[:, 7:] == 0).all()
        assert (found[:, :7] > 0).all()

    def test_coarse_answers_are_the_classes_put_together(self, mixed):
        site, x = "../groups", mixed.x(None)
        own = mixed.model.predict(x, site, "own")
        matrix = mixed.views[site].matrix
        assert mixed.model.view(site, "own").answers == ("round", "straight", "open")
        assert own.shape == (len(x), 3)
        assert torch.allclose(own.sum(1), torch.ones(len(x)), atol=1e-6)
        assert torch.equal(own, mixed.model.predict(x, site) @ matrix.T)

    @pytest.mark.parametrize("site", ["exact", "crowd", "../groups"])
    def test_sites_that_trained_alone_and_one_that_never_did(self, alone, site):
        found = alone.model.predict(alone.x(site), site, "own")
        assert torch.equal(found, alone.views[site].answer(alone.logits[site]))

    def test_training_alone_makes_models_that_differ_but_no_common_one(self, alone):
        assert len({alone.model.network(site).head.weight.norm().item() for site in alone.model.sites}) == 3
        with pytest.raises(UserError, match=r"'local' trains no global model; name one of its sites: \.\./groups, cr"):
            alone.model.predict(alone.x("exact"))

    def test_batch_norm_kept_at_the_site(self, tmp_path):
        changes = ['model.name="test_model_folder:normed"', 'method.name="fedavg"', 'method.bn="local"']
        with trusting(["test_model_folder"]):
            trained = watched(tmp_path, MIXED, *changes)
        means = set()
        for site in ("exact", "crowd", "dark"):
            network = trained.model.network(site)
            means.add(network.encoder[2].running_mean.sum().item())
            found = trained.model.predict(trained.x(site), site)
            known = trained.model.view(site).informs() | (site == "dark")  # judged on what each knows, as in the run
            assert torch.equal(found, torch.softmax(trained.logits[site].masked_fill(~known, float("-inf")), -1))
        assert len(means) == 3
        assert network.encoder[2].num_batches_tracked.item() == 0  # dark never trained
        assert trained.model.network("exact").encoder[2].num_batches_tracked.item() == 6

    def test_personal_layers(self, tmp_path, monkeypatch):
        fedavg = averaging.fedavg
        changed = functools.partial(dataclasses.replace, network=with_personal_layer)
        monkeypatch.setattr(averaging, "fedavg", lambda settings: changed(fedavg(settings)))
        trained = watched(tmp_path, MIXED, 'method.name="fedavg"', 'model.name="mlp"')
        layers = {site: trained.model.network(site).personal.weight for site in trained.model.sites}
        assert torch.equal(layers["dark"], torch.eye(128))
        assert not torch.equal(layers["exact"], layers["crowd"])
        for site in layers:
            assert torch.equal(trained.model.logits(trained.x(site), site), trained.logits[site])

    @pytest.mark.parametrize("way", ["federation", "site"])
    def test_rows_scaled_by_their_own_site_or_by_all_together(self, tmp_path, way):
        for number, name in enumerate("ab"):
            x, y = blobs(60, seed=number)
            np.savez(tmp_path / f"{name}.npz", x=x * (1 + 4 * number) + number, y=y)
        np.savez(tmp_path / "test.npz", x=x, y=y)
        trained = watched(tmp_path, SITES, 'server.test="test.npz"', f"features.standardise={way}")
        assert torch.equal(trained.model.inputs(x), trained.x(None))
        assert torch.equal(trained.model.predict(trained.model.inputs(x)), torch.softmax(trained.logits[None], -1))
        raw = np.load(tmp_path / "b.npz")["x"]
        scaled = trained.model.inputs(raw, "b")
        own = trained.data.sites["b"]
        assert sorted(scaled.tolist()) == sorted([*own.train.x.tolist(), *own.test.x.tolist()])
        assert torch.equal(scaled, trained.model.inputs(raw)) == (way == "federation")

    def test_several_tags_are_not_one_class(self, tmp_path):
        x, y = blobs(60)
        np.savez(tmp_path / "a.npz", x=x, Y=np.eye(3, dtype=np.int8)[y])
        np.savez(tmp_path / "b.npz", x=x, Y=np.eye(3, dtype=np.int8)[y])
        trained = watched(tmp_path, SITES.replace('.npz"', '.npz"\nview = { kind = "tags" }'))
        model, ready = trained.model, trained.model.inputs(x)
        assert torch.equal(model.predict(ready), torch.sigmoid(model.logits(ready)))
        assert torch.equal(model.predict(trained.x("a"), "a"), torch.sigmoid(trained.logits["a"]))


SITES = """
name = "sites"
[[sites]]
name = "a"
data = "a.npz"
[[sites]]
name = "b"
data = "b.npz"
[model]
name = "linear"
[method]
name = "fedavg"
rounds = 2
[run]
workers = 0
"""


def normed(input_shape, classes):
    """A user's own model, with batch normalisation."""
    width = int(np.prod(input_shape))
    encoder = nn.Sequential(nn.Flatten(), nn.Linear(width, 6), nn.BatchNorm1d(6), nn.ReLU())
    return Network(encoder, nn.Linear(6, classes))


class TestTheFolder:
    def test_it_is_enough_alone(self, mixed, tmp_path):
        run = Path(shutil.copytree(mixed.path, tmp_path / "run"))
        before = {site: mixed.model.predict(mixed.x(site), site) for site in (None, *mixed.model.sites)}
        shutil.move(run / "model", tmp_path / "elsewhere")
        shutil.rmtree(run)
        model = TrainedModel.load(tmp_path / "elsewhere")
        for site, found in before.items():
            assert torch.equal(model.predict(mixed.x(site), site), found)

    def test_any_safetensors_reader_opens_it(self, mixed):
        tensors = load_file(mixed.path / "model" / "model.safetensors")
        network = mixed.model.network()
        assert {name: t.tolist() for name, t in tensors.items()} == {
            name: t.tolist() for name, t in network.state_dict().items()
        }

    def test_names_of_sites_are_no_names_of_files(self, mixed, copied):
        files = sorted(path.relative_to(copied).as_posix() for path in copied.rglob("*") if path.is_file())
        numbered = [f"sites/000{n}.safetensors" for n in range(4)]
        assert files == ["README.txt", "model.json", "model.safetensors", *numbered]
        assert mixed.model.sites == ("../groups", "crowd", "dark", "exact")
        assert list(mixed.model.description.sites.values()) == numbered

    def test_the_common_model_needs_no_site(self, mixed, copied):
        shutil.rmtree(copied / "sites")
        model = TrainedModel.load(copied)
        assert torch.equal(model.predict(mixed.x(None)), mixed.model.predict(mixed.x(None)))
        with pytest.raises(RunFolderError, match=r"sites/0003\.safetensors' cannot be read: No such file"):
            model.predict(mixed.x("exact"), "exact")

    def test_what_sites_keep_is_not_in_the_common_part(self, mixed):
        text = (mixed.path / "model" / "model.json").read_text()
        assert "straight" not in text  # a coarse site's own label
        assert "private parts of single sites" in " ".join((mixed.path / "model" / "README.txt").read_text().split())

    def test_the_network_given_out_is_the_caller_s(self, mixed):
        model = mixed.model
        before = model.predict(mixed.x(None))
        network = model.network()
        assert not network.training
        nn.init.zeros_(network.head.weight)
        assert torch.equal(model.predict(mixed.x(None)), before)


class TestWhatIsWrong:
    def test_no_such_site(self, mixed):
        with pytest.raises(UserError, match=r"the model has no site 'exakt'; did you mean 'exact'\?"):
            mixed.model.network("exakt")

    def test_own_answers_of_nobody(self, mixed):
        with pytest.raises(UserError, match="own answers need the name of a site"):
            mixed.model.predict(mixed.x(None), answers="own")
        with pytest.raises(UserError, match="answers are 'classes' or 'own', not 'mine'"):
            mixed.model.predict(mixed.x(None), "exact", "mine")

    def test_no_model_there(self, tmp_path):
        with pytest.raises(RunFolderError, match=f"'{tmp_path}' is neither a run folder nor a model folder"):
            TrainedModel.load(tmp_path)
        (tmp_path / "config.toml").touch()
        with pytest.raises(RunFolderError, match=f"has no model yet; .*: fedaccord resume {tmp_path}"):
            TrainedModel.load(tmp_path)

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"format": 2}, "has format 2, this version of FedAccord reads 1"),
            ({"labels": "many"}, "'labels': input should be a valid list"),
            ({"model": {"name": "mlp", "settings": {}}}, r"'model\.input_shape': field required"),
        ],
    )
    def test_another_description(self, copied, changes, said):
        spoil(copied, **changes)
        with pytest.raises(RunFolderError, match=rf"model\.json' .*{said}"):
            TrainedModel.load(copied)

    @pytest.mark.parametrize("text", ["{", "[]"])
    def test_no_description(self, copied, text):
        (copied / "model.json").write_text(text)
        with pytest.raises(RunFolderError, match=r"model\.json' is not"):
            TrainedModel.load(copied)

    @pytest.mark.parametrize("name", ["model.safetensors", "sites/0003.safetensors"])
    def test_a_cut_file(self, copied, name):
        (copied / name).write_bytes((copied / name).read_bytes()[:-4])
        with pytest.raises(RunFolderError, match=f"{name}' is damaged"):
            TrainedModel.load(copied).view("exact")

    def test_a_foreign_description_leads_nowhere_else(self, mixed, copied, tmp_path):
        shutil.move(copied / "sites" / "0003.safetensors", tmp_path / "0003.safetensors")
        spoil(copied, sites={"exact": "../../0003.safetensors"})
        with pytest.raises(RunFolderError, match=r"model/sites/0003\.safetensors' cannot be read"):
            TrainedModel.load(copied).view("exact")

    def test_parameters_of_another_network(self, copied, mixed):
        spoil(copied, model={"name": "mlp", "settings": {}, "input_shape": [1, 8, 8]})
        with pytest.raises(UserError, match="'mlp' has other parameters here than it had when it was trained"):
            TrainedModel.load(copied).network()

    def test_a_user_s_model_that_is_not_here(self, copied):
        spoil(copied, model={"name": "no_such_place:net", "settings": {}, "input_shape": [1, 8, 8]})
        said = "model.name: the module 'no_such_place' cannot be imported: .* must be importable here"
        with pytest.raises(UserError, match=f"cannot be rebuilt: {said}"):
            TrainedModel.load(copied, trust=["no_such_place"]).network()

    @pytest.mark.parametrize(
        ("name", "settings", "told"),
        [
            ("torch.hub:load", {"repo_or_dir": "evil", "model": "x"}, "allow it with --trust torch"),
            ("fedaccord.durable:atomic_write", {"path": "x"}, "points inside FedAccord"),
            ("fedaccord.api:given_model", {"key": "x"}, "handed over as a module of another process"),
        ],
    )
    def test_a_model_of_a_stranger_runs_nothing(self, copied, monkeypatch, name, settings, told):
        monkeypatch.setattr("torch.hub.load", lambda **settings: pytest.fail("code was run"))
        spoil(copied, model={"name": name, "settings": settings, "input_shape": [1, 8, 8]})
        with pytest.raises(UserError, match=told):
            TrainedModel.load(copied).network()
        np.savez(copied / "x.npz", x=np.zeros((2, 1, 8, 8), np.float32))
        done = command("predict", copied, "x.npz", cwd=copied)
        assert done.code == 2
        assert told in done.err

    def test_tensors_of_another_model(self, alone, copied):
        shutil.copy(alone.path / "model" / "model.safetensors", copied)
        with pytest.raises(RunFolderError, match="are not those of its model"):
            TrainedModel.load(copied).network()

    def test_samples_of_another_shape(self, mixed):
        with pytest.raises(DataError, match=r"have shape \(1, 9, 9\), those the model was trained on \(1, 8, 8\)"):
            mixed.model.inputs(np.zeros((2, 1, 9, 9)))

    def test_a_table_for_a_model_of_images(self, mixed, tmp_path):
        (tmp_path / "a.csv").write_text("age\n1\n")
        with pytest.raises(DataError, match="was trained on arrays, not columns"):
            mixed.model.encode(read_table(tmp_path / "a.csv"))
