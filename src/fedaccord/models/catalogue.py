"""The built-in models, and a function that builds a model from its name.

Every builder takes the shape of one sample and the number of classes and returns a Network.
"""

from __future__ import annotations

import copy
import math
import pkgutil
import uuid
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from fedaccord.errors import ConfigError, first_line
from fedaccord.extensions import load_outside
from fedaccord.models.network import Network, UnitLength, as_network
from fedaccord.models.registry import GIVEN, MODELS, check_model

_PROBES = 2
_given: dict[str, nn.Module] = {}  # modules handed over in Python, by the key in their `[model]` table


def linear(input_shape: Sequence[int], classes: int) -> Network:
    """Build a linear classifier on the flattened input."""
    return Network(nn.Flatten(), nn.Linear(math.prod(input_shape), classes))


def mlp(input_shape: Sequence[int], classes: int, hidden: Sequence[int] = (128,)) -> Network:
    """Build dense layers of the widths in `hidden`, each followed by a ReLU, on the flattened input."""
    widths = [math.prod(input_shape), *hidden]
    layers: list[nn.Module] = [nn.Flatten()]
    for inputs, outputs in pairwise(widths):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return Network(nn.Sequential(*layers), nn.Linear(widths[-1], classes))


def sphere_mlp(input_shape: Sequence[int], classes: int, hidden: Sequence[int] = (128,)) -> Network:
    """Build dense layers of the widths in `hidden`, with ReLU between them and features of unit norm."""
    network = mlp(input_shape, classes, hidden)
    layers = list(network.encoder.children())[:-1]  # without the last ReLU, so that features cover the whole sphere
    return Network(nn.Sequential(*layers, UnitLength()), network.head)


