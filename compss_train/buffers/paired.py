"""The simulation-paired reservoir: each sample is a pair of time steps of one simulation."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count
from compss_train.buffers.base import UNLIMITED, Buffer
from compss_train.buffers.samples import SampleBatch, first_sample
from compss_train.buffers.storage import Slots

_EMPTY, _RESERVED = -1, -2  # in the table of slots: no sample, and a sample that is being written


class TimeStep(NamedTuple):
    """A sample of a simulation; in a batch, the first dimension of every field is the sample dimension."""

    simulation: Any
    """Number of the simulation, counted from 0."""
    step: Any
    """Number of the time step within the simulation, counted from 0."""
    data: Any
    """The sample itself: tensors or arrays, also in tuples and dicts, or any object."""


class SimPairedReservoir(Buffer):
    """Returns pairs of time steps of one simulation, the earlier one first, which stay as in a ``Reservoir``.

    Samples are ``TimeStep``. A get returns two of them, ``get_batch`` two with a first dimension of pairs.
    Simulations are used about equally often, and time differences are covered more evenly than by uniform pairs. A
    put into a full reservoir evicts a sample that was got before, of the simulation that was used most, and waits
    while there is none. A sample that is the last of its simulation when reception is over has no partner and is
    not returned; ``len`` is then the number of such samples.

    Parameters
    ----------
    capacity, threshold, seed, pin_memory:
        As in ``Buffer``, in samples.
    sweep_size:
        Number of simulations.
    nb_time_steps:
        Number of time steps of each simulation, at least 2.
    comm_size:
        Number of buffers that share the simulations, each receiving its part of them (default 1).

    Raises ``ValueError`` if a simulation or time step is out of range or held already, and ``BufferFullError``
    instead of waiting forever if the reservoir is full and no two samples are of one simulation.
    """

    _repeats = True

    def __init__(
        self,
        capacity: int,
        threshold: int,
        sweep_size: int,
        nb_time_steps: int,
        comm_size: int = 1,
        *,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        super().__init__(capacity, threshold=threshold, seed=seed, pin_memory=pin_memory)
        if capacity < 2:
            raise ValueError(f"capacity={capacity}: a pair needs a capacity of at least 2")
        self.sweep_size = check_count("sweep_size", sweep_size)
        self.nb_time_steps = check_count("nb_time_steps", nb_time_steps, least=2)
        expected = -(-sweep_size // check_count("comm_size", comm_size))
        self._samples = Trajectories(min(expected, capacity), nb_time_steps, self._random)
        self._keys = np.zeros((capacity, 2), np.int64)  # simulation and step by slot
        self._pending: dict[int, tuple[int, int]] = {}  # the same of slots that are being written

    # Putting

    def _incoming(self, samples: Any, *, single: bool) -> SampleBatch:
        if single or not isinstance(samples, list):
            simulations, steps, data = self._check_time_step(samples)
            if single:
                simulations, steps = [simulations], [steps]
        else:
            parts = [self._check_time_step(sample) for sample in samples]
            simulations, steps, data = ([part[field] for part in parts] for field in range(3))
        incoming = super()._incoming(data, single=single)
        number = len(incoming)
        columns = ("simulation", simulations, self.sweep_size), ("step", steps, self.nb_time_steps)
        incoming.keys = np.stack([_column(name, values, number, stop) for name, values, stop in columns], axis=1)
        if len(np.unique(incoming.keys, axis=0)) < number:
            raise ValueError("the samples contain a time step of a simulation twice")
        return incoming

    def _check_time_step(self, sample: Any) -> TimeStep:
        if not isinstance(sample, TimeStep):
            raise TypeError(
                f"a SimPairedReservoir holds TimeStep(simulation, step, data), not {type(sample).__name__}"
            )
        return sample

    def _room(self) -> int:
        return self._store.num_free + self._samples.evictable()

    def _deadlock_reason(self) -> str | None:
        if self._room() or self._in_flight or self._samples.has_pair():
            return None
        return (
            f"all {self.capacity} samples held are of different simulations, so that no pair can be formed; use a "
            "capacity above the number of simulations that run at the same time"
        )

    def _check(self, incoming: SampleBatch, start: int) -> None:
        super()._check(incoming, start)
        self._samples.check_free(incoming.keys[start:].tolist())

    def _reserve(self, incoming: SampleBatch, start: int, number: int) -> Slots:
        keys = incoming.keys[start : start + number].tolist()
        self._samples.reserve(keys)
        while self._store.num_free < number:
            self._evict(np.array([self._samples.evict()], np.intp))
        slots = self._store.allocate(number)
        self._pending |= zip(slots.tolist(), keys, strict=True)
        return slots

    def _add(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._keys[slot] = simulation, step = self._pending.pop(slot)
            self._samples.add(simulation, step, slot)

    def _abandon(self, slots: Slots) -> None:
        for slot in slots.tolist():
            self._samples.cancel(*self._pending.pop(slot))
        super()._abandon(slots)

    # Getting

    def _held_slots(self) -> Slots:
        return self._samples.slots(self._samples.held_positions())

    def _count(self) -> int:
        return self._samples.held

    def _count_unseen(self) -> int:
        return self._samples.unseen

    def _available(self) -> int:
        return UNLIMITED if self._allows_gets() and self._samples.has_pair() else 0

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        pairs: list[NDArray[np.intp]] = []
        removed: list[int] = []
        while len(pairs) < size and self._samples.has_pair():
            row, first, second = self._samples.choose_pair()
            pairs.append(self._samples.slots(np.array([[row, first], [row, second]])))
            if self._all_received():
                removed.append(self._samples.remove(row, first))
                if self._samples.held_in(row) != 2:  # else a third step would be left without a partner
                    removed.append(self._samples.remove(row, second))
        return np.array(pairs, np.intp), np.array(removed, np.intp)

    def _read(self, slots: Slots, single: bool) -> tuple[TimeStep, ...]:
        pairs = self._time_steps(slots[:, 0].copy()), self._time_steps(slots[:, 1].copy())
        if not single:
            return pairs
        return tuple(TimeStep(int(each.simulation), int(each.step), each.data) for each in first_sample(pairs))

    def _time_steps(self, slots: Slots) -> TimeStep:
        keys = self._keys[slots]
        return TimeStep(keys[:, 0].copy(), keys[:, 1].copy(), self._store.read(slots))

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "nb_time_steps": self.nb_time_steps}

    # Statistics and checkpoints

    def simulation_uses(self) -> dict[int, int]:
        """Return the number of pairs drawn from each simulation seen so far."""
        with self._lock:
            return self._samples.uses

    def time_differences(self) -> NDArray[np.int64]:
        """Return a histogram: at index d, the number of drawn pairs that were ``d`` time steps apart."""
        with self._lock:
            return self._samples.differences.copy()

    def _extra_state(self) -> dict[str, Any]:
        return {"trajectories": self._samples.state_dict(), "keys": self._keys[self._held_slots()].tolist()}

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        self._samples.load_state_dict(state["trajectories"], slots)
        self._keys[slots] = np.array(state["keys"], np.int64).reshape(-1, 2)


def _column(name: str, values: Any, number: int, stop: int) -> NDArray[np.int64]:
    column = np.asarray(values)
    if column.shape != (number,) or (number and not np.issubdtype(column.dtype, np.integer)):
        raise ValueError(f"{name}: give an integer for each of the {number} samples, not {values!r}")
    if ((column < 0) | (column >= stop)).any():
        raise ValueError(f"{name}={values!r}: give integers from 0 to {stop - 1}")
    return column.astype(np.int64)


class Trajectories:
    """The time steps held: a table of slots with a row for each simulation and a column for each step.

    Pairs are chosen as in Melissa: less frequently used simulations and time differences are more likely.
    The table starts with ``rows`` rows and grows if needed. The row of a simulation without samples is reused.
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
        """Number of held samples that have not been in a pair yet."""
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
