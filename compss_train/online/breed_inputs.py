"""Breed: inputs near those whose losses were above the mean, and uniform ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count, check_non_negative
from compss_train.online.generations import GenerationSampler
from compss_train.online.input_samplers import Bounds
from compss_train.online.simulation_table import SimulationTable

_NARROWER = 0.3
"""The factor of the variance of a child that fell outside the box."""
_MOST_TRIES = 10
"""Times that a child is drawn before it is its parent."""


class BreedInputs(GenerationSampler):
    """Inputs as Melissa's breeder draws them: children of hard inputs, and uniform ones.

    The fitness of a simulation is ``table.excess``: how far the losses of its samples were above
    the means of their batches, summed over all batches. At the end of each ``period`` of inputs a
    generation begins, whose parents are the last ``window`` simulations by then, each with
    probability in proportion to its fitness. An input of a generation is a child with probability
    R, and uniform otherwise: its parent and Gaussian noise, drawn again with 0.3 times the variance
    while it lies outside the bounds, at last the parent itself. R rises from ``start`` to ``end``
    over ``breakpoint`` generations. The inputs before the first generation are uniform.

    Parameters
    ----------
    bounds:
        The smallest and the largest value of each parameter: pairs, or a dict of pairs by name,
        which makes dicts.
    number:
        Number of simulations of the study.
    period:
        Number of inputs between generations; by default 10.
    window:
        Number of simulations that may be parents, the newest; by default all.
    sigma:
        Variance of the noise, where each parameter's range is 1; by default 0.005, a standard
        deviation of 7% of the range.
    start:
        Probability that an input of the first generation is a child; by default 0.15.
    end:
        That probability after ``breakpoint`` generations; by default 0.75.
    breakpoint:
        Number of generations until then; by default 10.
    seed:
        Seed of the random numbers.

    Raises ``ValueError`` and ``TypeError`` for other values. Source: Breed ("MelissaDL x Breed:
    Towards Data-Efficient On-line Supervised Training of Multi-parametric Surrogates with Active
    Learning", arXiv 2410.05860, 2024) and Melissa's ``DefaultBreeder``, after its documentation and
    with its defaults. There all inputs that have not been submitted are drawn again in each
    generation; here an input is drawn when its simulation begins, from the same distribution.
    """

    def __init__(
        self,
        bounds: Bounds,
        number: int,
        *,
        period: int = 10,
        window: int | None = None,
        sigma: float = 0.005,
        start: float = 0.15,
        end: float = 0.75,
        breakpoint: int = 10,
        seed: int = 0,
    ) -> None:
        super().__init__(
            bounds,
            number,
            period=period,
            start=start,
            end=end,
            breakpoint=breakpoint,
            seed=seed,
        )
        self._window = self.number if window is None else check_count("window", window)
        self._sigma = check_non_negative("sigma", sigma)
        self._parents: NDArray[np.float64] = np.zeros((0, self.parameters))
        """The parents of this generation, in coordinates from 0 to 1."""
        self._fitness: NDArray[np.float64] = np.zeros(0)
        """The probability of each of them."""

    def renew(self, table: SimulationTable) -> None:
        """Let the newest simulations be parents: those whose losses were above a mean at all."""
        excess = table.excess[-self._window :]
        is_fit = (excess > 0) & ~table.failed[-self._window :]
        self._parents = self.begun(table)[-self._window :][is_fit]
        self._fitness = excess[is_fit] / excess[is_fit].sum()

    def can_breed(self) -> bool:
        """Return whether there is a parent."""
        return len(self._parents) > 0

    def breed(self) -> NDArray[np.float64]:
        """Return a child of a parent."""
        parent: NDArray[np.float64] = self.random.choice(self._parents, p=self._fitness)
        deviation = np.sqrt(self._sigma)
        for _ in range(_MOST_TRIES):
            child = self.random.normal(parent, deviation)
            if np.all((child >= 0) & (child <= 1)):
                return child
            deviation *= np.sqrt(_NARROWER)
        return parent

    def generation_state(self) -> dict[str, Any]:
        """Return the parents of this generation."""
        return {"parents": self._parents, "fitness": self._fitness}

    def load_generation_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``generation_state`` returned."""
        self._parents = state["parents"]
        self._fitness = state["fitness"]
