"""Sites that bring their own files: tables, folders of images or arrays, all of one type."""

from __future__ import annotations

import os

from fedaccord.data.declarations import SiteSection
from fedaccord.data.images import read_image_sites
from fedaccord.data.registry import existing
from fedaccord.data.requests import SiteFiles
from fedaccord.data.site_arrays import read_array_sites
from fedaccord.data.site_tables import read_table_sites
from fedaccord.data.sites import FederationData
from fedaccord.data.tables import is_table
from fedaccord.errors import ConfigError, DataError

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
        types = "a table ends with .csv, .tsv or .parquet, arrays with .npz"
        raise DataError(f"site '{section.name}': '{section.data}' is no file of samples; {types}")
    return ARRAYS


def _refuse_table_keys(section: SiteSection) -> None:
    for key in ("label", "sensitive", "header"):
        if getattr(section, key) is not None:
            raise ConfigError(f"site '{section.name}': the key '{key}' names columns of a table; this is {ARRAYS}")
    if section.view.knows_own:
        raise ConfigError(f"site '{section.name}': known = \"own\" is not for {ARRAYS}; name the labels it knows")
