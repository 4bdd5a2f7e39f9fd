"""``CallbackRunner``: calls a worker's callbacks in a task, and keeps their states and what they measure."""

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
        """Call ``on_round_end``; logs of a round count by the samples that the worker has trained on."""
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
    """Iterate over the callbacks with names of their own: the class and a number."""
    seen: Counter[str] = Counter()
    for callback in callbacks:
        name = type(callback).__name__
        seen[name] += 1
        yield f"{name} {seen[name]}", callback
