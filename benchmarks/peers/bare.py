"""Training loops written by hand: a plain one, as a PyTorch user would write it, and two that are optimised.

--loop module      nn.Module, torch.optim.SGD, client by client; with --processes 2 this is the reference
--loop stacked     the MLPs of 25 clients as one program of batched matrix products
--loop pool-first  channels_last, and ReLU after max-pooling, which gives the same values with a quarter of the work
"""

from __future__ import annotations

import work as w


class Module:
    """Train clients one after another."""

    def __init__(self, work: w.Work) -> None:
        import torch

        self.work, self.torch, self.model = work, torch, work.model()
        self.parameters = list(self.model.parameters())
        self.data: dict = {}

    def run(self, clients: list[int], received, total, weight: float) -> None:
        """Train the clients from the flat vector `received` and add their models to `total`."""
        torch = self.torch
        parts, sums = (_views(flat, self.parameters) for flat in (received, total))
        for number in clients:
            with torch.no_grad():
                torch._foreach_copy_(self.parameters, parts)
            self.epoch(self.batches(number))
            with torch.no_grad():
                torch._foreach_add_(sums, self.parameters, alpha=weight)

    def batches(self, number: int):
        if number not in self.data:
            self.data[number] = self.work.batches(number)
        return self.data[number]

    def epoch(self, batches) -> None:
        optimiser = self.torch.optim.SGD(self.parameters, lr=w.LR)
        for x, y in batches:
            optimiser.zero_grad()
            self.torch.nn.functional.cross_entropy(self.model(x), y).backward()
            optimiser.step()


class PoolFirst(Module):
    """Train clients one after another, with convolutions in channels_last and max-pooling before ReLU."""

    def __init__(self, work: w.Work) -> None:
        super().__init__(work)
        from torch import nn

        layers = list(self.model)
        for i, layer in enumerate(layers[:-1]):
            if isinstance(layer, nn.ReLU) and isinstance(layers[i + 1], nn.MaxPool2d):
                layers[i], layers[i + 1] = layers[i + 1], layers[i]
        self.model = nn.Sequential(*layers).to(memory_format=self.torch.channels_last)
        self.parameters = list(self.model.parameters())

    def epoch(self, batches) -> None:
        torch = self.torch
        for x, y in batches:
            loss = torch.nn.functional.cross_entropy(self.model(x), y)
            gradients = torch.autograd.grad(loss, self.parameters)
            with torch.no_grad():
                torch._foreach_add_(self.parameters, gradients, alpha=-w.LR)


class Stacked(Module):
    """Train many MLPs of the same size at once."""

    CHUNK = 25

    def run(self, clients: list[int], received, total, weight: float) -> None:
        torch = self.torch
        for start in range(0, len(clients), self.CHUNK):
            chunk = clients[start : start + self.CHUNK]
            many = received.expand(len(chunk), -1).clone()
            self.train(chunk, many)
            total.add_(weight * many.sum(0))
        assert torch.isfinite(total).all()

    def train(self, chunk: list[int], many) -> None:
        torch = self.torch
        x, y = torch.from_numpy(self.work.x[chunk]), torch.from_numpy(self.work.y[chunk])
        sizes = [p.numel() for p in self.parameters]
        pieces = many.split(sizes, 1)
        own = [t.unflatten(1, p.shape).requires_grad_() for t, p in zip(pieces, self.parameters, strict=True)]
        w1, b1, w2, b2 = own
        for i in range(0, y.shape[1], w.BATCH):
            part, labels = x[:, i : i + w.BATCH], y[:, i : i + w.BATCH]
            hidden = torch.baddbmm(b1.unsqueeze(1), part, w1.transpose(1, 2)).relu()
            logits = torch.baddbmm(b2.unsqueeze(1), hidden, w2.transpose(1, 2))
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
            gradients = torch.autograd.grad(loss / labels.shape[1], own)
            with torch.no_grad():
                torch._foreach_add_(own, gradients, alpha=-w.LR)


LOOPS = {"module": Module, "stacked": Stacked, "pool-first": PoolFirst}


def _views(flat, parameters):
    pieces = flat.split([p.numel() for p in parameters])
    return [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]


def _serve(pipe, rank: int, options, work: w.Work, cohorts, received, totals) -> None:
    """Run as one of several processes: train a share of the clients of each round."""
    import torch

    torch.set_num_threads(1)
    loop = LOOPS[options.loop](work)
    pipe.send("ready")
    while (number := pipe.recv()) is not None:
        totals[rank].zero_()
        loop.run(cohorts[number][rank :: options.processes], received, totals[rank], 1 / len(cohorts[number]))
        pipe.send(number)


def main() -> None:
    def extra(parser) -> None:
        parser.add_argument("--loop", default="module", choices=sorted(LOOPS))
        parser.add_argument("--processes", type=int, default=1)

    options = w.arguments(extra)
    import torch
    import torch.multiprocessing as processes

    torch.set_num_threads(options.threads)
    work, clock = w.Work(options.workload), w.Clock(options)
    cohorts, model = work.cohorts(options.rounds), work.model()
    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()]).share_memory_()
    if options.processes == 1:
        loop = LOOPS[options.loop](work)
        clock.begin()
        for cohort in cohorts:
            total = torch.zeros_like(flat)
            loop.run(cohort, flat, total, 1 / len(cohort))
            flat.copy_(total)
            clock.mark()
    else:
        totals = torch.zeros(options.processes, len(flat)).share_memory_()
        context, pipes = processes.get_context("fork"), []
        for rank in range(options.processes):
            here, there = context.Pipe()
            arguments = (there, rank, options, work, cohorts, flat, totals)
            context.Process(target=_serve, args=arguments, daemon=True).start()
            pipes.append(here)
        for pipe in pipes:
            pipe.recv()
        clock.begin()
        for number in range(options.rounds):
            for pipe in pipes:
                pipe.send(number)
            for pipe in pipes:
                pipe.recv()
            torch.sum(totals, 0, out=flat)
            clock.mark()
    with torch.no_grad():
        for parameter, value in zip(model.parameters(), _views(flat, list(model.parameters())), strict=True):
            parameter.copy_(value)
    clock.finish(work, model.state_dict())


if __name__ == "__main__":
    main()
