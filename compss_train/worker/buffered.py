"""Drawing batches from a buffer in step with the samples that are put; what a buffer keeps between tasks."""

import queue
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from compss_train.buffers import Buffer
from compss_train.data.block_passes import Draws
from compss_train.worker.source import Columns

_BURST = 8  # batches made at a time


@dataclass
class CarriedBuffer:
    """The state of a worker's buffer, which passes from task to task inside an epoch."""

    before: dict[str, Any] | None = None
    """The state before a task, which the task does not change."""
    after: dict[str, Any] | None = None
    """The state after a task; ``None`` for an empty buffer."""


class _Rows:
    """Cuts chunks into pieces of the requested length."""

    def __init__(self, chunks: Iterable[Columns]) -> None:
        self._chunks = iter(chunks)
        self._rest: Columns = ()
        self.ended = False

    def take(self, number: int) -> Iterator[Columns]:
        """Iterate over the next ``number`` samples in pieces of chunks, or fewer at the end."""
        while number > 0:
            if not self._rest or not len(self._rest[0]):
                self._rest = next(self._chunks, ())
            if not self._rest:
                self.ended = True
                return
            taken = tuple(part[:number] for part in self._rest)
            self._rest = tuple(part[number:] for part in self._rest)
            number -= len(taken[0])
            yield taken


def draw_in_step(buffer: Buffer, chunks: Iterable[Columns], draws: Draws) -> Iterator[Columns]:
    """Iterate over the batches, putting samples into the buffer by counts (``draws.puts``) and not by time.

    If files are skipped, a batch waits until there are enough samples for it, and the last one may be smaller.
    """
    rows = _Rows(chunks)
    for size, wanted in zip(draws.sizes, draws.puts, strict=True):
        _put(buffer, rows, wanted, draws)
        yield from _get(buffer, size)
    while not rows.ended and buffer.samples_put < draws.puts[-1]:  # samples that found no room before
        yield from _get(buffer, draws.largest)
        _put(buffer, rows, draws.puts[-1], draws)
    while draws.is_last and len(buffer):
        yield from _get(buffer, draws.largest)


def _put(buffer: Buffer, rows: _Rows, wanted: int, draws: Draws) -> None:
    """Put samples into the buffer until it has received ``wanted`` in this epoch, or is full."""
    room = buffer.capacity - len(buffer)
    for chunk in rows.take(min(wanted - buffer.samples_put, room)):
        buffer.put_many(chunk, block=False)
    if buffer.samples_put == draws.total or (rows.ended and draws.is_last):
        buffer.signal_reception_over()


def _get(buffer: Buffer, size: int) -> Iterator[Columns]:
    """Draw a batch if there are enough samples, or fewer at the end of an epoch."""
    try:
        batch = buffer.get_batch(size, block=False)
    except queue.Empty:
        return
    yield batch


def in_bursts(batches: Iterator[Columns]) -> Iterator[Columns]:
    """Iterate over the batches, drawing a few at a time.

    Between two training steps the code and data of a buffer leave the core's caches: drawn one by one, batches
    cost three times as much.
    """
    while burst := list(islice(batches, _BURST)):
        yield from burst
