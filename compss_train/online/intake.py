"""``Intake``: puts samples into the buffer, each of them once, and counts which have come."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from compss_train.buffers import Buffer, BufferFullError, ReceptionOverError, TimeStep
from compss_train.buffers.samples import DifferentSampleError
from compss_train.net import MessageError, joined
from compss_train.online.arrived_samples import ArrivedSamples

NUMBERS = "simulation and step"
"""The key of the samples' numbers, int64 of shape (n, 2), in a buffer that does not pair.

The keys of their data are x and y.
"""


class Intake:
    """A buffer, and by stream one more than the number of the last sample that it has received.

    These offsets advance by samples that come, one after another, and by those that the stream
    gives up as lost. They change together with the buffer. ``is_paired`` says that the buffer pairs
    time steps.
    """

    def __init__(self, buffer: Buffer, offsets: Mapping[int, int], *, is_paired: bool) -> None:
        self._buffer = buffer
        self._offsets = dict(offsets)
        self._is_paired = is_paired
        self.not_finite: tuple[int, int, str] | None = None
        """Simulation and step of the first sample that is not finite, and ``"x"`` or ``"y"``."""
        self._putting = threading.Lock()
        """Held while the buffer and the offsets change together."""
        self._turn = threading.Lock()
        """Held by a snapshot that waits for ``_putting``, before which nothing else gets it."""
        self._discarding = threading.Event()
        """Set when training has ended."""

    def offset(self, stream: int) -> int:
        """Return the number below which no sample of a stream is expected any more."""
        return self._offsets.get(stream, 0)

    def put(self, stream: int, burst: list[ArrivedSamples], timeout: float) -> int:
        """Put samples, except those that another connection has delivered.

        Return how many are done with, after ``timeout`` seconds if there is no room for more.
        """
        numbers = [number for samples in burst for number in samples.numbers]
        known = bisect_left(numbers, self.offset(stream))
        if self._discarding.is_set() or known == len(numbers):
            return len(numbers)
        stacked_samples = self._stack(stream, burst, known)
        is_handed_over = len(burst) == 1 and burst[0].is_handed_over
        stored = len(numbers) - known
        self._wait_for_turn()
        with self._putting:
            try:
                self._buffer.put_many(stacked_samples, timeout=timeout, copy=not is_handed_over)
            except BaseException as error:
                stored = getattr(error, "stored", 0)
                if isinstance(error, DifferentSampleError):
                    raise MessageError(
                        f"sample {numbers[known]} has {_described(error.leaves)}, where "
                        f"samples before it have {_described(error.expected)}; all samples of a "
                        "study need one shape and dtype"
                    ) from None
                if isinstance(error, ReceptionOverError):
                    if not self._discarding.is_set():
                        raise
                elif not isinstance(error, BufferFullError) or error.final:
                    raise
            finally:
                if stored:
                    self._offsets[stream] = numbers[known + stored - 1] + 1
        return known + stored

    def _wait_for_turn(self) -> None:
        """Let a snapshot that waits come first."""
        with self._turn:
            pass

    def _stack(self, stream: int, burst: list[ArrivedSamples], known: int) -> Any:
        """Return samples after the first ``known`` ones in the form that ``put_many`` takes."""
        by_array = zip(*(samples.arrays for samples in burst), strict=True)
        columns = {
            name: joined(arrays)[known:] for name, arrays in zip("xy", by_array, strict=False)
        }
        steps = [step for samples in burst for step in samples.steps][known:]
        if self.not_finite is None:
            self._look_for_not_finite(stream, steps, columns)
        simulations_and_steps = np.empty((len(steps), 2), np.int64)
        simulations_and_steps[:, 0] = stream
        simulations_and_steps[:, 1] = steps
        if self._is_paired:
            simulations, time_steps = simulations_and_steps.T
            return TimeStep(simulations, time_steps, tuple(columns.values()))
        return {NUMBERS: simulations_and_steps, **columns}

    def _look_for_not_finite(
        self, stream: int, steps: Sequence[int], columns: dict[str, torch.Tensor]
    ) -> None:
        """Note the first sample with NaN or infinite values.

        It is not an error: they may stand for what is missing.
        """
        places: list[tuple[int, str]] = []
        for name, column in columns.items():
            if not column.is_floating_point():
                continue
            # Torch would share this among threads, which then wait in a loop for more of it.
            is_known = column.dtype != torch.bfloat16  # to numpy
            is_finite = np.isfinite(column.numpy()) if is_known else column.isfinite()
            if not is_finite.all():
                by_sample = is_finite.reshape(len(column), -1).all(1).tolist()
                places.append((by_sample.index(False), name))
        if places:
            place, name = min(places)
            self.not_finite = (stream, steps[place], name)

    def give_up(self, stream: int, end: int) -> None:
        """Expect no samples of a stream below ``end`` any more, as they are lost."""
        self._wait_for_turn()
        with self._putting:
            self._offsets[stream] = max(self.offset(stream), end)

    def snapshot(self) -> tuple[dict[str, Any], dict[int, int]]:
        """Return the buffer's state, and the offsets that belong to it."""
        with self._turn, self._putting:
            return self._buffer.state_dict(), dict(self._offsets)

    def forget(self, streams: Iterable[int]) -> None:
        """Drop the offsets of completed streams."""
        for stream in streams:
            self._offsets.pop(stream, None)

    def end(self) -> None:
        """Tell the buffer that no more samples come."""
        self._buffer.signal_reception_over()

    def discard(self) -> None:
        """Discard samples from now on: training has ended."""
        self._discarding.set()
        self.end()


def _described(sample: Any) -> str:
    """Return the shapes of x and y, of the leaves that a buffer knows a sample by."""
    leaves = sample.items() if isinstance(sample, dict) else zip("xy", sample, strict=False)
    return ", ".join(
        f"{name}: {str(leaf).partition(' of ')[2]}" for name, leaf in leaves if name in "xy"
    )
