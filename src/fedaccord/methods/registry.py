"""Which methods there are: a name, a line, its settings and where its recipe is; importable without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedaccord.errors import ConfigError, did_you_mean
from fedaccord.methods import mixed_settings as m
from fedaccord.methods import momentum_settings as o
from fedaccord.methods import partial_settings as p
from fedaccord.methods import settings as s
from fedaccord.methods import tag_settings as t
from fedaccord.training.settings import TrainingSettings

if TYPE_CHECKING:
    from fedaccord.federation.recipe import Recipe


@dataclass(frozen=True)
class MethodEntry:
    """A method as the command line lists it."""

    name: str
    summary: str
    settings: type[TrainingSettings]
    recipe: str  # "package.module:function", imported when work begins


_ENTRIES = (
    MethodEntry(
        "accord",
        "every site minimises the likelihood of its own annotations; head rows are averaged per label (ours, default)",
        s.AccordSettings,
        "fedaccord.methods.accord:accord",
    ),
    MethodEntry(
        "fedavg",
        "federated averaging (McMahan et al. 2017): one shared softmax, models averaged by sample count",
        s.ClassicSettings,
        "fedaccord.methods.classic:fedavg",
    ),
    MethodEntry(
        "fedprox",
        "federated averaging with a proximal term that holds sites near the shared model (Li et al. 2020)",
        s.FedProxSettings,
        "fedaccord.methods.classic:fedprox",
    ),
    MethodEntry(
        "scaffold",
        "federated averaging with local steps corrected by control variates (Karimireddy et al. 2020)",
        s.ScaffoldSettings,
        "fedaccord.methods.classic:scaffold",
    ),
    MethodEntry(
        "fednova",
        "federated averaging that takes different numbers of local steps out again (Wang et al. 2020)",
        s.FedNovaSettings,
        "fedaccord.methods.fednova:fednova",
    ),
    MethodEntry(
        "fedcurv",
        "federated averaging with a pull to the other sites' models where these are sure (Shoham et al. 2019)",
        t.FedCurvSettings,
        "fedaccord.methods.tag_baselines:fedcurv",
    ),
    MethodEntry(
        "private-labels",
        "sites know some labels each and need not say which; head rows averaged over their owners (arXiv 2508.18774)",
        s.PrivateLabelsSettings,
        "fedaccord.methods.private_labels:private_labels",
    ),
    MethodEntry(
        "pfedpll",
        "candidate sets: shared encoder, personal layer and head, calibrated loss, KL weights (pFedPLL)",
        p.PfedpllSettings,
        "fedaccord.methods.pfedpll:pfedpll",
    ),
    MethodEntry(
        "pfedpll+",
        "candidate sets: everything shared, and each site's label frequencies by its confidences (ours)",
        p.PfedpllPlusSettings,
        "fedaccord.methods.pfedpll:pfedpll_plus",
    ),
    MethodEntry(
        "fed-cc",
        "candidate sets: federated averaging with the likelihood of the set (CC, Feng et al. 2020)",
        p.PartialBaselineSettings,
        "fedaccord.methods.partial_baselines:fed_cc",
    ),
    MethodEntry(
        "fed-rc",
        "candidate sets: federated averaging with cross-entropy by confidences (RC, Feng et al. 2020)",
        p.RenewedBaselineSettings,
        "fedaccord.methods.partial_baselines:fed_rc",
    ),
    MethodEntry(
        "fed-lw",
        "candidate sets: federated averaging with the leveraged weighted loss (LW, Wen et al. 2021)",
        p.FedLWSettings,
        "fedaccord.methods.partial_baselines:fed_lw",
    ),
    MethodEntry(
        "fed-cavl",
        "candidate sets: federated averaging towards the most activated candidate (CAVL, Zhang et al. 2022)",
        p.RenewedBaselineSettings,
        "fedaccord.methods.partial_baselines:fed_cavl",
    ),
    MethodEntry(
        "fed-abs-gce",
        "candidate sets: federated averaging with a bounded loss of each candidate (ABS_GCE, Lv et al. 2023)",
        p.FedAbsGceSettings,
        "fedaccord.methods.partial_baselines:fed_abs_gce",
    ),
    MethodEntry(
        "fed-uniform",
        "candidate sets: federated averaging with every candidate as good a label as the others",
        p.PartialBaselineSettings,
        "fedaccord.methods.partial_baselines:fed_uniform",
    ),
    MethodEntry(
        "fed-clpl",
        "candidate sets: federated averaging with the convex loss CLPL (Cour et al. 2011), as in FairFedPAPL",
        p.FedClplSettings,
        "fedaccord.methods.partial_baselines:fed_clpl",
    ),
    MethodEntry(
        "fedpll-la-approx",
        "candidate sets: augmentation and gradient alignment; our approximation of FedPLL_LAAR, not a reproduction",
        p.LaApproxSettings,
        "fedaccord.methods.partial_baselines:fedpll_la_approx",
    ),
    MethodEntry(
        "fedmt",
        "a server with few labels, sites with coarse names of known or estimated meaning (FedMT, Zhang et al. 2024)",
        m.FedMTSettings,
        "fedaccord.methods.fedmt:fedmt",
    ),
    MethodEntry(
        "fedmt+",
        "fedmt with coarse names learned by EM over all sites, and pseudo-labels given the coarse label (ours)",
        m.FedMTPlusSettings,
        "fedaccord.methods.fedmt:fedmt",
    ),
    MethodEntry(
        "semifl",
        "a server with few labels, pseudo-labels at sites, whose own labels are not used (SemiFL, Diao et al. 2022)",
        m.SemiFLSettings,
        "fedaccord.methods.fedmt:semifl",
    ),
    MethodEntry(
        "fedrep",
        "server and sites train one encoder, each below a head for its own names (FedRep as compared by FedMT)",
        m.FedRepSettings,
        "fedaccord.methods.fedmt:fedrep",
    ),
    MethodEntry(
        "fedtrans",
        "sites train a model of their own names, which the server fine-tunes on its labelled samples",
        m.FedTransSettings,
        "fedaccord.methods.fedmt:fedtrans",
    ),
    MethodEntry(
        "single",
        "the server trains on its labelled samples alone; what sites with coarse labels have to beat",
        m.SupercentreSettings,
        "fedaccord.methods.fedmt:single",
    ),
    MethodEntry(
        "pfedmo",
        "sites' Nesterov momentum, and models returned to each site by its agreement with the server's (pFedMo)",
        o.PfedmoSettings,
        "fedaccord.methods.momentum:pfedmo",
    ),
    MethodEntry(
        "fednag",
        "Nesterov momentum at the sites, averaged with their models (Yang et al. 2022)",
        o.NesterovSettings,
        "fedaccord.methods.momentum:fednag",
    ),
    MethodEntry(
        "fastslowmo",
        "Nesterov momentum at the sites and at the server (FastSlowMo, Yang et al.)",
        o.FastSlowMoSettings,
        "fedaccord.methods.momentum:fastslowmo",
    ),
    MethodEntry(
        "fedmom",
        "federated averaging with Nesterov momentum at the server (Huo et al. 2020)",
        o.FedMomSettings,
        "fedaccord.methods.momentum:fedmom",
    ),
    MethodEntry(
        "slowmo",
        "federated averaging with heavy-ball momentum at the server (Wang et al. 2020)",
        o.SlowMoSettings,
        "fedaccord.methods.momentum:slowmo",
    ),
    MethodEntry(
        "domo",
        "momentum at the server and the sites, which begin where the server's leads (Xu and Huang 2022)",
        o.DomoSettings,
        "fedaccord.methods.momentum:domo",
    ),
    MethodEntry(
        "fedadc",
        "the server's momentum inside the sites' steps (Ozfatura et al. 2021)",
        o.FedAdcSettings,
        "fedaccord.methods.momentum:fedadc",
    ),
    MethodEntry(
        "mime",
        "the server's gradient statistics as momentum in corrected local steps (Karimireddy et al. 2021)",
        o.MimeSettings,
        "fedaccord.methods.momentum:mime",
    ),
    MethodEntry(
        "representation",
        "the server's part of pfedmo alone: what its labelled samples give without any site",
        o.RepresentationSettings,
        "fedaccord.methods.momentum:representation",
    ),
    MethodEntry(
        "fedharmony",
        "several labels at once: sites drawn to how the others' tags go together, weighed by agreement (FedHarmony)",
        t.FedHarmonySettings,
        "fedaccord.methods.fedharmony:fedharmony",
    ),
    MethodEntry(
        "fedharmony+",
        "several labels at once: correlations from counts of tags, head rows by annotations, site frequencies (ours)",
        t.FedHarmonyPlusSettings,
        "fedaccord.methods.fedharmony:fedharmony",
    ),
    MethodEntry(
        "spherefed",
        "several labels at once: unit features below a frozen head, solved for at the end (Dong et al. 2022)",
        t.SphereFedSettings,
        "fedaccord.methods.tag_baselines:spherefed",
    ),
    MethodEntry(
        "local",
        "every site trains alone on its own data; what federation has to beat",
        s.LocalSettings,
        "fedaccord.methods.classic:local",
    ),
    MethodEntry(
        "pooled",
        "all samples in one place, for comparison in studies; it moves data, so no federation can do it",
        s.PooledSettings,
        "fedaccord.methods.classic:pooled",
    ),
)
METHODS: dict[str, MethodEntry] = {entry.name: entry for entry in _ENTRIES}


def method_entry(name: str) -> MethodEntry:
    """Return a method by name; an unknown one is an error that says the closest."""
    if name not in METHODS:
        raise ConfigError(f"method.name: unknown method '{name}'; {did_you_mean(name, METHODS)}")
    return METHODS[name]


def make_recipe(name: str, settings: TrainingSettings | Mapping[str, Any]) -> Recipe:
    """Build a method's recipe from its settings."""
    entry = method_entry(name)
    module, _, function = entry.recipe.partition(":")
    checked = settings if isinstance(settings, TrainingSettings) else entry.settings(**settings)
    recipe: Recipe = getattr(import_module(module), function)(checked)
    return recipe
