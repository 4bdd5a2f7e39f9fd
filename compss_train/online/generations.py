"""Samplers that draw in generations: some inputs are bred by what was learned, others uniform."""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count, check_probability
from compss_train.online.input_samplers import Bounds, BoxSampler
from compss_train.online.simulation_table import SimulationTable


class GenerationSampler(BoxSampler):
    """A sampler whose inputs are bred with a probability R, and uniform otherwise.

    At the end of each ``period`` of inputs a generation begins, for which ``renew`` learns from the
    table. R rises from ``start`` to ``end`` over ``breakpoint`` generations. The inputs before the
    first generation are uniform.
    """

    def __init__(
        self,
        bounds: Bounds,
        number: int,
        *,
        period: int,
        start: float,
        end: float,
        breakpoint: int,
        seed: int,
    ) -> None:
        super().__init__(bounds, number, seed)
        self._period = check_count("period", period)
        self._start = check_probability("start", start)
        self._end = check_probability("end", end)
        self._breakpoint = check_count("breakpoint", breakpoint)

    def choose(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return a bred or a uniform input."""
        generation, place = divmod(self.drawn, self._period)
        if generation and not place:
            self.renew(table)
        share = min(generation - 1, self._breakpoint) / self._breakpoint
        ratio = self._start + (self._end - self._start) * share
        if not self.can_breed() or self.random.uniform() >= ratio:
            self.origin = "uniform"
            return self.random.uniform(size=self.parameters)
        self.origin = "bred"
        return self.breed()

    @abstractmethod
    def renew(self, table: SimulationTable) -> None:
        """Begin a generation: learn from the simulations so far."""

    @abstractmethod
    def can_breed(self) -> bool:
        """Return whether this generation knows enough to breed inputs."""

    @abstractmethod
    def breed(self) -> NDArray[np.float64]:
        """Return a bred input, in coordinates from 0 to 1."""

    def state_dict(self) -> dict[str, Any]:
        """Return what decides the next inputs."""
        return {**super().state_dict(), "generation": self.generation_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned."""
        super().load_state_dict(state)
        self.load_generation_state(state["generation"])

    @abstractmethod
    def generation_state(self) -> dict[str, Any]:
        """Return what ``breed`` depends on besides the random numbers."""

    @abstractmethod
    def load_generation_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``generation_state`` returned."""
