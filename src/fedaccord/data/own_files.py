"""Sites that bring their own files: tables, folders of images or arrays, all of one type.

Images and arrays are read here. Arrays are standardised by the moments of all sites' training rows, unless
`features.standardise` says otherwise.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from fedaccord.data.column_uses import column_uses
from fedaccord.data.dataset import Array, Dataset, Rows
from fedaccord.data.declarations import SiteFiles, SiteSection
from fedaccord.data.image_folders import CLASS_COLUMN, FILE_COLUMN, label_table, read_images
from fedaccord.data.label_columns import SiteTable
from fedaccord.data.merged_labels import label_counts, merge_labels, only_labels
from fedaccord.data.registry import existing
from fedaccord.data.scaling import Moments, fit_moments
from fedaccord.data.server_data import add_server_files, read_arrays, read_server_file, read_server_inputs
from fedaccord.data.site_data import ServerInputs, ServerTest
from fedaccord.data.site_tables import (
    assemble,
    read_each_site,
    read_table_sites,
    read_true_classes,
    read_unlabelled,
    set_test_aside,
    true_class_column,
)
from fedaccord.data.sites import (
    Annotated,
    FederationData,
    draw_test_rows,
    label_arrays,
    make_site,
    read_annotations,
    refuse_empty,
)
from fedaccord.data.tables import is_table
from fedaccord.errors import AnnotationError, ConfigError, DataError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.synonyms import renaming
from fedaccord.labels.views import NOT_ANNOTATED, ViewContext, ViewDeclaration, build_view, view_class
from fedaccord.seeds import derive

TABLE, IMAGES, ARRAYS = "a table", "a folder of images", "an .npz file"


def read_own_files(request: SiteFiles) -> FederationData:
    """Read the sites' own files, each through its view."""
    kinds = {section.name: _file_type(section, request) for section in request.sections}
    first, kind = next(iter(kinds.items()))
    for name, other in kinds.items():
        if other != kind:
            raise ConfigError(f"site '{first}' brings {kind}, site '{name}' {other}; all must be of one kind")
    if kind == TABLE:
        return read_table_sites(request)
    if request.groups_as_input:
        raise ConfigError(f"fairness.input: groups are inputs of tables only, and site '{first}' brings {kind}")
    if kind == IMAGES:
        return read_image_sites(request)
    for section in request.sections:
        _refuse_table_keys(section)
    return read_array_sites(request)


def _file_type(section: SiteSection, request: SiteFiles) -> str:
    path = request.path(section)
    if os.path.isdir(path) or section.data.endswith("/"):
        return IMAGES
    if is_table(path):
        return TABLE
    if path.suffix.lower() != ".npz":
        existing(path, f"site '{section.name}'")
        types = "a table ends with .csv, .tsv, .xlsx or .parquet, arrays with .npz"
        raise DataError(f"site '{section.name}': '{section.data}' is no file of samples; {types}")
    return ARRAYS


def _refuse_table_keys(section: SiteSection) -> None:
    for key in ("label", "sensitive", "header", "read"):
        if getattr(section, key) is not None:
            raise ConfigError(f"site '{section.name}': the key '{key}' is for a table; this is {ARRAYS}")


def read_array_sites(request: SiteFiles) -> FederationData:
    """Read sites from .npz files.

    A site's test rows are those that its file marks; otherwise they are drawn.
    """
    sections = request.by_name()
    files = {
        name: merge_labels(read_arrays(request.path(section), f"site '{name}'"), request.names(section))
        for name, section in sections.items()
    }
    shapes = {file.shape for file in files.values()}
    if len(shapes) > 1:
        listed = ", ".join(f"{name}: {file.shape}" for name, file in files.items())
        raise DataError(f"the sites' samples differ in shape ({listed})")
    classes = request.classes
    if classes is None:
        named = [file.labels for name, file in files.items() if view_class(sections[name].view.kind).names_are_labels]
        classes = list(dict.fromkeys(label for labels in named for label in labels))
        if not classes:
            raise ConfigError("labels.classes is needed: no site's file names the classes of the federation")
    result = FederationData(LabelSpace(classes), {}, shapes.pop(), standardise=request.features.standardise)
    found = {name: _read_array_site(result, sections[name], file, request) for name, file in files.items()}
    if request.features.standardise != "none" and not any(file.images for file in files.values()):
        result.moments = {name: site.moments() for name, site in found.items()}
    scaling = result.scaling()
    for name, site in found.items():
        made = make_site(name, site.seen, site.test, site.train, scaling.get(name), site.own_test)
        result.add(made, sections[name].test)
    result.sites = {section.name: result.sites[section.name] for section in request.sections}
    read = partial(read_server_file, result=result, names=renaming(request.synonyms))
    add_server_files(result, request, read, partial(read_server_inputs, result=result))
    return result


