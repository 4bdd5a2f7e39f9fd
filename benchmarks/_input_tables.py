"""Tables and a picture of studies whose inputs are chosen: ratios to uniform ones of the seed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

UNIFORM = "uniform"
LARGER_LABEL = f"{UNIFORM} x 1.5 (scale)"
"""The row of 1.5 times as many uniform simulations, which samplers are to equal."""
BASES = UNIFORM, LARGER_LABEL
"""The rows that others are compared with by intervals."""
NUMBERS = ("99th percentile", "mean", "median", "seconds")
"""What is compared: statistics of the errors of held-out simulations, and processor seconds."""
GRAY = "#8a8f98"
"""Can be read on light and on dark pages."""

Rows = Mapping[str, Mapping[int, dict[str, Any]]]
"""The results of a study by seed, by the label of their row; ``UNIFORM`` among them."""


def ratios(rows: Rows, label: str, key: str, base: str = UNIFORM) -> list[float]:
    """Return the ratios of a number of a row to that of another one, of seeds that have both."""
    base_runs = rows[base]
    return [
        run[key] / base_runs[seed][key] for seed, run in rows[label].items() if seed in base_runs
    ]


def mean_and_error(values: list[float]) -> str:
    """Return the geometric mean and, of several values, its standard error."""
    logarithms = np.log(values)
    mean = np.exp(logarithms.mean())
    if len(values) == 1:
        return f"{mean:.2f}"
    error = mean * logarithms.std(ddof=1) / np.sqrt(len(values))
    return f"{mean:.2f} ± {error:.2f}"


def interval(values: list[float]) -> str:
    """Return the geometric mean and its 95% interval, by Student's t of the logarithms."""
    from scipy.stats import t  # type: ignore[import-untyped]

    logarithms = np.log(values)
    mean = logarithms.mean()
    reach = t.ppf(0.975, len(values) - 1) * logarithms.std(ddof=1) / np.sqrt(len(values))
    return f"{np.exp(mean):.2f} ({np.exp(mean - reach):.2f} to {np.exp(mean + reach):.2f})"


def print_rows(title: str, rows: Rows) -> None:
    """Print the table of a study, as far as it has run."""
    base = rows[UNIFORM].values()
    means = ", ".join(f"{key} {np.mean([run[key] for run in base]):.4g}" for key in NUMBERS)
    print(f"{title}\n  {UNIFORM} ({len(base)} seeds): {means}")
    for label in rows:
        values = {key: ratios(rows, label, key) for key in NUMBERS}
        number = len(values["mean"])
        if label != UNIFORM and number:
            texts = (f"{key} {mean_and_error(values[key])}" for key in NUMBERS)
            print(f"  {label} ({number} seeds): {', '.join(texts)}", flush=True)
        if label not in BASES:
            print_intervals(rows, label)


def print_intervals(rows: Rows, label: str) -> None:
    """Print a row's ratios to uniform inputs, and to more of them, with 95% intervals."""
    for key in NUMBERS[:2]:
        texts = []
        for base in BASES:
            values = ratios(rows, label, key, base)
            if len(values) > 1:
                texts.append(f"to {base} {interval(values)}")
        if texts:
            print(f"    {key}: {', '.join(texts)}", flush=True)


def draw(path: Path, tables: Mapping[str, Rows]) -> None:
    """Draw the ratio of each seed, and the geometric mean as a dash; on no background."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    labels = [label for label in next(iter(tables.values())) if label != UNIFORM]
    parts = ("axes.edgecolor", "text.color", "xtick.color", "ytick.color")
    style: Any = dict.fromkeys(parts, GRAY)
    with rc_context(style):
        figure = Figure(figsize=(7.7, 5.4), layout="constrained")
        for axes, key in zip(figure.subplots(2, 1), NUMBERS[:2], strict=True):
            for place, label in enumerate(labels):
                color = f"C{place}"
                axes.plot([], [], "o", color=color, label=label)
                for number, rows in enumerate(tables.values()):
                    values = ratios(rows, label, key)
                    if values:
                        across = number + (place - (len(labels) - 1) / 2) * 0.8 / len(labels)
                        mean = np.exp(np.log(values).mean())
                        axes.plot([across] * len(values), values, "o", color=color, ms=3.5)
                        axes.plot([across], [mean], "_", color=color, ms=10, mew=2)
            axes.axhline(1, color=GRAY, linewidth=1)
            axes.set(yscale="log", title=f"{key}, ratio to uniform", facecolor="none")
            axes.set_xticks(range(len(tables)), [*tables])
            axes.set_yticks([0.1, 0.2, 0.5, 1, 2], ["0.1", "0.2", "0.5", "1", "2"])
            axes.minorticks_off()
            axes.spines[["top", "right"]].set_visible(False)
        handles, names = axes.get_legend_handles_labels()
        figure.legend(handles, names, loc="outside lower center", ncols=4, frameon=False)
        figure.savefig(path, dpi=110, transparent=True)
