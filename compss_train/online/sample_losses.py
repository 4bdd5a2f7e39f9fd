"""The losses of single samples: what a worker knows of each simulation, for samplers of inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

COLUMNS = 6
"""Numbers that a report has of each simulation: its own, and five totals."""


class SampleLosses:
    """The first and the newest loss of each sample that a worker has trained, by simulation.

    A report has totals of all that is known of a simulation, so that it does not depend on when it
    is made. Losses stay on their device until then. Of samples that do not come again only sums are
    kept.

    The first loss of a sample is known before any step on it. Excess is how far a loss is above the
    mean of its batch, in standard deviations of the batch, and is added up over all batches. A pair
    of time steps counts once, as its earlier step.
    """

    def __init__(self, saved: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._new: list[tuple[torch.Tensor, NDArray[np.int64], NDArray[np.int64]]] = []
        """Losses of batches that are not yet in the arrays, with the simulations and steps."""
        self._changed = np.zeros(0, np.int64)
        """The simulations that were trained since the last report."""
        if saved is None:
            saved = {
                "simulations": np.zeros(0, np.int64),
                "totals": np.zeros((0, COLUMNS - 1)),
                "samples": np.zeros((0, 2), np.int64),
                "values": np.zeros((0, 2)),
            }
        self._simulations = saved["simulations"]
        """The simulations that were trained, in order."""
        self._totals = saved["totals"]
        """For each of them how often its samples were trained, and their excess in all batches.

        Then, of samples that do not come again, the number and the sums of newest and first losses.
        """
        self._samples = saved["samples"]
        """Simulation and step of the samples that may come again, in order."""
        self._values = saved["values"]
        """The newest and the first loss of each of them."""

    def add(
        self, losses: torch.Tensor, simulations: NDArray[np.int64], steps: NDArray[np.int64]
    ) -> None:
        """Add the losses of a batch; those of shape (n, 2) are of pairs. NaN does not count."""
        if simulations.ndim == 2:
            simulations = simulations[:, 0]
            steps = steps[:, 0]
        self._new.append((losses, simulations, steps))

    def report(self) -> NDArray[np.float64]:
        """Return a row for each simulation that was trained since the last report.

        Its number, how often its samples were trained on, their excess, how many have a loss, and
        the sums of their newest and of their first losses.
        """
        self._absorb()
        changed = self._changed
        self._changed = changed[:0]
        totals = self._totals + self._sums(slice(None))
        return np.column_stack([changed, totals[np.searchsorted(self._simulations, changed)]])

    def settle(self, held: NDArray[np.int64]) -> None:
        """Keep only sums of samples that do not come again, as they are not among those ``held``.

        Of these it is given the simulations and steps, shape (n, 2).
        """
        self._absorb()
        order, is_first = _sorted(np.concatenate([self._samples, held]))
        ranks = np.cumsum(is_first)[np.argsort(order)]
        stays = np.isin(ranks[: len(self._samples)], ranks[len(self._samples) :])
        self._totals = self._totals + self._sums(~stays)
        self._samples = self._samples[stays]
        self._values = self._values[stays]

    def _sums(self, part: Any) -> NDArray[np.float64]:
        """Return what a part of the samples adds to the totals of each simulation."""
        rows = np.searchsorted(self._simulations, self._samples[part, 0])
        size = len(self._simulations)
        counts = np.bincount(rows, minlength=size)
        sums = [np.bincount(rows, values, size) for values in self._values[part].T]
        return np.stack([np.zeros(size), np.zeros(size), counts, *sums], 1)

    def _absorb(self) -> None:
        """Take new losses into account.

        Arrays are replaced, and not changed: saves hold those that were.
        """
        if not self._new:
            return
        losses, *numbers = zip(*self._new, strict=True)
        self._new = []
        values = torch.cat(losses).double().cpu().numpy()
        sizes = np.array([len(simulations) for simulations in numbers[0]])
        samples = np.stack([np.concatenate(batches) for batches in numbers], 1)
        self._count(samples[:, 0], _excess(values, sizes))
        counted = np.flatnonzero(np.isfinite(values))[::-1]  # the newest of a sample first
        samples = np.concatenate([samples[counted], self._samples])
        newest_losses = np.concatenate([values[counted], self._values[:, 0]])
        first_losses = np.concatenate([values[counted], self._values[:, 1]])
        order, is_first = _sorted(samples)
        is_last = np.roll(is_first, -1)
        newest = order[is_first]
        oldest = order[is_last]
        self._samples = samples[newest]
        self._values = np.stack([newest_losses[newest], first_losses[oldest]], 1)

    def _count(self, simulations: NDArray[np.int64], excess: NDArray[np.float64]) -> None:
        """Count samples that were trained, given the simulation and the excess of each."""
        trained, counts = np.unique(simulations, return_counts=True)
        fresh = np.setdiff1d(trained, self._simulations, assume_unique=True)
        places = np.searchsorted(self._simulations, fresh)
        self._simulations = np.insert(self._simulations, places, fresh)
        self._totals = np.insert(self._totals, places, 0, axis=0)
        self._totals[np.searchsorted(self._simulations, trained), 0] += counts
        # One after another: the sum has the same bits whenever reports are made.
        np.add.at(self._totals[:, 1], np.searchsorted(self._simulations, simulations), excess)
        self._changed = np.union1d(self._changed, trained)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that is known, as arrays."""
        self._absorb()
        return {
            "simulations": self._simulations,
            "totals": self._totals,
            "samples": self._samples,
            "values": self._values,
        }


def _sorted(samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the order of rows, stable where they are equal, and which are the first of equals."""
    order = np.lexsort(samples.T[::-1])
    ordered = samples[order]
    differs = (ordered[1:] != ordered[:-1]).any(1)
    return order, np.append(True, differs)[: len(order)]


def _excess(losses: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the excess of each loss; batches of these sizes follow one another."""
    counted = np.isfinite(losses)
    starts = np.cumsum(sizes) - sizes
    numbers = np.maximum(np.add.reduceat(counted, starts, dtype=np.float64), 1)
    means = np.add.reduceat(np.where(counted, losses, 0), starts) / numbers
    above = np.where(counted, losses - np.repeat(means, sizes), 0)
    spreads = np.repeat(np.sqrt(np.add.reduceat(above**2, starts) / numbers), sizes)
    excess = np.divide(above, spreads, out=np.zeros_like(losses), where=spreads > 0)
    return np.asarray(np.maximum(0.0, excess))
