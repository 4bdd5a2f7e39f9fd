"""What a round costs, as a history has measured it, and would cost with other numbers of workers.

A round takes each process ``⌈workers / processes⌉`` tasks, one after another, and then a merge,
whose seconds grow with the versions that its tree of tasks reads one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median

import numpy as np

from compss_train.reports.records import Record, per_second
from compss_train.reports.timeline import round_totals, worker_intervals

_ARITY = 8
"""Versions that a task of a merge reads."""


@dataclass(frozen=True, kw_only=True)
class RoundCost:
    """A round of a run, and its seconds."""

    workers: int
    samples: float
    """Samples that all workers together train in the round."""
    processes: int
    """Workers that trained at the same time."""
    sample: float
    """Seconds of a process to train a sample."""
    merge: float
    """Seconds of the merge and the evaluation after it."""
    task: float
    """Overhead of a task in seconds, besides training."""

    def seconds(self, workers: int, processes: int) -> tuple[float, float]:
        """Return the seconds of training and of all else with other numbers.

        So many workers share the same samples, and so many processes run them.
        """
        tasks = ceil(workers / processes)
        merge = self.merge * _reads(workers) / _reads(self.workers)
        return tasks * self.samples / workers * self.sample, merge + tasks * self.task


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A round with a number of workers, as a cost predicts it or, if ``measured``, has been."""

    workers: int
    seconds: float
    samples_per_second: float
    not_training: float
    """The share of the seconds in which no worker trains."""
    measured: bool


def predict(cost: RoundCost, numbers: Sequence[int], processes: int) -> list[Prediction]:
    """Return the round with each number of workers, of which ``processes`` train at a time."""
    predictions = []
    for workers in numbers:
        training, not_training = cost.seconds(workers, processes)
        seconds = training + not_training
        predictions.append(
            Prediction(
                workers=workers,
                seconds=seconds,
                samples_per_second=per_second(cost.samples, seconds),
                not_training=per_second(not_training, seconds),
                measured=(workers, processes) == (cost.workers, cost.processes),
            )
        )
    return predictions


def measured_cost(history: Sequence[Record]) -> RoundCost:
    """Return the mean cost of the rounds after the first epoch.

    Of a single epoch, these are the rounds after the first one. With the same workers and
    processes, a prediction is as measured. Raises ``ValueError`` for a history without synchronous
    merges.
    """
    if not history or any(record.get("merge") != "synchronous" for record in history):
        raise ValueError("its workers do not merge in rounds: name a run with merge='synchronous'")
    first_epoch = history[0]["epoch"]
    numbers = [number for number, record in enumerate(history) if record["epoch"] > first_epoch]
    if not numbers:
        numbers = list(range(min(1, len(history) - 1), len(history)))
    totals = round_totals(worker_intervals(history))
    # Early rounds of many workers have no entries.
    numbers = [number for number in numbers if number in totals]
    if not numbers:
        raise ValueError("its rounds have no times of workers")
    rounds = [history[number] for number in numbers]
    workers = max(len(record["workers"]) for record in rounds)
    processes = _processes(rounds)
    samples = fmean(record["samples"] for record in rounds)
    seconds = fmean(record["seconds"] for record in rounds)
    busy = fmean(sum(entry["seconds"] for entry in record["workers"]) for record in rounds)
    tasks = ceil(workers / processes)
    training = tasks / workers * busy
    merging = fmean(
        totals[number]["merging"] / len(history[number]["workers"]) for number in numbers
    )
    merging = min(merging, max(0.0, seconds - training))
    return RoundCost(
        workers=workers,
        samples=samples,
        processes=processes,
        sample=min(training, seconds) * workers / (tasks * samples),
        merge=merging,
        task=max(0.0, seconds - training - merging) / tasks,
    )


def _processes(rounds: Sequence[Record]) -> int:
    """Return the number of workers that trained at the same time, in most rounds.

    The last 5% of each task do not count, as clocks of nodes differ a little.
    """
    counts = []
    for record in rounds:
        changes = []
        for entry in record["workers"]:
            changes.append((entry["started"], 1))
            changes.append((entry["started"] + 0.95 * entry["seconds"], -1))
        counts.append(max(np.cumsum([step for _, step in sorted(changes)])))
    return max(1, int(median(counts)))


def _reads(workers: int) -> int:
    """Return how many versions a merge reads one after another."""
    reads = 0
    while workers > _ARITY:
        reads += _ARITY
        workers = ceil(workers / _ARITY)
    return reads + workers
