"""What is called around a worker's batches: its callbacks (``CallbackRunner``) and the profiler (``Tracer``)."""

import copy
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch

from compss_train.model.devices import is_gpu
from compss_train.model.metrics import MetricAccumulator
from compss_train.model.training_step import StepResult
from compss_train.worker.batches import Batch
from compss_train.worker.callbacks import WorkerCallback, WorkerContext


class CallbackRunner:
    """Calls the callbacks of one worker in one task."""

    def __init__(
        self,
        callbacks: Sequence[WorkerCallback],
        context: WorkerContext,
        accumulator: MetricAccumulator,
        states: Mapping[str, Any] | None,
    ) -> None:
        self._callbacks = dict(_named(copy.deepcopy(callbacks)))
        self.context, self._accumulator = context, accumulator
        self._at_start: dict[str, Any] = {}
        for name, callback in self._callbacks.items():
            if states is not None and name in states:
                callback.load_state_dict(copy.deepcopy(states[name]))

    def round_start(self) -> None:
        """Call ``on_round_start``; what it logs is measured by ``round_end``, as streams have unknown lengths."""
        self._call("on_round_start")
        self._at_start, self.context.logged = self.context.logged, {}

    def batch_start(self, batch: Batch, epoch: int, number: int) -> None:
        """Call ``on_batch_start``."""
        if not self._callbacks:
            return
        context = self.context
        context.epoch, context.number, context.x, context.y = epoch, number, batch.x, batch.y
        self._call("on_batch_start")
        self._measure(batch.samples)

    def batch_end(self, batch: Batch, result: StepResult | None) -> None:
        """Call ``on_batch_end``; a batch that was skipped has no result."""
        if not self._callbacks:
            return
        context = self.context
        if result is not None:
            context.loss, context.output = result.loss.detach(), result.output
        self._call("on_batch_end")
        self._measure(batch.samples)
        context.x = context.y = context.loss = context.output = None

    def round_end(self) -> None:
        """Call ``on_round_end``; a round's logs are weighted by the samples that the worker has trained on."""
        self._call("on_round_end")
        samples = self._accumulator.samples
        self._accumulator.measure(self._at_start, samples)
        self._measure(samples)

    def states(self) -> dict[str, Any] | None:
        """Return the states that are not empty, by the names of the callbacks; ``None`` if all are."""
        states = {name: callback.state_dict() for name, callback in self._callbacks.items()}
        return {name: state for name, state in states.items() if state} or None

    def _call(self, hook: str) -> None:
        context = self.context
        for callback in self._callbacks.values():
            try:
                getattr(callback, hook)(context)
            except Exception as error:
                place = f"in round {context.round} on worker {context.worker}"
                error.add_note(f"Raised by the callback {type(callback).__name__}, by its {hook}, {place}.")
                raise

    def _measure(self, samples: int) -> None:
        if self.context.logged:
            self._accumulator.measure(self.context.logged, samples)
            self.context.logged = {}


def _named(callbacks: Sequence[WorkerCallback]) -> Iterator[tuple[str, WorkerCallback]]:
    """Iterate over the callbacks with unique names: the class and a number."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield f"{name} {seen[name]}", callback


MOST_BATCHES = 100
"""Maximum number of batches in a trace, from the start of a round: each adds up to a megabyte."""


class Tracer:
    """Context manager that traces the first batches of a task if ``wanted``."""

    def __init__(self, device: str, *, wanted: bool) -> None:
        activities = [torch.profiler.ProfilerActivity.CPU]
        activities += [torch.profiler.ProfilerActivity.CUDA] if is_gpu(device) else []
        self._profiler = torch.profiler.profile(activities=activities, record_shapes=True) if wanted else None
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
        """Return the context of a batch, which labels it with its number in the trace."""
        if not self._running:
            return nullcontext()
        if self._batches == MOST_BATCHES:
            self._stop()
            return nullcontext()
        self._batches += 1
        return torch.profiler.record_function(f"batch {number}")

    def trace(self) -> bytes | None:
        """Return the finished trace as compressed JSON, or ``None`` if it was not ``wanted``."""
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
