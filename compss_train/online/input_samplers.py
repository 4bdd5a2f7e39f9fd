"""Samplers of inputs: which simulation to run next, from what the network has learned of the
earlier ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.quasirandom import SobolEngine

from compss_train._utils.validation import check_count, check_seed

Bounds: TypeAlias = Sequence[tuple[float, float]] | Mapping[str, tuple[float, float]]
"""The smallest and the largest value of each parameter, also by its name."""

_COLUMNS = [("complete", "?"), ("trained", "i8"), ("loss", "f8"), ("excess", "f8")]
_LEAST = 10
"""Inputs that are drawn, and losses that are known, before outputs and losses decide."""
_RIDGE = 0.1
_INPUTS = 0.5
"""Root mean square of uniform inputs in distances, where that of their predicted outputs is 1."""


class SimulationTable:
    """The simulations that have begun, one row each in the order of their inputs, and what workers
    have reported.

    Workers report about every half second, and with ``lockstep`` before each draw. ``predict`` is a
    function of inputs of the network and of a number of copies of it that returns the outputs of
    the newest ones: an array whose first axis is the copies, the newest last, and whose second is
    the inputs.
    """

    def __init__(self, predict: Callable[[Any, int], NDArray[Any]] | None = None) -> None:
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
        """The mean over the samples of a simulation of the loss of each when it was trained last;
        NaN before.
        """
        return self._column("loss")

    @property
    def excess(self) -> NDArray[np.float64]:
        """The sum over the samples of a simulation of how far the loss of each was above the mean
        of its batch.

        In standard deviations of the losses in that batch, when the sample was trained last; 0
        below the mean.
        """
        return self._column("excess")

    def _column(self, name: str) -> NDArray[Any]:
        column: NDArray[Any] = self._rows[name][: len(self)]
        column.flags.writeable = False
        return column

    def predict(self, x: Any, copies: int = 5) -> NDArray[Any]:
        """Return what the global parameters, and those of the last few calls, make of inputs of the
        network.

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
        self._rows[len(self)] = False, 0, np.nan, 0.0
        self.inputs.append(value)

    def state_dict(self) -> dict[str, Any]:
        """Return the inputs and the columns."""
        return {
            "inputs": [*self.inputs],
            "columns": {name: self._column(name).copy() for name, _ in _COLUMNS},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Replace all rows."""
        self.inputs = [*state["inputs"]]
        columns = state["columns"]
        self._rows = np.zeros(max(64, 2 * len(self)), _COLUMNS)
        for name, column in columns.items():
            self._rows[name][: len(self)] = column

    def set(self, row: int, **values: Any) -> None:
        """Set columns of a row."""
        for name, value in values.items():
            self._rows[name][row] = value


class InputSampler(ABC):
    """Chooses the inputs of simulations one by one, while the network learns:
    ``Simulations(simulate, sampler)``.

    It runs in the coordinator, in one thread, and serves one study. Its inputs, and the values of
    its state, are numbers, text, arrays, and lists, tuples and dicts of them.
    """

    needs_losses: bool = True
    """Whether the loss of each sample is computed, for ``table.loss`` and ``table.excess``."""
    origin: str = ""
    """How the last input was chosen, in a word: records have it, and reports colour inputs by
    it.
    """

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
    """A sampler of ``number`` inputs in a box: a number for each parameter, in an array, or in a
    dict with names.

    ``choose`` returns the next input in coordinates from 0 to 1; ``begun`` has the earlier ones.
    """

    def __init__(self, bounds: Bounds, number: int, seed: int) -> None:
        self._names = list(bounds) if isinstance(bounds, Mapping) else None
        pairs = list(bounds.values()) if isinstance(bounds, Mapping) else list(bounds)
        try:
            self._low, self._high = np.array(pairs, np.float64).reshape(len(pairs), 2).T
        except (TypeError, ValueError):
            self._low = self._high = np.zeros(0)
        if not len(self._low) or not np.all(
            np.isfinite(self._high - self._low) & (self._low < self._high)
        ):
            raise ValueError(
                f"bounds={bounds!r}: give the smallest and the largest value of each parameter, "
                "as in [(0, 1), (100, 500)] or {'width': (0, 1)}, two finite numbers, the second "
                "one larger"
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
        """Return inputs of simulations, in their bounds, from rows of coordinates between 0 and
        1.
        """
        # Rounding.
        rows = np.clip(self._low + points * (self._high - self._low), self._low, self._high)
        if self._names is None:
            return [*rows]
        return [dict(zip(self._names, row, strict=True)) for row in rows.tolist()]

    @abstractmethod
    def choose(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the next input in coordinates from 0 to 1, and set ``origin``."""

    def begun(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the inputs of the simulations that have begun, shape (simulations, parameters),
        from 0 to 1.
        """
        rows = [[*each.values()] if isinstance(each, dict) else each for each in table.inputs]
        return (np.array(rows, np.float64).reshape(-1, self.parameters) - self._low) / (
            self._high - self._low
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the bounds, the number of inputs drawn and the state of the random numbers."""
        return {
            "bounds": self._bounds,
            "drawn": self.drawn,
            "random": self.random.bit_generator.state,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned; raise ``ValueError`` for one with other
        bounds.
        """
        if state["bounds"] != self._bounds:
            raise ValueError(
                f"bounds={self._bounds}: the inputs drawn so far have bounds={state['bounds']}; "
                "give these, or begin a new study"
            )
        self.drawn, self.random.bit_generator.state = state["drawn"], state["random"]


class SpacedInputs(BoxSampler):
    """Inputs that are far from earlier ones in what the network makes of them, less far where the
    loss is high.

    The place of an input is what the network predicts for some samples of its simulation, and with
    half the weight the input itself. Each simulation that has begun has a cluster: those of some
    uniform candidates whose places are nearest to its own. The next input is, in the cluster with
    the largest sum of squared distances, the candidate that is farthest away. Distances are
    multiplied by a power of the loss expected at the candidate, a quadratic function of the input,
    which ridge regression fits to the logarithms of the losses of the simulations. The first ten
    inputs are a scrambled Sobol sequence.

    Parameters
    ----------
    bounds:
        The smallest and the largest value of each parameter: pairs, or a dict of pairs by name,
        which makes dicts.
    number:
        Number of simulations of the study.
    network_inputs:
        Function of an input that returns a few inputs of the network that its simulation has, k
        rows in an array or a tensor: the x of some of its samples, which need not be simulated, as
        at three times.
    power:
        Power of the expected loss; by default 0.3. With 0 no losses of samples are computed.
    candidates:
        Number of candidates for each input. The outputs of all of them and of all simulations are
        held at a time.
    seed:
        Seed of the random numbers.

    Raises ``ValueError`` and ``TypeError`` for other values. Source: largest cluster maximum
    distance (Holzmüller et al., "A Framework and Benchmark for Deep Batch Active Learning for
    Regression", JMLR 24, 2023); there on features and without losses, and for batches of inputs.
    """

    def __init__(
        self,
        bounds: Bounds,
        number: int,
        network_inputs: Callable[[Any], Any],
        *,
        power: float = 0.3,
        candidates: int = 200,
        seed: int = 0,
    ) -> None:
        super().__init__(bounds, number, seed)
        if not callable(network_inputs):
            raise TypeError(
                f"network_inputs={network_inputs!r}: give a function that returns, for an input "
                "of a simulation, a few inputs of the network, shape (k, ...)"
            )
        if not 0 <= power < np.inf:
            raise ValueError(
                f"power={power!r}: give a number of at least 0, the power of the expected loss"
            )
        self._network_inputs = network_inputs
        self._power = power
        self._candidates = check_count("candidates", candidates)
        self.needs_losses = power > 0
        self._rows: list[NDArray[Any]] = []  # of the network, for each simulation begun
        sequence = SobolEngine(self.parameters, scramble=True, seed=seed)  # type: ignore[no-untyped-call]
        self._first: NDArray[np.float64] = sequence.draw(_LEAST, dtype=torch.float64).numpy()

    def choose(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the best candidate."""
        self.origin = "first"
        if self.drawn < _LEAST:
            return np.asarray(self._first[self.drawn], np.float64)
        candidates = self.random.uniform(size=(self._candidates, self.parameters))
        begun = self.begun(table)
        for value in table.inputs[len(self._rows) :]:
            self._rows.append(np.asarray(self._network_inputs(value)))
        rows = [np.asarray(self._network_inputs(value)) for value in self.values(candidates)]
        (outputs,) = table.predict(np.concatenate([*rows, *self._rows]), copies=1)
        outputs = torch.from_numpy(outputs).reshape(len(rows) + len(begun), -1)
        centred = outputs - outputs.mean(0)
        size = centred.square().sum(1).mean().sqrt().clamp_min(torch.finfo(outputs.dtype).tiny)
        box = torch.from_numpy(np.concatenate([candidates, begun])) * (
            _INPUTS * (12 / self.parameters) ** 0.5
        )
        places = torch.cat([centred / size, box], 1)
        new = places[: len(rows)]
        old = places[len(rows) :]
        # Exact for small distances.
        apart = torch.cdist(new, old, compute_mode="donot_use_mm_for_euclid_dist")
        smallest, nearest = (each.numpy() for each in apart.min(1))
        distances = smallest**2
        known = table.loss > 0  # not before it was trained
        self.origin = "far"
        if self._power and known.sum() >= _LEAST:
            self.origin = "far and hard"
            expected = _expected(begun[known], np.log(table.loss[known]), candidates)
            distances *= np.exp(2 * self._power * (expected - expected.max()))
        largest = np.bincount(nearest, distances).argmax()
        best: NDArray[np.float64] = candidates[np.where(nearest == largest, distances, -1).argmax()]
        return best

    def state_dict(self) -> dict[str, Any]:
        """Return the number of inputs drawn, the state of the random numbers and the first
        inputs.
        """
        return {**super().state_dict(), "first": self._first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned."""
        super().load_state_dict(state)
        self._first = state["first"]
        self._rows = []


def _expected(
    points: NDArray[np.float64], values: NDArray[Any], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a quadratic function, fitted to values at points by ridge regression, at other points.

    It is at most 2 above the largest value: losses are not believed to be more than e² times the
    known ones.
    """
    features = _quadratic(points)
    mean = values.mean()
    normal = features.T @ features + _RIDGE * np.eye(features.shape[1])
    weights = np.linalg.solve(normal, features.T @ (values - mean))
    fitted: NDArray[np.float64] = np.minimum(_quadratic(at) @ weights + mean, values.max() + 2)
    return fitted


def _quadratic(points: NDArray[np.float64]) -> NDArray[np.float64]:
    centred = 2 * points - 1
    one, other = np.triu_indices(centred.shape[1])
    return np.column_stack([np.ones(len(points)), centred, centred[:, one] * centred[:, other]])
