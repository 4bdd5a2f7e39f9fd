"""The losses of single samples: what a worker knows of each simulation, for samplers of inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


class SampleLosses:
    """The newest loss of each sample that a worker has trained, by simulation.

    A report has totals of all that is known of a simulation, so that it does not depend on when it
    is made. Losses stay on their device until then. Of samples that do not come again only sums are
    kept.

    Excess is how far a loss is above the mean of its batch, in standard deviations
    of the batch. A pair of time steps counts once, as its earlier step.
    """

    def __init__(self, saved: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._new: list[tuple[torch.Tensor, NDArray[np.int64], NDArray[np.int64]]] = []
        self._changed = none = np.zeros(0, np.int64)
        saved = saved or {
            "simulations": none,
            "totals": np.zeros((0, 4)),
            "samples": none.reshape(0, 2),
        }
        self._simulations = saved["simulations"]
        self._totals = saved["totals"]
        """In order, and for each how many samples were trained, and of those that do not come again
        the number and the sums of loss and excess."""
        self._samples = saved["samples"]
        self._values = saved.get("values", np.zeros((0, 2)))
        """Simulation and step of the others, in order, and the newest loss and excess of each."""

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

        Its number, how often its samples were trained on, how many have a loss, and the sums of
        loss and excess.
        """
        self._absorb()
        changed = self._changed
        self._changed = self._changed[:0]
        rows = (self._totals + self._sums(slice(None)))[np.searchsorted(self._simulations, changed)]
        return np.column_stack([changed, rows])

    def settle(self, held: NDArray[np.int64]) -> None:
        """Keep of samples only sums, but of those that may come again: simulations and steps, shape
        (n, 2).
        """
        self._absorb()
        order, is_first = _sorted(np.concatenate([self._samples, held]))
        ranks = np.cumsum(is_first)[np.argsort(order)]
        stays = np.isin(ranks[: len(self._samples)], ranks[len(self._samples) :])
        self._totals = self._totals + self._sums(~stays)
        self._samples, self._values = self._samples[stays], self._values[stays]

    def _sums(self, part: Any) -> NDArray[np.float64]:
        """Return what a part of the samples adds to the totals of each simulation."""
        rows = np.searchsorted(self._simulations, self._samples[part, 0])
        size = len(self._simulations)
        columns = [np.bincount(rows, each, size) for each in (None, *self._values[part].T)]
        return np.stack([np.zeros(size), *columns], 1)

    def _absorb(self) -> None:
        """Take new losses into account; saves hold the arrays that were, so that these do not
        change.
        """
        if not self._new:
            return
        losses, *numbers = zip(*self._new, strict=True)
        self._new = []
        values = torch.cat(losses).double().cpu().numpy()
        pairs = np.stack([values, _excess(values, np.array([len(each) for each in numbers[0]]))], 1)
        samples = np.stack([np.concatenate(each) for each in numbers], 1)
        seen, trained = np.unique(samples[:, 0], return_counts=True)
        fresh = np.setdiff1d(seen, self._simulations, assume_unique=True)
        places = np.searchsorted(self._simulations, fresh)
        self._simulations = np.insert(self._simulations, places, fresh)
        self._totals = np.insert(self._totals, places, 0, axis=0)
        self._totals[np.searchsorted(self._simulations, seen), 0] += trained
        self._changed = np.union1d(self._changed, seen)
        counted = np.flatnonzero(np.isfinite(values))[::-1]  # the newest of a sample first
        samples = np.concatenate([samples[counted], self._samples])
        order, is_first = _sorted(samples)
        newest = order[is_first]
        self._samples, self._values = (
            samples[newest],
            np.concatenate([pairs[counted], self._values])[newest],
        )

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that is known, as arrays."""
        self._absorb()
        known = {"samples": self._samples, "values": self._values}
        return {"simulations": self._simulations, "totals": self._totals, **known}


def _sorted(samples: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the order of rows, stable where they are equal, and which of them are the first of
    equal ones.
    """
    order = np.lexsort(samples.T[::-1])
    ordered = samples[order]
    return order, np.append(True, (ordered[1:] != ordered[:-1]).any(1))[: len(order)]


def _excess(losses: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the excess of each loss; batches of these sizes follow one another."""
    counted = np.isfinite(losses)
    starts = np.cumsum(sizes) - sizes
    numbers = np.maximum(np.add.reduceat(counted, starts, dtype=np.float64), 1)
    means = np.add.reduceat(np.where(counted, losses, 0), starts) / numbers
    above = np.where(counted, losses - np.repeat(means, sizes), 0)
    spreads = np.repeat(np.sqrt(np.add.reduceat(above**2, starts) / numbers), sizes)
    return np.asarray(
        np.maximum(0.0, np.divide(above, spreads, out=np.zeros_like(losses), where=spreads > 0))
    )
