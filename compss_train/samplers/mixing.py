"""Mixing: samples that are read in turn come out in the order of a partial shuffle.

A store has a slot for each sample of the pools. Where one was taken out, the next one that was read goes in, so
that each sample is copied into the store once and each file is read once. After an interruption the order is
replayed without samples, and only what was in the pools then is read again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeAlias

import numpy as np

from compss_train.buffers.incoming import Incoming
from compss_train.samplers.pools import Numbers, Pools, SlotPlan
from compss_train.samplers.slots import Rows, SlotStore, joined

Reading: TypeAlias = "Callable[[Sequence[int]], AbstractContextManager[Iterator[Rows | None]]]"
"""Gives the rows of the pieces of these numbers, in turn; ``None`` for one that cannot be read."""

_RUN = 1024  # samples copied into slots at a time: fewer cost more each


def mixed(
    pieces: Sequence[int],
    reading: Reading,
    pools: Pools,
    random: np.random.Generator | None,
    batches: Iterable[int],
    start: int = 0,
    store: SlotStore | None = None,
) -> Iterator[Rows | None]:
    """Iterate over batches of samples that come in pieces (files, or parts of them), each sample once.

    Parameters
    ----------
    pieces:
        Samples of each piece.
    reading:
        What reads some of the pieces, by number.
    pools, random:
        How far samples travel, and the generator of the order as it is at the beginning; ``None`` keeps the order.
    batches:
        Samples of each batch. One with samples of pieces that cannot be read has so many less, and is ``None``
        where nothing is left.
    start:
        How many samples were drawn before, after an interruption.
    store:
        One whose memory may be used meanwhile.
    """
    bounds = np.cumsum([0, *pieces])
    plan = SlotPlan(int(bounds[-1]), pools, random, start)
    numbers = _needed(bounds, plan)
    with reading(numbers) as rows:
        store = SlotStore() if store is None else store
        store.begin(len(plan.held))
        filling = _Filling(bounds, iter(numbers), rows, store)
        filling.put(*plan.held_in_turn())
        draws = _Draws(plan, filling)
        for size in batches:
            yield joined(list(draws.batch(size)))


def _needed(bounds: Numbers, plan: SlotPlan) -> list[int]:
    """Return the pieces with samples that are in the pools or still to come."""
    samples, _ = plan.held_in_turn()
    held = np.searchsorted(bounds, samples, side="right") - 1
    coming = np.arange(np.searchsorted(bounds, plan.arrived, side="right") - 1, len(bounds) - 1)
    numbers: list[int] = np.union1d(held, coming).tolist()
    return numbers


class _Draws:
    """Takes batches out of slots; what follows is put in there a run at a time, and only before more is drawn."""

    def __init__(self, plan: SlotPlan, filling: _Filling) -> None:
        self._plan = plan
        self._filling = filling
        self._run = plan.held[:0]

    def batch(self, size: int) -> Iterator[Rows | None]:
        """Iterate over the parts of a batch."""
        while size:
            if not len(self._run):
                self._filling.put(*self._plan.following())
                self._run = self._plan.next(_RUN)
            slots, self._run = self._run[:size], self._run[size:]
            size -= len(slots)
            yield self._filling.store.take(slots)


class _Filling:
    """Puts samples into slots, going from piece to piece."""

    def __init__(
        self, bounds: Numbers, numbers: Iterator[int], pieces: Iterator[Rows | None], store: SlotStore
    ) -> None:
        self.store = store
        self._bounds = bounds
        self._numbers = numbers
        self._pieces = pieces  # by itself: zip would hold on to a piece while it waits for the next
        self._piece: Incoming | None = None
        self._first = self._stop = 0  # samples in the piece

    def put(self, samples: Numbers, slots: Numbers) -> None:
        """Put samples, whose numbers ascend from call to call, into these slots."""
        while len(samples):
            while samples[0] >= self._stop:
                self._go_on()
            number = int(np.searchsorted(samples, self._stop))
            if self._piece is None:
                self.store.miss(slots[:number])
            else:
                self.store.put(slots[:number], self._piece, samples[:number] - self._first)
            samples, slots = samples[number:], slots[number:]

    def _go_on(self) -> None:
        self._piece = None  # lets go of it before the next one comes
        rows = next(self._pieces)
        self._piece = None if rows is None else Incoming.many(rows)
        number = next(self._numbers)
        self._first, self._stop = self._bounds[number : number + 2].tolist()
