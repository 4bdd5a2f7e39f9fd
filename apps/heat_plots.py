"""The plots of ``heat_surrogate``: losses, repetitions of samples, and fields."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import heat
import heat_report
import numpy as np
from buffer_plots import COLORS
from heat_experiment import Run
from heat_offline import OFFLINE
from numpy.typing import NDArray

Fields = NDArray[np.float32]

_COLORS = {**COLORS, OFFLINE: "#555555"}
SHOWN_STEPS = (1, 3, 10, 100)
"""Time steps whose fields are drawn; most of the change is early."""


def save_losses(runs: Sequence[Run], path: Path) -> Path:
    """Draw the validation losses over time and over batches.

    A method has the median of its seeds, in a band of all.
    """
    figure, axes = _subplots(1, 2, figsize=(11, 4.2), sharey=True)
    panels = (
        (heat_report.ELAPSED, "seconds, simulations included"),
        (heat_report.BATCHES, "batches"),
    )
    for axis, (by, label) in zip(axes, panels, strict=True):
        for method, seeds in heat_report.by_method(runs).items():
            positions, median, low, high = heat_report.band(seeds, by)
            color = _COLORS[method]
            axis.plot(positions, median, color=color, label=method)
            axis.fill_between(positions, low, high, color=color, alpha=0.2, linewidth=0)
        axis.axvline(heat_report.shortest(runs, by), color="#bbbbbb", linewidth=1, zorder=0)
        axis.set(xlabel=label, yscale="log")
        axis.set_xlim(left=0)
    axes[0].set_ylabel("validation loss")
    axes[0].set_title("gray: where the runs are compared", fontsize=10.5, loc="left")
    axes[1].legend(frameon=False)
    return _save(figure, path)


def save_repetitions(runs: Sequence[Run], path: Path) -> Path:
    """Draw how often samples were trained on, one panel per run."""
    figure, axes = _subplots(
        1, len(runs), figsize=(3.2 * len(runs), 3.4), sharex=True, squeeze=False
    )
    for axis, run in zip(axes[0], runs, strict=True):
        times = np.arange(len(run.repetitions))
        axis.bar(times, run.repetitions, width=0.9, color=_COLORS[run.method])
        axis.set_xlabel("times trained on")
        axis.locator_params(axis="x", integer=True)
        title = f"{run.method}: {sum(run.repetitions[1:]):,} samples"
        axis.set_title(title, fontsize=10.5, loc="left")
    axes[0, 0].set_ylabel("samples")
    return _save(figure, path)


def save_fields(truth: Fields, predictions: Mapping[str, Fields], path: Path) -> Path:
    """Draw the fields of a simulation in kelvin: true, predicted, and their difference."""
    steps = sorted({min(step, len(truth)) for step in SHOWN_STEPS})
    columns = _columns(truth, predictions, steps)
    size = (1.8 * len(columns) + 0.4, 1.8 * len(steps) + 2)
    figure, axes = _subplots(len(steps), len(columns), figsize=size, squeeze=False)
    for line, step in zip(axes, steps, strict=True):
        images = [_draw(axis, column, step) for axis, column in zip(line, columns, strict=True)]
        line[0].set_ylabel(f"step {step}")
    for axis, column in zip(axes[0], columns, strict=True):
        axis.set_title(column.title, fontsize=10.5)
    for image, label in ((images[-1], "difference (K)"), (images[0], "temperature (K)")):
        figure.colorbar(image, ax=axes, label=label, location="bottom", shrink=0.5, aspect=40)
    return _save(figure, path)


@dataclass(frozen=True)
class _Column:
    title: str
    fields: Fields
    colors: Mapping[str, Any]


def _columns(
    truth: Fields, predictions: Mapping[str, Fields], steps: Sequence[int]
) -> list[_Column]:
    """Return columns of the true fields, the predictions and their differences.

    They have common color scales.
    """
    temperatures = {"cmap": "inferno", "vmin": heat.COLDEST, "vmax": heat.HOTTEST}
    true = heat.to_kelvin(truth)
    predicted = {name: heat.to_kelvin(fields) for name, fields in predictions.items()}
    shown = [step - 1 for step in steps]
    largest = max(float(np.abs((fields - true)[shown]).max()) for fields in predicted.values())
    differences = {"cmap": "RdBu_r", "vmin": -largest, "vmax": largest}
    columns = [_Column("true", true, temperatures)]
    for name, fields in predicted.items():
        columns.append(_Column(name, fields, temperatures))
        columns.append(_Column("minus true", fields - true, differences))
    return columns


def _draw(axis: Any, column: _Column, step: int) -> Any:
    axis.set(xticks=[], yticks=[])
    return axis.imshow(column.fields[step - 1], origin="lower", **column.colors)


def _subplots(rows: int, columns: int, **options: Any) -> tuple[Any, Any]:
    import matplotlib

    matplotlib.use("Agg")  # draws to files only, so that no display is needed
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, layout="constrained", **options)


def _save(figure: Any, path: Path) -> Path:
    from matplotlib import pyplot

    figure.savefig(path, dpi=90, bbox_inches="tight")
    pyplot.close(figure)
    return path
