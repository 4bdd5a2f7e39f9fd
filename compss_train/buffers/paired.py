"""The simulation-paired reservoir: each sample is a pair of time steps of one simulation."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count
from compss_train.buffers.base import UNLIMITED, Buffer
from compss_train.buffers.samples import SampleBatch
from compss_train.buffers.storage import Slots
from compss_train.buffers.trajectories import Trajectories


class TimeStep(NamedTuple):
    """A sample of a simulation; in a batch every field has a first dimension of samples."""

    simulation: Any
    """Number of the simulation, counted from 0."""
    step: Any
    """Number of the time step within the simulation, counted from 0."""
    data: Any
    """The sample itself: tensors or arrays, also in tuples and dicts, or any object."""


class SimPairedReservoir(Buffer):
    """Returns pairs of time steps of one simulation, the earlier one first.

    Samples are ``TimeStep``. A get returns two of them, ``get_batch`` two with a first dimension of
    pairs; they stay, as in a ``Reservoir``. Simulations are used about equally often, and time
    differences are covered more evenly than by uniform pairs. A put into a full reservoir evicts a
    sample that was returned before, of the simulation used most, and waits while there is none. If
    only one sample of a simulation is left when reception is over, it has no partner and is not
    returned; ``len`` then counts such samples.

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
        if isinstance(samples, list) and not single:
            time_steps = [self._checked(sample) for sample in samples]
            simulations: Any = [time_step.simulation for time_step in time_steps]
            steps: Any = [time_step.step for time_step in time_steps]
            data: Any = [time_step.data for time_step in time_steps]
        else:
            simulations, steps, data = self._checked(samples)
            if single:
                simulations = [simulations]
                steps = [steps]
        incoming = super()._incoming(data, single=single)
        number = len(incoming)
        keys = (
            _checked_numbers(
                "simulation", simulations, number, option="sweep_size", stop=self.sweep_size
            ),
            _checked_numbers(
                "step", steps, number, option="nb_time_steps", stop=self.nb_time_steps
            ),
        )
        incoming.keys = np.stack(keys, axis=1)
        if len(np.unique(incoming.keys, axis=0)) < number:
            raise ValueError("the samples contain a time step of a simulation twice")
        return incoming

    def _checked(self, sample: Any) -> TimeStep:
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
        keys = incoming.keys[start:].tolist()
        for slot, (simulation, step) in zip(slots.tolist(), keys, strict=False):
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
                leaving = pair[:1] if self._samples.held[simulation] == 3 else pair
                for slot in leaving.tolist():
                    self._samples.remove(slot)
                    removed.append(slot)
        return np.array(pairs, np.intp), np.array(removed, np.intp)

    def _read(self, slots: Slots) -> tuple[TimeStep, ...]:
        """Return the earlier and the later time steps of pairs of slots, shape (n, 2)."""
        batches = []
        for column in slots.T.copy():
            simulations, steps = self._samples.keys[column].T.copy()
            batches.append(TimeStep(simulations, steps, self._store.read(column)))
        return tuple(batches)

    def _read_one(self, slots: Slots) -> tuple[TimeStep, ...]:
        """Return the time steps of a pair of slots, shape (1, 2)."""
        time_steps = []
        for slot in slots[0].tolist():
            simulation, step = self._samples.keys[slot].tolist()
            time_steps.append(TimeStep(simulation, step, self._store.read_one(slot)))
        return tuple(time_steps)

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


def _checked_numbers(
    name: str, values: Any, number: int, *, option: str, stop: int
) -> NDArray[np.int64]:
    """Return the simulations or steps of ``number`` samples, integers below ``stop``.

    Raises ``ValueError`` for other values.
    """
    column = np.asarray(values)
    if column.shape != (number,) or (number and not np.issubdtype(column.dtype, np.integer)):
        raise ValueError(
            f"{name}: give an integer for each of the {number} samples, not {values!r}"
        )
    if ((column < 0) | (column >= stop)).any():
        raise ValueError(
            f"{name}={values!r}: give integers from 0 to {stop - 1}, or {option}= above {stop}"
        )
    return column.astype(np.int64)
