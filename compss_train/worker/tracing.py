"""``Tracer``: traces the first batches of a worker's round with ``torch.profiler``."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Self, TypeVar

import torch
from torch import profiler

_Batch = TypeVar("_Batch")

MOST_BATCHES = 100
"""Maximum number of batches in a trace, from the start of a round: each adds up to a megabyte."""


class Tracer:
    """Context manager in which ``torch.profiler`` traces the first batches of a task."""

    def __init__(self, device: str) -> None:
        activities = [profiler.ProfilerActivity.CPU]
        kind = torch.device(device).type.upper()
        if kind in ("CUDA", "XPU"):  # there is no activity for MPS
            activities.append(getattr(profiler.ProfilerActivity, kind))
        self._profiler = profiler.profile(
            activities=activities, record_shapes=True, acc_events=True
        )
        self._runs = False

    def __enter__(self) -> Self:
        self._profiler.start()
        self._runs = True
        return self

    def __exit__(self, *error: object) -> None:
        if self._runs:
            self._profiler.stop()
        self._runs = False

    def labelled(self, batches: Iterator[_Batch], first: int) -> Iterator[_Batch]:
        """Iterate over batches; in the trace they have their numbers, counted from ``first``."""
        for number, batch in enumerate(batches, first):
            if number < first + MOST_BATCHES:
                with profiler.record_function(f"batch {number}"):
                    yield batch
            else:
                self.__exit__()
                yield batch

    def trace(self) -> bytes:
        """Return the finished trace as compressed JSON."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "trace.json.gz")
            self._profiler.export_chrome_trace(str(path))
            return path.read_bytes()
