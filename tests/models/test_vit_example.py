"""The vision transformer of the example: a network as the house takes one, and the published settings in its file."""

from pathlib import Path

import torch

from fedaccord.config import load_experiment
from fedaccord.extensions import trusting
from fedaccord.models.catalogue import build
from fedaccord.models.network import as_network

FOLDER = Path(__file__).parents[2] / "examples" / "images_vit"


def test_the_file_asks_for_what_was_published():
    with trusting(["vit"]):
        experiment, _ = load_experiment(FOLDER / "vit_b16.toml")
    settings = experiment.settings
    assert experiment.model.name == "vit:vit_b16"
    assert (settings.rounds, settings.epochs, settings.batch, settings.lr) == (50, 5, 16, 1e-4)
    assert settings.optimiser == "adam"
    assert experiment.run.device == "cuda"


def test_a_small_one_learns_through_encoder_and_head(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))
    from vit import ViT

    torch.manual_seed(0)
    network = as_network(ViT((3, 16, 16), 5, width=16, depth=2, heads=2, patch=4))
    x = torch.randn(2, 3, 16, 16)
    assert network.features(x).shape == (2, 16)
    logits = network(x)
    assert logits.shape == (2, 5)
    logits.sum().backward()
    assert all(p.grad is not None and torch.isfinite(p.grad).all() for p in network.parameters())


def test_the_catalogue_takes_it_by_its_name(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "small_vit.py").write_text(
        "from vit import ViT\n\n\ndef small(input_shape, classes):\n"
        "    return ViT(input_shape, classes, width=8, depth=1, heads=1, patch=8)\n"
    )
    with trusting(["small_vit"]):
        network = build("small_vit:small", {}, (3, 16, 16), 4, seed=0)
    assert network(torch.zeros(2, 3, 16, 16)).shape == (2, 4)
