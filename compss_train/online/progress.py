"""The progress of an online fit: what workers report, summed up in records for the history."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

from compss_train.inference import means

Sums = Mapping[str, float]

_SUMMED = ("samples", "batches", "loss", "metric")


class Progress:
    """Sums since the last record, and of each worker's buffer what it said last.

    Each worker's last report of something trained is kept back, so that there is something in the last record.
    """

    def __init__(self, num_workers: int, metric: str | None) -> None:
        self._metric = metric
        self._since: list[Counter[str]] = [Counter() for _ in range(num_workers)]
        self._kept_back: list[Sums] = [{} for _ in range(num_workers)]
        self._buffers: list[Sums] = [{} for _ in range(num_workers)]
        self._clock = time.perf_counter()
        self._began = time.time()

    def report(self, worker: int, sums: Sums) -> None:
        """Take a worker's report."""
        self._buffers[worker] = sums
        if sums["batches"]:
            self._add(worker)
            self._kept_back[worker] = {name: sums[name] for name in _SUMMED if name in sums}

    def _add(self, worker: int) -> None:
        self._since[worker].update(self._kept_back[worker])
        self._kept_back[worker] = {}

    @property
    def received(self) -> int:
        """Samples received by all workers."""
        return int(self._total("put"))

    def is_due(self, seconds: float) -> bool:
        """Tell whether there is something to record, and the last record is so many seconds old."""
        return time.perf_counter() - self._clock >= seconds and any(sums["batches"] for sums in self._since)

    def last_record(self, number: int, epoch: int, simulations: dict[str, int]) -> dict[str, Any]:
        """Return a record of all that is left."""
        for worker in range(len(self._since)):
            self._add(worker)
        return self.record(number, epoch, simulations)

    def record(self, number: int, epoch: int, simulations: dict[str, int]) -> dict[str, Any]:
        """Return a record of what came since the last one."""
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        since, self._since = self._since, [Counter() for _ in self._since]
        samples, batches = (int(sum(sums[name] for sums in since)) for name in ("samples", "batches"))
        return {
            "round": number,
            "epoch": epoch,
            **means([_with_all(sums) for sums in since], self._metric),
            "samples": samples,
            "batches": batches,
            "seconds": seconds,
            "samples_per_second": samples / seconds,
            "batches_per_second": batches / seconds,
            "fit_started": self._began,
            "ended": time.time(),
            **self._buffered(),
            "simulations": simulations,
            "workers": [self._of_worker(worker, sums) for worker, sums in enumerate(since)],
        }

    def _buffered(self) -> dict[str, float]:
        held = self._total("held")
        return {
            "received": self.received,
            "buffer": int(held),
            "unseen": self._total("unseen") / held if held else 0.0,
            "repetitions_mean": self._total("got") / max(1, self.received),
        }

    def _total(self, name: str) -> float:
        return sum(sums.get(name, 0) for sums in self._buffers)

    def _of_worker(self, worker: int, sums: Sums) -> dict[str, Any]:
        counts = {"worker": worker, "samples": int(sums["samples"]), "batches": int(sums["batches"])}
        held = {"received": self._buffers[worker].get("put", 0), "buffer": self._buffers[worker].get("held", 0)}
        return {**counts, **held, **(means([_with_all(sums)], self._metric) if sums["samples"] else {})}


def _with_all(sums: Sums) -> dict[str, float]:
    return {name: sums.get(name, 0) for name in _SUMMED}
