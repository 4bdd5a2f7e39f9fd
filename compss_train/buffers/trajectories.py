"""Trajectories: the time steps of simulations that a paired buffer holds, and the choice of pairs among them.

The method is that of Melissa's simulation-paired reservoir: simulations and time differences that were used less
often are more likely.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

_EMPTY, _RESERVED = -1, -2  # in the table of slots: no sample, and a sample that is being written


class Trajectories:
    """A table of slots with a row for each simulation that has samples, and a column for each time step.

    The table starts with ``rows`` rows and grows when it needs more. The row of a simulation without samples is
    reused.
    """

    def __init__(self, rows: int, num_steps: int, random: np.random.Generator) -> None:
        self._random = random
        self._slots = np.full((rows, num_steps), _EMPTY, np.intp)
        self._seen = np.zeros((rows, num_steps), bool)
        self._held, self._unseen, self._arrived, self._uses = (np.zeros(rows, np.int64) for _ in range(4))
        self._rows: dict[int, int] = {}
        self._free_rows = list(range(rows))[::-1]
        self._without_row: dict[int, tuple[int, int]] = {}  # arrived and uses of simulations without a row
        self.differences = np.zeros(num_steps, np.int64)
        """Number of pairs drawn with each time difference."""

    def _grow(self) -> None:
        rows = len(self._slots)
        self._slots = np.pad(self._slots, ((0, rows), (0, 0)), constant_values=_EMPTY)
        self._seen = np.pad(self._seen, ((0, rows), (0, 0)))
        self._held, self._unseen, self._arrived, self._uses = (
            np.pad(counts, (0, rows)) for counts in (self._held, self._unseen, self._arrived, self._uses)
        )
        self._free_rows = list(range(rows, 2 * rows))[::-1]

    def _release_row(self, row: int) -> None:
        """Free the row of a simulation without samples that are held or being written."""
        if not self._held[row] and (self._slots[row] == _EMPTY).all():
            simulation = next(number for number, own in self._rows.items() if own == row)
            del self._rows[simulation]
            self._without_row[simulation] = int(self._arrived[row]), int(self._uses[row])
            self._uses[row] = 0
            self._free_rows.append(row)

    # Samples

    @property
    def uses(self) -> dict[int, int]:
        """Number of pairs drawn from each simulation."""
        with_row = {simulation: int(self._uses[row]) for simulation, row in self._rows.items()}
        return with_row | {simulation: uses for simulation, (_, uses) in self._without_row.items()}

    @property
    def held(self) -> int:
        """Number of samples held."""
        return int(self._held.sum())

    @property
    def unseen(self) -> int:
        """Number of held samples that were in no pair yet."""
        return int(self._unseen.sum())

    def has_pair(self) -> bool:
        """Return whether two time steps of some simulation are held."""
        return bool((self._held > 1).any())

    def held_in(self, row: int) -> int:
        """Return the number of held time steps of the simulation in this row."""
        return int(self._held[row])

    def held_positions(self) -> NDArray[np.intp]:
        """Return the (row, step) of every held sample, ordered by row and then by step."""
        return np.argwhere(self._slots >= 0)

    def slots(self, positions: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the slots at (row, step) positions of shape (..., 2)."""
        return self._slots[positions[..., 0], positions[..., 1]]

    def check_free(self, keys: Sequence[tuple[int, int]]) -> None:
        """Raise ``ValueError`` if a sample of one of these (simulation, step) is held or being written."""
        for simulation, step in keys:
            if simulation in self._rows and self._slots[self._rows[simulation], step] != _EMPTY:
                raise ValueError(f"time step {step} of simulation {simulation} is held already")

    def reserve(self, keys: Sequence[tuple[int, int]]) -> None:
        """Reserve places for samples of these (simulation, step) that are being written."""
        for simulation, step in keys:
            if simulation not in self._rows:
                if not self._free_rows:
                    self._grow()
                row = self._rows[simulation] = self._free_rows.pop()
                self._arrived[row], self._uses[row] = self._without_row.pop(simulation, (0, 0))
            self._slots[self._rows[simulation], step] = _RESERVED

    def cancel(self, simulation: int, step: int) -> None:
        """Cancel the reservation of a place."""
        row = self._rows[simulation]
        self._slots[row, step] = _EMPTY
        self._release_row(row)

    def add(self, simulation: int, step: int, slot: int) -> None:
        """Add an unseen sample at a reserved place."""
        row = self._rows[simulation]
        self._slots[row, step] = slot
        self._held[row] += 1
        self._unseen[row] += 1
        self._arrived[row] += 1

    def remove(self, row: int, step: int) -> int:
        """Remove the sample at a position; return its slot."""
        slot = int(self._slots[row, step])
        self._unseen[row] -= not self._seen[row, step]
        self._slots[row, step], self._seen[row, step] = _EMPTY, False
        self._held[row] -= 1
        self._release_row(row)
        return slot

    # Drawing pairs

    def choose_pair(self) -> tuple[int, int, int]:
        """Return a row and two of its held steps, the earlier first, and count their use.

        The row is drawn with probabilities proportional to 1 / (1 + uses). The time differences between its held
        steps are ranked by how often each was drawn before, the smaller first among equals. The n-th is chosen with
        probability 1/2 ** n, and then one of its pairs uniformly.
        """
        rows = np.flatnonzero(self._held > 1)
        weights = 1.0 / (1 + self._uses[rows])
        row = int(self._random.choice(rows, p=weights / weights.sum()))
        held = self._slots[row] >= 0
        difference = self._choose_difference(held)
        first = int(self._random.choice(np.flatnonzero(held[:-difference] & held[difference:])))
        self._uses[row] += 1
        self.differences[difference] += 1
        self._mark_seen(row, first)
        self._mark_seen(row, first + difference)
        return row, first, first + difference

    def _choose_difference(self, held: NDArray[np.bool_]) -> int:
        rank, chosen = self._random.geometric(0.5), 0
        for difference in (np.argsort(self.differences[1:], kind="stable") + 1).tolist():
            if (held[:-difference] & held[difference:]).any():
                chosen, rank = difference, rank - 1
                if rank == 0:
                    break
        return chosen

    def _mark_seen(self, row: int, step: int) -> None:
        self._unseen[row] -= not self._seen[row, step]
        self._seen[row, step] = True

    # Eviction

    def evictable(self) -> int:
        """Return the number of samples that can be evicted now."""
        return int(self._evictable_by_row().sum())

    def _evictable_by_row(self) -> NDArray[np.int64]:
        """Return how many samples of each simulation can be evicted: the seen ones, except one that must stay.

        One seen sample stays as the partner of the only unseen one, or of samples that have not arrived yet. If no
        simulation has two samples, those that wait for partners can be evicted too: no get could make room then.
        """
        seen = self._held - self._unseen
        is_partner = (self._unseen == 1) | ((self._unseen == 0) & (self._arrived < self._slots.shape[1]))
        evictable: NDArray[np.int64] = np.maximum(0, seen - is_partner)
        return evictable if evictable.any() or self.has_pair() else seen

    def evict(self) -> int:
        """Remove a random seen sample of the most used simulation; return its slot."""
        rows = np.flatnonzero(self._evictable_by_row())
        row = int(rows[np.argmax(self._uses[rows])])
        seen = np.flatnonzero((self._slots[row] >= 0) & self._seen[row])
        return self.remove(row, int(self._random.choice(seen)))

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the slots."""
        positions = self.held_positions()
        return {
            "places": positions.tolist(),
            "seen": self._seen[tuple(positions.T)].tolist(),
            "rows": list(self._rows.items()),
            "free_rows": list(self._free_rows),
            "past": [(simulation, *counts) for simulation, counts in self._without_row.items()],
            "uses": self._uses.tolist(),
            "arrived": self._arrived.tolist(),
            "differences": self.differences.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any], slots: NDArray[np.intp]) -> None:
        """Restore ``state_dict`` with these slots, in the order of ``held_positions``."""
        rows, steps = len(state["uses"]), len(self.differences)
        self._rows, self._free_rows = dict(state["rows"]), list(state["free_rows"])
        self._without_row = {simulation: (arrived, uses) for simulation, arrived, uses in state["past"]}
        self._uses = np.array(state["uses"], np.int64)
        self.differences = np.array(state["differences"], np.int64)
        self._slots, self._seen = np.full((rows, steps), _EMPTY, np.intp), np.zeros((rows, steps), bool)
        self._arrived, self._held, self._unseen = (np.zeros(rows, np.int64) for _ in range(3))
        simulations = {row: simulation for simulation, row in self._rows.items()}
        for (row, step), slot, seen in zip(state["places"], slots.tolist(), state["seen"], strict=True):
            self.add(simulations[row], step, slot)
            if seen:
                self._mark_seen(row, step)
        self._arrived = np.array(state["arrived"], np.int64)
