"""Real data sets are read as their README describes them, and train.

Needs the folder named by FEDACCORD_DATA; without it these tests are deselected.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch

from fedaccord.checks.scales import number_findings
from fedaccord.config import parse_experiment
from fedaccord.data.dataset import load_dataset
from fedaccord.data.registry import DATASETS
from fedaccord.experiment import load_federation, run_experiment
from fedaccord.runs.folder import RunFolder

pytestmark = pytest.mark.realdata

PUBLISHED = {
    "digits": (1797, 0, (1, 8, 8), 10),
    "mnist": (60000, 10000, (1, 28, 28), 10),
    "fashion_mnist": (60000, 10000, (1, 28, 28), 10),
    "cifar10": (4000, 1000, (3, 32, 32), 10),
    "cifar100": (12500, 5000, (3, 32, 32), 100),
}

# Rows, features, tags, mean number of tags of a row (as Mulan publishes it), and whether a test part is published.
TAGGED = {
    "extrasensory": (18500, 225, 51, None, False),
    "scene": (2407, 294, 6, 1.074, True),
    "emotions": (593, 72, 6, 1.868, True),
    "corel5k": (5000, 499, 374, 3.522, True),
    "delicious": (16105, 500, 983, 19.020, True),
    "birds": (645, 260, 19, 1.014, True),
    "medical": (978, 1449, 45, 1.245, True),
    "cal500": (502, 68, 174, 26.044, False),
}


def federation(text):
    return load_federation(parse_experiment(text), Path(os.environ["FEDACCORD_DATA"]))


def test_every_named_data_set_is_checked_here():
    people = {name for name, entry in DATASETS.items() if entry.numbers}  # these in test_sensitive.py
    assert {*PUBLISHED, *TAGGED, *people, "clinc150", "clinc150-validation", "uci_har"} == set(DATASETS)


@pytest.mark.parametrize("name", TAGGED)
def test_data_of_tags(name):
    rows, features, tags, cardinality, tested = TAGGED[name]
    dataset = load_dataset(name, Path())
    assert dataset.train.y is None
    assert dataset.shape == (features,)
    assert len(dataset.labels) == tags
    assert (dataset.test is not None) == tested
    parts = [part.tags for part in (dataset.train, dataset.test) if part is not None]
    assert sum(map(len, parts)) == rows
    if cardinality is not None:
        assert (np.concatenate(parts) == 1).sum(1).mean() == pytest.approx(cardinality, abs=6e-4)


def test_people_of_extrasensory_become_sites_and_some_are_kept_apart():
    made = federation(
        '[data]\ndataset = "extrasensory"\npartition = { kind = "natural", by = "user" }\nview = { kind = "tags" }\n'
        "[server]\nunseen = 5\n"
    )
    assert len(made.sites) == 32
    assert made.test[1].shape == (2500, 51)
    targets = torch.cat([site.train.target for site in made.sites.values()])
    assert float((targets == -1).float().mean()) == pytest.approx(0.59, abs=0.02)


@pytest.mark.parametrize("name", ["partial_label/msrcv2.npz", "birds", "medical", "annotators/labelme.npz", "adult"])
@pytest.mark.parametrize("partition", ['{ kind = "iid", sites = 4 }', '{ kind = "dirichlet", sites = 4, alpha = 0.5 }'])
def test_sparse_and_heavy_tailed_numbers_are_not_suspected_of_another_unit(name, partition):
    view = "tags" if name in TAGGED else "candidates" if "msrcv2" in name else "exact"
    made = federation(f'[data]\ndataset = "{name}"\npartition = {partition}\nview = {{ kind = "{view}" }}\n')
    assert number_findings(made) == []


def test_phones_that_measure_differently_are_reported_in_one_line():
    made = federation(
        '[data]\ndataset = "extrasensory"\npartition.kind = "natural"\npartition.by = "user"\nview.kind = "tags"\n'
    )
    assert [f.text.partition(" features ")[2][:13] for f in number_findings(made)][-1:] == ["differ wildly"]


def test_clinc150(tmp_path):
    read = load_dataset("clinc150", tmp_path)
    assert (len(read.train), len(read.test), read.shape, len(read.labels)) == (15000, 4500, (1024,), 150)
    assert {len(members) for members in read.groupings["coarse"].values()} == {15}
    assert len(read.groupings["coarse"]) == 10
    assert set(np.bincount(read.train.y)) == {100}
    assert np.allclose(np.linalg.norm(read.train.x, axis=1), 1, atol=1e-5)
    made = federation('[data]\ndataset = "clinc150"\nsamples = 900\npartition = { kind = "iid", sites = 2 }\n')
    assert made.moments == {}  # hashed texts stay as they are


def test_clinc150_has_a_part_to_choose_settings_on(tmp_path):
    read, judged = load_dataset("clinc150-validation", tmp_path), load_dataset("clinc150", tmp_path)
    assert (len(read.train), len(read.test)) == (15000, 3000)
    assert np.array_equal(read.train.x, judged.train.x)


def test_uci_har(tmp_path):
    read = load_dataset("uci_har", tmp_path)
    assert (len(read.train), read.test, read.shape, read.images) == (10299, None, (9, 64), False)
    counts = dict(zip(read.labels, np.bincount(read.train.y).tolist(), strict=True))
    assert counts["walking"] == 1722  # the official counts, which tell the order of the classes
    assert counts["lying"] == 1944
    still = [read.train.x[read.train.y == read.labels.index(name)][:, :3].std(-1).mean() for name in counts]
    assert max(still[3:]) < 0.1 * min(still[:3])  # who sits, stands or lies hardly moves
    made = federation('[data]\ndataset = "uci_har"\npartition = { kind = "natural", by = "subject" }\n')
    assert len(made.sites) == 30


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_and_shapes(name, tmp_path):
    train, test, shape, classes = PUBLISHED[name]
    read = load_dataset(name, tmp_path)
    assert (len(read.train), 0 if read.test is None else len(read.test)) == (train, test)
    assert (read.shape, len(read.labels), read.images) == (shape, classes, True)
    assert (read.train.x.min(), read.train.x.max()) == (-1, 1)
    assert set(read.train.y.tolist()) == set(range(classes))


def test_cifar100_names_its_groups(tmp_path):
    read = load_dataset("cifar100", tmp_path)
    groups = read.groupings["coarse"]
    assert (len(groups), {len(members) for members in groups.values()}) == (20, {5})
    assert sorted(name for members in groups.values() for name in members) == sorted(read.labels)
    coarse_of = {name: number for number, members in enumerate(groups.values()) for name in members}
    given = read.train.columns["coarse"]
    assert [coarse_of[read.labels[y]] for y in read.train.y[:500]] == given[:500].tolist()


def test_cifar100_coarse_sites_see_the_published_groups():
    made = federation(
        '[data]\ndataset = "cifar100"\nsamples = 1000\ntest_samples = 200\npartition = { kind = "iid", sites = 2 }\n'
        'view = { kind = "coarse", correspondence = "coarse" }\n'
    )
    site = made.sites["site-0"]
    assert len(site.view.answers) == 20
    assert torch.equal(site.train.target, site.view.matrix.argmax(0)[site.train.truth])
    assert len(made.test[1]) == 200


@pytest.mark.parametrize(
    ("name", "rows", "classes", "size"),
    [("lost", 1122, 16, 2.23), ("msrcv2", 1758, 23, 3.16), ("fgnet", 1002, 78, 7.48)],
)
def test_real_candidate_sets(name, rows, classes, size):
    made = federation(
        f'[data]\ndataset = "partial_label/{name}.npz"\npartition = {{ kind = "iid", sites = 3 }}\n'
        'view = { kind = "candidates" }\n'
    )
    parts = [part for site in made.sites.values() for part in (site.train, site.test)]
    sets, truth = torch.cat([part.target for part in parts]), torch.cat([part.truth for part in parts])
    assert (sets.shape, len(made.space)) == ((rows, classes), classes)
    assert sets.sum(1).float().mean() == pytest.approx(size, abs=0.01)  # as published
    assert sets[torch.arange(rows), truth].all()
    for site in made.sites.values():
        assert site.train.x.abs().max() < 100  # Lost reaches 1e5 before it is scaled


def test_multi_label_data_keeps_its_published_split(tmp_path):
    read = load_dataset(f"{os.environ['FEDACCORD_DATA']}/multi_label/scene.npz", tmp_path)
    assert (len(read.train) + len(read.test), len(read.labels)) == (2407, 6)
    tags = np.concatenate([read.train.tags, read.test.tags])
    assert tags.sum(1).mean() == pytest.approx(1.074, abs=0.001)  # the cardinality of the Mulan table


def test_users_of_extrasensory_become_sites():
    made = federation(
        '[data]\ndataset = "extrasensory/extrasensory_37users.npz"\nview = { kind = "tags" }\n'
        'partition = { kind = "natural", by = "user" }\n'
    )
    assert list(made.sites) == [str(user) for user in range(37)]
    assert {len(site.train) + len(site.test) for site in made.sites.values()} == {500}
    targets = torch.cat([part.target for site in made.sites.values() for part in (site.train, site.test)])
    assert (targets == -1).float().mean() == pytest.approx(0.59, abs=0.01)
    for site in made.sites.values():
        assert torch.isfinite(site.train.x).all()  # 19 % of the features are missing
        assert torch.isfinite(site.test.x).all()


def test_subjects_of_uci_har_become_sites(tmp_path):
    made = federation(
        '[data]\ndataset = "uci_har/uci_har_signals_30subjects.npz"\n'
        'partition = { kind = "natural", by = "subject", most = 5 }\n'
    )
    assert len(made.sites) == 5
    assert made.input_shape == (9, 64)
    assert made.notes == ["only the 5 largest of 30 sites are kept"]
    assert all(site.view.known is None for site in made.sites.values())


def test_mnist_trains(tmp_path):
    experiment = parse_experiment(
        """
        [data]
        dataset = "mnist"
        samples = 2000
        test_samples = 500
        partition = { kind = "label-sets", sites = 4, labels = 6 }
        view = { known = "own" }
        [method]
        rounds = 5
        [run]
        workers = 0
        """
    )
    folder = RunFolder(tmp_path / "run")
    summary = run_experiment(experiment, tmp_path, folder)
    folder.close()
    assert summary["final"]["global"]["accuracy"] > 0.75
