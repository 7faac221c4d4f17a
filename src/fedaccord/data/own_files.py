"""Sites that bring their own files: tables, folders of images or arrays, all of one kind."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fedaccord.data.declarations import Features, SiteSection
from fedaccord.data.images import read_image_sites
from fedaccord.data.registry import existing, locate
from fedaccord.data.site_tables import read_table_sites
from fedaccord.data.sites import FederationData, read_sites
from fedaccord.data.tables import is_table
from fedaccord.errors import ConfigError, DataError

TABLE, IMAGES, ARRAYS = "a table", "a folder of images", "an .npz file"


def read_own_files(
    sections: Sequence[SiteSection],
    features: Features,
    base: Path,
    classes: Sequence[str] | None,
    test_file: Path | None,
    test_label: str | None,
    seed: int,
    labelled: Path | None = None,
    groups_as_input: bool = False,
    normalise_groups: bool = False,
) -> FederationData:
    """Read the sites' own files, each through its view; relative paths start from `base`."""
    kinds = {section.name: _kind(section, base) for section in sections}
    first, kind = next(iter(kinds.items()))
    for name, other in kinds.items():
        if other != kind:
            raise ConfigError(f"site '{first}' brings {kind}, site '{name}' {other}; all must be of one kind")
    if kind == TABLE:
        return read_table_sites(
            sections,
            features,
            base,
            classes,
            test_file,
            test_label,
            seed,
            labelled,
            groups_as_input,
            normalise_groups,
        )
    if groups_as_input:
        raise ConfigError(f"fairness.input: groups are inputs of tables only, and site '{first}' brings {kind}")
    if kind == IMAGES:
        return read_image_sites(sections, features, base, classes, test_file, test_label, seed, labelled)
    for section in sections:
        _fits_arrays(section)
    files = {section.name: (locate(section.data, base), section.view, section.test) for section in sections}
    return read_sites(files, classes, test_file, seed, labelled)


def _kind(section: SiteSection, base: Path) -> str:
    path = locate(section.data, base)
    if os.path.isdir(path) or section.data.endswith("/"):
        return IMAGES
    if is_table(path):
        return TABLE
    if path.suffix.lower() != ".npz":
        existing(path, f"site '{section.name}'")
        ways = "a table ends with .csv, .tsv or .parquet, arrays with .npz"
        raise DataError(f"site '{section.name}': '{section.data}' is no file of samples; {ways}")
    return ARRAYS


def _fits_arrays(section: SiteSection) -> None:
    for key in ("label", "sensitive", "header"):
        if getattr(section, key) is not None:
            raise ConfigError(f"site '{section.name}': the key '{key}' names columns of a table; this is {ARRAYS}")
    if section.view.knows_own:
        raise ConfigError(f"site '{section.name}': known = \"own\" is not for {ARRAYS}; name the labels it knows")
