"""Records of an online fit: the workers' reports, aggregated, and validation while training continues."""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from compss_train.engines import Ref
from compss_train.model.metrics import Measured, Measures
from compss_train.model.parameters import Parameters
from compss_train.net.connection import Address
from compss_train.reports.records import per_second
from compss_train.training.inference import (
    Inference,
    skipped_batches,
    warn_of_first_batch,
    warn_of_random_transform,
)
from compss_train.training.stopping import TICK, Stopping

Record = dict[str, Any]


@dataclass(kw_only=True, eq=False)
class Report(Measured):
    """What a worker has measured since its last report, and the state of its buffer."""

    held: int = 0
    """Samples in the buffer."""
    unseen: int = 0
    put: int = 0
    got: int = 0


class Progress:
    """The workers' reports since the last record, and the last known state of each buffer.

    Each worker's last report with trained batches is held back, so that the final record is not empty.
    """

    def __init__(
        self, num_workers: int, measures: Measures, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self.measures = measures
        self._reports: list[list[Report]] = [[] for _ in range(num_workers)]
        self._held_back: list[list[Report]] = [[] for _ in range(num_workers)]
        self._skipped = [0] * num_workers
        self._warned = False
        self._buffers = [Report() for _ in range(num_workers)]
        self._clock = clock
        self._recorded = clock()
        self._fit_started = time.time()

    def add(self, worker: int, report: Report) -> None:
        """Add a worker's report; warn of what the first one of any worker found."""
        self._warned = self._warned or warn_of_first_batch([report])
        self._buffers[worker] = report
        self._skipped[worker] += report.skipped_batches
        if report.batches:
            self._release(worker)
            self._held_back[worker] = [report]

    def _release(self, worker: int) -> None:
        self._reports[worker] += self._held_back[worker]
        self._held_back[worker] = []

    @property
    def received(self) -> int:
        """Samples received by all workers."""
        return int(self._total("put"))

    def is_due(self, seconds: float) -> bool:
        """Return True if there are reports to record and the last record is at least ``seconds`` old."""
        return self._clock() - self._recorded >= seconds and any(self._reports)

    def final_record(self, number: int, epoch: int, simulations: dict[str, int]) -> Record:
        """Return a record of all remaining reports."""
        for worker in range(len(self._reports)):
            self._release(worker)
        return self.record(number, epoch, simulations)

    def record(self, number: int, epoch: int, simulations: dict[str, int]) -> Record:
        """Return a record of the reports since the last one."""
        now = self._clock()
        seconds, self._recorded = now - self._recorded, now
        reports, self._reports = self._reports, [[] for _ in self._reports]
        skipped, self._skipped = self._skipped, [0] * len(reports)
        merged = list(itertools.chain.from_iterable(reports))
        counts = _counts(merged)
        return {
            "round": number,
            "epoch": epoch,
            **self.measures.values(merged),
            **counts,
            "seconds": seconds,
            "samples_per_second": per_second(counts["samples"], seconds),
            "batches_per_second": per_second(counts["batches"], seconds),
            "fit_started": self._fit_started,
            "ended": time.time(),
            **self._buffer_fields(),
            **skipped_batches(sum(skipped)),
            "simulations": simulations,
            "workers": [
                {
                    "worker": worker,
                    **_counts(own),
                    "received": buffer.put,
                    "buffer": buffer.held,
                    **(self.measures.values(own) if own else {}),
                    **skipped_batches(skipped[worker]),
                }
                for worker, (own, buffer) in enumerate(zip(reports, self._buffers, strict=True))
            ],
        }

    def _buffer_fields(self) -> dict[str, float]:
        held = self._total("held")
        return {
            "received": self.received,
            "buffer": int(held),
            "unseen": self._total("unseen") / held if held else 0.0,
            "repetitions_mean": self._total("got") / max(1, self.received),
        }

    def _total(self, name: str) -> int:
        return sum(getattr(buffer, name) for buffer in self._buffers)


def _counts(reports: Sequence[Report]) -> dict[str, int]:
    return {name: sum(getattr(report, name) for report in reports) for name in ("samples", "batches")}


class Evaluation:
    """Evaluates parameters on held-out samples in tasks, one evaluation at a time."""

    def __init__(self, inference: Inference, coordinator: Address) -> None:
        self._inference, self._coordinator = inference, coordinator
        self._owned: list[Ref] = []
        self._sums: list[Ref] = []
        self._number = 0

    def start(self, parameters: Parameters, *, notify: bool = True) -> None:
        """Submit the evaluation of these parameters; with ``notify`` an event reports its completion."""
        engine = self._inference.engine
        self._number += 1
        self._owned = [engine.publish(parameters)]
        self._sums = self._inference.evaluate(self._owned[0])
        if notify:
            args = list(self._sums), self._number, self._coordinator
            self._owned.append(engine.submit(notify_evaluated, *args, priority=True))

    def is_ready(self, number: int | None = None) -> bool:
        """Return True if the result is available or the tasks failed; ``number`` is that of a completion event."""
        return number == self._number or len(self._inference.engine.arrived(self._sums)) == len(self._sums)

    def result(self, stopping: Stopping) -> list[Measured] | None:
        """Wait for the tasks' results; ``None`` if the fit has to stop at once. Raises the tasks' exceptions."""
        engine = self._inference.engine
        try:
            while not engine.wait(self._sums, TICK):
                if stopping.urgent:
                    return None
            return [*itertools.chain.from_iterable(engine.fetch(self._sums, small=True))]
        finally:
            engine.delete([*self._owned, *self._sums])

    def delete(self) -> None:
        """Free the held-out samples."""
        self._inference.data.delete()


def notify_evaluated(sums: Sequence[Measured], number: int, coordinator: Address) -> None:
    """Notify the coordinator of a completed evaluation: a task that depends on its results."""
    with suppress(OSError):
        coordinator.connect({"role": "evaluation", "evaluated": number}).close()


class Recorder:
    """Makes a record every ``interval`` seconds, adds its validation when that is ready, and calls ``on_record``.

    ``on_start`` gets the number of each record when its interval begins; ``first`` is the number of the first one.
    """

    def __init__(
        self,
        *,
        progress: Progress,
        evaluation: Evaluation | None,
        pull: Callable[[], Parameters],
        stopping: Stopping,
        first: int,
        epoch: int,
        interval: float,
        on_record: Callable[[Record], None],
        on_start: Callable[[int], None],
    ) -> None:
        self.progress = progress
        self._evaluation = evaluation
        self._pull, self._stopping = pull, stopping
        self._first, self._epoch, self._interval = first, epoch, interval
        self._on_record, self._on_start = on_record, on_start
        self._numbers = itertools.count(first)
        self._warned = False
        self._pending: Record | None = None  # a record that waits for its validation

    def start(self) -> None:
        """Begin the first interval."""
        self._on_start(self._first)

    def update(self, simulations: dict[str, int]) -> None:
        """Complete the pending record if its validation is ready; make the next one if it is due."""
        self.complete()
        if self._pending is None and self.progress.is_due(self._interval):
            record = self.progress.record(next(self._numbers), self._epoch, simulations)
            if self._evaluation is None:
                self._emit(record)
            else:
                self._evaluation.start(self._pull())
                self._pending = record

    def complete(self, number: int | None = None, *, wait: bool = False) -> None:
        """Complete the pending record if its validation is ready, or wait for it."""
        record, evaluation = self._pending, self._evaluation
        if record is None or evaluation is None or not (wait or evaluation.is_ready(number)):
            return
        self._pending = None
        validation = self._validation(evaluation)
        if validation is not None:
            self._emit(record | validation)

    def _validation(self, evaluation: Evaluation) -> Record | None:
        """Return the fields of the evaluation; ``None`` if the fit has to stop at once."""
        sums = evaluation.result(self._stopping)
        if sums is None:
            return None
        self._warned = self._warned or warn_of_random_transform(any(part.random_transform for part in sums))
        return self.progress.measures.values(sums, "val_")

    def _emit(self, record: Record) -> None:
        self._on_record(record)
        self._on_start(record["round"] + 1)

    def finish(self, simulations: dict[str, int], repetitions: list[int]) -> None:
        """Complete the pending record, and make a final one of all remaining reports."""
        self.complete(wait=True)
        record = self.progress.final_record(next(self._numbers), self._epoch, simulations)
        if self._evaluation is not None:
            self._evaluation.start(self._pull(), notify=False)
            if (validation := self._validation(self._evaluation)) is None:
                return  # callbacks expect validation in every record
            record |= validation
        self._on_record(record | {"repetitions": repetitions})

    def close(self) -> None:
        """Free the held-out samples."""
        if self._evaluation is not None:
            self._evaluation.delete()
