"""Views by the name of their kind, and the one builder of views from declarations."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, SerializeAsAny, ValidationError, WrapValidator

from fedaccord.config_errors import sentence
from fedaccord.errors import ConfigError, CorrespondenceError, UntrustedError, did_you_mean
from fedaccord.extensions import installed, is_ours, is_outside, load_outside
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views.base import View
from fedaccord.labels.views.candidates import Candidates, CandidatesView
from fedaccord.labels.views.coarse import Coarse, CoarseView
from fedaccord.labels.views.declaration import ViewContext, ViewDeclaration
from fedaccord.labels.views.exact import Exact, ExactView
from fedaccord.labels.views.pooled import Pooled
from fedaccord.labels.views.tags import Tags, TagsView
from fedaccord.labels.views.unlabelled import Unlabelled, UnlabelledView
from fedaccord.lazy import Tensor

VIEWS: dict[str, type[View]] = {view.kind: view for view in (Exact, Candidates, Coarse, Tags, Unlabelled, Pooled)}


def view_class(kind: str) -> type[View]:
    """Return the class of a kind: built in, registered by an installed package, or named "package.module:View".

    Raises ConfigError for an unknown kind, and UntrustedError for code that nobody has allowed to run.
    """
    if kind in VIEWS:
        return VIEWS[kind]
    if not is_outside(kind, "views"):
        raise ConfigError(f"unknown kind of view '{kind}'; {did_you_mean(kind, [*VIEWS, *installed('views')])}")
    found = load_outside(kind, "views", "view.kind")
    if not (isinstance(found, type) and issubclass(found, View)):
        raise ConfigError(f"view.kind: '{kind}' is not a subclass of fedaccord.View")
    return found


def shown_class(described: Mapping[str, Any]) -> type[View]:
    """Return the class of a described view for a report; the base if its code may not run or is not found here."""
    try:
        return view_class(str(with_kind(described)["kind"]))
    except ConfigError:
        return View


def missing_words(described: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return a sentence for each kind of view that `shown_class` shows by its name alone."""
    said = {}
    for kind in (str(with_kind(view)["kind"]) for view in described):
        try:
            view_class(kind)
        except UntrustedError as error:
            said[kind] = f"because its package is not trusted; write the report with --trust {error.package}"
        except ConfigError as error:
            said[kind] = f"because its class is not available: {error}"
    return [f"The words of the view '{kind}' were left out {why}." for kind, why in said.items()]


def with_kind(value: Any) -> Any:
    """Return a declaration that names no kind as one of exact labels."""
    return {"kind": Exact.kind, **value} if isinstance(value, Mapping) and "kind" not in value else value


def declare(table: Mapping[str, Any]) -> ViewDeclaration:
    """Validate the settings of a view by its own class; ConfigError says what is wrong."""
    table = with_kind(table)
    declaration = view_class(str(table["kind"])).Declaration
    try:
        return declaration.model_validate(dict(table))
    except ValidationError as error:
        raise ConfigError(f"a view of kind '{table['kind']}': {sentence(error, declaration)}") from None


def build_view(declared: ViewDeclaration, space: LabelSpace, context: ViewContext | None = None) -> View:
    """Build the view that a declaration asks for; every config file, data set and message comes through here."""
    context = context or ViewContext()
    try:
        return view_class(declared.kind).from_declaration(declared, space, context)
    except (CorrespondenceError, UntrustedError):
        raise
    except ConfigError as error:
        raise ConfigError(f"{context.where}: {error}" if context.where else str(error)) from None


def make_view(table: Mapping[str, Any], space: LabelSpace) -> View:
    """Build a view from its settings as a config file writes them: what `View.describe` returns."""
    return build_view(declare(table), space)


def check_outside(view: View, target: Tensor) -> None:
    """Raise ConfigError if a view outside FedAccord cannot be built again, or its evidence has a wrong shape."""
    name = f"{type(view).__module__}:{type(view).__qualname__}"
    if is_ours(name):
        return
    kind = str(view.describe()["kind"])
    found = view_class(kind) if kind == name or kind in installed("views") else VIEWS.get(kind)
    if found is not type(view):
        raise ConfigError(f"the view {name} has the kind '{kind}', which does not stand for it; leave out its 'kind'")
    make_view(view.describe(), view.space)
    if view.one_label and (type(view).evidence is not View.evidence or type(view).nll is View.nll):
        rows, wanted = target[:2], (len(target[:2]), len(view.space))
        if (shape := tuple(view.evidence(rows).shape)) != wanted:
            what = f"has shape {shape} for {len(rows)} annotations and {len(view.space)} labels"
            raise ConfigError(f"the evidence of the view {name} {what}, but should have {wanted}")


def _declare_others(value: Any, validate: Callable[[Any], Any]) -> Any:
    """Validate a kind that is not built in by its own class, every other one by the union of built-in kinds."""
    kind = value.get("kind") if isinstance(value, Mapping) else None
    if isinstance(value, ViewDeclaration):
        return value
    if isinstance(kind, str) and kind not in VIEWS and is_outside(kind, "views"):
        return declare(value)
    return validate(value)


AnyView = ExactView | CandidatesView | CoarseView | TagsView | UnlabelledView
ViewConfig = Annotated[
    SerializeAsAny[AnyView], Field(discriminator="kind"), WrapValidator(_declare_others), BeforeValidator(with_kind)
]
