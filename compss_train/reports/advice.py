"""How many workers pay: accuracy and time with other numbers of workers, predicted from the histories of runs.

More workers need more epochs to the same value. After McCandlish et al. 2018, "An Empirical Model of Large-Batch
Training", arXiv 1812.06162, eq. 2.11, epochs grow as 1 + J / B. J is the joint batch: the samples that all workers
have in a batch each, over the gain of the outer step. B is the noise scale in samples: that of short rounds of one
run (a rough guess), or solved from the learning curves of runs with different joint batches.

An epoch takes each process ``⌈workers / processes⌉`` tasks, one after another, and after each round a merge, whose
seconds grow with the versions that its tree of tasks reads one after another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from compss_train.reports.curves import LearningCurve
from compss_train.reports.records import Record
from compss_train.reports.timeline import round_totals, worker_intervals

MOST_BATCHES = 5
"""Batches a worker and round up to which the workers' changes measure the noise of a gradient."""
MOST_SIMILAR = 1.5
"""Joint batches that differ by less than this factor do not show how learning depends on them."""
WORTH = 1.1
"""More workers are worth it if fewer take more than this factor of the shortest time."""
_VALUES = 9
_RATES = np.concatenate([[0.0], np.geomspace(1e-7, 1.0, 4001)])
"""Values of 1 / B that are tried; 0 is no loss from larger joint batches."""
_ARITY = 8
"""Versions that a task of a merge reads."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How a number of workers trains."""

    workers: int
    batch: float
    """Samples of a worker's batch."""
    merges: float
    """Merges an epoch."""
    gain: float = 1.0
    """The factor by which an outer optimizer makes the workers' mean change longer."""

    @property
    def joint_batch(self) -> float:
        """Samples of all workers' batches together, over the gain."""
        return self.workers * self.batch / self.gain


@dataclass(frozen=True, kw_only=True)
class Cost:
    """Seconds of a run, and the number of tasks that trained at the same time."""

    sample: float
    """Of a process to train a sample."""
    merge: float
    """Of a merge and the evaluation after it."""
    task: float
    """Of a task, beside training."""
    processes: int


@dataclass(frozen=True, kw_only=True)
class MeasuredRun:
    """What a run has shown."""

    plan: Plan
    curve: LearningCurve
    cost: Cost
    samples: float
    """Of an epoch."""


@dataclass(frozen=True, kw_only=True)
class NoiseScale:
    """1 / B, and the bounds of the range it is probably in."""

    rate: float
    low: float
    high: float

    @property
    def samples(self) -> float:
        """B; infinite where larger joint batches lose nothing."""
        return 1 / self.rate if self.rate else inf


@dataclass(frozen=True, kw_only=True)
class Row:
    """What to expect of a number of workers."""

    workers: int
    epochs: float
    """To the target."""
    least_epochs: float
    most_epochs: float
    seconds: float
    """To the target."""
    overhead: float
    """The part of the time that is not training."""
    value: float
    """After the given number of epochs."""
    mark: str
    """How the value is known: ``""`` measured, ``"~"`` extrapolated, ``"<"`` or ``">"`` a bound."""
    measured: bool
    """Whether a run had this number of workers."""


def samples_per_epoch(history: Sequence[Record]) -> float:
    """Return the samples of a whole epoch; the last epoch may be incomplete."""
    sums: dict[int, float] = {0: 0.0}
    for record in history:
        sums[record["epoch"]] = sums.get(record["epoch"], 0.0) + record["samples"]
    return max(sums[epoch] / (epoch - before) for before, epoch in pairwise(sums))


def measured_cost(history: Sequence[Record], workers: int) -> Cost:
    """Return the cost of the rounds after the first epoch, or, in a single epoch, after the first round.

    With it, a prediction for the same workers and processes takes the seconds that the rounds took.
    """
    first = history[0]["epoch"]
    later = [number for number, record in enumerate(history) if record["epoch"] > first]
    kept = later or list(range(min(1, len(history) - 1), len(history)))
    kept = [number for number in kept if history[number]["workers"]]  # early ones of many workers have none
    own = [worker for number in kept for worker in history[number]["workers"]]
    seconds = float(np.mean([history[number]["seconds"] for number in kept]))
    samples = sum(history[number]["samples"] for number in kept)
    processes = _processes(history, kept)
    tasks = ceil(workers / processes)
    training = tasks / workers * sum(worker["seconds"] for worker in own) / len(kept)
    totals = round_totals(worker_intervals(history))
    merging = float(np.mean([totals[number]["merging"] / len(history[number]["workers"]) for number in kept]))
    merging = min(merging, max(0.0, seconds - training))
    return Cost(
        sample=sum(worker["seconds"] for worker in own) / samples * min(1.0, seconds / training),
        merge=merging,
        task=max(0.0, seconds - training - merging) / tasks,
        processes=processes,
    )


