"""Groups of rows with similar tags, so that a partition by class can deal them to sites that differ in tags."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from fedaccord.data.dataset import Array
from fedaccord.labels.clusters import k_means

FEW_TAGS = 20  # up to this number a row's group is its rarest tag
CLUSTERS = 12  # if there are more tags


def tag_groups(tags: Array, seed: int) -> NDArray[np.int64]:
    """Return a group for each row: its rarest tag, or if there are many tags its k-means cluster.

    Rows without any tag form another group.
    """
    present = tags == 1
    if tags.shape[1] <= FEW_TAGS:
        counts = present.sum(0)
        rank = np.argsort(np.argsort(counts, kind="stable"), kind="stable")
        rarest = np.where(present, rank, tags.shape[1]).argmin(1)
        return np.where(present.any(1), rarest, tags.shape[1]).astype(np.int64)
    length = np.sqrt(present.sum(1, keepdims=True)).clip(min=1)
    found = k_means(torch.from_numpy(present / length), CLUSTERS, seed, restarts=1).numpy()
    return np.where(present.any(1), found, CLUSTERS).astype(np.int64)
