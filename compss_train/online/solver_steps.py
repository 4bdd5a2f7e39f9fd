"""``SolverSteps``: warns of solvers that differ in their time steps."""

from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.online.solver import Solver


class SolverSteps:
    """Compares the time steps of simulations for which it is not known how many they have.

    A function is free to yield as many samples as it likes.
    """

    def __init__(self, simulate: Any) -> None:
        self._is_solver = isinstance(simulate, Solver)
        self._first: tuple[str, int] | None = None
        """The first simulation that was complete, and its number of time steps."""
        self._has_warned = False

    def compare(self, simulation: str, steps: int) -> None:
        """Warn once, of the first solver that has another number of steps than the first one."""
        if self._first is None:
            self._first = (simulation, steps)
        first, first_steps = self._first
        if self._is_solver and steps != first_steps and not self._has_warned:
            self._has_warned = True
            warn_user(
                f"{simulation} has ended after {steps} time steps, and {first} after "
                f"{first_steps}: if one of them is not complete, give Simulations(..., steps=), a "
                "number or a function of the input, and it has failed and runs again"
            )
