"""Records of an online fit: the workers' reports, aggregated, and validation while training
continues.
"""

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self

from compss_train.engines import Ref
from compss_train.model.metrics import Measured, Measures
from compss_train.model.parameters import Parameters
from compss_train.net import Address
from compss_train.online.worker_messages import WorkerReport
from compss_train.reports.records import Record, per_second
from compss_train.training.callback_list import CallbackList
from compss_train.training.inference import Inference, skipped_batches, warn_of_problems
from compss_train.training.snapshot import Study
from compss_train.training.stopping import TICK, Stopping
from compss_train.training.trained_model import TrainedModel


@dataclass(kw_only=True)
class _Unrecorded:
    """What a worker has reported and is in no record yet."""

    reports: list[WorkerReport] = field(default_factory=list)
    """Those with trained batches, but the last one."""
    held_back: list[WorkerReport] = field(default_factory=list)
    """The last one, so that the final record is not empty."""
    skipped: int = 0
    waited: float = 0.0

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        reports, held_back = (
            [each.__getstate__() for each in own] for own in (self.reports, self.held_back)
        )
        return {**vars(self), "reports": reports, "held_back": held_back}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        """Return it from ``state_dict``."""
        reports, held_back = (
            [WorkerReport(**each) for each in state[name]] for name in ("reports", "held_back")
        )
        return cls(**{**state, "reports": reports, "held_back": held_back})


