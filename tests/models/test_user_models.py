import pytest
import torch
from torch import nn

from fedaccord.errors import ConfigError
from fedaccord.extensions import trusting
from fedaccord.models.catalogue import build
from fedaccord.models.layout import Layout
from fedaccord.models.network import Network, as_network


@pytest.fixture(autouse=True)
def allowed():
    with trusting([__name__, "no_such_place", "broken_model_file"]):
        yield


class Wrapped(nn.Module):
    """A user's own model."""

    def __init__(self, input_shape, classes, width=4):
        super().__init__()
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], width), nn.Tanh())
        self.head = nn.Linear(width, classes)

    def forward(self, x):
        return self.head(self.encoder(x))


class WithoutForward(Wrapped):
    forward = nn.Module.forward


class StepInBetween(Wrapped):
    def forward(self, x):
        return self.head(self.encoder(x).square())


class FailingForward(Wrapped):
    def forward(self, x):
        raise RuntimeError("no forward today")


class TwoOutputs(Wrapped):
    def forward(self, x):
        return self.head(self.encoder(x)), x


class OutsideThePart(Wrapped):
    def __init__(self, input_shape, classes):
        super().__init__(input_shape, classes)
        self.scale = nn.Parameter(torch.ones(1))


class ByProperty(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(input_shape[0], 4))
        self.top = nn.Linear(4, classes)

    encoder = property(lambda self: self.body)
    head = property(lambda self: self.top)


class DeepHead(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.encoder = nn.Flatten()
        self.head = nn.Sequential(nn.Linear(input_shape[0], classes))


class EncoderOnly(nn.Module):
    def __init__(self, input_shape, classes):
        super().__init__()
        self.encoder = nn.Flatten()
        self.head = None


def bare_linear(input_shape, classes):
    return nn.Linear(input_shape[0], classes)


def other_classes(input_shape, classes):
    return Wrapped(input_shape, classes + 1)


def other_inputs(input_shape, classes):
    return Network(nn.Linear(99, 4), nn.Linear(4, classes))


def unflattened(input_shape, classes):
    return Network(nn.Unflatten(1, (2, 2)), nn.Linear(2, classes))


def no_module(input_shape, classes):
    return {"encoder": 1}


def raises(input_shape, classes):
    raise KeyError


NOT_CALLABLE = 3


class TestUserModels:
    @pytest.mark.parametrize("factory", ["Wrapped", "WithoutForward", "ByProperty"])
    def test_a_module_with_encoder_and_head_becomes_a_network_in_training_mode(self, factory):
        network = build(f"{__name__}:{factory}", {}, (4,), classes=3, seed=0)
        assert isinstance(network, Network)
        assert all(module.training for module in network.modules())
        assert [slot.part for slot in Layout.of(network).slots] == ["encoder", "encoder", "head", "head"]

    def test_settings_reach_the_factory(self):
        assert build(f"{__name__}:Wrapped", {"width": 9}, (4,), classes=3, seed=0).head.in_features == 9

    def test_wrapping_shares_modules_and_keeps_a_network_as_it_is(self):
        module = Wrapped((4,), 3).eval()
        module.personal = nn.Identity()
        network = as_network(module)
        assert (network.encoder, network.personal, network.head) == (module.encoder, module.personal, module.head)
        assert not network.training
        assert as_network(network) is network

    @pytest.mark.parametrize(
        ("factory", "message"),
        [
            (
                "EncoderOnly",
                "the model EncoderOnly has no head: it needs the attributes 'encoder' (a torch module) and 'head' "
                "(an nn.Linear from features to classes)",
            ),
            (
                "bare_linear",
                "the model Linear has no encoder and no head: it needs the attributes 'encoder' (a torch module) and "
                "'head' (an nn.Linear from features to classes)",
            ),
            (
                "DeepHead",
                "the head of the model DeepHead is a Sequential, but must be an nn.Linear from features to classes",
            ),
            (
                "OutsideThePart",
                "the model OutsideThePart has 'scale' outside its encoder and its head: move it into one of them",
            ),
            (
                "StepInBetween",
                "the model '{name}' must compute head(encoder(x)), but its forward returns something else: "
                "move all other steps into the encoder",
            ),
            (
                "TwoOutputs",
                "the model '{name}' must compute head(encoder(x)), but its forward returns something else: "
                "move all other steps into the encoder",
            ),
            ("FailingForward", "the model '{name}' fails on samples of shape (4,): RuntimeError: no forward today"),
            (
                "other_classes",
                "the model '{name}' returns an output of shape (2, 4) for 2 samples, "
                "but (2, 3) is needed: a row of 3 logits for each",
            ),
            (
                "unflattened",
                "the model '{name}' returns an output of shape (2, 2, 3) for 2 samples, "
                "but (2, 3) is needed: a row of 3 logits for each",
            ),
            (
                "other_inputs",
                "the model '{name}' fails on samples of shape (4,): "
                "RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x4 and 99x4)",
            ),
            ("no_module", "the model '{name}' must return a torch module, but returned a dict"),
            ("raises", "the model '{name}' cannot be built: KeyError"),
            ("absent", "model.name: the module '{module}' has no 'absent'"),
            ("NOT_CALLABLE", "model.name: '{name}' is neither a function nor a class"),
        ],
    )
    def test_a_wrong_factory_is_told_in_one_sentence(self, factory, message):
        name = f"{__name__}:{factory}"
        with pytest.raises(ConfigError) as caught:
            build(name, {}, (4,), classes=3, seed=0)
        assert str(caught.value) == message.format(name=name, module=__name__)

    def test_a_setting_the_factory_does_not_know_is_told(self):
        with pytest.raises(ConfigError, match=r"^the model '.*:Wrapped' cannot be built: TypeError: .*'widht'"):
            build(f"{__name__}:Wrapped", {"widht": 9}, (4,), classes=3, seed=0)

    def test_a_module_that_is_not_there_is_told(self):
        with pytest.raises(ConfigError) as caught:
            build("no_such_place.models:mine", {}, (4,), classes=3, seed=0)
        said, _, folders = str(caught.value).partition("; looked among the installed packages and in the folders ")
        assert said == (
            "model.name: the module 'no_such_place.models' cannot be imported: "
            "ModuleNotFoundError: No module named 'no_such_place'"
        )
        assert "'tests'" in folders
        assert "/" not in folders

    def test_a_module_that_breaks_on_import_is_told_with_its_first_line(self, tmp_path, monkeypatch):
        (tmp_path / "broken_model_file.py").write_text("raise RuntimeError('first line\\nsecond line')")
        monkeypatch.syspath_prepend(tmp_path)
        with pytest.raises(ConfigError, match=r"cannot be imported: RuntimeError: first line$") as caught:
            build("broken_model_file:mine", {}, (4,), classes=3, seed=0)
        assert isinstance(caught.value.__cause__, RuntimeError)

    def test_the_seed_rules_its_weights_and_the_caller_s_random_state_is_untouched(self):
        before = torch.get_rng_state()
        first, second, other = (build(f"{__name__}:Wrapped", {}, (4,), classes=3, seed=seed) for seed in (5, 5, 6))
        assert torch.equal(first.head.weight, second.head.weight)
        assert not torch.equal(first.head.weight, other.head.weight)
        assert torch.equal(torch.get_rng_state(), before)
