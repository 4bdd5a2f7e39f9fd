"""The plot of ``buffers_demo``: what batches of each buffer contain, and what a network learns."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHUFFLED = "all data shuffled"
WINDOWS = 60
"""Most points along a panel: single batches would be noise, and make a large file."""
COLORS = {
    "FIFO": "#d55e00",
    "FIRO": "#0072b2",
    "Reservoir": "#009e73",
    "BatchReservoir": "#cc79a7",
    SHUFFLED: "#555555",
}
"""Colors of the curves; readers who do not see all colors can tell them apart, too."""


@dataclass
class Run:
    """One training through a buffer."""

    name: str
    samples: int
    """Samples in the stream."""
    classes: int
    batches: list[NDArray[np.float64]] = field(default_factory=list)
    """The share of each class in each batch."""
    received: list[int] = field(default_factory=list)
    """Samples that had arrived when the accuracy was measured."""
    accuracies: list[float] = field(default_factory=list)
    repetitions: NDArray[np.int64] = field(default_factory=lambda: np.ones(1, np.int64))
    """At index n, how many samples were got n times."""

    def add_batch(self, labels: NDArray[np.int64]) -> None:
        """Note what a batch contains."""
        self.batches.append(np.bincount(labels, minlength=self.classes) / len(labels))

    def add_accuracy(self, received: int, accuracy: float) -> None:
        """Note the test accuracy after so many samples had arrived."""
        self.received.append(received)
        self.accuracies.append(accuracy)

    @property
    def last_measured(self) -> int:
        """Samples that had arrived at the last measurement."""
        return self.received[-1] if self.received else 0

    @property
    def final_accuracy(self) -> float:
        """The test accuracy after the last batch."""
        return self.accuracies[-1]

    @property
    def mean_repetitions(self) -> float:
        """How often a sample was got, on average."""
        return float(np.average(np.arange(len(self.repetitions)), weights=self.repetitions))

    @property
    def unseen_share(self) -> float:
        """The share of the samples that were never got."""
        return float(self.repetitions[0] / self.repetitions.sum())


def check_matplotlib() -> None:
    """Raise ``ModuleNotFoundError`` where matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ModuleNotFoundError(
            "matplotlib draws the plot and is not installed; `pip install matplotlib`"
        )


def save(runs: Sequence[Run], path: Path) -> Path:
    """Draw the runs to a PNG file and return its path."""
    import matplotlib

    matplotlib.use("Agg")  # draws to files only, so that no display is needed
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(12.5, 7), layout="constrained")
    names = [run.name for run in runs]
    axes = figure.subplot_mosaic([names, ["accuracy"] * len(names)], height_ratios=[1, 1.25])
    for run in runs:
        areas = _draw_shares(axes[run.name], run)
    axes[names[0]].set_ylabel("share of the batch (%)")
    _draw_accuracies(axes["accuracy"], runs)
    classes = [f"class {number}" for number in range(runs[0].classes)]
    # In the order in which the areas lie.
    axes[names[-1]].legend(areas[::-1], classes[::-1], **_BESIDE)
    figure.savefig(path, dpi=90)
    pyplot.close(figure)
    return path


def _draw_shares(axis: Any, run: Run) -> list[Any]:
    """Draw the share of each class over the batches, and return the areas for a legend."""
    from matplotlib import colormaps

    shares, ends = _windows(np.array(run.batches))
    # From the first class that comes to the last.
    colors = colormaps["viridis"](np.linspace(0, 1, run.classes))
    areas: list[Any] = axis.stackplot(ends, 100 * shares.T, colors=colors, step="post", linewidth=0)
    axis.set(xlim=(0, len(run.batches)), ylim=(0, 100), xlabel="batches")
    axis.locator_params(axis="x", nbins=4)
    axis.set_title(_TITLES[run.name], fontsize=10.5, loc="left")
    return areas


def _windows(shares: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return means over windows of batches, and where the windows begin.

    The last end closes the last step.
    """
    edges = np.unique(np.linspace(0, len(shares), min(WINDOWS, len(shares)) + 1).astype(np.int64))
    means = np.add.reduceat(shares, edges[:-1]) / np.diff(edges)[:, None]
    return np.concatenate([means, means[-1:]]), edges


_BESIDE: dict[str, Any] = {
    "loc": "upper left",
    "bbox_to_anchor": (1, 1.03),
    "frameon": False,
    "alignment": "left",
}
"""Where legends are: to the right of their panel."""
_TITLES = {
    "FIFO": "FIFO gives the classes\nas they arrive",
    "FIRO": "FIRO mixes what\nwaits in it",
    "Reservoir": "Reservoir keeps and\nrepeats samples",
    "BatchReservoir": "BatchReservoir does so,\nnever within a batch",
    SHUFFLED: "With all data shuffled,\nall batches are alike",
}


def _draw_accuracies(axis: Any, runs: Sequence[Run]) -> None:
    """Draw the test accuracy over the stream.

    A dot is where the buffer was drained after its end.
    """
    _draw_ceiling(axis, runs[0])
    for run in runs:
        _draw_curve(axis, run)
    axis.set(xlim=(0, 1.02 * runs[0].samples / 1000), ylim=(0, 100))
    axis.set(xlabel="samples received (thousands)", ylabel="test accuracy (%)")
    conclusion = _conclusion({run.name: run.final_accuracy for run in runs})
    axis.set_title(conclusion, fontsize=10.5, loc="left")
    axis.legend(title="dots: once the buffer is drained", **_BESIDE)


def _draw_curve(axis: Any, run: Run) -> None:
    received = np.array(run.received) / 1000
    accuracies = 100 * np.array(run.accuracies)
    color = COLORS[run.name]
    style = "--" if run.name in (SHUFFLED, "BatchReservoir") else "-"
    axis.plot(received, accuracies, style, color=color, label=f"{run.name}: {accuracies[-1]:.1f}%")
    axis.plot(received[-1:], accuracies[-1:], "o", color=color)


def _draw_ceiling(axis: Any, run: Run) -> None:
    arrived = np.arange(run.classes + 1)
    axis.step(
        arrived * run.samples / run.classes / 1000,
        np.append(arrived[1:], run.classes) * 100 / run.classes,
        where="post",
        color="#bbbbbb",
        linewidth=1,
        label="classes that have arrived",
    )


def _conclusion(accuracies: dict[str, float]) -> str:
    reservoir = accuracies["Reservoir"]
    return f"Reservoir leads to {reservoir:.0%} accuracy, FIFO to {accuracies['FIFO']:.0%}"
