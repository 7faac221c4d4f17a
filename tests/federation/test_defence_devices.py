"""A defence computes where its models are: on a device without values, anything brought back or left behind fails.

There is no GPU to test on. The meta device stands in for it: it refuses `.cpu()`, `.item()` and `bool()`, and to be
mixed with tensors of another device.
"""

from __future__ import annotations

import copy

import pytest
import torch

from fedaccord.adversary.many_models import Models
from fedaccord.adversary.scores import group_push
from fedaccord.adversary.settings import DefenceSettings
from fedaccord.federation.defence import Defence
from people import played, table

pytestmark = pytest.mark.usefixtures("one_thread")
FEW_STEPS = {"reconstruct": True, "steps": 2}
KINDS = {"inversion": FEW_STEPS, "inversion+": FEW_STEPS, "group-update": {}, "probe": {}}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    return played(table(tmp_path_factory.mktemp("people")), rounds=1)[0]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_scores_are_made_where_the_models_are(server, kind, device):
    network = copy.deepcopy(server.network).to(device)
    previous = server.state.model.to(device)
    models = previous + 0.01 * torch.randn(5, server.layout.size).to(device)
    defence = Defence(DefenceSettings(kind=kind, **KINDS[kind]))
    found = defence.score_models(server, network, models, previous, previous, server.target)
    assert found.device.type == device
    assert (found.shape, found.dtype) == ((5,), torch.float64)


def test_the_push_is_found_where_the_models_are(server):
    network = copy.deepcopy(server.network).to("meta")
    models = torch.zeros(5, server.layout.size, device="meta")
    push = group_push(Models(network, models), Models(network, models[0]), server.target)
    assert {value.device.type for value in vars(push).values()} == {"meta"}


def test_the_meta_device_would_notice():
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.zeros(5).masked_fill(torch.ones(5, device="meta") == 0, 1.0)
    with pytest.raises((NotImplementedError, RuntimeError)):
        torch.ones(5, device="meta")[torch.ones(5, dtype=torch.bool, device="meta")]