class Reports:
    """The workers' reports and the inputs drawn since the last record, and the last known state of
    each buffer.
    """

    def __init__(self, num_workers: int, measures: Measures) -> None:
        self.measures = measures
        self._unrecorded = [_Unrecorded() for _ in range(num_workers)]
        self._drawn: list[Record] = []
        self._last = self._unrecorded, self._drawn
        """What the last record has."""
        self._known_problems: set[str] = set()
        self._buffers = [WorkerReport() for _ in range(num_workers)]
        self._recorded = time.perf_counter()
        self._fit_started = time.time()

    def add(self, worker: int, report: WorkerReport) -> None:
        """Add a worker's report; warn of what the first one of any worker found."""
        warn_of_problems([report], self._known_problems)
        self._buffers[worker] = report
        own = self._unrecorded[worker]
        own.skipped += report.skipped_batches
        own.waited += report.waited
        if report.batches:
            own.reports += own.held_back
            own.held_back = [report]

    def add_drawn(self, drawn: Record) -> None:
        """Add an input that a sampler has chosen, as JSON can hold it."""
        self._drawn.append(drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return what was reported and is in no record yet."""
        return {
            "workers": [own.state_dict() for own in self._unrecorded],
            "buffers": [each.__getstate__() for each in self._buffers],
            "drawn": [*self._drawn],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what was reported before."""
        self._unrecorded = [_Unrecorded.of(each) for each in state["workers"]]
        self._buffers = [WorkerReport(**each) for each in state["buffers"]]
        self._drawn = [*state["drawn"]]

    def put_back(self) -> None:
        """Leave what the last record has to the next one, as it was not made."""
        before, drawn = self._last
        self._drawn = [*drawn, *self._drawn]
        self._unrecorded = [
            _Unrecorded(
                reports=[*own.reports, *later.reports],
                held_back=later.held_back or own.held_back,
                skipped=own.skipped + later.skipped,
                waited=own.waited + later.waited,
            )
            for own, later in zip(before, self._unrecorded, strict=True)
        ]

    @property
    def received(self) -> int:
        """Samples received by all workers."""
        return sum(buffer.put for buffer in self._buffers)

    @property
    def least_received(self) -> int:
        """Samples received by the worker with the fewest."""
        return min(buffer.put for buffer in self._buffers)

    def is_due(self, seconds: float) -> bool:
        """Return True if there are reports to record and the last record is at least ``seconds``
        old.
        """
        return time.perf_counter() - self._recorded >= seconds and any(
            own.reports for own in self._unrecorded
        )

    def record(self, number: int, simulations: dict[str, int], *, final: bool = False) -> Record:
        """Return a record of the reports since the last one; of all remaining ones if it is
        ``final``.
        """
        now = time.perf_counter()
        seconds = now - self._recorded
        self._recorded = now
        self._last = unrecorded, drawn = self._unrecorded, self._drawn
        self._unrecorded = [
            _Unrecorded(held_back=[] if final else own.held_back) for own in unrecorded
        ]
        self._drawn = []
        reports = [[*own.reports, *own.held_back] if final else own.reports for own in unrecorded]
        merged = list(itertools.chain.from_iterable(reports))
        counts = _counts(merged)
        held = sum(buffer.held for buffer in self._buffers)
        return {
            "round": number,
            **self.measures.values(merged),
            **counts,
            "seconds": seconds,
            "samples_per_second": per_second(counts["samples"], seconds),
            "batches_per_second": per_second(counts["batches"], seconds),
            "fit_started": self._fit_started,
            "ended": time.time(),
            "received": self.received,
            "buffer": held,
            "unseen": sum(buffer.unseen for buffer in self._buffers) / held if held else 0.0,
            "repetitions_mean": sum(buffer.got for buffer in self._buffers) / max(1, self.received),
            **skipped_batches(sum(own.skipped for own in unrecorded)),
            "waited": sum(own.waited for own in unrecorded),
            "simulations": simulations,
            "workers": [
                {
                    "worker": worker,
                    **_counts(trained),
                    "received": buffer.put,
                    "buffer": buffer.held,
                    "waited": own.waited,
                    **(self.measures.values(trained) if trained else {}),
                    **skipped_batches(own.skipped),
                }
                for worker, (own, trained, buffer) in enumerate(
                    zip(unrecorded, reports, self._buffers, strict=True)
                )
            ],
            **({"inputs": drawn} if drawn else {}),
        }


def _counts(reports: Sequence[WorkerReport]) -> dict[str, int]:
    return {
        name: sum(getattr(report, name) for report in reports) for name in ("samples", "batches")
    }


class Evaluation:
    """Evaluates parameters on held-out samples in tasks, one evaluation at a time."""

    def __init__(self, inference: Inference, coordinator: Address, stopping: Stopping) -> None:
        self._inference = inference
        self._coordinator = coordinator
        self._stopping = stopping
        self._owned: list[Ref] = []
        self._sums: list[Ref] = []
        self._known_problems: set[str] = set()

    def start(self, parameters: Parameters, *, notify: bool = True) -> None:
        """Submit the evaluation of these parameters; with ``notify`` its completion will be
        noticed.

        Engines that do not know what has arrived need a message for that, from another task.
        """
        engine = self._inference.engine
        self._owned = [engine.publish(parameters)]
        self._sums = self._inference.evaluate(self._owned[:1])
        if notify and not engine.traits.interruptible:
            self._owned.append(
                engine.submit(notify_evaluated, list(self._sums), self._coordinator, priority=True)
            )

    @property
    def is_ready(self) -> bool:
        """Whether the result is available, or the tasks have failed, as far as the engine knows."""
        return len(self._inference.engine.arrived(self._sums)) == len(self._sums)

    def result(self, measures: Measures) -> Record | None:
        """Wait for the fields of the result; ``None`` if the fit has to stop immediately.

        Raises the tasks' exceptions.
        """
        engine = self._inference.engine
        try:
            while not engine.wait(self._sums, TICK):
                if self._stopping.urgent:
                    return None
            sums = [*itertools.chain.from_iterable(engine.fetch(self._sums, small=True))]
        finally:
            self._owned = []
            self._sums = []
        warn_of_problems(sums, self._known_problems)
        return measures.values(sums, "val_")

    def warn_of_changes(self) -> None:
        """Warn of files with held-out samples that have changed."""
        self._inference.data.warn_of_changes()


def notify_evaluated(sums: Sequence[Measured], coordinator: Address) -> None:
    """Notify the coordinator of a completed evaluation: a task that depends on its results."""
    with suppress(OSError):
        coordinator.connect({"role": "evaluation"}).close()


class Recorder:
    """Adds a record to the model's history every ``interval`` seconds, with its validation when
    that is ready.
    """

    def __init__(
        self,
        model: TrainedModel,
        callbacks: CallbackList,
        reports: Reports,
        *,
        evaluation: Evaluation | None,
        pull: Callable[[], Parameters],
        interval: float,
    ) -> None:
        self._model = model
        self._callbacks = callbacks
        self._pull = pull
        self._interval = interval
        self.reports = reports
        self.evaluation = evaluation
        self._number = len(model.history)
        """Of the next record."""
        self._pending: Record | None = None
        """A record that waits for its validation."""
        self._pending_save: Study | None = None
        """The save that it belongs to, if any."""
        self.save: Study | None = None
        """The save that the record that is being made belongs to; at the end the last one."""

    def start(self) -> None:
        """Begin the next interval."""
        self._callbacks.round_start(self._number)

    def update(self, simulations: dict[str, int], *, saving: bool = False) -> None:
        """Complete the pending record if its validation is ready; make the next one if it is due.

        If a fit is ``saving``, or about to, none begins to wait for its validation: the save makes
        the next one.
        """
        if self._pending is not None and self.evaluation is not None and self.evaluation.is_ready:
            self.complete()
        waits = saving and self.evaluation is not None
        if self._pending is None and not waits and self.reports.is_due(self._interval):
            self._begin(self.reports.record(self._number, simulations))

    def _begin(self, record: Record, save: Study | None = None) -> None:
        """Make a record, if there is validation when that is ready."""
        if self.evaluation is None:
            self._emit(record, save)
        else:
            self.evaluation.start(self._pull() if save is None else save.parameters)
            self._pending = record
            self._pending_save = save

    @property
    def is_idle(self) -> bool:
        """Whether no record waits for its validation."""
        return self._pending is None

    def add_save(self, save: Study, simulations: dict[str, int], seconds: float) -> None:
        """Make a record of what was reported until a save, for which workers have waited so many
        ``seconds``.

        No other record may wait for its validation.
        """
        record = self.reports.record(self._number, simulations) | {"save_seconds": seconds}
        save.content["reports"] = self.reports.state_dict()
        self._begin(record, save)

    def complete(self) -> None:
        """Complete the pending record, if any, by its validation; wait for that unless it is
        ready.
        """
        record = self._pending
        evaluation = self.evaluation
        if record is None or evaluation is None:
            return
        save = self._pending_save
        self._pending = None
        self._pending_save = None
        if (validation := evaluation.result(self.reports.measures)) is not None:
            self._emit(record | validation, save)
        else:  # callbacks expect validation in every record
            self.reports.put_back()

    def drop_save(self) -> None:
        """Make the pending record, if any, without its save: a newer one will replace the buffers'
        files.
        """
        self._pending_save = None

    def keep(self, save: Study) -> None:
        """Let a fit that cannot end have this save, with all that is in no record."""
        if self._pending is not None:
            self.reports.put_back()
            self._pending = self._pending_save = None
        save.content["reports"] = self.reports.state_dict()
        self.save = save

    def _emit(self, record: Record, save: Study | None) -> None:
        self.save = save
        self._model.record(record)
        self.save = None
        self._number += 1
        self.start()

    def finish(
        self, simulations: dict[str, int], repetitions: list[int], save: Study | None = None
    ) -> None:
        """Complete the pending record, and make a final one of all remaining reports, of the last
        save if any.
        """
        self.complete()
        record = self.reports.record(self._number, simulations, final=True)
        self.save = save
        if self.evaluation is not None:
            self.evaluation.start(self._pull(), notify=False)
            if (validation := self.evaluation.result(self.reports.measures)) is None:
                self.reports.put_back()
                if save is not None:
                    self.keep(save)
                return
            record |= validation
        if save is not None:
            save.content["reports"] = self.reports.state_dict()
        self._model.record(record | {"repetitions": repetitions})
