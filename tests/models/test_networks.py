from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.nn import functional

from fedaccord.errors import ConfigError
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, insert_personal_layer
from fedaccord.models.resnet import BasicBlock

IMAGES = [(1, 28, 28), (3, 32, 32), (1, 8, 8)]
VECTORS = [(30,), (2, 5)]


def parameters(network: nn.Module) -> int:
    return sum(p.numel() for p in network.parameters())


class TestCatalogue:
    @pytest.mark.parametrize(
        ("name", "shape"),
        [(name, shape) for name in ("linear", "mlp") for shape in VECTORS + IMAGES]
        + [(name, shape) for name in ("lenet5", "cnn") for shape in [*IMAGES, (1, 30, 20), (9, 1, 128), (1, 3, 3)]]
        + [("cnn1d", shape) for shape in [(9, 64), (1, 1), (3, 7)]]
        + [(name, shape) for name in ("resnet8", "resnet18") for shape in [(3, 32, 32), (1, 8, 8)]]
        + [("resnet34", (3, 32, 32))],
    )
    def test_every_model_runs_forward_and_backward_on_its_shapes(self, name, shape):
        network = build(name, {}, shape, classes=7, seed=0)
        x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1))
        logits = network(x)
        assert logits.shape == (3, 7)
        assert network.features(x).shape == (3, network.head.in_features)
        logits.logsumexp(1).sum().backward()
        for parameter_name, parameter in network.named_parameters():
            assert parameter.grad is not None, parameter_name
            assert parameter.grad.isfinite().all(), parameter_name
            assert parameter.grad.any(), parameter_name

    @pytest.mark.parametrize(
        ("name", "settings", "shape", "count"),
        [
            ("linear", {}, (28, 28), 7_850),
            ("mlp", {}, (784,), 784 * 128 + 128 + 1_290),
            ("mlp", {"hidden": [5, 4]}, (3,), 3 * 5 + 5 + 5 * 4 + 4 + 4 * 10 + 10),
            ("lenet5", {}, (1, 28, 28), 61_706),  # the textbook's count
            ("lenet5", {}, (3, 32, 32), 62_006),
            ("cnn", {}, (1, 28, 28), 1_663_370),  # the count given by McMahan et al. (2017)
            ("cnn1d", {}, (9, 64), 9 * 16 * 5 + 16 + 16 * 32 * 5 + 32 + 32 * 16 * 64 + 64 + 650),
            # stem 864 + 64; blocks 18,560, 57,728 and 230,144 with their shortcuts; head 1,290
            ("resnet8", {}, (3, 32, 32), 928 + 18_560 + 57_728 + 230_144 + 1_290),
            ("resnet18", {}, (3, 32, 32), 11_173_962),
            ("resnet34", {}, (3, 32, 32), 21_282_122),
        ],
    )
    def test_models_have_the_published_number_of_parameters(self, name, settings, shape, count):
        assert parameters(build(name, settings, shape, classes=10, seed=0)) == count

    @pytest.mark.parametrize(("name", "width"), [("mlp", 128), ("lenet5", 84), ("cnn", 512), ("resnet18", 512)])
    def test_features_have_the_width_the_papers_use(self, name, width):
        assert build(name, {}, (3, 32, 32), classes=4, seed=0).head.in_features == width

    def test_a_linear_model_is_its_head(self):
        network = build("linear", {}, (2, 2), classes=3, seed=0)
        x = torch.rand(5, 2, 2)
        assert torch.equal(network(x), network.head(x.reshape(5, 4)))

    def test_an_mlp_is_what_its_formula_says(self):
        network = build("mlp", {"hidden": [3]}, (2,), classes=2, seed=0)
        Layout.of(network).load(network, torch.tensor([1, 0, 0, 1, -1, -1, 0, 0, 5, 1, 1, 1, 1, 0, 0, 0.5, 0.25]))
        # hidden = relu(2, 1, -3 + 5) for x = (2, 1); logits = (2 + 1 + 2, 2) + bias
        assert network(torch.tensor([[2.0, 1.0]])).tolist() == [[5.5, 2.25]]

    @pytest.mark.parametrize("name", ["lenet5", "cnn"])
    def test_convolutional_models_are_the_textbook_s_with_the_relu_before_the_pool(self, name):
        network = build(name, {}, (1, 28, 28), classes=10, seed=0)
        conv1, conv2 = (layer for layer in network.encoder if isinstance(layer, nn.Conv2d))
        x = torch.randn(4, 1, 28, 28)
        maps = functional.max_pool2d(conv1(x).relu(), 2)
        features = functional.max_pool2d(conv2(maps).relu(), 2).flatten(1)
        for layer in network.encoder:
            if isinstance(layer, nn.Linear):
                features = layer(features).relu()
        assert torch.equal(network.features(x), features)

    def test_the_relu_comes_after_the_pool_where_it_is_cheaper(self):
        kinds = [type(layer) for layer in build("lenet5", {}, (1, 28, 28), classes=10, seed=0).encoder]
        assert kinds[:3] == [nn.Conv2d, nn.MaxPool2d, nn.ReLU]

    @pytest.mark.parametrize(("inputs", "outputs", "stride"), [(3, 3, 1), (3, 6, 2)])
    def test_a_residual_block_is_what_its_formula_says(self, inputs, outputs, stride):
        block = BasicBlock(inputs, outputs, stride)
        x = torch.randn(4, inputs, 8, 8)
        conv1, bn1, _, conv2, bn2 = block.residual
        carried = x if stride == 1 else block.shortcut[1](block.shortcut[0](x))
        expected = (bn2(conv2(bn1(conv1(x)).relu())) + carried).relu()
        assert expected.shape == (4, outputs, 8 // stride, 8 // stride)
        assert torch.equal(block(x), expected)

    @pytest.mark.parametrize(("name", "depths"), [("resnet18", (2, 2, 2, 2)), ("resnet34", (3, 4, 6, 3))])
    def test_a_resnet_halves_the_image_three_times(self, name, depths):
        layers = list(build(name, {}, (3, 32, 32), classes=10, seed=0).eval().encoder)
        x, shapes = torch.zeros(1, 3, 32, 32), []
        for layer in layers:
            x = layer(x)
            if isinstance(layer, BasicBlock):
                shapes.append(tuple(x.shape[1:]))
        stages = [(64, 32, 32), (128, 16, 16), (256, 8, 8), (512, 4, 4)]
        assert shapes == [stage for stage, depth in zip(stages, depths, strict=True) for _ in range(depth)]

    def test_resnet8_halves_the_image_at_once_and_knows_no_other_images_of_a_batch(self):
        network = build("resnet8", {"widths": [8, 12]}, (3, 32, 32), classes=10, seed=0).train()
        assert network.encoder[0](torch.zeros(1, 3, 32, 32)).shape == (1, 8, 16, 16)
        x = torch.rand(4, 3, 32, 32)
        torch.testing.assert_close(network(x)[:1], network(x[:1]))
        assert not list(network.buffers())  # so nothing but its parameters is averaged
        batch = build("resnet8", {"widths": [8, 12], "norm": "batch"}, (3, 32, 32), classes=10, seed=0).train()
        assert not torch.allclose(batch(x)[:1], batch(x[:1]), atol=1e-3)

    def test_resnet_convolutions_start_with_the_spread_of_he_et_al(self):
        last = build("resnet18", {}, (3, 32, 32), classes=10, seed=0).encoder[10].residual[3].weight
        assert last.shape == (512, 512, 3, 3)
        assert last.std().item() == pytest.approx((2 / (512 * 9)) ** 0.5, rel=0.01)

    @pytest.mark.parametrize("name", ["lenet5", "cnn", "resnet8", "resnet18", "resnet34"])
    def test_image_models_refuse_samples_that_are_no_images(self, name):
        with pytest.raises(ConfigError) as caught:
            build(name, {}, (30,), classes=3, seed=0)
        assert str(caught.value) == (
            f"the model '{name}' needs images of shape (channels, height, width), but the samples have shape (30,): "
            "use 'mlp' or 'linear', or reshape the samples"
        )

    def test_a_model_for_signals_refuses_other_samples(self):
        with pytest.raises(ConfigError, match=r"signals of shape \(channels, length\), but .* shape \(1, 28, 28\)"):
            build("cnn1d", {}, (1, 28, 28), classes=3, seed=0)

    def test_channels_last_gives_the_same_logits(self):
        network = build("lenet5", {}, (3, 32, 32), classes=10, seed=0)
        x = torch.rand(4, 3, 32, 32)
        plain = network(x)
        network.to(memory_format=torch.channels_last)
        torch.testing.assert_close(network(x.to(memory_format=torch.channels_last)), plain)


class TestSeeds:
    @pytest.mark.parametrize("name", ["mlp", "lenet5", "resnet18"])
    def test_the_same_seed_gives_the_same_weights_and_another_does_not(self, name):
        def weights(seed):
            network = build(name, {}, (3, 32, 32), classes=4, seed=seed)
            return Layout.of(network).read(network)

        first = weights(2**63 - 1)
        torch.rand(3)  # what the caller draws in between must not matter
        assert torch.equal(weights(2**63 - 1), first)
        assert not torch.equal(weights(1), first)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: build("mlp", {}, (4,), classes=3, seed=5),
            lambda: insert_personal_layer(deepcopy(WITHOUT_PERSONAL)),
        ],
    )
    def test_the_caller_s_random_state_is_untouched(self, make):
        before = torch.get_rng_state()
        make()
        assert torch.equal(torch.get_rng_state(), before)

    def test_a_built_network_is_in_training_mode(self):
        assert all(module.training for module in build("resnet18", {}, (3, 8, 8), classes=2, seed=0).modules())


