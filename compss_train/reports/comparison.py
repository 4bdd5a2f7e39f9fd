"""Runs compared: what differs between their settings, what they reached, and their curves in the
same charts.
"""

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
_OF_EACH_RUN = ("fit.started", "fit.callbacks", "fit.profile", "machine.host", "build.net", "home")
"""Settings that differ without a reason, and the text of the network, whose attributes are compared
one by one.
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
    def settings(self) -> dict[str, str]:
        """The settings by dotted names, such as ``build.optimizer.lr``."""
        given = flatten(dict(self.run_file))
        made = flatten(dict(self.configuration))
        cells = {
            name: value for name, value in made.items() if not (given and name.startswith("build."))
        } | given
        cells |= {PARAMETERS: made[PARAMETERS]} if PARAMETERS in made else {}
        return {
            name: number(value)
            for name, value in cells.items()
            if name.partition("[")[0] not in _OF_EACH_RUN
        }

    @cached_property
    def measured(self) -> list[str]:
        """The names of its numeric losses and metrics; those on validation data if there are
        any.
        """
        single = [name for name in measured_in(self.history) if "[" not in name]
        return [name for name in single if name.startswith("val_")] or single


@dataclass(frozen=True, eq=False)
class SeedGroup:
    """Runs that differ only in their seed, or not at all."""

    runs: list[ComparedRun]

    @property
    def name(self) -> str:
        """The name of the first run, and how many there are: seeds, or runs if some have the same
        one.
        """
        several = (
            "seeds"
            if len({run.settings.get(SEED) for run in self.runs}) == len(self.runs)
            else "runs"
        )
        return self.runs[0].name + (f" ({len(self.runs)} {several})" if len(self.runs) > 1 else "")


def differing(runs: Sequence[ComparedRun]) -> list[str]:
    """Return the names of the settings that are not the same in all runs.

    Attributes of objects are named, up to ``MOST_DETAILS``, where no setting says why they differ.
    """
    every = dict.fromkeys(name for run in runs for name in run.settings)
    names = [name for name in every if len({run.settings.get(name, MISSING) for run in runs}) > 1]
    explained = {f"{DETAILS}net" for name in names if name.startswith("network.")}
    explained |= {DETAILS + name.split(".")[1] for name in names if name.startswith("build.")}
    attributes = [
        name for name in names if name.startswith(DETAILS) and not name.startswith(tuple(explained))
    ]
    return [name for name in names if not name.startswith(DETAILS)] + attributes[:MOST_DETAILS]


def grouped(runs: Iterable[ComparedRun]) -> list[SeedGroup]:
    """Return the runs by all settings but the seed; a run whose settings are not known is on its
    own.
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
    names = measured_in(
        record for run in [run for group in groups for run in group.runs] for record in run.history
    )
    titles = {name: name.replace("_", " ") for name in names} | {curves.SPEED: "samples/s"}
    return curves.drawable(
        curves.Panel(
            title,
            [
                replace(_curve(group, name, against), color=number)
                for number, group in enumerate(groups)
            ],
            from_zero=name == curves.SPEED,
        )
        for name, title in titles.items()
    )


def _curve(group: SeedGroup, name: str, against: Axis) -> curves.Curve:
    lines = [
        (curves.positions(run.history, against), _values(run.history, name)) for run in group.runs
    ]
    if len(lines) == 1:
        return curves.Curve(group.name, *lines[0])
    at = [median(x for x in xs if x is not None) for xs in zip_longest(*(xs for xs, _ in lines))]
    values = zip_longest(*(values for _, values in lines), fillvalue=math.nan)
    return curves.summary(group.name, at, list(values))


def _values(history: Sequence[Record], name: str) -> list[float]:
    if name == curves.SPEED:
        return curves.training_speeds(history)
    return [measured_numbers(record).get(name, math.nan) for record in history]


def comparison_table(runs: Sequence[ComparedRun]) -> list[dict[str, str]]:
    """Return a row for each run: its state, the settings that differ, what it reached and how long
    it took.

    Of each loss and metric it has the last value, and the best one with its round; times are
    without start-up.
    """
    names = differing(runs)
    measured = dict.fromkeys(name for run in runs for name in run.measured)
    return [_row(run, names, list(measured)) for run in runs]


def _row(run: ComparedRun, names: Sequence[str], measured: Sequence[str]) -> dict[str, str]:
    row = {"run": run.name, **({"state": run.state} if run.state else {})}
    last = [
        name.removeprefix(DETAILS) if name.startswith(DETAILS) else name.rpartition(".")[2]
        for name in names
    ]
    # By the last part of its name, if no other has the same.
    for name, short in zip(names, last, strict=True):
        row[short if last.count(short) == 1 else name] = run.settings.get(name, MISSING)
    seconds = sum(curves.training_seconds(run.history))
    samples = sum(record["samples"] for record in run.history)
    epochs = epochs_of(run.history)
    row |= {"rounds": number(len(run.history)), **({"epochs": number(epochs)} if epochs else {})}
    for name in measured:
        values = [value for record in run.history if name in (value := measured_numbers(record))]
        best = best_value(name, run.history)
        row[name] = number(values[-1][name]) if values else MISSING
        row[f"best {name}"] = MISSING if best is None else f"{number(best[0])}, round {best[1]}"
    return {
        **row,
        "time": duration(seconds),
        "samples/s": speed(samples / seconds) if seconds else MISSING,
    }
