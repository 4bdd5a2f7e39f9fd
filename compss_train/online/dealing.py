"""Dealing: which worker gets which sample of a stream. Pure functions, so that a simulation that runs again sends
each sample where it went before."""

from __future__ import annotations


def worker_of(stream: int, sample: int, workers: int, *, whole: bool) -> int:
    """Return the worker that gets a sample: in turn, or all of a ``whole`` stream the same one."""
    return (stream if whole else stream + sample) % workers


def needed_by(worker: int, stream: int, samples: int, workers: int, *, whole: bool) -> int:
    """Return one more than the number of the last sample that a worker gets of so many, 0 for none."""
    for sample in range(samples - 1, max(-1, samples - 1 - workers), -1):
        if worker_of(stream, sample, workers, whole=whole) == worker:
            return sample + 1
    return 0
