"""Runs compared: how their settings differ, what they reached, and their curves in one chart."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from statistics import median
from typing import Any

from compss_train.reports import curves
from compss_train.reports.formatting import duration, number, speed
from compss_train.reports.records import (
    Axis,
    Record,
    best_value,
    epochs_of,
    flatten,
    measured_in,
    measured_numbers,
)

MISSING = "-"
"""What tables show for a setting that a run does not have."""
SEED = "trainer.seed"
_OF_EACH_RUN = (
    *("fit.started", "fit.callbacks", "fit.profile"),
    *("machine.host", "build.net", "home", "source"),
)
"""Settings that differ without a reason, and the text of the network.

The attributes of the network are compared one by one.
"""
PARAMETERS = "build.parameters"
"""The number of parameters of the network."""
DETAILS = "details."
MOST_DETAILS = 5
"""Maximum number of attributes of objects that a comparison names."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ComparedRun:
    """A run to be compared."""

    name: str
    history: Sequence[Record]
    configuration: Mapping[str, Any]
    """``trainer.configuration``; empty if unknown."""
    state: str = ""
    run_file: Mapping[str, Any] = field(default_factory=dict)
    """The contents of the run file, which sets ``build``; empty for a run without one."""

    @cached_property
    def setting_values(self) -> dict[str, Any]:
        """The settings by dotted names, such as ``build.optimizer.lr``."""
        of_file = flatten(dict(self.run_file))
        of_trainer = flatten(dict(self.configuration))
        values = {
            name: value
            for name, value in of_trainer.items()
            if not (of_file and name.startswith("build."))
        }
        values |= of_file
        if PARAMETERS in of_trainer:
            values[PARAMETERS] = of_trainer[PARAMETERS]
        return {
            name: value
            for name, value in values.items()
            if name.partition("[")[0] not in _OF_EACH_RUN
        }

    @cached_property
    def settings(self) -> dict[str, str]:
        """The settings as tables show them."""
        return {name: number(value) for name, value in self.setting_values.items()}

    @cached_property
    def measured(self) -> list[str]:
        """The names of its numeric losses and metrics, on validation data if there are any."""
        names = [name for name in measured_in(self.history) if "[" not in name]
        return [name for name in names if name.startswith("val_")] or names


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Runs that differ only in their seed, or not at all."""

    runs: list[ComparedRun]

    @property
    def name(self) -> str:
        """The name of the first run, and the number of seeds, or of runs if some share a seed."""
        number_runs = len(self.runs)
        if number_runs == 1:
            return self.runs[0].name
        seeds = {run.settings.get(SEED) for run in self.runs}
        plural = "seeds" if len(seeds) == number_runs else "runs"
        return f"{self.runs[0].name} ({number_runs} {plural})"


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the names of the settings that are not the same in all runs.

    Attributes of objects are named, up to ``MOST_DETAILS``, where no setting says why they differ.
    """
    all_names = dict.fromkeys(name for run in runs for name in run.settings)
    names = [
        name for name in all_names if len({run.settings.get(name, MISSING) for run in runs}) > 1
    ]
    settings = [name for name in names if not name.startswith(DETAILS)]
    explained = tuple(
        f"{DETAILS}net" if name.startswith("network.") else DETAILS + name.split(".")[1]
        for name in settings
        if name.startswith(("network.", "build."))
    )
    attributes = [
        name for name in names if name.startswith(DETAILS) and not name.startswith(explained)
    ]
    return settings + attributes[:MOST_DETAILS]


def grouped(runs: Iterable[ComparedRun]) -> list[SeedGroup]:
    """Return the runs by all settings but the seed.

    A run whose settings are not known is a group of its own.
    """
    groups: dict[Any, list[ComparedRun]] = {}
    for run in runs:
        settings = frozenset((name, value) for name, value in run.settings.items() if name != SEED)
        groups.setdefault(settings or run, []).append(run)
    return [SeedGroup(members) for members in groups.values()]


def comparison_panels(groups: Sequence[SeedGroup], against: Axis = "round") -> list[curves.Panel]:
    """Return a panel for each loss and metric, and for samples/s, with a curve for each group.

    A group of several seeds has its median, in a band from the lowest to the highest values.
    """
    histories = [run.history for group in groups for run in group.runs]
    names = measured_in(record for history in histories for record in history)
    titles = {name: name.replace("_", " ") for name in names} | {curves.SPEED: "samples/s"}
    panels = []
    for name, title in titles.items():
        lines = [
            replace(_curve(group, name, against), color=color) for color, group in enumerate(groups)
        ]
        panels.append(curves.Panel(title, lines, from_zero=name == curves.SPEED))
    return curves.drawable(panels)


