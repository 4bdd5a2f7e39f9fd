"""Usage: how often each sample was got."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train.buffers.slots import Slots


class Usage:
    """Counts by slot for the samples held, and one histogram for all that have left."""

    def __init__(self, capacity: int) -> None:
        self._times = np.zeros(capacity, np.int64)
        self._gone = np.zeros(1, np.int64)
        self.samples_put = 0
        self.samples_got = 0

    def got(self, slots: Slots) -> None:
        """Count a get for each of these slots, which may be named more than once."""
        np.add.at(self._times, slots, 1)
        self.samples_got += slots.size

    def leave(self, slots: Slots) -> None:
        """Move what was counted for these slots to the histogram."""
        self._gone = _sum(self._gone, self._times[slots])
        self._times[slots] = 0

    def times_got(self, slots: Slots) -> NDArray[np.int64]:
        """Return the counts of these slots."""
        return self._times[slots]

    def histogram(self, held: Slots) -> NDArray[np.int64]:
        """Return how many samples, held or gone, were got 0, 1, 2, ... times."""
        return _sum(self._gone, self._times[held])

    def state_dict(self) -> dict[str, Any]:
        """Return the counts apart from those of the samples held."""
        return {"gone": self._gone.tolist(), "put": self.samples_put, "got": self.samples_got}

    def load_state_dict(self, state: dict[str, Any], slots: Slots, times: list[int]) -> None:
        """Take over such counts, and those of the slots that are held now."""
        self._times[:] = 0
        self._times[slots] = times
        self._gone = np.array(state["gone"], np.int64)
        self.samples_put, self.samples_got = state["put"], state["got"]


def _sum(histogram: NDArray[np.int64], times: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the histogram with these counts added to it."""
    added = np.bincount(times, minlength=len(histogram))
    added[: len(histogram)] += histogram
    return added
