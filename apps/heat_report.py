"""Comparison of the methods: losses after the same number of batches, and after the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heat_experiment import Record, Run
from heat_runs import OFFLINE, RESERVOIR

ELAPSED, BATCHES = "elapsed", "total_batches"
"""Axes by which runs are compared."""


def curve(run: Run, by: str) -> tuple[list[float], list[float]]:
    """Return the positions at which the validation loss was measured, and its values."""
    measured = [record for record in run.records if record.get("val_loss") is not None]
    return [record[by] for record in measured], [record["val_loss"] for record in measured]


def loss_at(run: Run, by: str, limit: float) -> float | None:
    """Return the last validation loss measured up to ``limit``, or ``None``."""
    losses = [loss for position, loss in zip(*curve(run, by), strict=True) if position <= limit]
    return losses[-1] if losses else None


def shortest(runs: Sequence[Run], by: str) -> float:
    """Return the position that all runs have reached."""
    return min(float(run.records[-1][by]) for run in runs)


def batches_per_second(records: Sequence[Record]) -> float:
    """Return the speed without the first record, which includes the start of processes and simulations."""
    steady = records[1:] or records
    seconds = sum(record["seconds"] for record in steady)
    first = records[0][BATCHES] if len(records) > 1 else 0
    return float((records[-1][BATCHES] - first) / seconds)


def make(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the comparison, for a JSON file."""
    batches, seconds = shortest(runs, BATCHES), shortest(runs, ELAPSED)
    methods = [
        {
            "method": run.method,
            "batches": run.records[-1][BATCHES],
            "seconds": run.records[-1][ELAPSED],
            "batches_per_second": batches_per_second(run.records),
            "simulations": run.simulations,
            "unique_samples": sum(run.repetitions[1:]),
            "loss_at_equal_batches": loss_at(run, BATCHES, batches),
            "loss_at_equal_seconds": loss_at(run, ELAPSED, seconds),
        }
        for run in runs
    ]
    return {"equal_batches": batches, "equal_seconds": seconds, "methods": methods}


def conclusion(report: dict[str, Any]) -> str | None:
    """Return the reservoir compared with offline training, as Melissa's authors do; ``None`` unless both ran."""
    rows = {row["method"]: row for row in report["methods"]}
    if not {OFFLINE, RESERVOIR} <= rows.keys():
        return None
    reservoir, offline = rows[RESERVOIR], rows[OFFLINE]
    speed = reservoir["batches_per_second"] / offline["batches_per_second"]
    losses = ", ".join(
        f"{_change(reservoir[name], offline[name])} after {limit}"
        for name, limit in (
            ("loss_at_equal_batches", f"{report['equal_batches']:,.0f} batches"),
            ("loss_at_equal_seconds", f"{report['equal_seconds']:.1f} s"),
        )
    )
    return f"Reservoir against offline: {speed:.2f} times the batches/s; a validation loss {losses}"


def _change(new: float | None, old: float | None) -> str:
    if new is None or old is None:
        return "not measured yet"
    return f"{abs(1 - new / old):.0%} {'lower' if new < old else 'higher'}"


def table(report: dict[str, Any]) -> str:
    """Return the report as a table in text."""
    at_batches, at_seconds = f"loss at {report['equal_batches']:,.0f} b", f"loss at {report['equal_seconds']:.1f} s"
    rows = [
        ("method", "batches", "seconds", "batches/s", "simulations", "unique samples", at_batches, at_seconds),
        *map(_cells, report["methods"]),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(_row(row, widths) for row in rows)


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    losses = (row[name] for name in ("loss_at_equal_batches", "loss_at_equal_seconds"))
    return (
        row["method"],
        f"{row['batches']:,}",
        f"{row['seconds']:.1f}",
        f"{row['batches_per_second']:,.1f}",
        f"{row['simulations']:,}",
        f"{row['unique_samples']:,}",
        *("-" if loss is None else f"{loss:.2e}" for loss in losses),
    )


def _row(cells: Sequence[str], widths: Sequence[int]) -> str:
    padded = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
    return "  ".join([cells[0].ljust(widths[0]), *padded[1:]])
