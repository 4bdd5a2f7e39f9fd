"""What a sampler of inputs sees: the simulations that have begun, and what is known of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_COLUMNS = [
    ("complete", "?"),
    ("failed", "?"),
    ("trained", "i8"),
    ("loss", "f8"),
    ("first_loss", "f8"),
    ("excess", "f8"),
]
_LEAST_ROWS = 64
"""Rows for which there is memory from the start."""


class SimulationTable:
    """The simulations that have begun, one row each in the order of their inputs.

    Workers report about every half second, and with ``lockstep`` before each draw. ``predict`` is a
    function of inputs of the network and of a number of copies of it that returns the outputs of
    the newest ones: an array whose first axis is the copies, the newest last, and whose second is
    the inputs.
    """

    def __init__(self, predict: Callable[[Any, int], NDArray[Any]] | None = None) -> None:
        self.inputs: list[Any] = []
        """The input of each simulation."""
        self._rows = np.zeros(_LEAST_ROWS, _COLUMNS)
        self._predict = predict

    def __len__(self) -> int:
        return len(self.inputs)

    @property
    def number(self) -> NDArray[np.int64]:
        """The number of each simulation, as in ``context.simulations``: that of its row."""
        return np.arange(len(self))

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Whether all samples of a simulation have arrived."""
        return self._column("complete")

    @property
    def failed(self) -> NDArray[np.bool_]:
        """Whether a simulation was given up, after its last retry."""
        return self._column("failed")

    @property
    def trained(self) -> NDArray[np.int64]:
        """How many samples of a simulation workers have trained on; repetitions count."""
        return self._column("trained")

    @property
    def loss(self) -> NDArray[np.float64]:
        """The mean of the losses of a simulation's samples, each as of when it was trained last.

        NaN before. A network that has trained a sample often may have learned it by heart.
        """
        return self._column("loss")

    @property
    def first_loss(self) -> NDArray[np.float64]:
        """The mean of the losses of a simulation's samples, each as of when it was trained first.

        The network had then made no step on the sample, so that this is an error of prediction: the
        progressive validation of Blum, Kalai and Langford ("Beating the Hold-Out", COLT 1999).
        Earlier simulations met a network that had learned less. NaN before.
        """
        return self._column("first_loss")

    @property
    def excess(self) -> NDArray[np.float64]:
        """The sum of how far the losses of a simulation's samples were above the means of batches.

        Every time that a sample was trained adds to it, in standard deviations of the losses in
        that batch; 0 below the mean.
        """
        return self._column("excess")

    def _column(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self._rows[name][: len(self)]
        column.flags.writeable = False
        return column

    def predict(self, x: Any, copies: int = 5) -> NDArray[Any]:
        """Return what the global parameters, and those of the last few draws, make of inputs.

        ``x`` is a batch as the network gets it, an array or tensor of n samples; the result has the
        shape (copies, n, ...), the newest last: up to five copies, or fewer if so asked. It is
        computed in the coordinator, and training does not wait for it.
        """
        if self._predict is None:
            raise RuntimeError(
                "this table belongs to no fit, so that there is no network that could predict"
            )
        return self._predict(x, copies)

    def begin(self, value: Any) -> None:
        """Add the row of a simulation."""
        if len(self) == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[len(self)] = (False, False, 0, np.nan, np.nan, 0.0)
        self.inputs.append(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the inputs and the columns."""
        return {
            "inputs": list(self.inputs),
            "columns": {name: self._column(name).copy() for name, _ in _COLUMNS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all rows."""
        self.inputs = list(state["inputs"])
        self._rows = np.zeros(max(_LEAST_ROWS, 2 * len(self)), _COLUMNS)
        for name, column in state["columns"].items():
            self._rows[name][: len(self)] = column

    def set(self, row: int, **values: Any) -> None:
        """Set columns of a row."""
        for name, value in values.items():
            self._rows[name][row] = value
