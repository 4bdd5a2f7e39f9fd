"""``Tracer``: traces the first batches of a worker's round with ``torch.profiler``."""

import tempfile
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch
from torch import profiler

MOST_BATCHES = 100
"""Maximum number of batches in a trace, from the start of a round: each adds up to a megabyte."""


class Tracer:
    """Context manager that traces the first batches of a task with ``torch.profiler`` if ``wanted``."""

    def __init__(self, device: str, *, wanted: bool) -> None:
        kinds = [profiler.ProfilerActivity.CPU]
        kind = torch.device(device).type.upper()  # CUDA, XPU; there is none for MPS
        kinds += [getattr(profiler.ProfilerActivity, kind)] if kind in ("CUDA", "XPU") else []
        self._profiler = profiler.profile(activities=kinds, record_shapes=True, acc_events=True) if wanted else None
        self._left = MOST_BATCHES

    def __enter__(self) -> None:
        if self._profiler is not None:
            self._profiler.start()

    def __exit__(self, *error: object) -> None:
        if self._profiler is not None and self._left >= 0:
            self._profiler.stop()

    def batch(self, number: int) -> AbstractContextManager[object]:
        """Return the context of a batch, which labels it with its number in the trace."""
        if self._profiler is not None and self._left >= 0:
            self._left -= 1
            if self._left >= 0:
                return profiler.record_function(f"batch {number}")
            self._profiler.stop()
        return nullcontext()

    def trace(self) -> bytes | None:
        """Return the finished trace as compressed JSON, or ``None`` if it was not ``wanted``."""
        if self._profiler is None:
            return None
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json.gz")
            self._profiler.export_chrome_trace(str(path))
            return path.read_bytes()