def _processes(history: Sequence[Record], kept: Sequence[int]) -> int:
    """Return the number of workers that trained at the same time, in most rounds.

    The last 5% of each task do not count, as clocks of nodes differ a little.
    """
    counts = []
    for number in kept:
        starts = [(own["started"], 1) for own in history[number]["workers"]]
        stops = [(own["started"] + 0.95 * own["seconds"], -1) for own in history[number]["workers"]]
        counts.append(max(np.cumsum([step for _, step in sorted([*starts, *stops])])))
    return max(1, int(np.median(counts)))


def measured_noise(history: Sequence[Record], batch: float) -> NoiseScale:
    """Return the median of the noise scales in the second half of the rounds, good to a factor of 2.

    Raises ``ValueError`` for rounds longer than ``MOST_BATCHES`` batches, whose changes are no gradients, and for
    rounds without a noise scale.
    """
    longest = max(own["samples"] for record in history for own in record["workers"]) / batch
    if ceil(longest - 1e-9) > MOST_BATCHES:
        raise ValueError(
            f"its rounds have {ceil(longest)} batches a worker, and only short ones measure gradient noise: "
            f"fit an epoch or two with Merge(unit='batches', every={MOST_BATCHES}) at most, or name a "
            "second run with another number of workers, and rounds of any length"
        )
    found = [record["noise_scale"] for record in history[len(history) // 2 :] if "noise_scale" in record]
    if not found:
        raise ValueError(_why_no_noise(history))
    rate = 1 / float(np.median(found))
    return NoiseScale(rate=rate, low=rate / 2, high=rate * 2)


def _why_no_noise(history: Sequence[Record]) -> str:
    agreements = [record["worker_agreement"] for record in history if "worker_agreement" in record]
    if not agreements:
        return "no round has a worker_agreement: the run is of an early version; fit an epoch again"
    agreement, noise = float(np.median(agreements)), 1 / sqrt(len(history[-1]["workers"]))
    why = "is nearly all noise" if agreement < (1 + noise) / 2 else "is nearly all common to the workers"
    return (
        f"its late rounds have no noise_scale: their worker_agreement is {agreement:.2f}, the change {why}; fit "
        "for more epochs, or name a second run with another number of workers"
    )


def solved_noise(runs: Sequence[MeasuredRun], target: float) -> NoiseScale:
    """Return the noise scale with which the runs need the epochs that they needed.

    It is the median over the upper half of the values up to the target, and its bounds are the quartiles: the noise
    scale grows while a network learns. Raises ``ValueError`` if
    no value was reached by all runs, or if their joint batches are too similar.
    """
    joint = np.array([run.plan.joint_batch for run in runs])
    if joint.max() < MOST_SIMILAR * joint.min():
        raise ValueError(
            f"the batches of all workers have {joint.min():,.0f} to {joint.max():,.0f} samples together, too "
            "similar to show what more of them cost: name a run with fewer workers, such as 1 or 2"
        )
    values = np.linspace((common_values(runs)[0] + target) / 2, target, _VALUES)
    epochs = np.log([[run.curve.epochs_to(value) for run in runs] for value in values])
    factors = np.log1p(_RATES[:, None] * joint)
    errors = _centred(epochs)[:, None] - _centred(factors)
    rates = _RATES[(errors**2).sum(axis=-1).argmin(axis=1)]
    low, rate, high = np.quantile(rates, (0.25, 0.5, 0.75))
    return NoiseScale(rate=float(rate), low=float(low), high=float(high))


def _centred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    centred: NDArray[np.float64] = values - values.mean(axis=-1, keepdims=True)
    return centred


def common_values(runs: Sequence[MeasuredRun]) -> tuple[float, float]:
    """Return the worst and the best value that all runs have passed; raise ``ValueError`` if there is none."""
    falling = runs[0].curve.falling
    latest, earliest = (min, max) if falling else (max, min)
    worst, best = latest(run.curve.first for run in runs), earliest(run.curve.best for run in runs)
    if len({worst, best}) > 1 and latest(worst, best) == worst:
        ranges = ", ".join(f"{run.plan.workers}: {run.curve.first:.4g} to {run.curve.best:.4g}" for run in runs)
        raise ValueError(
            f"no value was passed by all runs (workers: first to best value: {ranges}): fit the slowest for more "
            "epochs, or evaluate the fastest more often, by Merge(unit='batches') and a small every"
        )
    return worst, best


def advise(
    runs: Sequence[MeasuredRun],
    plans: Sequence[Plan],
    noise: NoiseScale,
    *,
    processes: int,
    target: float,
    num_epochs: float,
) -> list[Row]:
    """Return a row for each plan.

    Predictions of different runs are interpolated, so that a number of workers that was run is as measured.
    ``target`` must be a value that the runs have reached, ``num_epochs`` is for the values of the rows.
    """
    return [_row(runs, plan, noise, processes, target, num_epochs) for plan in plans]


def _row(
    runs: Sequence[MeasuredRun], plan: Plan, noise: NoiseScale, processes: int, target: float, num_epochs: float
) -> Row:
    bounds = [_epochs(runs, plan, rate, target) for rate in (noise.rate, noise.low, noise.high)]
    epochs = bounds[0]
    mark, value = _value(runs, plan, noise.rate, num_epochs)
    training, others = _epoch_seconds(runs, plan, processes)
    return Row(
        workers=plan.workers,
        epochs=epochs,
        least_epochs=min(bounds),
        most_epochs=max(bounds),
        seconds=epochs * (training + others),
        overhead=others / (training + others),
        value=value,
        mark=mark,
        measured=any(run.plan.workers == plan.workers for run in runs),
    )


def _epochs(runs: Sequence[MeasuredRun], plan: Plan, rate: float, target: float) -> float:
    """Return the epochs to the target: by each run, and between runs interpolated by the number of workers."""
    logs = [np.log(run.curve.epochs_to(target) * _factor(plan, run.plan, rate)) for run in runs]
    return float(np.exp(_between(runs, plan, logs)))


def _value(runs: Sequence[MeasuredRun], plan: Plan, rate: float, num_epochs: float) -> tuple[str, float]:
    """Return the value after some epochs and its mark: by the runs that were long enough, or by the nearest one."""
    found = [run.curve.value_at(num_epochs / _factor(plan, run.plan, rate)) for run in runs]
    if enough := [number for number, (mark, _) in enumerate(found) if mark == ""]:
        return "", _between([runs[number] for number in enough], plan, [found[number][1] for number in enough])
    return min(zip(runs, found, strict=True), key=lambda each: abs(np.log(each[0].plan.workers / plan.workers)))[1]


def _between(runs: Sequence[MeasuredRun], plan: Plan, values: Sequence[float]) -> float:
    """Interpolate between values of runs, linearly in the logarithm of the workers."""
    workers, ordered = np.array(sorted(zip((run.plan.workers for run in runs), values, strict=True)), float).T
    return float(np.interp(np.log(plan.workers), np.log(workers), ordered))


def _factor(plan: Plan, measured: Plan, rate: float) -> float:
    """Return the epochs that a plan needs for one of a measured plan."""
    return (1 + rate * plan.joint_batch) / (1 + rate * measured.joint_batch)


def _epoch_seconds(runs: Sequence[MeasuredRun], plan: Plan, processes: int) -> tuple[float, float]:
    """Return the seconds of an epoch in training and in all else, by the run that kept as many processes busy."""

    def distance(run: MeasuredRun) -> tuple[float, float]:
        busy = min(plan.workers, processes) / run.cost.processes
        return abs(np.log(busy)), abs(np.log(plan.workers / run.plan.workers))

    run = min(runs, key=distance)
    tasks = ceil(plan.workers / processes)
    training = tasks * run.samples / plan.workers * run.cost.sample
    merge = run.cost.merge * _reads(plan.workers) / _reads(run.plan.workers)
    return training, plan.merges * (merge + tasks * run.cost.task)


def _reads(workers: int) -> int:
    """Return how many versions a merge reads one after another."""
    reads = 0
    while workers > _ARITY:
        reads, workers = reads + _ARITY, ceil(workers / _ARITY)
    return reads + workers


def worth(rows: Sequence[Row]) -> Row:
    """Return the row of the fewest workers whose time is near the shortest one."""
    least = min(row.seconds for row in rows)
    return next(row for row in sorted(rows, key=lambda row: row.workers) if row.seconds <= WORTH * least)