@dataclass(frozen=True)
class _ArraySite:
    """A site's arrays before they are standardised, and its training and test rows."""

    seen: Annotated
    own_test: Annotated | None
    train: Array
    test: Array

    def moments(self) -> Moments:
        return fit_moments(self.seen.rows.x[self.train])


def _read_array_site(result: FederationData, section: SiteSection, file: Dataset, request: SiteFiles) -> _ArraySite:
    name = section.name
    result.label_words[name] = label_counts(file)
    context = ViewContext(f"site '{name}', {request.path(section).name}", report=result.flaw_collector(name))
    declared = _with_own_labels(section.view, file)
    seen = _read_rows(file.train, file.labels, declared, result.space, context)
    own_test: Annotated | None = None
    if file.test is not None:
        own_test = _read_rows(file.test, file.labels, declared, result.space, context, reports_view=False)
    refuse_empty(name, seen)
    share = section.test if own_test is None else 0.0
    test, train = draw_test_rows(len(seen.rows), share, derive(request.seed, "test", name))
    return _ArraySite(seen, own_test, train, test)


def _read_rows(
    rows: Rows,
    names: tuple[str, ...],
    declared: ViewDeclaration,
    space: LabelSpace,
    context: ViewContext,
    reports_view: bool = True,
) -> Annotated:
    """Return what a site sees of some rows; labels that are not allowed are reported and read as not annotated.

    The training rows report a wrong view, so that the test rows need not.
    """
    silent = replace(context, report=lambda error: None)
    try:
        return read_annotations(rows, names, declared, space, context if reports_view else silent)
    except AnnotationError as error:
        context.report(error)
    allowed = build_view(declared, space, silent).allowed_names
    return read_annotations(only_labels(rows, names, allowed), names, declared, space, silent)


def _with_own_labels(declared: ViewDeclaration, file: Dataset) -> ViewDeclaration:
    """Return a declared view; known = "own" becomes the labels that occur in the file."""
    if not declared.knows_own:
        return declared
    parts = [rows for rows in (file.train, file.test) if rows is not None]
    found = {int(column) for rows in parts for column in declared.occurring(label_arrays(rows, file.labels))}
    return declared.with_known([file.labels[column] for column in sorted(found - {NOT_ANNOTATED})] or None)


def read_image_sites(request: SiteFiles) -> FederationData:
    """Read sites from folders of images, with labels in `labels.csv` or in the names of their subfolders."""
    features = request.features

    def read_site(name: str, section: SiteSection) -> SiteTable:
        label, needed = section.label, section.view.needs_label
        column = label if isinstance(label, str) else None
        table = label_table(request.path(section), f"site '{name}'", needed, column, section.read)
        if label is None and CLASS_COLUMN in table.columns:
            section = section.model_copy(update={"label": CLASS_COLUMN})
        return set_test_aside(section, table, request)

    sites = read_each_site(request, read_site)
    shape = (3 if features.image_colour else 1, features.image_size, features.image_size)
    encode = partial(read_images, shape=shape)
    result = assemble(sites, request, shape, encode)
    result.columns = column_uses(sites, features, None, images=FILE_COLUMN)

    def read(folder: Path, where: str) -> ServerTest:
        column = true_class_column(sites, request, where)
        table = label_table(folder, where, labelled=True, label=column, read=request.server_read)
        found = read_true_classes(table, sites, request, result.space, encode, where)
        return replace(found, source=f"the server's own test images, {folder.name}")

    def read_inputs(folder: Path, where: str) -> ServerInputs:
        return read_unlabelled(
            label_table(folder, where, labelled=False, read=request.server_read), sites, request, encode
        )

    add_server_files(result, request, read, read_inputs)
    return result
