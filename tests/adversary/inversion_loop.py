"""The inversion as a plain loop over sites with derivatives of derivatives: what the batched one must equal."""

from __future__ import annotations

import torch
from torch import nn

from fedaccord.adversary.inversion import FARTHEST, TINY, Dummies
from fedaccord.models.layout import Layout


def mismatch(network, model, direction, x, logits):
    """Return `1 - cosine` between the gradient of the dummies' loss at a model and a direction."""
    layout = Layout.of(network)
    layout.load(network, model)
    network.eval()
    parameters = [p for p in network.parameters() if p.requires_grad]
    loss = -(torch.softmax(logits, -1) * torch.log_softmax(network(x), -1)).sum(-1).mean()
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, parameters, create_graph=True)])
    wanted = direction[layout.trainable_mask()]
    return 1 - gradient @ wanted / (gradient.norm() * wanted.norm() + TINY)


def invert_one(network, model, direction, x, logits, steps=20, lr=0.1, block=None):
    x, logits = x.clone().requires_grad_(), logits.clone().requires_grad_()
    adam = torch.optim.Adam([x, logits], lr=lr)
    for _ in range(steps):
        adam.zero_grad()
        mismatch(network, model, direction, x, logits).backward(inputs=[x, logits])
        adam.step()
        with torch.no_grad():
            for place in range(x.shape[1]):
                inside = block is not None and block.start <= place < block.stop
                low, high = (0.0, 1.0) if inside else (-FARTHEST, FARTHEST)
                x[:, place].clamp_(low, high)
    return x.detach(), logits.detach()


def invert_each(network, models, directions, start, steps=20, lr=0.1, block=None):
    """Invert one site after the other; `models` is one vector for all, or one for each."""
    found = []
    for site, direction in enumerate(directions):
        model = models if models.dim() == 1 else models[site]
        found.append(invert_one(network, model, direction, start.x[site], start.logits[site], steps, lr, block))
    return Dummies(*(torch.stack(part) for part in zip(*found, strict=True)))


def made_up(
    network: nn.Module, sites: int, inputs: int, labels: int, dummies: int = 100, seed: int = 0, dtype=torch.float32
):
    """Return a model, the sites' directions and where the dummies begin, at random."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    layout = Layout.of(network)
    model = layout.read(network).to(dtype)
    directions = draw(sites, layout.size) * layout.trainable_mask()
    return model, directions, Dummies(draw(sites, dummies, inputs), draw(sites, dummies, labels))
