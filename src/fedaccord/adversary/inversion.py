"""Gradient inversion, which reconstructs samples of the sites from their updates (docs/methods.md 10.4).

Dummy samples are optimised until their gradient aligns with a site's update. All sites are inverted together: a
reconstruction is (sites, dummies, inputs), and a step needs the same number of matrix products for any number of sites.
Reconstructions stay in memory; this module never writes or prints them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedaccord.adversary.many_models import Layer, Models
from fedaccord.models.network import Network

TINY = 1e-12  # added to denominators, because a zero gradient has no direction
FARTHEST = 3.0  # bound on a reconstructed feature, in standard deviations
BETAS, EPSILON = (0.9, 0.999), 1e-8  # of Adam

Gradients = Callable[[Tensor, Tensor], tuple[Tensor, Tensor, Tensor]]
"""A function of inputs and label logits that returns the mismatch (sites,) and its gradients w.r.t. both."""


class Dummies(NamedTuple):
    """Reconstructed inputs (sites, dummies, inputs) and label logits (sites, dummies, labels)."""

    x: Tensor
    logits: Tensor


@dataclass(frozen=True)
class Inversion:
    """Reconstructs samples by Adam steps on the cosine mismatch of two directions."""

    steps: int = 20
    lr: float = 0.1
    variation: float = 0.0  # weight of the total variation over neighbouring inputs; 0 for tables

    def __call__(
        self, network: Network, models: Tensor, directions: Tensor, start: Dummies, block: slice | None = None
    ) -> Dummies:
        """Return dummies whose mean cross-entropy gradient at a model aligns with each site's direction.

        `models` is one flat vector for all sites, or (sites, parameters); `directions` (sites, parameters) is zero for
        parameters that were not trained. Inputs in `block` are clamped to [0, 1], others to three standard deviations.
        """
        gradients = matching(network, models, directions)
        x, logits = start.x.clone(), start.logits.clone()
        moments = [(torch.zeros_like(part), torch.zeros_like(part)) for part in (x, logits)]
        for step in range(1, self.steps + 1):
            _, x_gradient, logits_gradient = gradients(x, logits)
            if self.variation:
                x_gradient = x_gradient + self.variation * variation_gradient(x)
            for part, gradient, moment in zip((x, logits), (x_gradient, logits_gradient), moments, strict=True):
                _adam_step(part, gradient, moment, step, self.lr)
            _clamp(x, block)
        return Dummies(x, logits)


def matching(network: Network, models: Tensor, directions: Tensor) -> Gradients:
    """Return the function that computes the mismatch of dummies with the directions, and its gradients."""
    parameters = Models(network, models)
    wanted = Models(network, directions)
    norms = directions[:, parameters.trained].norm(dim=1)
    if parameters.layers is not None and wanted.layers is not None:
        layers, wanted_layers = parameters.layers, wanted.layers
        return lambda x, logits: chain_gradients(layers, wanted_layers, norms, x, logits)
    return lambda x, logits: _any_gradients(parameters, directions, norms, x, logits)


def chain_gradients(
    layers: list[Layer], wanted: list[Layer], norms: Tensor, x: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the mismatch (sites,) and its gradients for linear layers with ReLU between them, without autograd.

    With `U` the derivative of the mismatch w.r.t. the parameter gradient `G`, the gradient of `<U, G>` w.r.t. the
    dummies is the gradient of the loss's directional derivative along `U`: one forward pass with tangents and one
    backward pass.
    """
    values, slopes = [x], []
    for number, layer in enumerate(layers):
        z = layer.apply(values[-1])
        if number < len(layers) - 1:
            # A float mask: a boolean one takes nine times as long.
            slopes.append(torch.gt(z, 0, out=torch.empty_like(z)))
            values.append(z.clamp_(min=0))
    p, q = _softmax(z), _softmax(logits)
    samples = x.shape[-2]
    errors = [(p - q) / samples]
    for layer, slope in zip(reversed(layers[1:]), reversed(slopes), strict=True):
        errors.append((errors[-1] @ layer.weight).mul_(slope))
    errors.reverse()
    found = [
        Layer(e.mT @ v, None if w.bias is None else e.sum(-2)) for e, v, w in zip(errors, values, wanted, strict=True)
    ]
    agreement = sum(((f * w) for f, w in zip(found, wanted, strict=True)), torch.zeros_like(norms))
    length = sum(((f * f) for f in found), torch.zeros_like(norms)).sqrt()
    scale = length * norms + TINY
    # d mismatch / dG = -(V / scale - agreement norms G / (length scale^2))
    to_wanted, to_found = -1 / scale, agreement * norms / (length.clamp(min=TINY) * scale.square())
    towards = [w.mixed(to_wanted, f, to_found) for w, f in zip(wanted, found, strict=True)]

    tangent = towards[0].apply(x)
    for layer, toward, value, slope in zip(layers[1:], towards[1:], values[1:], slopes, strict=True):
        tangent = toward.apply(value).add_(tangent.mul_(slope) @ layer.weight.mT)
    back = p * (tangent - (p * tangent).sum(-1, keepdim=True)) / samples
    for number in range(len(layers) - 1, -1, -1):
        back = (back @ layers[number].weight).add_(errors[number] @ towards[number].weight)
        if number:
            back.mul_(slopes[number - 1])
    logits_gradient = -q * (tangent - (q * tangent).sum(-1, keepdim=True)) / samples
    return 1 - agreement / scale, back, logits_gradient


