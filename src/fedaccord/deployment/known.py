"""Files with the server's knowledge of a deployment: names, sizes and views of sites, the server's test data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedaccord.data.features import FeaturePlan
from fedaccord.data.scaling import Moments
from fedaccord.data.server_data import POOLED_TEST
from fedaccord.data.site_data import Samples, SiteData
from fedaccord.data.sites import FederationData
from fedaccord.errors import DataError, MessageError
from fedaccord.labels.space import LabelSpace
from fedaccord.labels.views import make_view
from fedaccord.messages.message import Message, from_bytes, to_bytes

_FILE, _TENSORS = "known.json", "known.safetensors"
_SAME = ("notes", "groups", "brightest")  # written as they are


def write_known(folder: Path, data: FederationData) -> None:
    """Write what the server may know; test data pooled from the sites are excluded."""
    tensors: dict[str, Tensor | None] = {"unlabelled": data.unlabelled}
    pooled = data.test_source == POOLED_TEST
    if data.test is not None and not pooled:
        tensors |= zip(("test/x", "test/y"), data.test, strict=True)
        tensors |= zip(("test/groups", "test/group"), data.test_groups or (None, None), strict=True)
    if data.labelled is not None:
        tensors |= zip(("labelled/x", "labelled/y"), data.labelled, strict=True)
    moments = data.pooled_moments()
    known: dict[str, Any] = {
        "labels": list(data.space.names),
        "input_shape": list(data.input_shape),
        "sites": {
            name: {"view": site.view.describe(), "train": len(site.train), "test": len(site.test)}
            for name, site in data.sites.items()
        },
        "test_source": FederationData.test_source if pooled else data.test_source,
        "features": None if data.features is None else data.features.model_dump(mode="json"),
        "block": data.group_features,
        "moments": None if moments is None else {name: part.tolist() for name, part in vars(moments).items()},
        **{name: getattr(data, name) for name in _SAME},
    }
    (folder / _FILE).write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    (folder / _TENSORS).write_bytes(to_bytes(Message(given)))


def read_known(folder: Path) -> FederationData:
    """Read the output of `write_known` as a federation whose sites have sizes but no samples."""
    try:
        known = json.loads((folder / _FILE).read_text(encoding="utf-8"))
        tensors = from_bytes((folder / _TENSORS).read_bytes()).tensors
        space = LabelSpace(known["labels"])
        sites = {name: _without_samples(name, site, space) for name, site in known["sites"].items()}
        pooled = known["moments"]
        moments = {} if pooled is None else {"": Moments(**{name: np.array(part) for name, part in pooled.items()})}
        return FederationData(
            space,
            sites,
            tuple(known["input_shape"]),
            test=(tensors["test/x"], tensors["test/y"]) if "test/x" in tensors else None,
            labelled=(tensors["labelled/x"], tensors["labelled/y"]) if "labelled/x" in tensors else None,
            unlabelled=tensors.get("unlabelled"),
            features=None if known["features"] is None else FeaturePlan.model_validate(known["features"]),
            test_groups=(tensors["test/groups"], tensors.get("test/group")) if "test/groups" in tensors else None,
            group_features=known.get("block"),
            moments=moments,
            **{name: known[name] for name in ("test_source", *_SAME)},
        )
    except OSError as error:
        name = Path(error.filename).name
        raise DataError(f"'{folder}' is not the folder of a server: {name} cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, MessageError) as error:
        raise DataError(f"'{folder}' is not the folder of a server: {_FILE} is damaged: {error}") from None


def _without_samples(name: str, site: dict[str, Any], space: LabelSpace) -> SiteData:
    def empty(rows: int) -> Samples:
        return Samples(torch.empty(rows, 0), torch.empty(rows, 0))

    return SiteData(name, make_view(site["view"], space), empty(site["train"]), empty(site["test"]))