WITHOUT_PERSONAL = Network(nn.Flatten(), nn.Linear(4, 3))


class TestPersonalLayer:
    @pytest.mark.parametrize(
        ("name", "shape"), [("mlp", (30,)), ("lenet5", (1, 28, 28)), ("resnet18", (3, 16, 16)), ("linear", (5,))]
    )
    def test_it_leaves_the_outputs_unchanged_bit_for_bit(self, name, shape):
        network = build(name, {}, shape, classes=6, seed=3).eval()
        personal = insert_personal_layer(deepcopy(network))
        x = torch.randn(8, *shape)
        assert torch.equal(personal(x), network(x))
        assert parameters(personal) == parameters(network) + network.head.in_features**2

    def test_it_is_a_layer_between_encoder_and_head(self):
        personal = insert_personal_layer(build("mlp", {"hidden": [4]}, (3,), classes=2, seed=0))
        x = torch.randn(5, 3)
        features = personal.features(x)
        with torch.no_grad():
            personal.personal.weight.mul_(2.0)
        assert torch.equal(personal.features(x), features)
        assert torch.equal(personal(x), personal.head(2.0 * features))
        assert personal.personal.bias is None

    def test_it_is_inserted_in_place(self):
        network = build("mlp", {}, (3,), classes=2, seed=0)
        assert insert_personal_layer(network) is network
        assert torch.equal(network.personal.weight, torch.eye(128))
        assert [name for name, _ in network.named_children()] == ["encoder", "personal", "head"]

    def test_one_that_is_there_already_stays(self):
        network = insert_personal_layer(build("linear", {}, (3,), classes=2, seed=0))
        layer = network.personal
        assert insert_personal_layer(network).personal is layer

    def test_it_has_the_dtype_of_the_head(self):
        personal = insert_personal_layer(build("linear", {}, (3,), classes=2, seed=0).double())
        assert personal(torch.zeros(1, 3, dtype=torch.float64)).dtype == torch.float64
