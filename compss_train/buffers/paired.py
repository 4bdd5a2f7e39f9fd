"""The simulation-paired reservoir: each sample is a pair of time steps of one simulation."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count
from compss_train.buffers.base import UNLIMITED, Buffer
from compss_train.buffers.samples import SampleBatch, Slots

_EMPTY = -1
"""No sample, in place of a slot."""


class TimeStep(NamedTuple):
    """A sample of a simulation; in a batch, the first dimension of every field is the sample
    dimension.
    """

    simulation: Any
    """Number of the simulation, counted from 0."""
    step: Any
    """Number of the time step within the simulation, counted from 0."""
    data: Any
    """The sample itself: tensors or arrays, also in tuples and dicts, or any object."""


class SimPairedReservoir(Buffer):
    """Returns pairs of time steps of one simulation, the earlier one first, which stay as in a
    ``Reservoir``.

    Samples are ``TimeStep``. A get returns two of them, ``get_batch`` two with a first dimension of
    pairs. Simulations are used about equally often, and time differences are covered more evenly
    than by uniform pairs. A put into a full reservoir evicts a sample that was returned before, of
    the simulation used most, and waits while there is none. If only one sample of a simulation is
    left when reception is over, it has no partner and is not returned; ``len`` then counts such
    samples.

    Parameters
    ----------
    capacity, threshold, seed, pin_memory:
        As in ``Buffer``, in samples.
    sweep_size:
        Number of simulations.
    nb_time_steps:
        Number of time steps of each simulation, at least 2.
    max_repeats:
        Until reception is over, and unless the reservoir is full of samples that must stay, gets
        wait rather than return more than that many times as many samples as were put; a pair counts
        as two. ``None`` for no limit.

    Raises ``ValueError`` if a simulation or time step is out of range or held already, and
    ``BufferFullError`` instead of waiting forever if the reservoir is full and holds no two samples
    of the same simulation.
    """

    _repeats = True

    def __init__(
        self,
        capacity: int,
        threshold: int,
        sweep_size: int,
        nb_time_steps: int,
        *,
        max_repeats: int | None = None,
        seed: int | None = None,
        pin_memory: bool = False,
    ) -> None:
        check_count("capacity", capacity, least=2)
        super().__init__(capacity, threshold=threshold, seed=seed, pin_memory=pin_memory)
        self.sweep_size = check_count("sweep_size", sweep_size)
        self.nb_time_steps = check_count("nb_time_steps", nb_time_steps, least=2)
        self.max_repeats = None if max_repeats is None else check_count("max_repeats", max_repeats)
        self._samples = Trajectories(capacity, sweep_size, nb_time_steps, self._random)

    # Putting

    def _incoming(self, samples: Any, *, single: bool) -> SampleBatch:
        if single or not isinstance(samples, list):
            simulations, steps, data = self._check_time_step(samples)
            if single:
                simulations = [simulations]
                steps = [steps]
        else:
            parts = [self._check_time_step(sample) for sample in samples]
            simulations, steps, data = ([part[field] for part in parts] for field in range(3))
        incoming = super()._incoming(data, single=single)
        number = len(incoming)
        columns = ("simulation", simulations, "sweep_size"), ("step", steps, "nb_time_steps")
        keys = [
            _column(name, values, number, limit, getattr(self, limit))
            for name, values, limit in columns
        ]
        incoming.keys = np.stack(keys, axis=1)
        if len(np.unique(incoming.keys, axis=0)) < number:
            raise ValueError("the samples contain a time step of a simulation twice")
        return incoming

    def _check_time_step(self, sample: Any) -> TimeStep:
        if not isinstance(sample, TimeStep):
            raise TypeError(
                "a SimPairedReservoir holds TimeStep(simulation, step, data), not "
                f"{type(sample).__name__}"
            )
        return sample

    def _room(self) -> int:
        return self._store.num_free + int(self._samples.evictable().sum())

    def _deadlock_reason(self) -> str | None:
        if self._room() or self._samples.has_pair():
            return None
        return (
            f"all {self.capacity} samples held are of different simulations, so no pair can be "
            "formed; use a capacity above the number of simulations that run at the same time"
        )

    def _check(self, incoming: SampleBatch, start: int) -> None:
        super()._check(incoming, start)
        for simulation, step in incoming.keys[start:].tolist():
            if self._samples.has(simulation, step):
                raise ValueError(f"time step {step} of simulation {simulation} is held already")

    def _evict(self, number: int) -> None:
        while self._store.num_free < number:
            self._store.remove(np.array([self._samples.evict()], np.intp))

    def _add(self, slots: Slots, incoming: SampleBatch, start: int) -> None:
        for slot, (simulation, step) in zip(
            slots.tolist(), incoming.keys[start:].tolist(), strict=False
        ):
            self._samples.add(simulation, step, slot)

    # Getting

    def _held_slots(self) -> Slots:
        return self._samples.held_slots()

    def _count(self) -> int:
        return int(self._samples.held.sum())

    def _count_unseen(self) -> int:
        return int(self._samples.unseen.sum())

    def _available(self) -> int:
        if not self._allows_gets() or not self._samples.has_pair():
            return 0
        return UNLIMITED if self.reception_over else self._repeatable(2)

    def _draw(self, size: int) -> tuple[Slots, Slots]:
        pairs: list[Slots] = []
        removed: list[int] = []
        while len(pairs) < size and self._samples.has_pair():
            simulation, pair = self._samples.choose_pair()
            pairs.append(pair)
            if self.reception_over:
                # Of three time steps one stays as the partner of the third.
                gone = pair[:1] if self._samples.held[simulation] == 3 else pair
                for slot in gone.tolist():
                    self._samples.remove(slot)
                    removed.append(slot)
        return np.array(pairs, np.intp), np.array(removed, np.intp)

    def _read(self, slots: Slots, single: bool) -> tuple[TimeStep, ...]:
        steps = []
        for own in slots.T.copy():
            simulations, numbers = self._samples.keys[own].T.copy()
            step = TimeStep(simulations, numbers, self._store.read(own, single))
            steps.append(
                TimeStep(int(simulations[0]), int(numbers[0]), step.data) if single else step
            )
        return tuple(steps)

    def keys(self, name: str = "") -> NDArray[np.int64]:
        """Return simulation and step of each sample held, shape (n, 2)."""
        with self._lock:
            return self._samples.keys[self._held_slots()]

    def _identity(self) -> dict[str, Any]:
        return {
            **super()._identity(),
            "sweep_size": self.sweep_size,
            "nb_time_steps": self.nb_time_steps,
        }

    def _extra_state(self) -> dict[str, Any]:
        return self._samples.state_dict()

    def _restore(self, slots: Slots, state: dict[str, Any]) -> None:
        self._samples = Trajectories(
            self.capacity, self.sweep_size, self.nb_time_steps, self._random
        )
        self._samples.load_state_dict(state, slots)


def _column(name: str, values: Any, number: int, limit: str, stop: int) -> NDArray[np.int64]:
    column = np.asarray(values)
    if column.shape != (number,) or (number and not np.issubdtype(column.dtype, np.integer)):
        raise ValueError(
            f"{name}: give an integer for each of the {number} samples, not {values!r}"
        )
    if ((column < 0) | (column >= stop)).any():
        raise ValueError(
            f"{name}={values!r}: give integers from 0 to {stop - 1}, or {limit}= above {stop}"
        )
    return column.astype(np.int64)


class Trajectories:
    """The time steps held: the slots of each simulation by time step.

    Pairs are chosen as in Melissa: less frequently used simulations and time differences are more
    likely.
    """

    def __init__(
        self, capacity: int, num_simulations: int, num_steps: int, random: np.random.Generator
    ) -> None:
        self._num_steps = num_steps
        self._random = random
        self._slots: dict[int, Slots] = {}  # of the simulations with samples that are held
        self.keys = np.zeros((capacity, 2), np.int64)
        """Simulation and time step of the sample in each slot."""
        # Whether the sample in each slot has been in a pair.
        self._seen = np.zeros(capacity, np.bool_)
        self.held, self.unseen, self._arrived, self._uses = (
            np.zeros(num_simulations, np.int64) for _ in range(4)
        )
        """By simulation: samples held, those of them that were in no pair yet, samples put, and
        pairs drawn.
        """
        self.differences = np.zeros(num_steps, np.int64)
        """Number of pairs drawn with each time difference."""

    def has_pair(self) -> bool:
        """Return whether two time steps of some simulation are held."""
        return bool((self.held > 1).any())

    def has(self, simulation: int, step: int) -> bool:
        """Return whether a time step is held."""
        return simulation in self._slots and bool(self._slots[simulation][step] != _EMPTY)

    def held_slots(self) -> Slots:
        """Return the slots of all samples held, ordered by simulation and then by time step."""
        slots = np.concatenate(
            [np.empty(0, np.intp), *(self._slots[number] for number in sorted(self._slots))]
        )
        return slots[slots >= 0]

    def add(self, simulation: int, step: int, slot: int) -> None:
        """Add an unseen sample."""
        if simulation not in self._slots:
            self._slots[simulation] = np.full(self._num_steps, _EMPTY, np.intp)
        self._slots[simulation][step] = slot
        self.keys[slot], self._seen[slot] = (simulation, step), False
        for counts in (self.held, self.unseen, self._arrived):
            counts[simulation] += 1

    def remove(self, slot: int) -> None:
        """Remove the sample in a slot."""
        simulation, step = self.keys[slot].tolist()
        self._slots[simulation][step] = _EMPTY
        self.held[simulation] -= 1
        if not self.held[simulation]:
            del self._slots[simulation]
        self.unseen[simulation] -= not self._seen[slot]

    # Drawing pairs

    def choose_pair(self) -> tuple[int, Slots]:
        """Return a simulation and the slots of two of its time steps, the earlier first, and count
        their use.

        Simulations are drawn with probabilities proportional to 1 / (1 + uses). The time
        differences between the steps held of the one drawn are ranked by how often each was drawn
        before, the smaller first among equals. The n-th is chosen with probability 1/2 ** n, and
        then one of its pairs uniformly.
        """
        simulations = np.flatnonzero(self.held > 1)
        weights = 1.0 / (1 + self._uses[simulations])
        simulation = int(self._random.choice(simulations, p=weights / weights.sum()))
        slots = self._slots[simulation]
        held = slots >= 0
        rank = self._random.geometric(0.5)
        chosen = 0
        for difference in (np.argsort(self.differences[1:], kind="stable") + 1).tolist():
            if (held[:-difference] & held[difference:]).any():
                chosen = difference
                rank = rank - 1
                if rank == 0:
                    break
        first = int(self._random.choice(np.flatnonzero(held[:-chosen] & held[chosen:])))
        pair = slots[[first, first + chosen]]
        self._uses[simulation] += 1
        self.differences[chosen] += 1
        self.unseen[simulation] -= np.count_nonzero(~self._seen[pair])
        self._seen[pair] = True
        return simulation, pair

    # Eviction

    def evictable(self) -> NDArray[np.int64]:
        """Return how many samples of each simulation can be evicted: the seen ones, except one that
        must stay.

        One seen sample stays as the partner of the only unseen one, or of samples that have not
        arrived yet. If no simulation has two samples, those that wait for partners can be evicted
        too: no get could make room then.
        """
        seen = self.held - self.unseen
        is_partner = (self.unseen == 1) | ((self.unseen == 0) & (self._arrived < self._num_steps))
        evictable: NDArray[np.int64] = np.maximum(0, seen - is_partner)
        return evictable if evictable.any() or self.has_pair() else seen

    def evict(self) -> int:
        """Remove a random seen sample of the most used simulation; return its slot."""
        simulations = np.flatnonzero(self.evictable())
        slots = self._slots[int(simulations[np.argmax(self._uses[simulations])])]
        held = slots[slots >= 0]
        slot = int(self._random.choice(held[self._seen[held]]))
        self.remove(slot)
        return slot

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the slots."""
        held = self.held_slots()
        seen_so_far = np.flatnonzero(self._arrived)
        return {
            "keys": self.keys[held].tolist(),
            "seen": self._seen[held].tolist(),
            "simulations": np.stack(
                [seen_so_far, self._arrived[seen_so_far], self._uses[seen_so_far]]
            ).tolist(),
            "differences": self.differences.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any], slots: Slots) -> None:
        """Restore ``state_dict`` in an empty table, with these slots in the order of
        ``held_slots``.
        """
        for (simulation, step), slot, seen in zip(
            state["keys"], slots.tolist(), state["seen"], strict=True
        ):
            self.add(simulation, step, slot)
            self._seen[slot] = seen
            self.unseen[simulation] -= seen
        simulations, arrived, uses = state["simulations"]
        self._arrived[simulations], self._uses[simulations] = arrived, uses
        self.differences = np.array(state["differences"], np.int64)
