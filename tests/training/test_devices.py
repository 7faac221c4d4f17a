"""The hot loops leave tensors where they are: on a device without values, anything read back is an error.

There is no GPU to test on. The meta device stands in for it: it refuses `.cpu()`, `.numpy()`, `.item()` and `bool()`.
"""

from __future__ import annotations

import pytest
import torch

from fedaccord.data.site_data import Samples, SiteData
from fedaccord.labels.views import Candidates, Tags
from fedaccord.methods.momentum.mime import MimeSteps
from fedaccord.methods.tags.site import Alignment, Harmony, RunningPhi
from fedaccord.models.stacked import stacked_forward
from fedaccord.seeds import derive
from fedaccord.training import cohort as together
from fedaccord.training.candidate_losses import PartialLabels, partial_loss
from fedaccord.training.noise import Noisy
from fedaccord.training.objectives import Proximal, Sum, ViewLikelihood
from fedaccord.training.solvers import SGD, Adam
from fedaccord.training.work import Batch
from small_federation import SPACE, exact, pets_or_cattle, site, small_network, work_for

META = torch.device("meta")
OBJECTIVES = {
    "likelihood": ViewLikelihood(),
    "held near": Sum((ViewLikelihood(), Proximal(0.1))),
    "noisy": Noisy(ViewLikelihood(), 0.5, 0.3),
    "candidate sets": PartialLabels(partial_loss("calibrated")),
    "correlations": Harmony(),
}
VIEWS = {"candidate sets": Candidates(SPACE), "correlations": Tags(SPACE)}
SOLVERS = {"SGD": SGD(momentum=0.9, clip=1.0), "Adam": Adam(weight_decay=0.1, clip=1.0)}


def on_meta(view, samples=9, name="a"):
    """A site whose samples have shapes, but no values."""
    here = site(name, samples, view)
    parts = [Samples(part.x.to(META), part.target.to(META)) for part in (here.train, here.test)]
    work = work_for(SiteData(name, view, *parts), small_network().to(META))
    work.random = torch.Generator().manual_seed(derive(0, name))
    return work


def started(objective, work):
    """Start as far as nothing is read: which rows are sets is decided by values, so it is given here."""
    if isinstance(objective, PartialLabels):
        shape = (len(work.site.train), len(SPACE))
        work.scratch["sets"] = torch.empty(shape, dtype=torch.bool, device=META)
        work.scratch["weights"] = torch.empty(shape, device=META)
    elif isinstance(objective, Harmony):
        rows, tags = len(work.site.train), len(SPACE)
        running = RunningPhi.__new__(RunningPhi)
        running.index, running.beta, running.complete = torch.zeros(1, tags, dtype=torch.int64, device=META), 0.5, True
        running.mean, running.product = (torch.empty(1, tags, tags, device=META) for _ in range(2))
        pairs = running.seen = torch.empty(1, tags, tags, dtype=torch.bool, device=META)
        work.scratch |= {
            "began": 0.0,
            "annotated": torch.empty(rows, tags, dtype=torch.bool, device=META),
            "harmony": Alignment(running.mean, pairs, torch.empty(1, tags, device=META), running),
        }
    else:
        objective.start(work)
    return work


@pytest.mark.parametrize("view", [exact(), exact(["cat", "dog"]), pets_or_cattle()], ids=["all", "some", "coarse"])
@pytest.mark.parametrize("name", ["likelihood", "held near", "noisy"])
def test_a_step_of_one_site(name, view):
    work, objective = on_meta(view), OBJECTIVES[name]
    objective.start(work)
    stepper = SGD(momentum=0.9, weight_decay=0.1, clip=1.0).start(work)
    rows = torch.arange(4, device=META)
    batch = Batch(rows, work.site.train.x.index_select(0, rows), work.site.train.target.index_select(0, rows))
    loss = objective.loss(work, batch)
    stepper.step(list(torch.autograd.grad(loss, work.parameters)))
    objective.after_step(work, batch)
    assert loss.device == META
    assert all(parameter.device == META for parameter in work.parameters)


def cohort_on_meta(name):
    objective = OBJECTIVES[name]
    view = VIEWS.get(name, exact())
    works = [started(objective, on_meta(view, samples, f"s{samples}")) for samples in (9, 7, 4)]
    orders = [[rows.to(META) for rows in torch.arange(n).split(4)] for n in (9, 7, 4)]
    return works, together._Cohort(works, together.terms_of(objective), orders)


def test_mimes_steps_in_a_cohort():
    works, sites = cohort_on_meta("likelihood")
    zeros = [[torch.zeros_like(p) for p in work.parameters] for work in works]
    steps = together._SiteSteps([MimeSteps(SGD(clip=1.0), w, 0.5, z, z) for w, z in zip(works, zeros, strict=True)])
    assert steps.uses_received_gradient
    assert together._run_steps(sites, steps, stacked_forward(works[0].model)).device == META
    assert all(tensor.device == META for work in works for tensor in work.parameters)


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("name", OBJECTIVES)
def test_all_steps_of_a_cohort(name, solver):
    works, sites = cohort_on_meta(name)
    steps = together._StackedSteps(sites.stack, SOLVERS[solver], 0.1)
    losses = together._run_steps(sites, steps, stacked_forward(works[0].model))
    assert losses.device == META
    assert losses.shape == (3,)
    assert all(tensor.device == META for work in works for tensor in work.parameters)


def test_the_meta_device_would_notice():
    for read in (torch.Tensor.cpu, torch.Tensor.numpy, torch.Tensor.item, bool):
        with pytest.raises((NotImplementedError, RuntimeError, TypeError)):
            read(torch.ones((), device=META))
