"""A small federation whose host knows no method: what the engine's tests need a site to do."""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from fedaccord.engines.embedded import EmbeddedEngine
from fedaccord.engines.engine import HostSpec
from fedaccord.messages.message import Message

SITES = [f"site-{i}" for i in range(8)]


def site_data():
    data = {}
    for i, site in enumerate(SITES):
        generator = torch.Generator().manual_seed(i)
        x = torch.randn(3000 + i, 20, generator=generator)
        data |= {f"{site}/x": x, f"{site}/y": x @ torch.arange(20.0) + i}
    return data


def toy_engine(workers, cohorts=None, **spec):
    return EmbeddedEngine(HostSpec("toy_host:build", spec, site_data()), SITES, workers, cohorts)


def in_threes(task, sites):
    """Cohorts of up to three sites."""
    return [sites[start : start + 3] for start in range(0, len(sites), 3)]


def everywhere(**parts):
    return {site: Message(**parts) for site in SITES}


def build(spec, tensors):
    if spec.get("build") == "raise":
        raise KeyError("no such column")
    return ToyHost(spec, tensors)


class ToyHost:
    def __init__(self, spec, tensors):
        self.spec = spec
        self.tensors = tensors
        self.model = torch.zeros(2, 3)

    def handle(self, task, site, brief, memory):
        return getattr(self, task)(site, brief, memory)

    def handle_together(self, task, jobs):
        """Do them one after the other, and say with how many; some tasks know no such thing."""
        if task in self.spec.get("apart", []):
            raise ValueError("not together")
        answers = [self.handle(task, *job) for job in jobs]
        for reply, _ in answers:
            reply.numbers["together"] = len(jobs)
        return answers

    def echo(self, site, brief, memory):
        return brief, memory

    def train(self, site, brief, memory):
        """A few steps of least squares; sums over many rows, so that another order of additions would show."""
        x, y = self.tensors[f"{site}/x"], self.tensors[f"{site}/y"]
        weights, running = brief.tensors["w"].requires_grad_(), brief.tensors["running"]
        for _ in range(3):
            loss = ((x @ weights - y) ** 2).mean()
            running.mul_(0.9).add_(x.mean(0))  # between forward and backward, as batch norm does
            (gradient,) = torch.autograd.grad(loss, weights)
            with torch.no_grad():
                weights.sub_(gradient, alpha=brief.numbers["lr"])
        rounds = memory.numbers.get("rounds", 0) + 1
        path = torch.cat([memory.tensors.get("path", torch.zeros(0)), loss.detach().reshape(1)])
        reply = Message({"w": weights, "running": running}, {"loss": loss.item(), "rounds": rounds}, {"site": site})
        return reply, Message({"path": path}, {"rounds": rounds}, {"last": site})

    def fail_at(self, site, brief, memory):
        memory.numbers["rounds"] = 99
        if site == brief.words["bad"]:
            raise ValueError(f"no rows at {site}")
        return brief, memory

    def killed_at(self, site, brief, memory):
        if site == brief.words["bad"]:
            os.kill(os.getpid(), signal.SIGKILL)
        return Message(numbers={"length": len(site)}), memory

    def exit_at(self, site, brief, memory):
        if site == brief.words["bad"]:
            os._exit(7)
        return brief, memory

    def sys_exit_at(self, site, brief, memory):
        if site == brief.words["bad"]:
            sys.exit(7)
        return brief, memory

    def write_data(self, site, brief, memory):
        self.tensors[f"{site}/x"].zero_()
        return brief, memory

    def slow_at(self, site, brief, memory):
        if site == brief.words["bad"]:
            time.sleep(brief.numbers["seconds"])
        return brief, memory

    def hold(self, site, brief, memory):
        """Say in a file that work has begun, then work for ever without letting go of the processor."""
        with open(brief.words["file"], "a") as file:
            file.write(f"{os.getpid()}\n")
        while True:
            torch.ones(300, 300) @ torch.ones(300, 300)

    def share(self, site, brief, memory):
        """Alter the brief in place and reply with a tensor the host goes on using."""
        for tensor in brief.tensors.values():
            tensor.add_(1)
        brief.numbers["n"] = -1
        self.model.fill_(len(site))
        return Message({"model": self.model, "seen": next(iter(brief.tensors.values()))}), memory

    def no_message(self, site, brief, memory):
        return Message(numbers={"n": torch.tensor(1)}), memory

    def where(self, site, brief, memory):
        numbers = {"pid": os.getpid(), "threads": torch.get_num_threads(), "grad": int(torch.is_grad_enabled())}
        return Message(numbers=numbers), memory

    def talk(self, site, brief, memory):
        print("a word on stdout", flush=True)
        return brief, memory
