"""FedAccord: federated learning when the sites' labels do not agree."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from fedaccord.api import Federation as Federation
    from fedaccord.api import Result as Result
    from fedaccord.api import Site as Site
    from fedaccord.errors import FedAccordError as FedAccordError
    from fedaccord.labels.space import LabelSpace as LabelSpace
    from fedaccord.labels.views import Candidates as Candidates
    from fedaccord.labels.views import Coarse as Coarse
    from fedaccord.labels.views import Exact as Exact
    from fedaccord.labels.views import Tags as Tags
    from fedaccord.labels.views import Unlabelled as Unlabelled
    from fedaccord.labels.views import View as View
    from fedaccord.labels.views import ViewDeclaration as ViewDeclaration
    from fedaccord.runs.model_folder import TrainedModel as TrainedModel
    from fedaccord.training.settings import TrainingSettings as TrainingSettings
    from fedaccord.training.settings import server_setting as server_setting
    from fedaccord.training.settings import site_setting as site_setting

# Names are imported when first used, so that `import fedaccord` stays quick: torch alone takes two seconds.
_EXPORTS = {
    "Federation": "api",
    "Result": "api",
    "Site": "api",
    "TrainedModel": "runs.model_folder",
    "FedAccordError": "errors",
    "LabelSpace": "labels.space",
    "View": "labels.views",
    "ViewDeclaration": "labels.views",
    "Candidates": "labels.views",
    "Coarse": "labels.views",
    "Exact": "labels.views",
    "Tags": "labels.views",
    "Unlabelled": "labels.views",
    "TrainingSettings": "training.settings",
    "site_setting": "training.settings",
    "server_setting": "training.settings",
}
__all__ = ["__version__", *_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'fedaccord' has no attribute '{name}'")
    return getattr(import_module(f"fedaccord.{_EXPORTS[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
