"""Streams: a thread that puts labelled samples into a buffer while the main thread gets batches from it."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from types import TracebackType

import torch

from compss_train.buffers import Buffer, BufferDrainedError, BufferFullError

Samples = tuple[torch.Tensor, torch.Tensor]
"""Stacked samples and their classes."""


class Producer:
    """A thread that puts a stream into a buffer, a chunk each time that it is told to.

    Elsewhere the two threads run freely, and ``put_many`` and ``get_batch`` wait where they have to; how often a
    reservoir repeats a sample then depends on the machine's speed. Here the threads take turns, so that a seed
    fixes every batch. Use it as a context: at its end the thread ends too, wherever the stream is.
    """

    def __init__(self, buffer: Buffer, stream: Samples, chunk: int) -> None:
        self._buffer = buffer
        self._stream = stream
        self._chunk = chunk
        self._turn, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        self._stopped = True
        self._turn.release()
        self._thread.join()

    def put_chunk(self) -> None:
        """Have the thread put a chunk, or what finds room of it and the rest next time; wait until it did.

        Raises what the thread raised. Where reception is over, there is nothing to do.
        """
        if not self._buffer.reception_over:
            self._turn.release()
            self._done.acquire()
        if self._error is not None:
            raise self._error

    def batches(self, size: int, per_chunk: int) -> Iterator[Samples]:
        """Get batches until nothing is left, ``per_chunk`` of them (fewer where there are not as many) a chunk."""
        while True:
            self.put_chunk()
            try:
                for _ in range(per_chunk):
                    yield self._buffer.get_batch(size, block=False)
            except BufferDrainedError:
                return
            except queue.Empty:  # a training that is faster than the stream waits here
                continue

    def _run(self) -> None:
        self._turn.acquire()
        try:
            for _ in self._put_by_turns():
                self._done.release()
                self._turn.acquire()
                if self._stopped:
                    break
        except BaseException as error:
            self._error = error
        finally:  # in a turn of its own, so that the main thread sees it at a fixed place
            self._buffer.signal_reception_over()
            self._done.release()

    def _put_by_turns(self) -> Iterator[None]:
        """Put the stream; yield at the end of each turn."""
        for start in range(0, len(self._stream[0]), self._chunk):
            x, y = (part[start : start + self._chunk] for part in self._stream)
            while len(x):
                stored = _put_what_fits(self._buffer, (x, y))
                x, y = x[stored:], y[stored:]
                yield


def _put_what_fits(buffer: Buffer, samples: Samples) -> int:
    try:
        buffer.put_many(samples, block=False)
    except BufferFullError as error:
        return error.stored
    return len(samples[0])
