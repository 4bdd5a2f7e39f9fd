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
from compss_train.net import Address
from compss_train.reports.records import Record, per_second
from compss_train.training.callback import CallbackList
from compss_train.training.checkpoints import Study
from compss_train.training.inference import Inference, skipped_batches, warn_of_problems
from compss_train.training.session import TICK, Stopping, TrainedModel


@dataclass(kw_only=True, eq=False)
class WorkerReport(Measured):
    """What a worker has measured since its last report, and the state of its buffer."""

    held: int = 0
    """Samples in the buffer."""
    unseen: int = 0
    put: int = 0
    got: int = 0
    waited: float = 0.0
    """Seconds that it has waited for samples since its last report."""


class Reports:
    """The workers' reports since the last record, and the last known state of each buffer.

    Each worker's last report with trained batches is held back, so that the final record is not empty.
    """

    def __init__(self, num_workers: int, measures: Measures) -> None:
        self.measures = measures
        self._reports: list[list[WorkerReport]] = [[] for _ in range(num_workers)]
        self._held_back: list[list[WorkerReport]] = [[] for _ in range(num_workers)]
        self._skipped, self._waited = [0] * num_workers, [0.0] * num_workers
        self._known_problems: set[str] = set()
        self._buffers = [WorkerReport() for _ in range(num_workers)]
        self._recorded = time.perf_counter()
        self._fit_started = time.time()

    def add(self, worker: int, report: WorkerReport) -> None:
        """Add a worker's report; warn of what the first one of any worker found."""
        warn_of_problems([report], self._known_problems)
        self._buffers[worker] = report
        self._skipped[worker] += report.skipped_batches
        self._waited[worker] += report.waited
        if report.batches:
            self._reports[worker] += self._held_back[worker]
            self._held_back[worker] = [report]

    def state_dict(self) -> dict[str, Any]:
        """Return what was reported and is in no record yet."""
        reports = [[each.__getstate__() for each in own] for own in self._reports]
        held_back = [[each.__getstate__() for each in own] for own in self._held_back]
        buffers = [each.__getstate__() for each in self._buffers]
        counts = {"skipped": list(self._skipped), "waited": list(self._waited)}
        return {"reports": reports, "held_back": held_back, **counts, "buffers": buffers}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what was reported before."""
        self._reports = [[WorkerReport(**each) for each in own] for own in state["reports"]]
        self._held_back = [[WorkerReport(**each) for each in own] for own in state["held_back"]]
        self._skipped, self._waited = list(state["skipped"]), list(state["waited"])
        self._buffers = [WorkerReport(**each) for each in state["buffers"]]

    def put_back(self, state: dict[str, Any]) -> None:
        """Take back what was reported when ``state_dict`` returned a state, as its record was not made."""
        new, held_back, buffers = self._reports, self._held_back, self._buffers
        skipped, waited = self._skipped, self._waited
        self.load_state_dict({**state, "buffers": []})
        self._buffers = buffers
        self._reports = [[*own, *later] for own, later in zip(self._reports, new, strict=True)]
        self._held_back = [later or own for own, later in zip(self._held_back, held_back, strict=True)]
        self._skipped = [own + later for own, later in zip(self._skipped, skipped, strict=True)]
        self._waited = [own + later for own, later in zip(self._waited, waited, strict=True)]

    @property
    def received(self) -> int:
        """Samples received by all workers."""
        return sum(buffer.put for buffer in self._buffers)

    @property
    def least_received(self) -> int:
        """Samples received by the worker with the fewest."""
        return min(buffer.put for buffer in self._buffers)

    def is_due(self, seconds: float) -> bool:
        """Return True if there are reports to record and the last record is at least ``seconds`` old."""
        return time.perf_counter() - self._recorded >= seconds and any(self._reports)

    def record(self, number: int, simulations: dict[str, int], *, final: bool = False) -> Record:
        """Return a record of the reports since the last one; of all remaining ones if it is ``final``."""
        now = time.perf_counter()
        seconds, self._recorded = now - self._recorded, now
        reports, self._reports = self._reports, [[] for _ in self._reports]
        if final:
            reports = [[*own, *held_back] for own, held_back in zip(reports, self._held_back, strict=True)]
            self._held_back = [[] for _ in reports]
        skipped, self._skipped = self._skipped, [0] * len(reports)
        waited, self._waited = self._waited, [0.0] * len(reports)
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
            **skipped_batches(sum(skipped)),
            "waited": sum(waited),
            "simulations": simulations,
            "workers": [
                {
                    "worker": worker,
                    **_counts(own),
                    "received": buffer.put,
                    "buffer": buffer.held,
                    "waited": waited[worker],
                    **(self.measures.values(own) if own else {}),
                    **skipped_batches(skipped[worker]),
                }
                for worker, (own, buffer) in enumerate(zip(reports, self._buffers, strict=True))
            ],
        }


def _counts(reports: Sequence[WorkerReport]) -> dict[str, int]:
    return {name: sum(getattr(report, name) for report in reports) for name in ("samples", "batches")}


class Evaluation:
    """Evaluates parameters on held-out samples in tasks, one evaluation at a time."""

    def __init__(self, inference: Inference, coordinator: Address, stopping: Stopping) -> None:
        self._inference, self._coordinator, self._stopping = inference, coordinator, stopping
        self._owned: list[Ref] = []
        self._sums: list[Ref] = []
        self._known_problems: set[str] = set()

    def start(self, parameters: Parameters, *, notify: bool = True) -> None:
        """Submit the evaluation of these parameters; with ``notify`` its completion will be noticed.

        Engines that do not know what has arrived need a message for that, from another task.
        """
        engine = self._inference.engine
        self._owned = [engine.publish(parameters)]
        self._sums = self._inference.evaluate(self._owned[0])
        if notify and not engine.traits.interruptible:
            task = engine.submit(notify_evaluated, list(self._sums), self._coordinator, priority=True)
            self._owned.append(task)

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
            self._owned, self._sums = [], []
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
    """Adds a record to the model's history every ``interval`` seconds, with its validation when that is ready."""

    def __init__(
        self,
        model: TrainedModel,
        callbacks: CallbackList,
        reports: Reports,
        evaluation: Evaluation | None,
        pull: Callable[[], Parameters],
        interval: float,
        draws: Callable[[], list[Record]] = list,
    ) -> None:
        self._model, self._callbacks, self._pull, self._interval = model, callbacks, pull, interval
        self.reports, self.evaluation = reports, evaluation
        self._draws = draws
        self._number = len(model.history)
        """Of the next record."""
        self._pending: Record | None = None
        """A record that waits for its validation."""
        self._pending_save: Study | None = None
        """The save that it belongs to, if any."""
        self._reported: dict[str, Any] = {}
        """What was reported when the last record was begun."""
        self._drawn: list[Record] = []
        """The inputs of records that were not made."""
        self.save: Study | None = None
        """The save that the record that is being made belongs to; at the end the last one."""

    def start(self) -> None:
        """Begin the next interval."""
        self._callbacks.round_start(self._number)

    def _record(self, simulations: dict[str, int], *, final: bool = False) -> Record:
        self._reported = self.reports.state_dict()
        record = self.reports.record(self._number, simulations, final=final)
        drawn, self._drawn = [*self._drawn, *self._draws()], []
        return record | {"inputs": drawn} if drawn else record

    def _put_back(self, record: Record) -> None:
        """Leave what the last record has to the next one: callbacks expect validation in every record."""
        self.reports.put_back(self._reported)
        self._drawn = record.get("inputs", [])

    def update(self, simulations: dict[str, int], *, saving: bool = False) -> None:
        """Complete the pending record if its validation is ready; make the next one if it is due.

        If a fit is ``saving``, or about to, none begins to wait for its validation: the save makes the next one.
        """
        if self._pending is not None and self.evaluation is not None and self.evaluation.is_ready:
            self.complete()
        waits = saving and self.evaluation is not None
        if self._pending is None and not waits and self.reports.is_due(self._interval):
            record = self._record(simulations)
            if self.evaluation is None:
                self._emit(record)
            else:
                self.evaluation.start(self._pull())
                self._pending = record

    @property
    def is_idle(self) -> bool:
        """Whether no record waits for its validation."""
        return self._pending is None

    def add_save(self, save: Study, simulations: dict[str, int], seconds: float) -> None:
        """Make a record of what was reported until a save, for which workers have waited so many ``seconds``.

        No other record may wait for its validation.
        """
        record = self._record(simulations) | {"save_seconds": seconds}
        save.content["reports"] = self.reports.state_dict()
        if self.evaluation is None:
            self._emit(record, save)
        else:
            self.evaluation.start(save.parameters)
            self._pending, self._pending_save = record, save

    def complete(self) -> None:
        """Complete the pending record, if any, by its validation; wait for that unless it is ready."""
        record, evaluation = self._pending, self.evaluation
        if record is None or evaluation is None:
            return
        save, self._pending, self._pending_save = self._pending_save, None, None
        if (validation := evaluation.result(self.reports.measures)) is not None:
            self._emit(record | validation, save)
        else:
            self._put_back(record)

    def drop_save(self) -> None:
        """Make the pending record, if any, without its save: a newer one will replace the buffers' files."""
        self._pending_save = None

    def keep(self, save: Study) -> None:
        """Let a fit that cannot end have this save, with all that is in no record."""
        if self._pending is not None:
            self._put_back(self._pending)
            self._pending = self._pending_save = None
        save.content["reports"] = self.reports.state_dict()
        if save.content["chosen"] is not None:
            self._drawn += self._draws()
            save.content["chosen"] = {**save.content["chosen"], "unrecorded": self._drawn}
        self.save = save

    def _emit(self, record: Record, save: Study | None = None) -> None:
        self.save = save
        self._model.record(record)
        self.save = None
        self._number += 1
        self.start()

    def finish(self, simulations: dict[str, int], repetitions: list[int], save: Study | None = None) -> None:
        """Complete the pending record, and make a final one of all remaining reports, of the last save if any."""
        self.complete()
        record = self._record(simulations, final=True)
        self.save = save
        if self.evaluation is not None:
            self.evaluation.start(self._pull(), notify=False)
            if (validation := self.evaluation.result(self.reports.measures)) is None:
                self._put_back(record)
                if save is not None:
                    self.keep(save)
                return
            record |= validation
        if save is not None:
            save.content["reports"] = self.reports.state_dict()
        self._model.record(record | {"repetitions": repetitions})
