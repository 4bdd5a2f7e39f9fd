"""The losses of single samples: what a worker knows of each simulation, for samplers of inputs."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

Rows = tuple[NDArray[np.int64], NDArray[np.float64]]
"""Time steps in order, and for each the newest loss and excess."""

_NOTHING: Rows = np.zeros(0, np.int64), np.zeros((0, 2))


class SampleLosses:
    """The newest loss of each sample that a worker has trained, by simulation.

    A report has totals of all that is known of a simulation, so that it does not depend on when it is made. Losses
    stay on their device until then. Of samples that do not come again only sums are kept.

    Excess is how far a loss is above the mean of its batch, in standard deviations
    of the batch. A pair of time steps counts once, as its earlier step.
    """

    def __init__(self, saved: Mapping[str, NDArray[Any]] | None = None) -> None:
        self._new: list[tuple[torch.Tensor, NDArray[np.int64], NDArray[np.int64]]] = []
        self._known: dict[int, Rows] = {}
        self._settled: dict[int, NDArray[np.float64]] = {}
        """By simulation: number, loss and excess of samples that do not come again, summed up."""
        self._trained: dict[int, int] = {}
        self._changed: set[int] = set()
        if saved is not None:
            self._trained = dict(saved["trained"].tolist())
            self._settled = {int(number): sums for number, *sums in saved["settled"]}
            for simulation, place in _groups(saved["simulations"]):
                self._known[simulation] = saved["steps"][place], saved["values"][place]

    def add(self, losses: torch.Tensor, simulations: NDArray[np.int64], steps: NDArray[np.int64]) -> None:
        """Add the losses of a batch; those of shape (n, 2) are of pairs. NaN does not count."""
        if simulations.ndim == 2:
            simulations, steps = simulations[:, 0], steps[:, 0]
        self._new.append((losses, simulations, steps))

    def report(self) -> NDArray[np.float64]:
        """Return a row for each simulation that was trained since the last report.

        Its number, how often its samples were trained on, how many have a loss, and the sums of loss and excess.
        """
        self._absorb()
        changed, self._changed = sorted(self._changed), set()
        rows = [(self._trained[each], *self._sums(each, *self._known.get(each, _NOTHING))) for each in changed]
        return np.column_stack([changed, np.reshape(rows, (-1, 4))]).astype(np.float64)

    def _sums(self, simulation: int, steps: NDArray[np.int64], values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the sums of samples of a simulation that do not come again, with these among them."""
        sums: NDArray[np.float64] = self._settled.get(simulation, 0.0) + np.array([len(steps), *values.sum(0)])
        return sums

    def settle(self, held: NDArray[np.int64]) -> None:
        """Keep of samples only sums, but of those that may come again: simulations and steps, shape (n, 2)."""
        self._absorb()
        stay = dict(_groups(held[:, 0]))
        for simulation, (steps, values) in list(self._known.items()):
            stays = np.isin(steps, held[stay.get(simulation, []), 1])
            self._settled[simulation] = self._sums(simulation, steps[~stays], values[~stays])
            self._known[simulation] = steps[stays], values[stays]
            if not stays.any():
                del self._known[simulation]

    def _absorb(self) -> None:
        """Take new losses into account."""
        if not self._new:
            return
        losses, *numbers = zip(*self._new, strict=True)
        self._new = []
        values = torch.cat([each.double() for each in losses]).cpu().numpy()
        excess = _excess(values, np.array([len(each) for each in losses]))
        simulations, steps = map(np.concatenate, numbers)
        for simulation, place in _groups(simulations):
            self._trained[simulation] = self._trained.get(simulation, 0) + len(place)
            place = place[np.isfinite(values[place])]
            known, before = self._known.get(simulation, _NOTHING)
            all_steps = np.concatenate([steps[place][::-1], known])  # the newest of a step first
            kept, first = np.unique(all_steps, return_index=True)
            pairs = np.stack([values[place], excess[place]], 1)[::-1]
            self._known[simulation] = kept, np.concatenate([pairs, before])[first]
            self._changed.add(simulation)

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Return all that is known, as arrays."""
        self._absorb()
        numbers = np.array([*self._trained.items()], np.int64).reshape(-1, 2)
        rows = [self._known.get(number, _NOTHING) for number in self._trained]
        return {
            "trained": numbers,
            "settled": np.array([[number, *sums] for number, sums in self._settled.items()]).reshape(-1, 4),
            "simulations": np.repeat(numbers[:, 0], [len(steps) for steps, _ in rows]),
            "steps": np.concatenate([_NOTHING[0], *(steps for steps, _ in rows)]),
            "values": np.concatenate([_NOTHING[1], *(values for _, values in rows)]),
        }


def _excess(losses: NDArray[np.float64], sizes: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the excess of each loss; batches of these sizes follow one another."""
    counted, starts = np.isfinite(losses), np.cumsum(sizes) - sizes
    numbers = np.maximum(np.add.reduceat(counted, starts, dtype=np.float64), 1)
    means = np.add.reduceat(np.where(counted, losses, 0), starts) / numbers
    above = np.where(counted, losses - np.repeat(means, sizes), 0)
    spreads = np.repeat(np.sqrt(np.add.reduceat(above**2, starts) / numbers), sizes)
    excess = np.divide(above, spreads, out=np.zeros_like(losses), where=spreads > 0)
    return np.asarray(np.maximum(0.0, excess))


def _groups(simulations: NDArray[np.int64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the places of each simulation in an array, in order."""
    order = np.argsort(simulations, kind="stable")
    numbers, starts = np.unique(simulations[order], return_index=True)
    return [*zip(numbers.tolist(), np.split(order, starts)[1:], strict=True)]
