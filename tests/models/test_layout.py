import json

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedaccord.errors import ConfigError, MessageError
from fedaccord.models.catalogue import build, lenet5, linear, mlp
from fedaccord.models.layout import Layout, Slot
from fedaccord.models.network import Network, insert_personal_layer


def tiny() -> Network:
    """Two inputs, batch norm with two features, three classes: small enough to write the vector down."""
    return Network(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)), nn.Linear(2, 3))


def convolutional() -> Network:
    # Several channels in and out and a kernel larger than one: only then do the two memory formats differ.
    return Network(nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), nn.Linear(4 * 2 * 2, 5))


def test_the_slots_of_a_tiny_network_stand_in_the_promised_order():
    layout = Layout.of(tiny())
    assert layout.slots == (
        Slot("encoder.0.weight", (2, 2), 0, 4, "encoder", True),
        Slot("encoder.0.bias", (2,), 4, 6, "encoder", True),
        Slot("encoder.1.weight", (2,), 6, 8, "encoder", True),
        Slot("encoder.1.bias", (2,), 8, 10, "encoder", True),
        Slot("head.weight", (3, 2), 10, 16, "head", True),
        Slot("head.bias", (3,), 16, 19, "head", True),
        Slot("encoder.1.running_mean", (2,), 19, 21, "encoder", False),
        Slot("encoder.1.running_var", (2,), 21, 23, "encoder", False),
    )
    assert layout.counters == ("encoder.1.num_batches_tracked",)
    assert layout.size == 23


def test_a_frozen_parameter_is_not_trainable():
    network = linear((2,), 2)
    network.head.bias.requires_grad_(False)
    assert [slot.trainable for slot in Layout.of(network).slots] == [True, False]


def test_a_buffer_is_never_trainable():
    network = tiny()
    network.encoder[1].running_mean.requires_grad_(True)
    assert not Layout.of(network).trainable_mask()[19:].any()


@settings(max_examples=30, deadline=None)
@given(
    inputs=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    hidden=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    classes=st.integers(1, 5),
    personal=st.booleans(),
    seed=st.integers(0, 2**63 - 1),
)
def test_a_vector_survives_the_way_through_a_module_and_through_names(inputs, hidden, classes, personal, seed):
    network = mlp(inputs, classes, hidden)
    if personal:
        network = insert_personal_layer(network)
    layout = Layout.of(network)
    assert layout.size == sum(p.numel() for p in network.parameters())
    assert sum(int(layout.mask(part).sum()) for part in ("encoder", "personal", "head")) == layout.size

    vector = torch.randn(layout.size, generator=torch.Generator().manual_seed(seed))
    layout.load(network, vector)
    assert torch.equal(layout.read(network), vector)
    assert torch.equal(layout.vector(layout.named(vector)), vector)
    for name, values in layout.named(vector).items():
        assert torch.equal(values, network.get_parameter(name))


def test_load_writes_buffers_and_leaves_counters_alone():
    network, layout = tiny(), Layout.of(tiny())
    network.encoder[1].num_batches_tracked.fill_(7)
    layout.load(network, torch.arange(23.0))
    assert network.encoder[1].running_var.tolist() == [21.0, 22.0]
    assert network.head.weight.tolist() == [[10.0, 11.0], [12.0, 13.0], [14.0, 15.0]]
    assert network.encoder[1].num_batches_tracked.item() == 7


def test_load_writes_into_the_tensors_that_are_there():
    network = tiny()
    before = network.head.weight
    Layout.of(network).load(network, torch.ones(23))
    assert network.head.weight is before
    assert before.requires_grad
    assert before.grad_fn is None
    assert torch.equal(before, torch.ones(3, 2))


def test_channels_last_changes_neither_what_is_read_nor_what_is_loaded():
    plain, last = convolutional(), convolutional().to(memory_format=torch.channels_last)
    assert not last.encoder[0].weight.is_contiguous()
    layout = Layout.of(plain)
    assert Layout.of(last) == layout

    vector = torch.arange(layout.size, dtype=torch.float32)
    layout.load(plain, vector)
    layout.load(last, vector)
    assert not last.encoder[0].weight.is_contiguous()
    assert torch.equal(last.encoder[0].weight, plain.encoder[0].weight)
    assert torch.equal(layout.read(last), vector)


def test_the_vector_is_float32_whatever_the_module_is():
    network = linear((2,), 2).double()
    layout = Layout.of(network)
    assert layout.read(network).dtype == torch.float32
    layout.load(network, torch.full((6,), 0.5))
    assert network.head.weight.dtype == torch.float64
    assert network.head.weight.tolist() == [[0.5, 0.5], [0.5, 0.5]]


@pytest.mark.parametrize("bias", [True, False])  # without it, one tensor is the whole vector
def test_a_read_vector_is_a_copy_without_a_graph(bias):
    network = Network(nn.Flatten(), nn.Linear(2, 2, bias=bias))
    layout = Layout.of(network)
    vector = layout.read(network)
    assert not vector.requires_grad
    before = network.head.weight.clone()
    vector.zero_()
    assert torch.equal(network.head.weight, before)


def test_named_tensors_are_views_that_carry_gradients():
    layout = Layout.of(linear((2,), 2))
    vector = torch.zeros(6)
    layout.named(vector)["head.bias"].fill_(3.0)
    assert vector.tolist() == [0, 0, 0, 0, 3, 3]

    leaf = torch.ones(6, requires_grad=True)
    layout.named(leaf)["head.weight"].sum().backward()
    assert leaf.grad.tolist() == [1, 1, 1, 1, 0, 0]


def test_head_rows_point_to_each_class_s_weights_and_bias():
    rows = Layout.of(tiny()).head_rows()
    assert rows.dtype == torch.int64
    assert rows.tolist() == [[10, 11, 16], [12, 13, 17], [14, 15, 18]]


