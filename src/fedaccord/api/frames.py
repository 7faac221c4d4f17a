"""Sites with pandas frames: their columns become features as those of files do, in agreement between the sites."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from fedaccord.data.declarations import SiteFiles
from fedaccord.data.label_columns import SiteTable
from fedaccord.data.site_data import ServerTest
from fedaccord.data.site_tables import join_tables, read_server_inputs, read_server_table, set_test_aside
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import Table, frame_table
from fedaccord.errors import ConfigError, DataError, UntrustedError
from fedaccord.extensions import trusting
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import View, ViewDeclaration, view_class
from fedaccord.labels.views.registry import declare

if TYPE_CHECKING:
    import pandas as pd

CLASS_NAMES = "(class names)"  # the column of class names that are given beside a frame

AnyView = View | ViewDeclaration | Mapping[str, Any] | str
"""A view, its declaration as in an experiment file, or the name of its kind."""

ServerFrame = Any
"""A frame with the sites' label column, or (frame, name of its column of classes), or (frame, class names)."""


@dataclass(frozen=True)
class FrameSite:
    """A site with a pandas frame; `Site.from_frame` makes one."""

    name: str
    table: Table = field(repr=False)  # in no message or notebook
    declaration: Mapping[str, Any]  # as a `[[sites]]` table of an experiment file
    space: LabelSpace | None = None  # of a view that was given as an object
    code: str = ""  # the module of such a view


def make_frame_site(
    name: str, frame: pd.DataFrame, label: str | int | Sequence[str] | None, view: AnyView, **others: Any
) -> FrameSite:
    """Return a site from a frame; `others` are further keys of its `[[sites]]` table."""
    if not is_frame(frame):
        raise DataError(f"site '{name}': its frame should be a pandas DataFrame, not {type(frame).__name__}")
    declared, code = _declaration(view, name)
    label = str(label) if isinstance(label, int) else label  # a frame may number its columns
    with trusting([code] if code else []):
        separator = view_class(declared.kind).separator
    several = {} if separator is None or not isinstance(label, str) else {label: separator}
    table = {
        "name": name,
        "data": "(in memory)",
        "label": label if label is None or isinstance(label, str) else list(label),
        "view": declared.model_dump(exclude_none=True),
        **{key: value for key, value in others.items() if value is not None},
    }
    space = view.space if isinstance(view, View) else None
    return FrameSite(name, frame_table(frame, f"{name} (frame)", several), table, space, code)


def is_frame(value: Any) -> bool:
    """Return whether a value is a pandas frame."""
    import pandas as pd  # imported here because pandas takes a second to load

    return isinstance(value, pd.DataFrame)


def frame_space(sites: Sequence[FrameSite], classes: Sequence[str] | None) -> LabelSpace | None:
    """Return the label space that `classes` or views give; None: the classes are those that occur in the frames."""
    spaces = {site.name: site.space for site in sites if site.space is not None}
    if classes is not None:
        spaces = {"": LabelSpace(classes), **spaces}
    for name, space in spaces.items():
        if space != next(iter(spaces.values())):
            raise ConfigError(f"the view of site '{name}' has another label space than the other sites")
    return next(iter(spaces.values()), None)


def join_frames(
    sites: Sequence[FrameSite],
    request: SiteFiles,
    test: ServerFrame = None,
    labelled: ServerFrame = None,
    unlabelled: pd.DataFrame | None = None,
) -> FederationData:
    """Return the federation of these sites, with the server's samples; wrong cells are its flaws."""
    frames = {site.name: site.table for site in sites}
    tables = {name: set_test_aside(section, frames[name], request) for name, section in request.by_name().items()}
    result = join_tables(tables, request)
    if test is not None:
        with result.collecting_flaws():
            result.set_test(_read_server_frame(test, "test", tables, request, result))
            result.test_source = "the test data given to the federation"
    if labelled is not None:
        with result.collecting_flaws():
            found = _read_server_frame(labelled, "labelled", tables, request, result)
            result.labelled = found.x, found.truth
    if unlabelled is not None:
        with result.collecting_flaws():
            if not is_frame(unlabelled):
                raise DataError(
                    f"unlabelled: a frame is needed, like those of the sites, not {type(unlabelled).__name__}"
                )
            table = frame_table(unlabelled, "unlabelled (frame)")
            result.set_unlabelled(read_server_inputs(table, tables, request, result), "unlabelled")
    return result


def _read_server_frame(
    given: ServerFrame, where: str, sites: Mapping[str, SiteTable], request: SiteFiles, result: FederationData
) -> ServerTest:
    frame, classes = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    if not is_frame(frame):
        raise DataError(f"{where}: a frame is needed, or a frame and its class names, as in {where}=(frame, names)")
    table = frame_table(frame, f"{where} (frame)")
    if classes is not None and not isinstance(classes, str):
        names = _class_names(classes)
        if len(names) != table.rows:
            raise DataError(f"{where}: there are {table.rows} samples but {len(names)} class names")
        table = replace(table, columns=table.columns | {CLASS_NAMES: names})
        classes = CLASS_NAMES
    return read_server_table(table, sites, replace(request, test_label=classes), result, where)


def _class_names(classes: Iterable[Any]) -> Any:
    return np.array(["" if name is None else str(name) for name in classes], dtype=object)


def _declaration(view: AnyView, site: str) -> tuple[ViewDeclaration, str]:
    """Return a view's declaration and, for an object of a class outside FedAccord, the module of its class."""
    if isinstance(view, ViewDeclaration):
        return view, ""
    if isinstance(view, View):
        module = type(view).__module__
        with trusting([module]):
            return declare(view.describe()), "" if module.startswith("fedaccord.") else module
    if isinstance(view, str | Mapping):
        try:
            return declare({"kind": view} if isinstance(view, str) else view), ""
        except UntrustedError:
            raise ConfigError(
                f"site '{site}': give a view that is not part of FedAccord as an object, as in view=MyView(space)"
            ) from None
    raise ConfigError(f"site '{site}': its view should be a kind such as \"exact\", a table or a View, not {view!r}")
