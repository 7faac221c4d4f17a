"""Sites that bring a folder of images, with their labels in its file `labels.csv`."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.declarations import SiteFiles, SiteSection
from fedaccord.data.server_data import add_server_files
from fedaccord.data.site_data import ServerTest
from fedaccord.data.site_tables import SiteTable, assemble, read_true_classes, set_test_aside
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import Table, read_table
from fedaccord.errors import ConfigError, DataError

LABEL_FILE = "labels.csv"
FILE_COLUMN = "file"
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def read_image_sites(request: SiteFiles) -> FederationData:
    """Read sites from folders of images; each `labels.csv` has a column `file` and the site's label column."""
    features = request.features
    sites = {s.name: _open(s, request) for s in sorted(request.sections, key=lambda section: section.name)}
    shape = (3 if features.image_colour else 1, features.image_size, features.image_size)

    def encode(site: SiteTable) -> tuple[NDArray[np.float32], dict[str, int], list[str]]:
        x, problems = read_images(site.table, shape)
        return x, {}, problems

    result = assemble(sites, request, shape, encode)

    def read(folder: Path, where: str) -> ServerTest:
        table = label_table(folder, where, labelled=True)
        encode = partial(read_images, shape=shape)
        found = read_true_classes(table, sites, request, result.space, encode, where)
        return replace(found, source=f"the server's own test images, {folder.name}")

    add_server_files(result, request.test_file, request.labelled, read)
    return result


def read_images(table: Table, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], list[str]]:
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
    return x / np.float32(127.5) - np.float32(1), problems


def _open(section: SiteSection, request: SiteFiles) -> SiteTable:
    table = label_table(request.path(section), f"site '{section.name}'", section.view.needs_label)
    return set_test_aside(section, table, request.seed)


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
