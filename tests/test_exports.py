"""What `fedaccord` exports: the list that users rely on, importable at once and documented."""

from __future__ import annotations

import ast
import inspect
import sys
from pathlib import Path

import pytest

import fedaccord

EXPORTED = [
    "Adam",
    "AnnotationError",
    "Batch",
    "Candidates",
    "Coarse",
    "ConfigError",
    "Exact",
    "Exchange",
    "FedAccordError",
    "Federation",
    "FigureSection",
    "Finding",
    "LabelSpace",
    "LocalWork",
    "Message",
    "Network",
    "Objective",
    "Proximal",
    "Recipe",
    "Replies",
    "RequireViews",
    "Result",
    "RowObjective",
    "SGD",
    "Server",
    "SharedModelSettings",
    "Sharing",
    "Site",
    "SiteCard",
    "Solver",
    "Stepper",
    "Sum",
    "Tags",
    "TensorSpec",
    "TrainedModel",
    "TrainingSettings",
    "Unlabelled",
    "View",
    "ViewDeclaration",
    "ViewLikelihood",
    "WrappedObjective",
    "__version__",
    "mean",
    "per_label",
    "server_setting",
    "share_model",
    "shared_model_recipe",
    "site_setting",
    "with_aggregation",
]
"""A name leaves this list only in a release that says so in the changelog."""


def test_the_names_are_those_that_users_rely_on():
    assert sorted(fedaccord.__all__) == EXPORTED
    assert dir(fedaccord) == EXPORTED
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = fedaccord.nothing


def test_a_type_checker_sees_the_same_names():
    tree = ast.parse(Path(fedaccord.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module.removeprefix("fedaccord.") for node in block.body for alias in node.names}
    assert seen == fedaccord._MODULES


def test_every_name_is_documented_with_all_that_can_be_called_on_it():
    def bare(name, value):
        if not (value.__doc__ or "").strip():
            yield name
        if inspect.isclass(value) and value.__module__.startswith("fedaccord."):
            for attribute, member in vars(value).items():
                called = member.__func__ if isinstance(member, classmethod | staticmethod) else member
                if not attribute.startswith("_") and (inspect.isfunction(called) or isinstance(called, property)):
                    yield from bare(f"{name}.{attribute}", called)

    exported = {name: getattr(fedaccord, name) for name in EXPORTED if name != "__version__"}
    generated = {name for name, value in exported.items() if (value.__doc__ or "").startswith(f"{name}(")}
    missing = [found for name, value in exported.items() for found in bare(name, value)]
    assert not missing, missing
    assert not generated, f"{generated} have only the signature that `dataclass` writes"


def test_the_objects_are_those_of_their_modules():
    for name, module in fedaccord._MODULES.items():
        assert getattr(fedaccord, name) is getattr(sys.modules[f"fedaccord.{module}"], name)
