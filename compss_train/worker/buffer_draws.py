"""How a worker's batches are drawn from a buffer, which is filled from the rows of its blocks."""

import queue
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from compss_train.buffers import Buffer, BufferSpec
from compss_train.buffers.reading_ahead import batches_through
from compss_train.data.draws import Draws
from compss_train.worker.gpu_rows import Columns

_BURST = 8  # batches drawn from a buffer at a time


def drawn_columns(
    spec: BufferSpec, buffer: Buffer, chunks: Iterable[Columns], draws: Draws
) -> Iterator[Columns]:
    """Iterate over the columns of the batches that are drawn from a buffer.

    ``chunks`` are the samples to put into it. A buffer of kind ``spec`` is filled as batches are
    drawn, so that they are always the same, or in a thread.
    """
    if spec.draws_in_step:
        return _in_bursts(_drawn_in_step(buffer, chunks, draws))
    least = None if draws.is_last else len(draws.sizes)
    return batches_through(buffer, chunks, draws.largest, least=least)


def _drawn_in_step(buffer: Buffer, chunks: Iterable[Columns], draws: Draws) -> Iterator[Columns]:
    """Iterate over the batches, putting samples into the buffer by counts, not by time.

    The counts are ``draws.puts``. If files are skipped, a batch waits until there are enough
    samples for it, and the last one may be smaller.
    """
    rows = _Rows(chunks)
    for size, puts in zip(draws.sizes, draws.puts, strict=True):
        _put(buffer, rows, puts, draws)
        yield from _get(buffer, size)
    # Samples that found no room before.
    while not rows.ended and buffer.samples_put < draws.puts[-1]:
        yield from _get(buffer, draws.largest)
        _put(buffer, rows, draws.puts[-1], draws)
    while draws.is_last and len(buffer):
        yield from _get(buffer, draws.largest)


class _Rows:
    """Cuts chunks into pieces of the requested length."""

    def __init__(self, chunks: Iterable[Columns]) -> None:
        self._chunks = iter(chunks)
        self._chunk: Columns = ()
        self.ended = False

    def take(self, number: int) -> Iterator[Columns]:
        """Iterate over the next ``number`` samples in pieces of chunks, or fewer at the end."""
        while number > 0:
            if not self._chunk or not len(self._chunk[0]):
                self._chunk = next(self._chunks, ())
            if not self._chunk:
                self.ended = True
                return
            piece = tuple(column[:number] for column in self._chunk)
            self._chunk = tuple(column[number:] for column in self._chunk)
            number -= len(piece[0])
            yield piece


def _put(buffer: Buffer, rows: _Rows, puts: int, draws: Draws) -> None:
    """Put samples into the buffer until it has received ``puts`` in this epoch, or is full."""
    room = buffer.capacity - len(buffer)
    for piece in rows.take(min(puts - buffer.samples_put, room)):
        buffer.put_many(piece, block=False)
    if buffer.samples_put == draws.total or (rows.ended and draws.is_last):
        buffer.signal_reception_over()


def _get(buffer: Buffer, size: int) -> Iterator[Columns]:
    """Draw a batch if there are enough samples, or fewer at the end of an epoch."""
    with suppress(queue.Empty):
        yield buffer.get_batch(size, block=False)


def _in_bursts(batches: Iterator[Columns]) -> Iterator[Columns]:
    """Iterate over the batches, drawing a few at a time.

    Between two training steps the code and data of a buffer leave the core's caches: drawn one by
    one, batches cost three times as much.
    """
    while burst := list(islice(batches, _BURST)):
        yield from burst
