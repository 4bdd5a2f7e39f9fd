"""A thread that puts labelled samples into a buffer while the main thread gets batches from it."""

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
    """A thread that puts a stream into a buffer, one chunk per call of ``put_chunk``.

    Usually the two threads run freely, and ``put_many`` and ``get_batch`` block if necessary; how
    often a reservoir repeats a sample then depends on the machine's speed. Here the threads take
    turns, so that a seed determines every batch. Use it as a context manager: the thread ends with
    the block, wherever the stream is.
    """

    def __init__(self, buffer: Buffer, stream: Samples, chunk: int) -> None:
        self._buffer = buffer
        self._stream = stream
        self._chunk = chunk
        self._turn = threading.Semaphore(0)
        self._done = threading.Semaphore(0)
        self._stopped = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="producer", daemon=True)

    def __enter__(self) -> Producer:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._stopped = True
        self._turn.release()
        self._thread.join()

    def put_chunk(self) -> None:
        """Let the thread put a chunk, or the part of it that fits, and wait for it.

        Raises the thread's exception, if any. Does nothing after the end of reception.
        """
        if not self._buffer.reception_over:
            self._turn.release()
            self._done.acquire()
        if self._error is not None:
            raise self._error

    def batches(self, size: int, per_chunk: int) -> Iterator[Samples]:
        """Get batches until the buffer is drained, at most ``per_chunk`` of them per chunk."""
        while True:
            self.put_chunk()
            try:
                for _ in range(per_chunk):
                    yield self._buffer.get_batch(size, block=False)
            except BufferDrainedError:
                return
            except queue.Empty:  # training is faster than the stream
                continue

    def _run(self) -> None:
        self._turn.acquire()
        try:
            for _ in self._put_in_turns():
                self._done.release()
                self._turn.acquire()
                if self._stopped:
                    break
        except BaseException as error:
            self._error = error
        finally:  # in a turn of its own, so that the main thread sees the end at a fixed position
            self._buffer.signal_reception_over()
            self._done.release()

    def _put_in_turns(self) -> Iterator[None]:
        """Put the stream; yield after each turn."""
        for start in range(0, len(self._stream[0]), self._chunk):
            x, y = (part[start : start + self._chunk] for part in self._stream)
            while len(x):
                stored = _put_available(self._buffer, (x, y))
                x = x[stored:]
                y = y[stored:]
                yield


def _put_available(buffer: Buffer, samples: Samples) -> int:
    try:
        buffer.put_many(samples, block=False)
    except BufferFullError as error:
        return error.stored
    return len(samples[0])
