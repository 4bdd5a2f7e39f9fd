"""Copies of batches to the device of a worker: to GPUs from pinned memory, a few batches at a time."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import groupby
from typing import TypeAlias

import torch

from compss_train.model.devices import is_gpu
from compss_train.worker.source import Columns

Bounds: TypeAlias = tuple[int, int]
"""Start and stop of a batch among the samples of a pass."""

_PIECE_BYTES = 2**23
"""Bytes that go to a GPU at a time: many small batches in one copy, as each copy costs tens of microseconds."""


def to_device(columns: Sequence[torch.Tensor], device: str) -> Columns:
    """Return columns on the device; copies to a GPU go on after the return, from pinned memory.

    The pinned memory and the GPU's are reused when a copy or its use has ended; torch's allocators see to that.
    """
    if not is_gpu(device):
        return tuple(part.to(device) for part in columns)
    return tuple(part.pin_memory().to(device, non_blocking=True) for part in columns)


def pieces(bounds: Sequence[Bounds], rows: Columns, device: str) -> Iterator[list[Bounds]]:
    """Group consecutive batches into pieces that go to a GPU together; for a CPU each batch is one."""
    if not is_gpu(device):
        for each in bounds:
            yield [each]
        return
    sample_bytes = sum(part[:1].numel() * part.element_size() for part in rows)
    samples = max(1, _PIECE_BYTES // max(1, sample_bytes))
    for _, group in groupby(bounds, lambda each: each[0] // samples):
        yield list(group)


class CopyStream:
    """A stream of a GPU in which batches are copied and transformed beside the training steps; none on CPUs.

    The step's stream waits for a batch with ``wait``, which also keeps its memory until the step has used it.
    """

    def __init__(self, device: str) -> None:
        self._stream = torch.cuda.Stream(device) if is_gpu(device) else None  # type: ignore[no-untyped-call]
        if self._stream is not None:  # the transform's own tensors have been copied in the step's stream
            self._stream.wait_stream(torch.cuda.current_stream(device))

    def entered(self) -> AbstractContextManager[object]:
        """Return a context in which this thread's work goes to the stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def record(self) -> torch.cuda.Event | None:
        """Return an event at the end of the work so far."""
        return None if self._stream is None else self._stream.record_event()

    def wait(self, event: torch.cuda.Event | None, columns: Sequence[torch.Tensor | None]) -> None:
        """Let the current stream wait for the event before it uses the columns."""
        if event is None or self._stream is None:
            return
        current = torch.cuda.current_stream(self._stream.device)
        current.wait_event(event)
        for part in columns:
            if part is not None:
                part.record_stream(current)
