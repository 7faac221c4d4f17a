"""Everything a run needs to go on after a crash is one message."""

import hashlib
import math

import numpy as np
import pytest
import torch

from fedaccord.federation.round import play_round
from fedaccord.federation.state import RunState, model_digest
from fedaccord.messages.message import Message, from_bytes, to_bytes
from fedaccord.methods.averaging.recipe import fedavg
from fedaccord.methods.shared_settings import ClassicSettings
from small_federation import federation, site, small_network

pytestmark = pytest.mark.usefixtures("one_thread")


def there_and_back(state):
    return RunState.from_message(from_bytes(to_bytes(state.to_message())))


def test_a_state_comes_back_with_the_methods_own_state():
    method = Message(
        {"momentum": torch.tensor([1.0, -2.0]), "model": torch.tensor([7]), "counter/x": torch.tensor(True)},
        {"round": 3, "temperature": 0.1, "worst": math.inf},
        {"phase": "warm-up", "run": "r"},
    )
    state = RunState(torch.tensor([0.5, math.pi]), {"encoder.1.num_batches_tracked": torch.tensor(12)}, 9, method)
    back = there_and_back(state)
    assert torch.equal(back.model, state.model)
    assert back.counters == {"encoder.1.num_batches_tracked": torch.tensor(12)}
    assert back.round == 9
    assert isinstance(back.round, int)
    assert back.method.tensors.keys() == method.tensors.keys()
    assert all(torch.equal(tensor, method.tensors[name]) for name, tensor in back.method.tensors.items())
    assert back.method.numbers == method.numbers
    assert back.method.words == method.words


def test_a_fresh_state_comes_back_as_well():
    back = there_and_back(RunState(torch.zeros(3), {}))
    assert (back.round, back.counters, back.method) == (0, {}, Message())


def test_a_method_may_keep_the_very_model_of_the_round():
    state = RunState(torch.arange(3.0), {})
    state.method.tensors["last"] = state.model
    assert there_and_back(state).method.tensors["last"].tolist() == [0, 1, 2]


def test_a_run_goes_on_from_its_state_and_the_sites_memories_bit_for_bit():
    def fresh():
        recipe = fedavg(ClassicSettings(steps=3, batch=4, participation=2, bn="local", prior="all"))
        return federation(recipe, [site(name) for name in "abc"], small_network(batch_norm=True))

    whole = fresh()
    for _ in range(4):
        play_round(whole)

    first = fresh()
    for _ in range(2):
        play_round(first)
    second = fresh()
    second.state = there_and_back(first.state)
    second.engine.restore(first.engine.memories())
    for _ in range(2):
        play_round(second)
    assert second.state.round == 4
    assert model_digest(second.state.model) == model_digest(whole.state.model)
    assert all(torch.equal(value, whole.state.counters[name]) for name, value in second.state.counters.items())
    for name, memory in whole.engine.memories().items():
        assert all(torch.equal(t, second.engine.kept[name].tensors[key]) for key, t in memory.tensors.items())


def test_the_digest_is_that_of_the_float32_values_in_order():
    model = torch.tensor([1.0, -0.5, 3.25])
    assert model_digest(model) == hashlib.sha256(np.array([1, -0.5, 3.25], dtype="<f4").tobytes()).hexdigest()
    assert model_digest(model.double().requires_grad_()) == model_digest(model)
    assert model_digest(torch.tensor([1.0, 9.0, -0.5, 9.0, 3.25])[::2]) == model_digest(model)
    assert model_digest(model.flip(0)) != model_digest(model)