def _softmax(logits: Tensor) -> Tensor:
    """Return the softmax over the last axis, transposed because that is eight times as fast for few labels."""
    return torch.softmax(logits.mT.contiguous(), -2).mT


def _any_gradients(
    models: Models, directions: Tensor, norms: Tensor, x: Tensor, logits: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the results of `chain_gradients` for any network, by second derivatives over all sites at once."""

    def mismatch(x: Tensor, logits: Tensor, model: Tensor, wanted: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        def loss(parameters: Tensor) -> Tensor:
            scores = torch.log_softmax(models.logits_of(parameters, x), -1)
            return -(torch.softmax(logits, -1) * scores).sum(-1).mean()

        found = torch.func.grad(loss)(model)[models.trained]
        value = 1 - (found * wanted[models.trained]).sum() / ((found.square().sum() + TINY**2).sqrt() * norm + TINY)
        return value, value

    over = None if models.models.dim() == 1 else 0
    gradients = torch.func.vmap(torch.func.grad(mismatch, argnums=(0, 1), has_aux=True), in_dims=(0, 0, over, 0, 0))
    (x_gradient, logits_gradient), value = gradients(x, logits, models.models, directions, norms)
    return value, x_gradient, logits_gradient


def variation_gradient(x: Tensor) -> Tensor:
    """Return the gradient of `mean |x[j+1] - x[j]|` over each site's dummies."""
    steps = torch.sign(x.diff(dim=-1)) / max(1, (x.shape[-1] - 1) * x.shape[-2])
    gradient = torch.zeros_like(x)
    gradient[..., 1:] += steps
    gradient[..., :-1] -= steps
    return gradient


def _adam_step(values: Tensor, gradient: Tensor, moments: tuple[Tensor, Tensor], step: int, lr: float) -> None:
    first, second = moments
    first.lerp_(gradient, 1 - BETAS[0])
    second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1 - BETAS[1])
    root = (second / (1 - BETAS[1] ** step)).sqrt_().add_(EPSILON)
    values.addcdiv_(first, root, value=-lr / (1 - BETAS[0] ** step))


def _clamp(x: Tensor, block: slice | None) -> None:
    if block is None:
        x.clamp_(-FARTHEST, FARTHEST)
        return
    for part, low in ((x[..., : block.start], -FARTHEST), (x[..., block], 0.0), (x[..., block.stop :], -FARTHEST)):
        part.clamp_(low, FARTHEST if low else 1.0)