def _curve(group: SeedGroup, name: str, against: Axis) -> curves.Curve:
    positions = [curves.positions(run.history, against) for run in group.runs]
    values = [_values(run.history, name) for run in group.runs]
    if len(group.runs) == 1:
        return curves.Curve(group.name, positions[0], values[0])
    xs = [median(x for x in column if x is not None) for column in zip_longest(*positions)]
    ys = list(zip_longest(*values, fillvalue=math.nan))
    return curves.summary(group.name, xs, ys)


def _values(history: Sequence[Record], name: str) -> list[float]:
    if name == curves.SPEED:
        return curves.training_speeds(history)
    return [measured_numbers(record).get(name, math.nan) for record in history]


@dataclass(frozen=True)
class Best:
    """The best value of a loss or metric, and its round."""

    value: float
    round: int


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a comparison: its state, the settings that differ, and what it reached."""

    run: str
    state: str
    settings: Mapping[str, Any]
    """By their shortest unique names; a run has those that it sets."""
    rounds: int
    epochs: int | None
    last: Mapping[str, float]
    """The last value of each loss and metric that it has."""
    best: Mapping[str, Best]
    seconds: float
    """Seconds of training, without start-up."""
    samples_per_second: float | None


def summaries(runs: Sequence[ComparedRun]) -> list[RunSummary]:
    """Return a summary of each run; times are without start-up."""
    titles = _titles(differing(runs))
    measured = dict.fromkeys(name for run in runs for name in run.measured)
    return [_summary(run, titles, list(measured)) for run in runs]


def _titles(names: Sequence[str]) -> dict[str, str]:
    """Return the shortest unique title of each setting."""
    short_names = [_short(name) for name in names]
    titles = {}
    for name, short_name in zip(names, short_names, strict=True):
        titles[name] = short_name if short_names.count(short_name) == 1 else name
    return titles


def _summary(run: ComparedRun, titles: Mapping[str, str], measured: Sequence[str]) -> RunSummary:
    """Return the summary of a run.

    It has the settings in ``titles``, under their titles, and the losses and metrics in
    ``measured``.
    """
    numbers = [measured_numbers(record) for record in run.history]
    last = {}
    best = {}
    for name in measured:
        values = [by_name[name] for by_name in numbers if name in by_name]
        best_of_run = best_value(name, run.history)
        if best_of_run is not None:
            last[name] = values[-1]
            best[name] = Best(*best_of_run)
    seconds = sum(curves.training_seconds(run.history))
    samples = sum(record["samples"] for record in run.history)
    values_by_name = run.setting_values
    return RunSummary(
        run=run.name,
        state=run.state,
        settings={
            title: values_by_name[name] for name, title in titles.items() if name in values_by_name
        },
        rounds=len(run.history),
        epochs=epochs_of(run.history) or None,
        last=last,
        best=best,
        seconds=seconds,
        samples_per_second=samples / seconds if seconds else None,
    )


def comparison_table(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """Return a row for each run: its state, the settings that differ, and what it reached.

    Of each loss and metric it has the last value, and the best one with its round.
    """
    settings = list(_titles(differing(runs)).values())
    measured = list(dict.fromkeys(name for run in runs for name in run.measured))
    return [_row(summary, settings, measured) for summary in summaries(runs)]


def _row(summary: RunSummary, settings: Sequence[str], measured: Sequence[str]) -> dict[str, str]:
    row = {"run": summary.run}
    if summary.state:
        row["state"] = summary.state
    for name in settings:
        row[name] = number(summary.settings[name]) if name in summary.settings else MISSING
    row["rounds"] = number(summary.rounds)
    if summary.epochs:
        row["epochs"] = number(summary.epochs)
    for name in measured:
        row[name] = number(summary.last[name]) if name in summary.last else MISSING
        row[f"best {name}"] = MISSING
        if name in summary.best:
            best = summary.best[name]
            row[f"best {name}"] = f"{number(best.value)}, round {best.round}"
    row["time"] = duration(summary.seconds)
    rate = summary.samples_per_second
    row["samples/s"] = MISSING if rate is None else speed(rate)
    return row


def _short(name: str) -> str:
    """Return the last part of a setting's name; attributes of objects are named in full."""
    is_attribute = name.startswith(DETAILS)
    return name.removeprefix(DETAILS) if is_attribute else name.rpartition(".")[2]
