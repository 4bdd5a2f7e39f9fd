"""The progress of an online fit: what workers report, summed up in records for the history."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from compss_train.model.metrics import Measures
from compss_train.training.inference import skipped_batches

Report = Mapping[str, Any]
"""What a worker has measured since its last report, and what its buffer holds."""


class Progress:
    """Each worker's reports since the last record, and of its buffer what it said last.

    Each worker's last report of something trained is kept back, so that there is something in the last record.
    """

    def __init__(self, num_workers: int, measures: Measures) -> None:
        self._measures = measures
        self._since: list[list[Report]] = [[] for _ in range(num_workers)]
        self._kept_back: list[list[Report]] = [[] for _ in range(num_workers)]
        self._skipped = [0] * num_workers
        self._buffers: list[Report] = [{} for _ in range(num_workers)]
        self._clock = time.perf_counter()
        self._began = time.time()

    def report(self, worker: int, report: Report) -> None:
        """Take a worker's report."""
        self._buffers[worker] = report
        self._skipped[worker] += report.get("skipped_batches", 0)
        if report["batches"]:
            self._add(worker)
            self._kept_back[worker] = [report]

    def _add(self, worker: int) -> None:
        self._since[worker] += self._kept_back[worker]
        self._kept_back[worker] = []

    @property
    def received(self) -> int:
        """Samples received by all workers."""
        return int(self._total("put"))

    def is_due(self, seconds: float) -> bool:
        """Tell whether there is something to record, and the last record is so many seconds old."""
        return time.perf_counter() - self._clock >= seconds and any(self._since)

    def last_record(self, number: int, epoch: int, simulations: dict[str, int]) -> dict[str, Any]:
        """Return a record of all that is left."""
        for worker in range(len(self._since)):
            self._add(worker)
        return self.record(number, epoch, simulations)

    def record(self, number: int, epoch: int, simulations: dict[str, int]) -> dict[str, Any]:
        """Return a record of what came since the last one."""
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        since, self._since = self._since, [[] for _ in self._since]
        skipped, self._skipped = self._skipped, [0] * len(since)
        together = list(chain.from_iterable(since))
        counts = _counts(together)
        return {
            "round": number,
            "epoch": epoch,
            **self._measures.values(together),
            **counts,
            "seconds": seconds,
            "samples_per_second": counts["samples"] / seconds,
            "batches_per_second": counts["batches"] / seconds,
            "fit_started": self._began,
            "ended": time.time(),
            **self._buffered(),
            **skipped_batches(sum(skipped)),
            "simulations": simulations,
            "workers": [
                self._of_worker(worker, reports) | skipped_batches(skipped[worker])
                for worker, reports in enumerate(since)
            ],
        }

    def _buffered(self) -> dict[str, float]:
        held = self._total("held")
        return {
            "received": self.received,
            "buffer": int(held),
            "unseen": self._total("unseen") / held if held else 0.0,
            "repetitions_mean": self._total("got") / max(1, self.received),
        }

    def _total(self, name: str) -> int:
        return sum(int(buffer.get(name, 0)) for buffer in self._buffers)

    def _of_worker(self, worker: int, reports: Sequence[Report]) -> dict[str, Any]:
        held = {"received": self._buffers[worker].get("put", 0), "buffer": self._buffers[worker].get("held", 0)}
        return {"worker": worker, **_counts(reports), **held, **(self._measures.values(reports) if reports else {})}


def _counts(reports: Sequence[Report]) -> dict[str, int]:
    return {name: sum(report[name] for report in reports) for name in ("samples", "batches")}
