"""Samplers of inputs: which simulation to run next, by what the network has learned so far."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count, check_seed
from compss_train.online.simulation_table import SimulationTable

Bounds: TypeAlias = Sequence[tuple[float, float]] | Mapping[str, tuple[float, float]]
"""The smallest and the largest value of each parameter, also by its name."""


class InputSampler(ABC):
    """Chooses the inputs of simulations one by one, while the network learns.

    It is given as ``Simulations(simulate, sampler)``, runs in the coordinator, in one thread, and
    serves one study. Its inputs, and the values of its state, are numbers, text, arrays, and lists,
    tuples and dicts of them.
    """

    needs_losses: bool = True
    """Whether losses of samples are computed: ``table.loss``, ``first_loss`` and ``excess``."""
    origin: str = ""
    """How the last input was chosen, in a word, which records have; reports colour inputs by it."""

    @abstractmethod
    def next(self, table: SimulationTable) -> Any:
        """Return the input of the next simulation, or ``None`` if the study has no more.

        It is asked again when a simulation is given up after that: ``table.failed`` says which.
        """

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that decides what comes next, besides the table."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned."""


class BoxSampler(InputSampler):
    """A sampler of ``number`` inputs in a box.

    An input has a number for each parameter, in an array, or in a dict with names. ``choose``
    returns the next input in coordinates from 0 to 1; ``begun`` has the earlier ones.
    """

    def __init__(self, bounds: Bounds, number: int, seed: int) -> None:
        self._names = list(bounds) if isinstance(bounds, Mapping) else None
        limits = np.zeros((0, 2))
        with suppress(TypeError, ValueError):
            pairs = list(bounds.values() if isinstance(bounds, Mapping) else bounds)
            limits = np.array(pairs, np.float64).reshape(len(pairs), 2)
        self._low, self._high = limits.T
        is_valid = np.isfinite(self._high - self._low) & (self._low < self._high)
        if not len(limits) or not is_valid.all():
            raise ValueError(
                f"bounds={bounds!r}: give the smallest and the largest value of each parameter, "
                "as in [(0, 1), (100, 500)] or {'width': (0, 1)}, two finite numbers, the second "
                "one larger"
            )
        numbers: list[Any] = limits.tolist()
        self._bounds: Any = numbers
        """The bounds as saves have them."""
        if self._names is not None:
            self._bounds = dict(zip(self._names, numbers, strict=True))
        self.number = check_count("number", number)
        self.drawn = 0
        """How many inputs it has returned."""
        self.random = np.random.default_rng(check_seed(seed))

    @property
    def parameters(self) -> int:
        """How many parameters an input has."""
        return len(self._low)

    def next(self, table: SimulationTable) -> Any:
        """Return the next input; ``None`` after ``number`` of them.

        Raises ``ValueError`` for the table of another study than that of the earlier inputs.
        """
        if self.drawn != len(table):
            raise ValueError(
                f"{type(self).__name__} has drawn {self.drawn} inputs, and {len(table)} "
                "simulations of this study have begun: make a new sampler for each fit"
            )
        if self.drawn == self.number:
            return None
        (value,) = self.values(self.choose(table)[None])
        self.drawn += 1
        return value

    def values(self, points: NDArray[np.float64]) -> list[Any]:
        """Return inputs of simulations, in their bounds, from rows of coordinates from 0 to 1."""
        rows = self._low + points * (self._high - self._low)
        rows = np.clip(rows, self._low, self._high)  # they may be rounded
        if self._names is None:
            return list(rows)
        return [dict(zip(self._names, row, strict=True)) for row in rows.tolist()]

    @abstractmethod
    def choose(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the next input in coordinates from 0 to 1, and set ``origin``."""

    def begun(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the inputs that have begun, in coordinates from 0 to 1, a row each.

        The shape is (simulations, parameters).
        """
        rows = [
            list(value.values()) if isinstance(value, dict) else value for value in table.inputs
        ]
        points = np.array(rows, np.float64).reshape(-1, self.parameters)
        return (points - self._low) / (self._high - self._low)

    def state_dict(self) -> dict[str, Any]:
        """Return the bounds, the number of inputs drawn and the state of the random numbers."""
        return {
            "bounds": self._bounds,
            "drawn": self.drawn,
            "random": self.random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned.

        Raises ``ValueError`` for one with other bounds.
        """
        if state["bounds"] != self._bounds:
            raise ValueError(
                f"bounds={self._bounds}: the inputs drawn so far have bounds={state['bounds']}; "
                "give these, or begin a new study"
            )
        self.drawn = state["drawn"]
        self.random.bit_generator.state = state["random"]
