"""Samplers of inputs: which simulation to run next, from what the network has learned of the earlier ones."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.validation import check_count, check_seed

Bounds: TypeAlias = Sequence[tuple[float, float]] | Mapping[str, tuple[float, float]]
"""The smallest and the largest value of each parameter, also by its name."""

_COLUMNS = [("complete", "?"), ("trained", "i8"), ("loss", "f8"), ("excess", "f8")]
_ATTEMPTS, _NARROWING = 10, 0.3
_CHUNK = 4096  # inputs whose distances are computed at a time
_LEAST_LOSSES, _RIDGE = 10, 0.1


class SimulationTable:
    """The simulations that have begun, one row each in the order of their inputs, and what workers have reported.

    Workers report about every half second, and with ``lockstep`` before each draw. ``predict`` is a function of
    inputs of the network that returns the outputs of several copies of it: an array whose first axis is the copies,
    the newest last, and whose second is the inputs.
    """

    def __init__(self, predict: Callable[[Any], NDArray[Any]] | None = None) -> None:
        self.inputs: list[Any] = []
        """The input of each simulation."""
        self._rows = np.zeros(64, _COLUMNS)
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
    def trained(self) -> NDArray[np.int64]:
        """How many samples of a simulation workers have trained on; repetitions count."""
        return self._column("trained")

    @property
    def loss(self) -> NDArray[np.float64]:
        """The mean over the samples of a simulation of the loss of each when it was trained last; NaN before."""
        return self._column("loss")

    @property
    def excess(self) -> NDArray[np.float64]:
        """The sum over the samples of a simulation of how far the loss of each was above the mean of its batch.

        In standard deviations of the losses in that batch, when the sample was trained last; 0 below the mean.
        """
        return self._column("excess")

    def _column(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self._rows[name][: len(self)]
        column.flags.writeable = False
        return column

    def predict(self, x: Any) -> NDArray[Any]:
        """Return what the global parameters, and those of the last few calls, make of inputs of the network.

        ``x`` is a batch as the network gets it, an array or tensor of n samples; the result has the shape
        (copies, n, ...), the newest last. It is computed in the coordinator, and training does not wait for it.
        """
        if self._predict is None:
            raise RuntimeError("this table belongs to no fit, so that there is no network that could predict")
        return self._predict(x)

    def begin(self, value: Any) -> None:
        """Add the row of a simulation."""
        if len(self) == len(self._rows):
            self._rows = np.concatenate([self._rows, np.zeros_like(self._rows)])
        self._rows[len(self)] = False, 0, np.nan, 0.0
        self.inputs.append(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the inputs and the columns."""
        return {"inputs": [*self.inputs], "columns": {name: self._column(name).copy() for name, _ in _COLUMNS}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all rows."""
        self.inputs, columns = [*state["inputs"]], state["columns"]
        self._rows = np.zeros(max(64, 2 * len(self)), _COLUMNS)
        for name, column in columns.items():
            self._rows[name][: len(self)] = column

    def set(self, row: int, **values: Any) -> None:
        """Set columns of a row."""
        for name, value in values.items():
            self._rows[name][row] = value


class InputSampler(ABC):
    """Chooses the inputs of simulations one by one, while the network learns: ``Simulations(simulate, sampler)``.

    It runs in the coordinator, in one thread. Its inputs, and the values of its state, are numbers, text, arrays,
    and lists, tuples and dicts of them.
    """

    needs_losses: ClassVar[bool] = True
    """Whether the loss of each sample is computed, for ``table.loss`` and ``table.excess``."""
    origin: str = ""
    """How the last input was chosen, in a word: records have it, and reports colour inputs by it."""

    @abstractmethod
    def next(self, table: SimulationTable) -> Any:
        """Return the input of the next simulation, or ``None`` if the study has no more."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return all that decides what comes next, besides the table."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned."""


class BoxSampler(InputSampler):
    """A sampler of ``number`` inputs in a box: a number for each parameter, in an array, or in a dict with names.

    ``choose`` returns the next input in coordinates from 0 to 1; ``begun`` has the earlier ones.
    """

    def __init__(self, bounds: Bounds, number: int, seed: int) -> None:
        self._names = list(bounds) if isinstance(bounds, Mapping) else None
        pairs = list(bounds.values()) if isinstance(bounds, Mapping) else list(bounds)
        try:
            self._low, self._high = np.array(pairs, np.float64).reshape(len(pairs), 2).T
        except (TypeError, ValueError):
            self._low = self._high = np.zeros(0)
        if not len(self._low) or not np.all(np.isfinite(self._high - self._low) & (self._low < self._high)):
            raise ValueError(
                f"bounds={bounds!r}: give the smallest and the largest value of each parameter, as in [(0, 1), "
                "(100, 500)] or {'width': (0, 1)}, two finite numbers, the second one larger"
            )
        pairs = np.stack([self._low, self._high], 1).tolist()
        self._bounds = pairs if self._names is None else dict(zip(self._names, pairs, strict=True))
        self.number = check_count("number", number)
        self.drawn = 0
        """How many inputs it has returned."""
        self.random = np.random.default_rng(check_seed(seed))

    @property
    def parameters(self) -> int:
        """How many parameters an input has."""
        return len(self._low)

    def next(self, table: SimulationTable) -> Any:
        """Return the next input; ``None`` after ``number`` of them."""
        if self.drawn == self.number:
            return None
        point = self._low + self.choose(table) * (self._high - self._low)
        self.drawn += 1
        point = np.clip(point, self._low, self._high)  # rounding
        return point if self._names is None else dict(zip(self._names, point.tolist(), strict=True))

    @abstractmethod
    def choose(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the next input in coordinates from 0 to 1, and set ``origin``."""

    def begun(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the inputs of the simulations that have begun, shape (simulations, parameters), from 0 to 1."""
        rows = [[*each.values()] if isinstance(each, dict) else each for each in table.inputs]
        return (np.array(rows, np.float64).reshape(-1, self.parameters) - self._low) / (self._high - self._low)

    def state_dict(self) -> dict[str, Any]:
        """Return the bounds, the number of inputs drawn and the state of the random numbers."""
        random = self.random.bit_generator.state
        return {"bounds": self._bounds, "drawn": self.drawn, "random": random}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned; raise ``ValueError`` for one with other bounds."""
        if state["bounds"] != self._bounds:
            raise ValueError(
                f"bounds={self._bounds}: the inputs drawn so far have bounds={state['bounds']}; give these, or "
                "begin a new study"
            )
        self.drawn, self.random.bit_generator.state = state["drawn"], state["random"]


class BredInputs(BoxSampler):
    """Children of the inputs whose samples are hard, and uniform inputs between them.

    Parameters
    ----------
    bounds:
        The smallest and the largest value of each parameter: pairs, or a dict of pairs by name, which makes dicts.
    number:
        Number of simulations of the study.
    share:
        Probability that an input is a child, for the first and for the last of them; linear between.
    sigma:
        Standard deviation of the normal numbers that a child adds to its parent, as a part of the range of each
        parameter. It is narrowed to 0.3 of itself each time that the child falls outside the bounds.
    window:
        A parent is drawn among this number of latest inputs, in proportion to its ``excess``.
    seed:
        Seed of the random numbers.

    Raises ``ValueError`` and ``TypeError`` for other values. Source: Breed (Dymchenko et al., "MelissaDL x Breed",
    arXiv 2410.05860), adaptive multiple importance sampling; there inputs are drawn anew every few hundred batches.
    """

    def __init__(
        self,
        bounds: Bounds,
        number: int,
        *,
        share: tuple[float, float] = (0.15, 0.75),
        sigma: float = 0.07,
        window: int = 100,
        seed: int = 0,
    ) -> None:
        super().__init__(bounds, number, seed)
        if not all(0 <= each <= 1 for each in share) or len(share) != 2:
            raise ValueError(
                f"share={share!r}: give two probabilities from 0 to 1, of the first and the last input"
            )
        if not 0 < sigma < np.inf:
            raise ValueError(f"sigma={sigma!r}: give a part of the range of each parameter, above 0")
        self._share, self._sigma, self._window = share, sigma, check_count("window", window)

    def choose(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return a child or a uniform input."""
        first, last = self._share
        is_child = self.random.uniform() < first + (last - first) * self.drawn / self.number
        fitness = table.excess[-self._window :]
        if not is_child or not fitness.any():
            self.origin = "uniform"
            return self.random.uniform(size=self.parameters)
        self.origin = "child"
        parent = self.begun(table)[-self._window :][self.random.choice(len(fitness), p=fitness / fitness.sum())]
        for attempt in range(_ATTEMPTS):
            child = self.random.normal(parent, self._sigma * _NARROWING**attempt)
            if np.all((child >= 0) & (child <= 1)):
                break
            child = parent
        return np.asarray(child, np.float64)


class SpacedInputs(BoxSampler):
    """Inputs far from all earlier ones, and closer together where the loss is high.

    Each is the best of some uniform candidates: the largest product of the distance to the nearest input that has
    begun, in a box whose opposite walls touch, so that walls attract nothing, and of a power of the loss expected
    there. That is a quadratic function of the input, fitted by ridge regression to the logarithms of the losses of
    the simulations.

    Parameters
    ----------
    bounds, number, seed:
        As in ``BredInputs``.
    power:
        Power of the loss; by default 0.15. With 0 the inputs fill the box evenly, whatever the network learns.
    candidates:
        Number of candidates for each input.

    Raises ``ValueError`` and ``TypeError`` for other values. Source: after the minimum energy designs of Joseph et
    al., "Sequential Exploration of Complex Surfaces Using Minimum Energy Designs", Technometrics 57 (2015).
    """

    def __init__(
        self, bounds: Bounds, number: int, *, power: float = 0.15, candidates: int = 500, seed: int = 0
    ) -> None:
        super().__init__(bounds, number, seed)
        if not 0 <= power < np.inf:
            raise ValueError(f"power={power!r}: give a number of at least 0, the power of the expected loss")
        self._power, self._candidates = power, check_count("candidates", candidates)

    def choose(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the best candidate."""
        candidates, begun = self.random.uniform(size=(self._candidates, self.parameters)), self.begun(table)
        nearest = np.full(len(candidates), np.inf if len(begun) else 1.0)
        for part in np.split(begun, range(_CHUNK, len(begun), _CHUNK)) if len(begun) else ():
            squares = np.zeros((len(candidates), len(part)))
            for each, other in zip(candidates.T, part.T, strict=True):
                gap = np.abs(each[:, None] - other)
                squares += np.minimum(gap, 1 - gap) ** 2
            nearest = np.minimum(nearest, squares.min(1))
        known = table.loss > 0  # not before it was trained
        self.origin = "weighted" if self._power and known.sum() >= _LEAST_LOSSES else "spaced"
        scores = np.log(np.maximum(nearest, np.finfo(float).tiny)) / 2
        if self.origin == "weighted":
            scores += self._power * _expected(begun[known], np.log(table.loss[known]), candidates)
        best: NDArray[np.float64] = candidates[scores.argmax()]
        return best


def _expected(points: NDArray[np.float64], values: NDArray[Any], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a quadratic function, fitted to values at points by ridge regression, at other points.

    It is at most 2 above the largest value: losses are not believed to be more than e² times the known ones.
    """
    features, mean = _quadratic(points), values.mean()
    normal = features.T @ features + _RIDGE * np.eye(features.shape[1])
    weights = np.linalg.solve(normal, features.T @ (values - mean))
    fitted: NDArray[np.float64] = np.minimum(_quadratic(at) @ weights + mean, values.max() + 2)
    return fitted


def _quadratic(points: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = 2 * points - 1
    one, other = np.triu_indices(centred.shape[1])
    return np.column_stack([np.ones(len(points)), centred, centred[:, one] * centred[:, other]])
