"""Comparison of the methods: losses after the same number of batches, and after the same time."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from heat_experiment import Run
from heat_runs import OFFLINE, RESERVOIR
from numpy.typing import NDArray

from compss_train.reports.formatting import columns

ELAPSED = "elapsed"
"""The field of seconds, by which runs are compared."""
BATCHES = "total_batches"
"""The field of batches, by which runs are compared."""
AT_BATCHES = "loss_at_equal_batches"
AT_SECONDS = "loss_at_equal_seconds"
_POINTS = 200
"""Points of the curve of a method."""


def curve(run: Run, by: str) -> tuple[list[float], list[float]]:
    """Return the positions at which the validation loss was measured, and its values."""
    measured = [record for record in run.records if record.get("val_loss") is not None]
    return [record[by] for record in measured], [record["val_loss"] for record in measured]


def band(runs: Sequence[Run], by: str) -> NDArray[np.float64]:
    """Return positions that all seeds have reached, and losses there.

    The rows are the positions, and the median, lowest and highest loss.
    """
    curves = [curve(run, by) for run in runs]
    first = max(positions[0] for positions, _ in curves)
    last = min(positions[-1] for positions, _ in curves)
    xs = np.linspace(first, last, _POINTS)
    losses = np.stack([np.interp(xs, positions, values) for positions, values in curves])
    return np.stack([xs, np.median(losses, axis=0), losses.min(axis=0), losses.max(axis=0)])


def by_method(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Return the runs of each method, one a seed."""
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        grouped.setdefault(run.method, []).append(run)
    return grouped


def loss_at(run: Run, by: str, limit: float) -> float | None:
    """Return the validation loss between those measured before and after ``limit``.

    It is ``None`` if none was measured before.
    """
    positions, losses = curve(run, by)
    if not positions or positions[0] > limit:
        return None
    return float(np.interp(limit, positions, losses))


def shortest(runs: Sequence[Run], by: str) -> float:
    """Return the position that all runs have reached."""
    return min(float(run.records[-1][by]) for run in runs)


def make(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the comparison, for a JSON file: for each method a row a seed."""
    batches = shortest(runs, BATCHES)
    seconds = shortest(runs, ELAPSED)
    methods = {
        name: [_row(run, batches, seconds) for run in seeds]
        for name, seeds in by_method(runs).items()
    }
    return {"equal_batches": batches, "equal_seconds": seconds, "methods": methods}


def _row(run: Run, batches: float, seconds: float) -> dict[str, Any]:
    last = run.records[-1]
    return {
        "seed": run.seed,
        "batches": last[BATCHES],
        "seconds": last[ELAPSED],
        "batches_per_second": last[BATCHES] / last[ELAPSED],
        "simulations": run.simulations,
        "unique_samples": sum(run.repetitions[1:]),
        AT_BATCHES: loss_at(run, BATCHES, batches),
        AT_SECONDS: loss_at(run, ELAPSED, seconds),
    }


def conclusion(report: dict[str, Any]) -> str | None:
    """Return the reservoir compared with offline training, as Melissa's authors do.

    It is ``None`` unless both ran.
    """
    methods = report["methods"]
    if not {OFFLINE, RESERVOIR} <= methods.keys():
        return None

    def times(name: str) -> str:
        ratios = []
        for reservoir, offline in zip(methods[RESERVOIR], methods[OFFLINE], strict=True):
            are_known = reservoir[name] and offline[name]
            ratios.append(reservoir[name] / offline[name] if are_known else None)
        return spread(ratios, ".2f")

    batches = f"{report['equal_batches']:,.0f} batches"
    seconds = f"{report['equal_seconds']:.1f} s"
    return (
        f"Reservoir to offline: {times('batches_per_second')} of the batches/s; "
        f"{times(AT_BATCHES)} of the validation loss after {batches}, {times(AT_SECONDS)} after "
        f"{seconds}"
    )


def spread(values: Sequence[float | None], form: str) -> str:
    """Return the median, with the lowest and highest of several values in brackets.

    It is "-" if one is missing.
    """
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "-"
    middle = format(median(known), form)
    if len(known) == 1:
        return middle
    return f"{middle} ({format(min(known), form)} to {format(max(known), form)})"


def table(report: dict[str, Any]) -> str:
    """Return the report as a table in text: medians of the seeds, and the range of losses."""
    header = (
        *("method", "batches", "seconds", "batches/s", "simulations", "unique samples"),
        f"loss at {report['equal_batches']:,.0f} b",
        f"loss at {report['equal_seconds']:.1f} s",
    )
    rows = [header, *((method, *_cells(seeds)) for method, seeds in report["methods"].items())]
    return "\n".join(columns(rows, str.rjust))


def _cells(seeds: Sequence[dict[str, Any]]) -> Sequence[str]:
    forms = {"batches": ",.0f", "seconds": ".1f", "batches_per_second": ",.1f"}
    forms |= {"simulations": ",.0f", "unique_samples": ",.0f"}
    medians = [format(median(row[name] for row in seeds), form) for name, form in forms.items()]
    losses = [spread([row[name] for row in seeds], ".1e") for name in (AT_BATCHES, AT_SECONDS)]
    return medians + losses
