"""Folders of images as tables: one row for each image, with its label from `labels.csv` or from its subfolder."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedaccord.data.declarations import Reading
from fedaccord.data.tables import Table, read_table
from fedaccord.errors import ConfigError, DataError, listed

LABEL_FILE = "labels.csv"
FILE_COLUMN = "file"
CLASS_COLUMN = "folder"  # label column of images in class folders, unless the site names it
IMAGE_ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
SPLITS = ("train", "training", "test", "testing", "val", "valid", "validation")


def label_table(
    folder: Path, where: str, labelled: bool, label: str | None = None, read: Reading | None = None
) -> Table:
    """Return the table of a folder's images: that of its label file or, without one, of its class folders.

    Class folders are the values of the column `label`. A table that need not be `labelled` has all images, also those
    outside of class folders, and no labels.
    """
    if not os.path.isdir(folder):
        raise DataError(f"{where}: the folder '{folder}' is not there")
    if os.path.exists(folder / LABEL_FILE):
        return read_table(folder / LABEL_FILE, where=where, title=f"{folder.name}/{LABEL_FILE}", read=read)
    beside, inside = _images_beside(folder), _images_inside(folder)
    if not labelled:
        files = sorted([*beside, *(file for images in inside.values() for file in images)])
        if not files:
            raise DataError(f"{where}: the folder '{folder}' holds no images")
        return _table(folder, {FILE_COLUMN: files})
    _refuse_other_layouts(folder, where, beside, inside)
    columns = {
        FILE_COLUMN: [file for images in inside.values() for file in images],
        label or CLASS_COLUMN: [name for name, images in inside.items() for _ in images],
    }
    return _table(folder, columns)


def _table(folder: Path, columns: dict[str, list[str]]) -> Table:
    cells = {name: np.array(column, dtype=object) for name, column in columns.items()}
    number = np.arange(1, len(columns[FILE_COLUMN]) + 1)
    return Table(folder / LABEL_FILE, cells, number, f"{folder.name}/", "image")


def _images_beside(folder: Path) -> list[str]:
    """Return the images that are in a folder itself."""
    return sorted(entry.name for entry in os.scandir(folder) if _is_image(entry.name) and not entry.is_dir())


def _images_inside(folder: Path) -> dict[str, list[str]]:
    """Return the images in each subfolder, at any depth; hidden folders do not count."""
    found: dict[str, list[str]] = {}
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir() and not entry.name.startswith((".", "__")):
            found[entry.name] = sorted(
                str((Path(place) / name).relative_to(folder))
                for place, _, names in os.walk(entry.path)
                for name in names
                if _is_image(name)
            )
    return found


def _is_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_ENDINGS) and not name.startswith(".")


def _refuse_other_layouts(folder: Path, where: str, beside: Sequence[str], inside: dict[str, list[str]]) -> None:
    """Raise DataError unless all images of a folder are in class folders, and each class folder has one."""
    forms = f"labels are in {LABEL_FILE}, or each class has a folder of its images"
    if not any(inside.values()):
        raise DataError(f"{where}: the file '{folder / LABEL_FILE}' is not there, and no class folders are; {forms}")
    if beside:
        both = f"'{folder}' has images in folders of classes and {len(beside)} beside them, such as '{beside[0]}'"
        raise DataError(f"{where}: {both}; {forms}")
    splits = [name for name in inside if name.lower() in SPLITS]
    if splits:
        what = f"'{folder}' is divided into {listed(list(inside))}, which are not classes"
        raise DataError(
            f'{where}: {what}; name the folder of the class folders, as in data = "{folder.name}/{splits[0]}"'
        )
    empty = [name for name, images in inside.items() if not images]
    if empty:
        raise DataError(
            f"{where}: {listed(empty)} in '{folder}' holds no images; remove it, or add images of the class"
        )


def read_images(table: Table, shape: tuple[int, ...]) -> tuple[NDArray[np.float32], dict[str, int], list[str]]:
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


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise ConfigError(
            "images are read with Pillow, which is not installed; install it with pip install 'fedaccord[vision]'"
        ) from None
    return Image
