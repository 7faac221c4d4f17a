"""Limits on the length of updates, so that one site cannot ruin the model (`[admit]`).

The length of an update is its Euclidean norm: of trained parameters, of buffers, and of each kind of tensor that is
sent with the model. The usual length is the median of the round; of an even number of updates the lower one, because
one of two sites may be hostile. Sites that have converged, or that learn nothing from a single label, must not make the
others look hostile. So the usual length is at least

- nine tenths of that of the round before,
- a hundredth of the length of the model (1 / norm^2), and its whole length if fewer than three sites reply, which have
  no majority, or for tensors beside the model, such as correlations, which may differ by any factor.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedaccord.aggregation.replies import Replies
from fedaccord.messages.message import Message, SiteId

if TYPE_CHECKING:
    from fedaccord.federation.server import Server

# In the method's state, followed by a part of the update, and by a site's name.
USUAL, TIMES = "usual update", "long updates"
_TRAINED, _BUFFERS = "parameters", "buffers"
_MAJORITY = 3  # updates
_MEMORY = 0.9  # share of the last round's usual length that remains


@dataclass(frozen=True)
class _Length:
    """The length of one part of a site's update, in units of the usual one, and how long it may be."""

    part: str
    times: float
    allowed: float


class UpdateNorms:
    """Compares the updates of a round; one object serves a whole run."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._round = -1
        self._seen: dict[str, list[float]] = {}  # lengths of this round's updates by part
        self._floor: dict[str, float] = {}  # the least usual lengths of this round, from the rounds before

    @property
    def _norm(self) -> float:
        return self._server.admission.limit(self._server.attack is not None)

    def admit(self, replies: Replies) -> Replies:
        """Return the replies without updates that are too long; with `clip`, longer ones are shortened."""
        server = self._server
        keep = self.judge(replies.sites, replies.matrix, replies.messages)
        if not bool(keep.all()):
            replies = replace(replies.keep(keep), left_out=replies.left_out + int((~keep).sum()))
        if server.admission.clip and len(replies):
            replies = replace(replies, matrix=self._clipped(replies.matrix))
        return replies

    def judge(self, sites: Sequence[SiteId], matrix: Tensor, messages: Sequence[Message] = ()) -> Tensor:
        """Return which updates are used, bool (sites,), and report those that are too long.

        A site's first update above the limit is shortened to it, in place, unless it is above by far. Replies that
        arrive in several blocks are compared with those of the same round before them.
        """
        server = self._server
        used = torch.ones(len(sites), dtype=torch.bool)
        # A single site outweighs nobody, and nothing tells how far it usually moves.
        if not self._norm or not len(sites) or len(server.cards) == 1:
            return used
        if self._round != server.state.round:
            self._begin_round()
        lengths = self._lengths(matrix) | _side_lengths(messages, server.recipe.sharing.prefix)
        for part, values in lengths.items():
            self._seen.setdefault(part, []).extend(values)
        usual = {part: self._usual(part) for part in lengths}
        for at, site in enumerate(sites):
            if found := self._too_long(site, {part: values[at] for part, values in lengths.items()}, usual):
                used[at] = self._is_used(site, max(found, key=lambda each: each.times / each.allowed))
                self._shorten(matrix[at], found)
        self._remember()
        return used

    def _begin_round(self) -> None:
        numbers, prefix = self._server.state.method.numbers, f"{USUAL}/"
        self._round, self._seen = self._server.state.round, {}
        known = {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}
        self._floor = {part: _MEMORY * length for part, length in known.items()}

    def _lengths(self, matrix: Tensor) -> dict[str, list[float]]:
        """Return the lengths of the updates of a matrix, (sites, parameters), by part."""
        previous, parts = self._server.state.model, self._parts
        found: dict[str, list[float]] = {part: [] for part in parts}
        for row in matrix:  # one by one, because a copy of a large matrix may not fit into memory
            update = row - previous
            for part, columns in parts.items():
                found[part].append(_norm(update[columns]))
        return found

    @cached_property
    def _parts(self) -> dict[str, Tensor | slice]:
        """The columns of the parameters and of the buffers."""
        trained = self._server.layout.trainable_mask()
        if bool(trained.all()):
            return {_TRAINED: slice(None)}  # a view instead of a copy
        return {part: mask for part, mask in ((_TRAINED, trained), (_BUFFERS, ~trained)) if bool(mask.any())}

    def _usual(self, part: str) -> float:
        """Return the usual length of one part of an update; 0 if nothing tells it."""
        moved = sum(length > 0 for length in self._seen[part])
        usual = _lower_median(self._seen[part]) if moved > 1 else 0.0  # one update says nothing about itself
        trained = next(iter(self._parts.values()))
        scale = _norm(self._server.state.model[self._parts.get(part, trained)])
        if moved >= _MAJORITY and part in self._parts:
            scale /= self._norm**2
        return max(usual, scale, self._floor.get(part, 0.0))

    def _too_long(self, site: SiteId, lengths: Mapping[str, float], usual: Mapping[str, float]) -> list[_Length]:
        """Return the parts of an update that are longer than allowed."""
        norm, found = self._norm, []
        for part, length in lengths.items():
            times = length / usual[part] if usual[part] else 0.0
            # Some tensors beside the model are squares of gradients, so their limit is a square too.
            power = 1 if part in self._parts else 2
            if times > norm**power and times > (allowed := self._limit(site) ** power):
                found.append(_Length(part, times, allowed))
        return found

    def _shorten(self, row: Tensor, found: Sequence[_Length]) -> None:
        """Shorten the update of a model, (parameters,), to its limit, in place."""
        previous = self._server.state.model
        for each in found:
            if (columns := self._parts.get(each.part)) is not None:
                share = each.allowed / each.times
                row[columns] = previous[columns] + share * (row[columns] - previous[columns])

    def _limit(self, site: SiteId) -> float:
        """Return how many times as long as usual the update of a site may be.

        A site with more samples takes more steps in an epoch, so it may move further in proportion, at most `norm`
        times as far.
        """
        norm, cards = self._norm, self._server.cards
        if isinstance(self._server.recipe.settings.steps, int):
            return norm
        typical = _lower_median([card.samples for card in cards.values()])
        return norm * min(norm, max(1.0, cards[site].samples / max(1.0, typical)))

    def _is_used(self, site: SiteId, found: _Length) -> bool:
        """Return whether an update above its limit is used: the first one of a site, and not above it by far."""
        server = self._server
        numbers, key = server.state.method.numbers, f"{TIMES}/{site}"
        numbers[key] = int(numbers.get(key, 0)) + 1
        by_far = found.times > found.allowed * self._norm or found.part not in self._parts
        if numbers[key] == 1 and not by_far:
            server.warn(
                f"site '{site}' sent an update {found.times:.3g} times as long as usual ({found.part}, round "
                f"{server.state.round + 1}); it is shortened to {found.allowed:.3g} times, and the next one is left "
                "out (admit.norm)"
            )
            return True
        reason = f"the update is {found.times:.3g} times as long as usual, above {found.allowed:.3g} (admit.norm)"
        server.drop(site, "train", found.part, reason)
        return False

    def _remember(self) -> None:
        """Store the usual lengths for the next round; a single update cannot raise them."""
        numbers = self._server.state.method.numbers
        for part, lengths in self._seen.items():
            usual = _lower_median(lengths) if sum(length > 0 for length in lengths) > 1 else 0.0
            numbers[f"{USUAL}/{part}"] = max(usual, self._floor.get(part, 0.0))

    def _clipped(self, matrix: Tensor) -> Tensor:
        """Return the models with every update shortened to the median length of the round."""
        previous = self._server.state.model
        updates = matrix - previous
        for part, columns in self._parts.items():
            usual = _lower_median(self._seen.get(part) or self._lengths(matrix)[part])
            lengths = torch.linalg.vector_norm(updates[:, columns], dim=1, dtype=torch.float64)
            shares = torch.where(lengths > usual, usual / lengths.clamp(min=torch.finfo(torch.float64).tiny), 1.0)
            updates[:, columns] *= shares[:, None].to(updates.dtype)
        return previous + updates


def _side_lengths(messages: Sequence[Message], model: str) -> dict[str, list[float]]:
    """Return the lengths of the tensors beside the model, by the first part of their names."""
    kinds: dict[str, list[float]] = {}
    for at, message in enumerate(messages):
        for name, tensor in message.tensors.items():
            kind = name.partition("/")[0]
            if kind != model and tensor.is_floating_point():
                squares = kinds.setdefault(kind, [0.0] * len(messages))
                squares[at] += _norm(tensor) ** 2
    return {kind: [square**0.5 for square in squares] for kind, squares in kinds.items()}


def _norm(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64))  # in float32, squares of 1e20 overflow


def _lower_median(values: Sequence[float]) -> float:
    """Return the median of the values above zero, the lower one of an even number; 0 without any."""
    moved = sorted(value for value in values if value > 0)
    return moved[(len(moved) - 1) // 2] if moved else 0.0
