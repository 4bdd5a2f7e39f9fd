"""Shuffling of samples that are read chunk by chunk, in the order of a partial shuffle.

A store has a slot for each sample in the pools. Each sample that is read takes the slot of a sample
that was drawn, so that each sample is copied into the store once and each chunk is read once. After
an interruption the order is replayed without samples, and only chunks that have samples in the
pools are read again.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt
from compss_train.buffers.samples import SampleBatch
from compss_train.buffers.storage import ColumnStorage
from compss_train.data.block import concatenate
from compss_train.samplers.pools import Numbers, Pools, SlotPlan

Rows: TypeAlias = Any
"""Some samples: arrays or tensors with a row per sample, in a dict or tuple."""

Chunk: TypeAlias = tuple[Rows, Numbers]
"""Rows, and the places of those among them that could not be read."""

OpenChunks: TypeAlias = Callable[[Sequence[int]], AbstractContextManager[Iterator[Chunk | None]]]
"""Opens an iterator over the chunks with these numbers; ``None`` stands for an unreadable chunk."""

_REFILL = 1024  # samples copied into slots at a time; smaller copies cost more per sample


def shuffled_batches(
    chunk_sizes: Sequence[int],
    open_chunks: OpenChunks,
    *,
    pools: Pools,
    random: np.random.Generator | None,
    batch_sizes: Iterable[int],
    start: int = 0,
    store: "SlotStore | None" = None,
) -> Iterator[Rows | None]:
    """Iterate over batches of samples that are read chunk by chunk, each sample once.

    Parameters
    ----------
    chunk_sizes:
        Number of samples in each chunk, which is a file or a part of one.
    open_chunks:
        Reads some of the chunks, by number.
    pools:
        The pools of the partial shuffle.
    random:
        Generator of the order, in its initial state; ``None`` keeps the order of the chunks.
    batch_sizes:
        Number of samples in each batch. Samples of unreadable chunks are missing from the batches;
        a batch without any samples is ``None``.
    start:
        Number of samples that were drawn before an interruption.
    store:
        A store whose memory is reused; by default a new one.
    """
    bounds = np.cumsum([0, *chunk_sizes])
    plan = SlotPlan(int(bounds[-1]), pools, random, start)
    samples, slots = plan.held_by_arrival()
    held = np.searchsorted(bounds, samples, side="right") - 1
    first_unread = np.searchsorted(bounds, plan.arrived, side="right") - 1
    unread = np.arange(first_unread, len(chunk_sizes))
    numbers: list[int] = np.union1d(held, unread).tolist()
    if store is None:
        store = SlotStore()
    store.reset(len(plan.held))
    with open_chunks(numbers) as chunks:
        filler = _SlotFiller(bounds, iter(numbers), chunks, store)
        filler.put(samples, slots)
        drawn = slots[:0]
        for size in batch_sizes:
            parts = []
            while size:
                if not len(drawn):
                    filler.put(*plan.refill())
                    drawn = plan.draw(_REFILL)
                batch_slots = drawn[:size]
                parts.append(store.read(batch_slots))
                drawn = drawn[size:]
                size -= len(batch_slots)
            yield concatenate_rows(parts)


class _SlotFiller:
    """Reads samples chunk by chunk and writes them to slots."""

    def __init__(
        self,
        bounds: Numbers,
        numbers: Iterator[int],
        chunks: Iterator[Chunk | None],
        store: "SlotStore",
    ) -> None:
        self._bounds = bounds
        self._store = store
        self._numbers = numbers
        # Not zipped with the numbers: zip would keep a chunk alive while it reads the next.
        self._chunks = chunks
        self._chunk: SampleBatch | None = None
        self._missing: Numbers = np.empty(0, np.intp)
        """The places in the chunk of rows that could not be read."""
        self._first = 0
        """The number of the chunk's first sample."""
        self._stop = 0
        """The number of the first sample after it."""

    def put(self, samples: Numbers, slots: Numbers) -> None:
        """Write samples to these slots; sample numbers must ascend from call to call."""
        while len(samples):
            while samples[0] >= self._stop:
                self._chunk = None  # frees its memory before the next one is read
                chunk = next(self._chunks)
                number = next(self._numbers)
                if chunk is not None:
                    self._chunk = SampleBatch.from_batch(chunk[0])
                    self._missing = chunk[1]
                del chunk
                self._first, self._stop = self._bounds[number : number + 2].tolist()
            number = int(np.searchsorted(samples, self._stop))
            if self._chunk is None:
                self._store.mark_missing(slots[:number])
            else:
                rows = samples[:number] - self._first
                self._store.write(slots[:number], self._chunk, rows)
                if len(self._missing):
                    self._store.mark_missing(slots[:number][np.isin(rows, self._missing)])
            samples = samples[number:]
            slots = slots[number:]


class SlotStore:
    """Stores rows in slots, in memory that is reused after ``reset``.

    It is allocated when the first rows are written. Allocating it again for each epoch can take as
    long as reading the files.
    """

    def __init__(self) -> None:
        self._capacity = 0
        self._storage: ColumnStorage | None = None
        self._missing: NDArray[np.bool_] = np.zeros(0, np.bool_)

    def reset(self, capacity: int) -> None:
        """Empty the store and set its number of slots."""
        if capacity != self._capacity:
            self._capacity = capacity
            self._storage = None
        self._missing = np.zeros(capacity, np.bool_)

    def write(self, slots: Numbers, chunk: SampleBatch, rows: Numbers) -> None:
        """Copy rows of a chunk, given by ascending numbers, into slots."""
        if self._storage is None:
            self._storage = ColumnStorage(self._capacity, chunk)
        self._missing[slots] = False
        consecutive = int(rows[-1]) - int(rows[0]) < len(rows)
        self._storage.write(slots, chunk, slice(rows[0], rows[-1] + 1) if consecutive else rows)

    def mark_missing(self, slots: Numbers) -> None:
        """Mark slots whose samples could not be read."""
        self._missing[slots] = True

    def read(self, slots: Numbers) -> Rows | None:
        """Return a copy of the rows in these slots, without the samples that could not be read.

        ``None`` if there are no others.
        """
        slots = slots[~self._missing[slots]]
        if self._storage is None or not len(slots):
            return None
        return self._storage.read(slots)


def concatenate_rows(parts: Sequence[Rows | None]) -> Rows | None:
    """Concatenate the rows of several parts; return ``None`` if all parts are ``None``."""
    present = [part for part in parts if part is not None]
    if len(present) <= 1:
        return present[0] if present else None
    return rebuilt(present[0], map(concatenate, zip(*map(leaves, present), strict=True)))
