"""Sites that bring their own files: tables, folders of images or arrays, all of one type.

Images and arrays are read here. Arrays are standardised by the moments of all sites' training rows, unless
`features.standardise` says otherwise.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedaccord.data.dataset import Array, Dataset
from fedaccord.data.declarations import SiteFiles, SiteSection
from fedaccord.data.label_columns import SiteTable
from fedaccord.data.merged_labels import merge_labels
from fedaccord.data.registry import existing
from fedaccord.data.scaling import Moments, fit_moments
from fedaccord.data.server_data import add_server_files, read_arrays, read_server_file, read_server_inputs
from fedaccord.data.site_data import ServerInputs, ServerTest
from fedaccord.data.site_tables import (
    Encoded,
    assemble,
    read_each_site,
    read_table_sites,
    read_true_classes,
    read_unlabelled,
    set_test_aside,
)
from fedaccord.data.sites import Annotated, FederationData, draw_test_rows, make_site, read_annotations, refuse_empty
from fedaccord.data.tables import Table, is_table, read_table
from fedaccord.errors import ConfigError, DataError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.synonyms import renaming
from fedaccord.labels.views import ViewContext, view_class
from fedaccord.seeds import derive

TABLE, IMAGES, ARRAYS = "a table", "a folder of images", "an .npz file"
LABEL_FILE = "labels.csv"
FILE_COLUMN = "file"
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


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
        types = "a table ends with .csv, .tsv or .parquet, arrays with .npz"
        raise DataError(f"site '{section.name}': '{section.data}' is no file of samples; {types}")
    return ARRAYS


def _refuse_table_keys(section: SiteSection) -> None:
    for key in ("label", "sensitive", "header"):
        if getattr(section, key) is not None:
            raise ConfigError(f"site '{section.name}': the key '{key}' names columns of a table; this is {ARRAYS}")
    if section.view.knows_own:
        raise ConfigError(f"site '{section.name}': known = \"own\" is not for {ARRAYS}; name the labels it knows")


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
    context = ViewContext(f"site '{name}', {request.path(section).name}", report=result.flaw_collector(name))
    declared = section.view.renamed(request.names(section))
    seen = read_annotations(file.train, file.labels, declared, result.space, context)
    own_test: Annotated | None = None
    if file.test is not None:
        silent = replace(context, report=lambda error: None)  # the training rows have reported a wrong view
        own_test = read_annotations(file.test, file.labels, declared, result.space, silent)
    refuse_empty(name, seen)
    share = section.test if own_test is None else 0.0
    test, train = draw_test_rows(len(seen.rows), share, derive(request.seed, "test", name))
    return _ArraySite(seen, own_test, train, test)


def read_image_sites(request: SiteFiles) -> FederationData:
    """Read sites from folders of images; each `labels.csv` has a column `file` and the site's label column."""
    features = request.features

    def read_site(name: str, section: SiteSection) -> SiteTable:
        table = label_table(request.path(section), f"site '{name}'", section.view.needs_label)
        return set_test_aside(section, table, request)

    sites = read_each_site(request, read_site)
    shape = (3 if features.image_colour else 1, features.image_size, features.image_size)
    encode = partial(read_images, shape=shape)
    result = assemble(sites, request, shape, encode)

    def read(folder: Path, where: str) -> ServerTest:
        table = label_table(folder, where, labelled=True)
        found = read_true_classes(table, sites, request, result.space, encode, where)
        return replace(found, source=f"the server's own test images, {folder.name}")

    def read_inputs(folder: Path, where: str) -> ServerInputs:
        return read_unlabelled(label_table(folder, where, labelled=False), sites, request, encode)

    add_server_files(result, request, read, read_inputs)
    return result


def read_images(table: Table, shape: tuple[int, ...]) -> Encoded:
    """Return the images of a table, float32 (rows, channels, height, width) in -1..1, and sentences on wrong cells."""
    channels, height, width = shape
    image, folder = _pillow(), table.path.parent.resolve()
    x = np.zeros((table.rows, *shape), dtype=np.float32)
    problems = []
    for row, name in enumerate(table.column(FILE_COLUMN)):
        path = (folder / name).resolve()
        what = ""
        if not path.is_relative_to(folder):
            what = "is outside of the folder"  # a foreign label file must not read other files of this machine
        elif not os.path.isfile(path):
            what = "is not there"
        else:
            try:
                with image.open(path) as picture:
                    pixels = picture.convert("RGB" if channels == 3 else "L").resize((width, height))
                x[row] = np.asarray(pixels, dtype=np.float32).reshape(height, width, channels).transpose(2, 0, 1)
            except (OSError, ValueError, SyntaxError, image.DecompressionBombError):
                what = "cannot be read as an image"
        if what:
            problems.append(table.wrong(row, FILE_COLUMN, f"'{name}' {what}"))
    return x / np.float32(127.5) - np.float32(1), {}, problems


def label_table(folder: Path, where: str, labelled: bool) -> Table:
    """Return the table of a folder's label file; without it, unless `labelled`, a table of all images."""
    if not os.path.isdir(folder):
        raise DataError(f"{where}: the folder '{folder}' is not there")
    if labelled or os.path.exists(folder / LABEL_FILE):
        return read_table(folder / LABEL_FILE, where=where, title=f"{folder.name}/{LABEL_FILE}")
    found = sorted(path.name for path in folder.iterdir() if path.name.lower().endswith(IMAGE_ENDINGS))
    if not found:
        raise DataError(f"{where}: the folder '{folder}' holds no images")
    columns = {FILE_COLUMN: np.array(found, dtype=object)}
    return Table(folder / LABEL_FILE, columns, np.arange(1, len(found) + 1), f"{folder.name}/")


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(
            "images are read with Pillow, which is not installed; install it with pip install 'fedaccord[vision]'"
        ) from None
    return Image
