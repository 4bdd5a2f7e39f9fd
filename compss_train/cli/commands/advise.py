"""``compss-train advise``: how many workers pay, predicted from the folder of a run, or of several."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from compss_train.cli.commands.base import Command

if TYPE_CHECKING:
    from compss_train.cli.run_files.run_folder import MergedRun
    from compss_train.reports.advice import MeasuredRun, NoiseScale, Plan, Row

WORKERS = (1, 2, 4, 8, 16, 32, 64)
_CHOICES = (("num_batches_per_worker",), ("batch_size",), ("every", "unit"), ("outer_optimizer",))
"""Options that ``"auto"`` chooses by the number of workers, in the order in which they depend on each other."""
_MERGING = ("merge", "every", "unit", "outer_optimizer", "optimizer_state", "averaging", "dtype")
"""Options that do not matter with one worker."""
_ANY = ("started", "num_epochs", "callbacks", "data", "validation_data")
"""Descriptions of a fit that may differ between runs."""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    runs = "folder of a run of an epoch or two; better two runs that differ in the number of workers only"
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=runs)
    processes = "workers that train at the same time (default: this machine's, for the engine of the run)"
    parser.add_argument("--processes", type=int, metavar="N", help=processes)
    epochs = "epochs after which the metric is predicted (default: those of the run)"
    parser.add_argument("--epochs", type=int, metavar="N", help=epochs)
    target = "predict the time to this value of the metric (default: the best one that all runs reached)"
    parser.add_argument("--target", type=float, metavar="VALUE", help=target)
    metric = "a metric of the validation data (default: the first one, or val_loss)"
    parser.add_argument("--metric", metavar="NAME", help=metric)


def _advise(options: argparse.Namespace) -> int:
    """Print what to expect of each number of workers, and which one is worth it."""
    from compss_train._utils.validation import check_count
    from compss_train.cli.run_files.messages import format_predictions
    from compss_train.cli.run_files.run_folder import read_run
    from compss_train.reports.advice import advise

    runs = [read_run(path) for path in options.runs]
    _check_alike(runs)
    metric, falling = _metric(runs, options.metric)
    measured = [_measured(runs, run, metric, falling) for run in runs]
    target = _target(measured, options.target)
    noise = _noise(runs, measured, target)
    processes = check_count("--processes", _processes(runs, measured, options.processes))
    epochs = check_count("--epochs", _given(options.epochs, max(run.fit["num_epochs"] for run in runs)))
    numbers = sorted({*WORKERS, *(run.workers for run in runs)})
    plans = [_plan(runs, workers, gain=len(runs) == 1) for workers in numbers]
    rows, unlimited = (
        advise(measured, plans, noise, processes=limit, target=target, num_epochs=epochs)
        for limit in (processes, max(WORKERS))
    )
    print("\n".join(_basis(runs, measured, noise)), end="\n\n")
    batches = [plan.batch for plan in plans]
    print(format_predictions(rows, batches, f"to {metric} {target:.4g}", f"{metric} after {epochs}"), end="\n\n")
    print("\n".join([*_conclusion(rows, unlimited, processes), *_doubts(runs, measured, processes)]))
    return 0


def _given(value: Any, default: Any) -> Any:
    return default if value is None else value


def _check_alike(runs: Sequence[MergedRun]) -> None:
    """Raise ``ValueError`` unless runs differ in the number of workers, and in what depends on it, only."""
    for run in runs[1:]:
        one, other = _comparable(runs[0]), _comparable(run)
        free = set(_MERGING) if 1 in (run.workers, runs[0].workers) else set()
        if runs[0].fit.get("preset") is not None:
            free |= {*_MERGING, *chain.from_iterable(_CHOICES)}
        names = [name for name in one | other if name not in free and one.get(name) != other.get(name)]
        if names:
            raise ValueError(
                f"{runs[0].name} and {run.name} differ in {', '.join(names)}: name runs that differ in the number "
                "of workers only"
            )


def _comparable(run: MergedRun) -> dict[str, Any]:
    fit = {name: value for name, value in run.fit.items() if name not in (*_ANY, "merge")}
    return {"samples an epoch": round(run.samples), **run.build, **fit}


def _metric(runs: Sequence[MergedRun], name: str | None) -> tuple[str, bool]:
    """Return the name of the field of validation, and whether lower values are better."""
    from compss_train.callbacks.monitoring import mode_of
    from compss_train.reports.records import measured_numbers

    names = [
        each
        for each in measured_numbers(runs[0].history[-1])
        if each.startswith("val_") and all(each in measured_numbers(run.history[-1]) for run in runs)
    ]
    if not names:
        raise ValueError(
            "the runs have no validation data, and training loss is of changing parameters: set [validation]"
        )
    default = min(names, key=lambda each: (each.startswith("val_averaged_"), each == "val_loss"))
    chosen = next((each for each in names if each in (_given(name, default), f"val_{name}")), None)
    if chosen is None:
        raise ValueError(f"--metric {name}: the runs have {', '.join(names)}")
    try:
        return chosen, mode_of(chosen, None) == "min"
    except ValueError:
        raise ValueError(f"{chosen}: unknown whether low or high is better; give --metric loss") from None


def _measured(runs: Sequence[MergedRun], run: MergedRun, metric: str, falling: bool) -> MeasuredRun:
    from compss_train.reports.advice import MeasuredRun, measured_cost
    from compss_train.reports.curves import LearningCurve

    try:
        curve = LearningCurve.of(run.history, metric, samples=run.samples, falling=falling)
    except ValueError as error:
        raise ValueError(f"{run.name}: {error}") from None
    cost = measured_cost(run.history, run.workers)
    return MeasuredRun(
        plan=_plan([run], run.workers, gain=len(runs) == 1), curve=curve, cost=cost, samples=run.samples
    )


def _noise(runs: Sequence[MergedRun], measured: Sequence[MeasuredRun], target: float) -> NoiseScale:
    from compss_train.reports.advice import measured_noise, solved_noise

    if len(runs) > 1:
        return solved_noise(measured, target)
    if runs[0].workers == 1:
        raise ValueError(f"{runs[0].name}: one worker merges nothing: name a run with 2 workers or more as well")
    try:
        return measured_noise(runs[0].history, measured[0].plan.batch)
    except ValueError as error:
        raise ValueError(f"{runs[0].name}: {error}") from None


def _target(measured: Sequence[MeasuredRun], given: float | None) -> float:
    from compss_train.reports.advice import common_values

    worst, best = common_values(measured)
    target = _given(given, best)
    if not min(worst, best) <= target <= max(worst, best):
        raise ValueError(
            f"--target {target:g}: give a value that all runs have passed, from {worst:.4g} to {best:.4g}"
        )
    return float(target)


def _processes(runs: Sequence[MergedRun], measured: Sequence[MeasuredRun], given: int | None) -> int:
    """Return the given number, that of this machine for the local engine, or as many as trained at a time."""
    if given is not None:
        return given
    if {run.trainer["engine"] for run in runs} != {"local"}:
        return max(run.cost.processes for run in measured)
    return max(1, runs[0].cores // min(int(run.trainer["threads"]) for run in runs))


def _plan(runs: Sequence[MergedRun], workers: int, *, gain: bool) -> Plan:
    """Return how a number of workers would train with the options of the most similar run.

    ``gain`` counts what an outer optimizer gains, which the curves of several runs contain.
    """
    from compss_train.reports.advice import Plan

    def distance(run: MergedRun) -> tuple[bool, bool, float]:
        return run.workers != workers, run.workers == 1, abs(math.log(run.workers / workers))

    run = min(runs, key=distance)
    options = _options(run, workers)
    batch = min(run.batch(options), run.samples / workers)
    outer = options.get("outer_optimizer") if gain else None
    merges = run.merges if run.workers == workers else _merges(run, options, workers, batch)
    return Plan(workers=workers, batch=batch, merges=merges, gain=_gain(outer, workers))


def _merges(run: MergedRun, options: Mapping[str, Any], workers: int, batch: float) -> float:
    """Return the merges an epoch of another number of workers."""
    unit, every = options.get("unit", "epochs"), options.get("every", 1)
    if unit == "epochs":
        return run.merges if run.fit["unit"] == "epochs" else 1.0
    if unit == "batches" and isinstance(every, int):
        return float(math.ceil(run.samples / (workers * batch * every)))
    return max(1.0, run.merges * run.workers / workers)


def _gain(outer: Any, workers: int) -> float:
    """Return by how much steps of SGD with momentum are longer than the mean change; at most as the sum is."""
    if not isinstance(outer, Mapping) or "sgd" not in str(outer.get("optimizer", "")).lower():
        return 1.0
    return min(float(workers), float(outer["lr"]) / (1 - float(outer.get("momentum", 0.0))))


def _options(run: MergedRun, workers: int) -> Mapping[str, Any]:
    """Return the options of the fit of another number of workers: those of the run, or what "auto" would choose."""
    if run.fit.get("preset") != "auto" or workers == run.workers:
        return run.fit
    given: dict[str, Any] = {}
    for names in _CHOICES:
        used = {name: run.fit[name] for name in names if run.fit[name] is not None}
        chosen = _chosen(run, run.workers, given)
        if any(chosen.get(name) != value for name, value in used.items()):
            given |= used
    return _chosen(run, workers, given)


def _chosen(run: MergedRun, workers: int, given: Mapping[str, Any]) -> dict[str, Any]:
    from compss_train.data.order import Batching
    from compss_train.training.merge import Merge
    from compss_train.training.presets import Situation, with_preset

    situation = Situation(
        num_workers=workers,
        samples=round(run.samples),
        block=math.ceil(run.block),
        batch_norm="BatchNorm" in run.build["net"],
        adaptive="sgd" not in str(run.build["optimizer"]).lower(),
    )
    batches = Batching(given.get("num_batches_per_worker"), given.get("batch_size"))
    options = {name: value for name, value in given.items() if name in vars(Merge())}
    merge, size = with_preset(Merge("auto", **options), lambda: situation, num_epochs=1, batches=batches)
    return {"batch_size": size, "num_batches_per_worker": batches.number, **vars(merge.filled())}


def _basis(runs: Sequence[MergedRun], measured: Sequence[MeasuredRun], noise: NoiseScale) -> Iterator[str]:
    """Yield lines about the runs, and where the noise scale is from."""
    for run, each in zip(runs, measured, strict=True):
        count = "1 worker" if run.workers == 1 else f"{run.workers} workers, {each.cost.processes} at a time"
        epochs, best = f"{each.curve.trained:.3g} epochs", f"{each.curve.best:.4g} at best"
        yield f"{run.name}: {count}, {epochs} of {run.samples:,.0f} samples, {best}"
    low, high = (math.inf if rate == 0 else 1 / rate for rate in (noise.high, noise.low))
    scale = f"noise scale {noise.samples:,.0f} samples ({low:,.0f} to {high:,.0f})"
    if len(runs) == 1:
        yield f"{scale}, from the differences between the workers of one run: a rough guess; better name two runs"
    else:
        yield f"{scale}, from the learning curves of {len(runs)} runs"


def _conclusion(rows: Sequence[Row], unlimited: Sequence[Row], processes: int) -> Iterator[str]:
    """Yield which number of workers is worth it, with these processes and with one for each worker."""
    from compss_train.reports.advice import worth

    best, most = worth(rows), worth(unlimited)
    at_a_time = "1 worker trains" if processes == 1 else f"{processes} workers train"
    yield f"Worth it where {at_a_time} at a time: {best.workers} ({best.seconds:,.1f} s)."
    if most.workers != best.workers:
        yield f"Worth it if all workers train at a time: {most.workers} ({most.seconds:,.1f} s); see --processes."


def _doubts(runs: Sequence[MergedRun], measured: Sequence[MeasuredRun], processes: int) -> Iterator[str]:
    """Yield what makes the predictions less certain."""
    busy, most = max(each.cost.processes for each in measured), max(run.workers for run in runs)
    if processes > busy:
        yield f"Note: {busy} trained at a time in the runs; more may slow each other down and take longer."
    if len(runs) > 1 and most < max(WORKERS):
        yield f"Note: nothing was measured with more than {most} workers."
    if len(runs) == 1 and measured[0].plan.gain > 1:
        yield "Note: what the outer optimizer gains is assumed, not measured."
    if any(run.build.get("schedule") is not None for run in runs):
        yield "Note: the learning rate changes by a schedule, which other numbers of epochs would stretch."
    if any(run.fit.get("buffer") is not None for run in runs):
        yield "Note: samples pass through a buffer, which may give some of them repeatedly."


ADVISE = Command(
    name="advise",
    help="predict accuracy and time with 1 to 64 workers from short runs, and which number is worth it",
    add_arguments=_add_arguments,
    run=_advise,
    examples="""\
  compss-train fit run.toml --workers 1 --output runs/1 --set fit.num_epochs=2
  compss-train fit run.toml --workers 8 --output runs/8 --set fit.num_epochs=2
  compss-train advise runs/1 runs/8
  compss-train advise runs/1 runs/8 --processes 32 --epochs 20 --target 0.85
  compss-train advise runs/8        a guess from one run, whose rounds have 5 batches at most""",
)
