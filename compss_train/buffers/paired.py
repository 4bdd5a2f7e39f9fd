"""The simulation-paired reservoir: each sample is a pair of time steps of one simulation."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count
from compss_train.buffers.base import UNLIMITED, Buffer
from compss_train.buffers.samples import SampleBatch, first_sample
from compss_train.buffers.storage import Slots
from compss_train.buffers.trajectories import Trajectories


class TimeStep(NamedTuple):
    """A sample of a simulation; in a batch, the first dimension of every field is that of the samples."""

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
        As for every buffer, in samples.
    sweep_size:
        Number of simulations.
    nb_time_steps:
        Number of time steps of each simulation, at least 2.
    comm_size:
        Number of buffers that share the simulations, each of which expects its part of them (default 1).

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
