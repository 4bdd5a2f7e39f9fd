"""The plot of ``learning``: accuracy over epochs and over seconds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from _learning_cases import Case
from _learning_report import Found
from _learning_results import Result

STYLES = {
    ("mean", 1): ("#555555", "--", "1 worker, one core"),
    ("mean", 32): ("#d55e00", "-", "32, plain mean once an epoch"),
    ("auto", 8): ("#0072b2", "-", '8, preset "auto"'),
    ("auto", 32): ("#009e73", "-", '32, preset "auto"'),
    ("auto", 64): ("#cc79a7", "-", '64, preset "auto"'),
}
"""Color, line and name by setting and workers; the colors differ for all readers."""
POINTS = 12
"""Percentage points that are shown below the best accuracy."""


def plot(cases: Iterable[Case], found: Found, path: Path) -> None:
    """Draw the medians over seeds, with the range shaded, to an image file."""
    import matplotlib

    matplotlib.use("Agg")  # draws to files only, so that no display is needed
    from matplotlib import pyplot

    curves = _curves(cases, found)
    networks = list(dict.fromkeys(network for network, _, _ in curves))
    if not networks:
        raise SystemExit('no results to draw: run the group "curves" first')
    figure, axes = pyplot.subplots(
        len(networks), 2, figsize=(12.5, 4 * len(networks)), layout="constrained", squeeze=False, sharey="row"
    )
    for network, (epochs, seconds) in zip(networks, axes, strict=True):
        own = {
            (setting, workers): results for (name, setting, workers), results in curves.items() if name == network
        }
        _draw(epochs, own, "epochs")
        _draw(seconds, own, "seconds")
        epochs.set(xlabel="epochs", ylabel="test accuracy (%)")
        seconds.set(xlabel="seconds on two cores")
        epochs.set_title(f"{network}: accuracy over epochs", fontsize=10.5, loc="left")
        seconds.set_title(f"{network}: accuracy over seconds", fontsize=10.5, loc="left")
        top = max(max(result.accuracies) for results in own.values() for result in results)
        epochs.set_ylim(top - POINTS, top + 0.5)
    axes[0, 1].legend(title="workers", loc="upper left", bbox_to_anchor=(1, 1.03), frameon=False, alignment="left")
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    print(f"wrote {path}")


def _curves(cases: Iterable[Case], found: Found) -> dict[tuple[str, str, int], list[Result]]:
    curves: dict[tuple[str, str, int], list[Result]] = {}
    for case in cases:
        result = found.get(case.key)
        if result is not None and result.accuracies:
            curves.setdefault((case.network, case.setting, case.workers), []).append(result)
    return curves


def _draw(axis: Any, curves: dict[tuple[str, int], list[Result]], against: str) -> None:
    for name, results in curves.items():
        color, line, label = STYLES[name]
        length = min(len(result.accuracies) for result in results)
        accuracies = np.array([result.accuracies[:length] for result in results])
        along = np.median([getattr(result, against)[:length] for result in results], axis=0)
        axis.plot(along, np.median(accuracies, axis=0), line, color=color, label=label)
        axis.fill_between(
            along, accuracies.min(axis=0), accuracies.max(axis=0), color=color, alpha=0.15, linewidth=0
        )
    axis.grid(color="#eeeeee")
    axis.set_xlim(left=0)