def lenet5(input_shape: Sequence[int], classes: int) -> Network:
    """Build LeNet-5 (LeCun et al. 1998) with ReLU and max-pooling, for images of any size.

    The published network takes 32x32 pixels; smaller images are padded by 2, as usual for the 28x28 pixels of MNIST.
    The second convolution is padded too if fewer than 6 pixels are left after the first pool.
    """
    channels, sides = image_shape("lenet5", input_shape)
    first, sides = _convolve(channels, 6, sides, padding=_pad_below(32, sides))
    second, sides = _convolve(6, 16, sides, padding=_pad_below(6, sides))
    dense = [nn.Linear(16 * math.prod(sides), 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU()]
    return Network(nn.Sequential(*first, *second, nn.Flatten(), *dense), nn.Linear(84, classes))


def cnn(input_shape: Sequence[int], classes: int) -> Network:
    """Build a small CNN after arXiv 2508.18774: 5x5 convolutions of 32 and 64 channels, a dense layer of 512.

    Convolutions preserve height and width, as in the CNN of McMahan et al. (2017).
    """
    channels, sides = image_shape("cnn", input_shape)
    first, sides = _convolve(channels, 32, sides, padding=(2, 2))
    second, sides = _convolve(32, 64, sides, padding=(2, 2))
    dense = [nn.Linear(64 * math.prod(sides), 512), nn.ReLU()]
    return Network(nn.Sequential(*first, *second, nn.Flatten(), *dense), nn.Linear(512, classes))


def cnn1d(input_shape: Sequence[int], classes: int) -> Network:
    """Build a small CNN for signals: convolutions of kernel size 5 with 16 and 32 channels, a dense layer of 64.

    Convolutions preserve the length, and a pool after each one halves it.
    """
    if len(input_shape) != 2:
        raise ConfigError(
            f"the model 'cnn1d' needs signals of shape (channels, length), but the samples have shape "
            f"{tuple(input_shape)}: use 'lenet5' for images, 'mlp' or 'linear' for features"
        )
    channels, length = input_shape
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise((channels, 16, 32)):
        window = min(2, length)  # a length of 1 cannot be halved
        layers += [nn.Conv1d(inputs, outputs, 5, padding=2), nn.MaxPool1d(window), nn.ReLU()]
        length //= window
    dense = [nn.Linear(32 * length, 64), nn.ReLU()]
    return Network(nn.Sequential(*layers, nn.Flatten(), *dense), nn.Linear(64, classes))


def image_shape(model: str, input_shape: Sequence[int]) -> tuple[int, tuple[int, int]]:
    """Return channels and (height, width); raise ConfigError if the samples are not images."""
    if len(input_shape) != 3:
        raise ConfigError(
            f"the model '{model}' needs images of shape (channels, height, width), but the samples have shape "
            f"{tuple(input_shape)}: use 'mlp' or 'linear', or reshape the samples"
        )
    channels, height, width = input_shape
    return channels, (height, width)


def build(name: str, settings: Mapping[str, Any], input_shape: Sequence[int], classes: int, seed: int) -> Network:
    """Build a built-in model, or one of a trusted package; the same seed gives the same weights.

    The caller's random state does not change. Raise ConfigError for an invalid name, setting or factory, and for a
    model whose output for a batch is not of shape (batch, classes).
    """
    check_model(name, settings)
    input_shape = tuple(input_shape)
    with torch.random.fork_rng(devices=[]):
        # Not torch.manual_seed, which would also reset the caller's GPU generators; weights are drawn on the CPU.
        torch.default_generator.manual_seed(seed)
        if name == GIVEN:
            module = given_model(settings)
        elif name not in MODELS:
            module = _call_factory(name, settings, input_shape, classes)
        else:
            entry = MODELS[name]
            try:
                module = pkgutil.resolve_name(entry.builder)(input_shape, classes, **{**entry.settings, **settings})
            except (RuntimeError, MemoryError, OverflowError) as error:  # a layer that does not fit into memory
                raise ConfigError(f"the model '{name}' cannot be built: {first_line(error)}") from None
        network = as_network(module)
        _check_logits(name, network, input_shape, classes)
        if network is not module:
            _check_same_function(name, module, network, input_shape)
    return network


def _convolve(
    inputs: int, outputs: int, sides: tuple[int, int], padding: tuple[int, int]
) -> tuple[list[nn.Module], tuple[int, int]]:
    """Return a 5x5 convolution with 2x2 max-pool and ReLU, and the height and width of its output."""
    height, width = (side + 2 * pad - 4 for side, pad in zip(sides, padding, strict=True))
    window = (min(2, height), min(2, width))  # one pixel cannot be halved
    # ReLU after the pool gives the same result for a quarter of the values (0.55 of the time).
    layers = [nn.Conv2d(inputs, outputs, 5, padding=padding), nn.MaxPool2d(window), nn.ReLU()]
    return layers, (height // window[0], width // window[1])


def _pad_below(limit: int, sides: tuple[int, int]) -> tuple[int, int]:
    height, width = sides
    return (2 if height < limit else 0, 2 if width < limit else 0)


def _call_factory(name: str, settings: Mapping[str, Any], input_shape: tuple[int, ...], classes: int) -> nn.Module:
    # User code may raise anything; `from error` keeps the trace for the log.
    factory = load_outside(name, "models", "model.name")
    if not callable(factory):
        raise ConfigError(f"model.name: '{name}' is neither a function nor a class")
    try:
        module = factory(input_shape=input_shape, classes=classes, **settings)
    except Exception as error:
        raise ConfigError(f"the model '{name}' cannot be built: {first_line(error)}") from error
    if not isinstance(module, nn.Module):
        raise ConfigError(f"the model '{name}' must return a torch module, but returned a {type(module).__name__}")
    return module


@torch.no_grad()
def _output(name: str, module: nn.Module, samples: Tensor) -> Any:
    module.eval()
    try:
        output = module(samples)
    except Exception as error:
        shape = tuple(samples.shape[1:])
        raise ConfigError(f"the model '{name}' fails on samples of shape {shape}: {first_line(error)}") from error
    module.train()
    return output


def _check_logits(name: str, network: Network, input_shape: tuple[int, ...], classes: int) -> None:
    logits = _output(name, network, torch.zeros(_PROBES, *input_shape))
    if tuple(logits.shape) != (_PROBES, classes):
        raise ConfigError(
            f"the model '{name}' returns an output of shape {tuple(logits.shape)} for {_PROBES} samples, "
            f"but ({_PROBES}, {classes}) is needed: a row of {classes} logits for each"
        )


def _check_same_function(name: str, module: nn.Module, network: Network, input_shape: tuple[int, ...]) -> None:
    # An extra step in a user's forward, between encoder and head, would silently be lost.
    if type(module).forward is nn.Module.forward:
        return
    samples = torch.rand(_PROBES, *input_shape)
    expected, logits = (_output(name, each, samples) for each in (module, network))
    same_shape = isinstance(expected, torch.Tensor) and expected.shape == logits.shape
    if not (same_shape and torch.allclose(expected, logits, equal_nan=True)):
        raise ConfigError(
            f"the model '{name}' must compute head(encoder(x)), but its forward returns something else: "
            "move all other steps into the encoder"
        )


def give_model(module: nn.Module) -> dict[str, Any]:
    """Keep a copy of a module for this process; return the `[model]` table that names it."""
    key = uuid.uuid4().hex
    _given[key] = copy.deepcopy(module)
    return {"name": GIVEN, "key": key}


def given_model(settings: Mapping[str, Any]) -> nn.Module:
    """Return a copy of the module that a `[model]` table names; raise ConfigError in any other process."""
    if settings.get("key") not in _given:
        raise ConfigError(
            "the model was handed over as a module of another process; use workers=0, or name it as "
            "'package.module:factory'"
        )
    return copy.deepcopy(_given[settings["key"]])
