"""``Tracer``: the trace of a worker's round by ``torch.profiler``."""

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from compss_train.model.devices import is_gpu

MOST_BATCHES = 100
"""The first batches of a round, which a trace is limited to: each adds up to a megabyte."""


class Tracer:
    """Traces the first batches of a task, if that is ``wanted``; a context that ends with the trace."""

    def __init__(self, device: str, *, wanted: bool) -> None:
        self._profiler = _new_profiler(device) if wanted else None
        self._batches = 0
        self._running = False

    def __enter__(self) -> Self:
        if self._profiler is not None:
            self._profiler.start()
            self._running = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stop()

    def batch(self, number: int) -> AbstractContextManager[object]:
        """Return the context of a batch, which has its number in the trace."""
        if not self._running:
            return nullcontext()
        if self._batches == MOST_BATCHES:
            self._stop()
            return nullcontext()
        self._batches += 1
        return torch.profiler.record_function(f"batch {number}")

    def trace(self) -> bytes | None:
        """Return the trace, compressed JSON, after it has ended; ``None`` if none was wanted."""
        if self._profiler is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json.gz")
            self._profiler.export_chrome_trace(str(path))
            return path.read_bytes()

    def _stop(self) -> None:
        if self._running and self._profiler is not None:
            self._running = False
            self._profiler.stop()


def _new_profiler(device: str) -> Any:
    activities = [torch.profiler.ProfilerActivity.CPU]
    if is_gpu(device):
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, record_shapes=True)
