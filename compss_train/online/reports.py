"""The reports of the workers of an online fit, and the records that are made of them."""

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from compss_train.buffers.samples import NO_KEYS
from compss_train.model.measurements import Measures
from compss_train.online.input_statistics import InputStatistics
from compss_train.online.worker_messages import WorkerReport
from compss_train.reports.records import Record, per_second
from compss_train.training.inference import skipped_batches, warn_of_problems


@dataclass(kw_only=True)
class _Unrecorded:
    """What a worker has reported and is in no record yet."""

    reports: list[WorkerReport] = field(default_factory=list)
    """Those with trained batches, but the last one."""
    held_back: list[WorkerReport] = field(default_factory=list)
    """The last one, so that the final record is not empty."""
    skipped: int = 0
    """Batches skipped because their loss or gradients were not finite."""
    waited: float = 0.0
    """Seconds that the worker has waited for samples."""

    def add(self, report: WorkerReport) -> None:
        """Add the next report."""
        self.skipped += report.skipped_batches
        self.waited += report.waited
        if report.batches:
            self.reports += self.held_back
            self.held_back = [report]

    def followed_by(self, later: "_Unrecorded") -> "_Unrecorded":
        """Return this with what was reported later."""
        return _Unrecorded(
            reports=[*self.reports, *later.reports],
            held_back=later.held_back or self.held_back,
            skipped=self.skipped + later.skipped,
            waited=self.waited + later.waited,
        )

    def state_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            **vars(self),
            "reports": [report.__getstate__() for report in self.reports],
            "held_back": [report.__getstate__() for report in self.held_back],
        }

    @classmethod
    def of(cls, state: dict[str, Any]) -> Self:
        """Return it from ``state_dict``."""
        return cls(
            reports=[WorkerReport(**report) for report in state["reports"]],
            held_back=[WorkerReport(**report) for report in state["held_back"]],
            skipped=state["skipped"],
            waited=state["waited"],
        )


class Reports:
    """What workers have reported since the last record, and the last state of each buffer.

    Also the inputs that were drawn since.
    """

    def __init__(self, num_workers: int, measures: Measures) -> None:
        self.measures = measures
        self._unrecorded = [_Unrecorded() for _ in range(num_workers)]
        """By worker."""
        self._drawn: list[Record] = []
        self._last_unrecorded = self._unrecorded
        """What the last record was made of."""
        self._last_drawn = self._drawn
        """The inputs in it."""
        self._known_problems: set[str] = set()
        self._buffers = [WorkerReport() for _ in range(num_workers)]
        """The last report of each worker."""
        self._held = [NO_KEYS for _ in range(num_workers)]
        """The simulations in the buffer of each worker, and their samples, by its last report."""
        self.inputs = InputStatistics()
        """What is known of the inputs of simulations."""
        self._recorded = time.perf_counter()
        """When the last record was made."""
        self._fit_started = time.time()

    def add(self, worker: int, report: WorkerReport, held: NDArray[np.int64] = NO_KEYS) -> None:
        """Add a worker's report; warn of what the first one of any worker found.

        ``held`` are the simulations in its buffer and how many samples each has there.
        """
        warn_of_problems([report], self._known_problems)
        self._buffers[worker] = report
        self._held[worker] = held
        self._unrecorded[worker].add(report)

    def add_drawn(self, drawn: Record) -> None:
        """Add an input that a sampler has chosen, as JSON can hold it."""
        self._drawn.append(drawn)

    def state_dict(self) -> dict[str, Any]:
        """Return what was reported and is in no record yet."""
        return {
            "workers": [unrecorded.state_dict() for unrecorded in self._unrecorded],
            "buffers": [report.__getstate__() for report in self._buffers],
            "held": list(self._held),
            "drawn": list(self._drawn),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue with what was reported before."""
        self._unrecorded = [_Unrecorded.of(saved) for saved in state["workers"]]
        self._buffers = [WorkerReport(**saved) for saved in state["buffers"]]
        self._held = list(state["held"])
        self._drawn = list(state["drawn"])

    def put_back(self) -> None:
        """Leave what the last record has to the next one, as it was not made."""
        self._drawn = [*self._last_drawn, *self._drawn]
        self._unrecorded = [
            earlier.followed_by(later)
            for earlier, later in zip(self._last_unrecorded, self._unrecorded, strict=True)
        ]

    @property
    def received(self) -> int:
        """Samples received by all workers."""
        return sum(report.put for report in self._buffers)

    @property
    def held(self) -> int:
        """Samples in all buffers."""
        return sum(report.held for report in self._buffers)

    @property
    def least_received(self) -> int:
        """Samples received by the worker with the fewest."""
        return min(report.put for report in self._buffers)

    def is_due(self, seconds: float) -> bool:
        """Return whether there is something to record, and the last record is ``seconds`` old."""
        has_waited = time.perf_counter() - self._recorded >= seconds
        return has_waited and any(unrecorded.reports for unrecorded in self._unrecorded)

    def record(self, number: int, simulations: dict[str, int], *, final: bool = False) -> Record:
        """Return a record of the reports since the last one; a ``final`` one has all of them."""
        now = time.perf_counter()
        seconds = now - self._recorded
        self._recorded = now
        unrecorded = self._unrecorded
        drawn = self._drawn
        self._last_unrecorded = unrecorded
        self._last_drawn = drawn
        self._drawn = []
        if final:
            self._unrecorded = [_Unrecorded() for _ in unrecorded]
            reports = [[*worker.reports, *worker.held_back] for worker in unrecorded]
        else:
            self._unrecorded = [_Unrecorded(held_back=worker.held_back) for worker in unrecorded]
            reports = [worker.reports for worker in unrecorded]
        merged = list(itertools.chain.from_iterable(reports))
        counts = _counts(merged)
        held = self.held
        unseen = sum(report.unseen for report in self._buffers)
        got = sum(report.got for report in self._buffers)
        of_inputs = self.inputs.of_buffers(self._held)
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
            "unseen": unseen / held if held else 0.0,
            "repetitions_mean": got / max(1, self.received),
            **skipped_batches(sum(worker.skipped for worker in unrecorded)),
            "waited": sum(worker.waited for worker in unrecorded),
            **self._buffers[0].rates,
            "simulations": simulations,
            "workers": [
                self._worker_record(worker, unrecorded[worker], trained)
                for worker, trained in enumerate(reports)
            ],
            **({} if of_inputs is None else {"buffer_inputs": of_inputs}),
            **({"inputs": drawn} if drawn else {}),
        }

    def _worker_record(
        self, worker: int, unrecorded: _Unrecorded, trained: Sequence[WorkerReport]
    ) -> Record:
        return {
            "worker": worker,
            **_counts(trained),
            "received": self._buffers[worker].put,
            "buffer": self._buffers[worker].held,
            "waited": unrecorded.waited,
            **(self.measures.values(trained) if trained else {}),
            **skipped_batches(unrecorded.skipped),
        }


def _counts(reports: Sequence[WorkerReport]) -> dict[str, int]:
    return {
        name: sum(getattr(report, name) for report in reports) for name in ("samples", "batches")
    }
