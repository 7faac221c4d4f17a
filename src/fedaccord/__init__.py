"""FedAccord: federated learning when the sites' labels do not agree.

Everything that a user or the author of a method, a model or a view needs can be imported from here.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

if TYPE_CHECKING:
    from fedaccord.aggregation.mean import mean as mean
    from fedaccord.aggregation.mean import per_label as per_label
    from fedaccord.aggregation.replies import Replies as Replies
    from fedaccord.api.federation import Federation as Federation
    from fedaccord.api.result import Result as Result
    from fedaccord.api.site import Site as Site
    from fedaccord.errors import AnnotationError as AnnotationError
    from fedaccord.errors import ConfigError as ConfigError
    from fedaccord.errors import FedAccordError as FedAccordError
    from fedaccord.federation.recipe import Exchange as Exchange
    from fedaccord.federation.recipe import Recipe as Recipe
    from fedaccord.federation.recipe import RequireViews as RequireViews
    from fedaccord.federation.server import Server as Server
    from fedaccord.federation.sharing import Sharing as Sharing
    from fedaccord.federation.state import SiteCard as SiteCard
    from fedaccord.findings import Finding as Finding
    from fedaccord.labels.space import LabelSpace as LabelSpace
    from fedaccord.labels.views import Candidates as Candidates
    from fedaccord.labels.views import Coarse as Coarse
    from fedaccord.labels.views import Exact as Exact
    from fedaccord.labels.views import Tags as Tags
    from fedaccord.labels.views import Unlabelled as Unlabelled
    from fedaccord.labels.views import View as View
    from fedaccord.labels.views import ViewDeclaration as ViewDeclaration
    from fedaccord.messages.checks import TensorSpec as TensorSpec
    from fedaccord.messages.message import Message as Message
    from fedaccord.methods.common_model import share_model as share_model
    from fedaccord.methods.common_model import shared_model_recipe as shared_model_recipe
    from fedaccord.methods.common_model import with_aggregation as with_aggregation
    from fedaccord.methods.shared_settings import SharedModelSettings as SharedModelSettings
    from fedaccord.models.network import Network as Network
    from fedaccord.runs.trained_model import TrainedModel as TrainedModel
    from fedaccord.training.objectives import Objective as Objective
    from fedaccord.training.objectives import Proximal as Proximal
    from fedaccord.training.objectives import RowObjective as RowObjective
    from fedaccord.training.objectives import Sum as Sum
    from fedaccord.training.objectives import ViewLikelihood as ViewLikelihood
    from fedaccord.training.objectives import WrappedObjective as WrappedObjective
    from fedaccord.training.settings import FigureSection as FigureSection
    from fedaccord.training.settings import TrainingSettings as TrainingSettings
    from fedaccord.training.settings import server_setting as server_setting
    from fedaccord.training.settings import site_setting as site_setting
    from fedaccord.training.solvers import SGD as SGD
    from fedaccord.training.solvers import Adam as Adam
    from fedaccord.training.solvers import Solver as Solver
    from fedaccord.training.solvers import Stepper as Stepper
    from fedaccord.training.work import Batch as Batch
    from fedaccord.training.work import LocalWork as LocalWork

# Names are imported when first used, so that `import fedaccord` stays quick: torch alone takes two seconds.
_EXPORTS = {
    "aggregation.mean": ("mean", "per_label"),
    "aggregation.replies": ("Replies",),
    "api.federation": ("Federation",),
    "api.result": ("Result",),
    "api.site": ("Site",),
    "errors": ("AnnotationError", "ConfigError", "FedAccordError"),
    "federation.recipe": ("Exchange", "Recipe", "RequireViews"),
    "federation.server": ("Server",),
    "federation.sharing": ("Sharing",),
    "federation.state": ("SiteCard",),
    "findings": ("Finding",),
    "labels.space": ("LabelSpace",),
    "labels.views": ("Candidates", "Coarse", "Exact", "Tags", "Unlabelled", "View", "ViewDeclaration"),
    "messages.checks": ("TensorSpec",),
    "messages.message": ("Message",),
    "methods.common_model": ("share_model", "shared_model_recipe", "with_aggregation"),
    "methods.shared_settings": ("SharedModelSettings",),
    "models.network": ("Network",),
    "runs.trained_model": ("TrainedModel",),
    "training.objectives": ("Objective", "Proximal", "RowObjective", "Sum", "ViewLikelihood", "WrappedObjective"),
    "training.settings": ("FigureSection", "TrainingSettings", "server_setting", "site_setting"),
    "training.solvers": ("SGD", "Adam", "Solver", "Stepper"),
    "training.work": ("Batch", "LocalWork"),
}
_MODULES = {name: module for module, names in _EXPORTS.items() for name in names}
__all__ = ["__version__", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fedaccord' has no attribute '{name}'")
    value = getattr(import_module(f"fedaccord.{_MODULES[name]}"), name)
    globals()[name] = value  # later uses do not come here
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
