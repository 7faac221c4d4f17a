"""Confusion counts in messages and files: whole matrices for few answers, cells for many.

With 2,000 answers a matrix has 32 MB, but a site with 300 test rows fills at most 300 cells. So counts of more than 100
answers are lists of cells, and sparse tensors in memory. Counts are int64 (answers, answers): row = truth, column =
prediction.
"""

from __future__ import annotations

from fedaccord.lazy import Tensor, torch
from fedaccord.messages.names import LARGEST_MATRIX


def to_send(counts: Tensor) -> Tensor:
    """Return counts as they are sent: the matrix, or of many answers the cells above zero: truth, prediction, count."""
    if len(counts) <= LARGEST_MATRIX:
        return counts
    places = counts.nonzero()
    return torch.cat([places, counts[places[:, 0], places[:, 1]][:, None]], dim=1)


def received(sent: Tensor, answers: int) -> Tensor:
    """Return the counts of a tensor from `to_send` that was checked; those of many answers are sparse."""
    if answers <= LARGEST_MATRIX:
        return sent
    return torch.sparse_coo_tensor(sent[:, :2].T, sent[:, 2], (answers, answers), check_invariants=True).coalesce()


def class_sums(counts: Tensor) -> tuple[list[int], list[int]]:
    """Return the number of hits and of rows for each true answer."""
    if not counts.is_sparse:
        return counts.diagonal().tolist(), counts.sum(1).tolist()
    (truth, predicted), found = counts.coalesce().indices(), counts.coalesce().values()
    rows = torch.zeros(len(counts), dtype=torch.int64).index_add_(0, truth, found)
    right = truth == predicted
    return torch.zeros_like(rows).index_add_(0, truth[right], found[right]).tolist(), rows.tolist()


def describe(counts: Tensor) -> dict[str, list[list[int]]]:
    """Return counts as written to files: `counts`, or `cells` above zero if there are many answers."""
    if len(counts) <= LARGEST_MATRIX:
        return {"counts": counts.tolist()}
    if not counts.is_sparse:
        return {"cells": to_send(counts).tolist()}
    counts = counts.coalesce()
    return {"cells": torch.cat([counts.indices().T, counts.values()[:, None]], dim=1).tolist()}