def test_head_rows_of_a_head_without_bias_are_its_weights():
    network = Network(nn.Linear(1, 2), nn.Linear(2, 2, bias=False))
    assert Layout.of(network).head_rows().tolist() == [[4, 5], [6, 7]]


def test_worked_example_1c_per_label_rows_are_index_work():
    # docs/methods.md 1.4: rows known to one site are its own, row 1 is the 100:50 mean, row 3 is the server's.
    network = Network(nn.Flatten(), nn.Linear(2, 4, bias=False))
    layout = Layout.of(network)
    rows = layout.head_rows()
    server, one, two = torch.zeros(3, layout.size)
    server[rows[3]] = torch.tensor([9.0, 9.0])
    one[rows[:2]] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    two[rows[1:3]] = torch.tensor([[6.0, 1.0], [5.0, 5.0]])

    server[rows[0]] = one[rows[0]]
    server[rows[1]] = (100 * one[rows[1]] + 50 * two[rows[1]]) / 150
    server[rows[2]] = two[rows[2]]
    layout.load(network, server)
    assert network.head.weight.tolist() == [[1, 2], [4, 3], [5, 5], [9, 9]]


def test_masks_mark_parts_and_buffers_follow_their_part():
    layout = Layout.of(tiny())
    head = layout.mask("head")
    assert head.dtype == torch.bool
    assert head.nonzero().flatten().tolist() == list(range(10, 19))
    assert torch.equal(layout.mask("encoder"), ~head)
    assert not layout.mask("personal").any()
    assert layout.trainable_mask().nonzero().flatten().tolist() == list(range(19))


def test_the_personal_layer_is_a_part_of_its_own_before_the_head():
    layout = Layout.of(insert_personal_layer(tiny()))
    assert layout.slots_of("personal") == (Slot("personal.weight", (2, 2), 10, 14, "personal", True),)
    assert layout.head_rows()[0].tolist() == [14, 15, 20]


def test_layouts_are_equal_only_for_the_same_slots_and_counters():
    assert Layout.of(tiny()) == Layout.of(tiny())
    assert hash(Layout.of(tiny())) == hash(Layout.of(tiny()))
    assert Layout.of(linear((2,), 3)) != Layout.of(linear((3,), 2))
    assert Layout.of(tiny()) != Layout(Layout.of(tiny()).slots)


def test_describe_survives_json():
    described = Layout.of(tiny()).describe()
    assert json.loads(json.dumps(described)) == described
    assert described[4] == {
        "name": "head.weight",
        "shape": [3, 2],
        "start": 10,
        "stop": 16,
        "part": "head",
        "trainable": True,
    }
    assert len(described) == 8


def test_batch_norm_counters_of_a_real_network_are_left_out():
    layout = Layout.of(build("resnet18", {}, (3, 32, 32), 10, seed=0))
    assert int(layout.trainable_mask().sum()) == 11_173_962
    assert layout.size == 11_173_962 + 2 * 4800  # a running mean and variance for each normalised channel
    assert len(layout.counters) == 20
    assert all(name.endswith("num_batches_tracked") for name in layout.counters)


def test_a_network_without_tensors_has_an_empty_vector():
    layout = Layout.of(nn.Flatten())
    assert layout.size == 0
    assert layout.read(nn.Flatten()).tolist() == []


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ({"head.weight": torch.zeros(2, 2)}, "the tensor 'head.bias' is missing"),
        (
            {"head.weight": torch.zeros(2, 3), "head.bias": torch.zeros(2)},
            r"the tensor 'head.weight' has shape \(2, 3\), but the model's is \(2, 2\)",
        ),
    ],
)
def test_named_tensors_that_do_not_fit_are_named(named, message):
    with pytest.raises(MessageError, match=f"^{message}$"):
        Layout.of(linear((2,), 2)).vector(named)


@pytest.mark.parametrize("shape", [(5,), (7,), (2, 3), ()])
def test_a_vector_of_another_shape_is_refused(shape):
    with pytest.raises(MessageError, match=r"^the vector has shape .*, but the model's has \(6,\)$"):
        Layout.of(linear((2,), 2)).named(torch.zeros(shape))


def test_load_refuses_a_module_of_another_layout():
    with pytest.raises(MessageError, match=r"^the module has no tensor 'head.weight' of shape \(2, 2\)$"):
        Layout.of(linear((2,), 2)).load(linear((3,), 2), torch.zeros(6))
    with pytest.raises(MessageError, match=r"^the module has no tensor 'encoder.0.weight' of shape"):
        Layout.of(lenet5((1, 28, 28), 10)).load(linear((2,), 2), torch.zeros(61_706))


def test_an_unknown_part_is_refused():
    with pytest.raises(ValueError, match=r"^unknown part 'haed': known: encoder, personal, head$"):
        Layout.of(tiny()).mask("haed")


def test_a_tensor_outside_the_parts_is_refused():
    with pytest.raises(ConfigError, match=r"^the tensor 'weight' is in none of the model's parts: encoder, "):
        Layout.of(nn.Linear(2, 2))


def test_a_parameter_of_whole_numbers_is_refused():
    network = linear((2,), 2)
    network.head.bias = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
    with pytest.raises(ConfigError, match=r"^the parameter 'head.bias' has dtype torch.int64, but must be floating"):
        Layout.of(network)


def test_head_rows_need_a_weight_of_the_head_s_own():
    network = Network(nn.Linear(2, 2), nn.Linear(2, 2))
    network.head.weight = network.encoder.weight  # tied, so it is laid out once, in the encoder
    with pytest.raises(ConfigError, match=r"^the head has no weight tensor 'head.weight'"):
        Layout.of(network).head_rows()
