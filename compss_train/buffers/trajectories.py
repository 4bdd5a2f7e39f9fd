"""``Trajectories``: the time steps of simulations that are held, and random pairs of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.buffers.storage import Slots

_EMPTY = -1
"""No sample, in place of a slot."""


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
        self._slots: dict[int, Slots] = {}
        """The slots by time step, of each simulation with samples that are held."""
        self.keys = np.zeros((capacity, 2), np.int64)
        """Simulation and time step of the sample in each slot."""
        self._seen = np.zeros(capacity, np.bool_)
        """Whether the sample in each slot has been in a pair."""
        self.held = np.zeros(num_simulations, np.int64)
        """Number of samples held of each simulation."""
        self.unseen = np.zeros(num_simulations, np.int64)
        """Number of those that were in no pair yet."""
        self._arrived = np.zeros(num_simulations, np.int64)
        """Number of samples put of each simulation."""
        self._uses = np.zeros(num_simulations, np.int64)
        """Number of pairs drawn of each simulation."""
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
        self.keys[slot] = (simulation, step)
        self._seen[slot] = False
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
        """Return a simulation and the slots of a pair of its time steps, and count their use.

        The slot of the earlier step is first. Simulations are drawn with probabilities proportional
        to 1 / (1 + uses). The time differences between the steps held of the one drawn are ranked
        by how often each was drawn before, the smaller first among equals. The n-th is chosen with
        probability 1/2 ** n, and then one of its pairs uniformly.
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
                rank -= 1
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
        """Return how many samples of each simulation can be evicted: seen ones, except one.

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
        most_used = int(simulations[np.argmax(self._uses[simulations])])
        slots = self._slots[most_used]
        held = slots[slots >= 0]
        slot = int(self._random.choice(held[self._seen[held]]))
        self.remove(slot)
        return slot

    # Checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Return everything but the slots."""
        held = self.held_slots()
        begun = np.flatnonzero(self._arrived)
        by_simulation = np.stack([begun, self._arrived[begun], self._uses[begun]])
        return {
            "keys": self.keys[held].tolist(),
            "seen": self._seen[held].tolist(),
            "simulations": by_simulation.tolist(),
            "differences": self.differences.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any], slots: Slots) -> None:
        """Restore ``state_dict`` in an empty table, with slots in the order of ``held_slots``."""
        samples = zip(state["keys"], slots.tolist(), state["seen"], strict=True)
        for (simulation, step), slot, seen in samples:
            self.add(simulation, step, slot)
            self._seen[slot] = seen
            self.unseen[simulation] -= seen
        simulations, arrived, uses = state["simulations"]
        self._arrived[simulations] = arrived
        self._uses[simulations] = uses
        self.differences = np.array(state["differences"], np.int64)
