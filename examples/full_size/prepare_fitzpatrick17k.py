"""Make fitzpatrick17k.npz from the published table and a folder of images, for fitzpatrick17k.toml.

    python prepare_fitzpatrick17k.py fitzpatrick17k.csv.gz IMAGES [--size 64] [--out fitzpatrick17k.npz]

An image file is named MD5HASH.jpg or MD5HASH.png. Rows without an image are skipped and counted. A fifth of each of the
nine classes is marked as test data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from PIL import Image

from fedaccord.data.tables import read_table

FINE, COARSE = "nine_partition_label", "three_partition_label"


def main() -> None:
    """Read and resize the images, and write the .npz file."""
    parser = argparse.ArgumentParser()
    parser.add_argument("table", type=Path)
    parser.add_argument("images", type=Path)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--out", type=Path, default=Path("fitzpatrick17k.npz"))
    given = parser.parse_args()
    table = read_table(given.table, where=str(given.table))
    fine, coarse, hashes = (table.column(name) for name in (FINE, COARSE, "md5hash"))
    found = [(row, path) for row, name in enumerate(hashes) if (path := image_of(given.images, name)) is not None]
    if not found:
        raise SystemExit(f"no image of {given.table} is in {given.images}")
    rows = [row for row, _ in found]
    names, groups = sorted(set(fine)), sorted(set(coarse))
    group_of = dict(zip(fine, coarse, strict=True))
    y = np.array([names.index(fine[row]) for row in rows])
    np.savez_compressed(
        given.out,
        x=np.stack([read_image(path, given.size) for _, path in found]),
        fine=y,
        fine_names=np.array(names),
        coarse_names=np.array(groups),
        fine_to_coarse=np.array([groups.index(group_of[name]) for name in names]),
        is_test=fifth_of_each(y),
    )
    print(f"{given.out}: {len(found)} images, {len(hashes) - len(found)} rows of the table have none")


def image_of(folder: Path, name: str) -> Path | None:
    """Return the path of an image, or None if there is none."""
    return next((path for ending in (".jpg", ".png") if (path := folder / f"{name}{ending}").exists()), None)


def read_image(path: Path, size: int) -> np.ndarray:
    """Return an image as a uint8 array of shape (size, size, 3)."""
    with Image.open(path) as picture:
        return np.asarray(picture.convert("RGB").resize((size, size)), dtype=np.uint8)


def fifth_of_each(y: np.ndarray) -> np.ndarray:
    """Mark a fixed random fifth of each class with 1."""
    order = np.random.default_rng(0).permutation(len(y))
    marked = np.zeros(len(y), dtype=np.uint8)
    for column in np.unique(y):
        of_class = order[y[order] == column]
        marked[of_class[: len(of_class) // 5]] = 1
    return marked


if __name__ == "__main__":
    main()
