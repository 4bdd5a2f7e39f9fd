"""Inputs that are far apart in what the network makes of them, and closer where it is wrong."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.quasirandom import SobolEngine

from compss_train._utils.validation import check_count, check_non_negative, check_probability
from compss_train.online.input_samplers import Bounds, BoxSampler
from compss_train.online.simulation_table import SimulationTable

_LEAST = 10
"""Inputs that are drawn, and losses that are known, before outputs and losses decide."""
_MOST_CANDIDATES = 10**6
"""Candidates of which the outputs still fit into memory, and are predicted in seconds."""
_RIDGE = 0.1
"""The factor of the squared weights in ridge regression."""
_INPUTS = 0.5
"""Root mean square of uniform inputs in distances, where that of their predicted outputs is 1."""


class SpacedInputs(BoxSampler):
    """Inputs that are far from earlier ones in their outputs, less far where the loss is high.

    The place of an input is what the network predicts for some samples of its simulation, and with
    half the weight the input itself. Each simulation that has begun has a cluster: those of some
    uniform candidates whose places are nearest to its own. The next input is, in the cluster with
    the largest sum of squared distances, the candidate that is farthest away. Distances are
    multiplied by a power of the loss expected at the candidate, a quadratic function of the input,
    which ridge regression fits to the logarithms of the losses of the simulations. The first ten
    inputs are a scrambled Sobol sequence. Of the others a share of ``uniform`` is uniform instead.

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
    uniform:
        Share of uniform inputs after the first ten, evenly spread among the others; by default 0.
        With 0.5 the worst errors were higher, and the mean error was lower in some studies.
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
        uniform: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__(bounds, number, seed)
        if not callable(network_inputs):
            raise TypeError(
                f"network_inputs={network_inputs!r}: give a function that returns, for an input "
                "of a simulation, a few inputs of the network, shape (k, ...)"
            )
        self._network_inputs = network_inputs
        self._power = check_non_negative("power", power)
        self._candidates = check_count("candidates", candidates)
        if self._candidates > _MOST_CANDIDATES:
            raise ValueError(f"candidates={candidates}: give at most {_MOST_CANDIDATES}")
        self._uniform = check_probability("uniform", uniform)
        self.needs_losses = self._power > 0 and self._uniform < 1
        self._rows: list[NDArray[Any]] = []
        """The inputs of the network of each simulation that has begun."""
        sequence = SobolEngine(self.parameters, scramble=True, seed=int(seed))  # type: ignore[no-untyped-call]
        self._first: NDArray[np.float64] = sequence.draw(_LEAST, dtype=torch.float64).numpy()

    def choose(self, table: SimulationTable) -> NDArray[np.float64]:
        """Return the best candidate, or a uniform input."""
        if self.drawn < _LEAST:
            self.origin = "first"
            return np.asarray(self._first[self.drawn], np.float64)
        if self._is_uniform():
            self.origin = "uniform"
            return self.random.uniform(size=self.parameters)
        candidates = self.random.uniform(size=(self._candidates, self.parameters))
        earlier = self.begun(table)
        candidate_places, earlier_places = self._places(table, candidates, earlier)
        # Exact for small distances.
        apart = torch.cdist(
            candidate_places, earlier_places, compute_mode="donot_use_mm_for_euclid_dist"
        )
        smallest, nearest = apart.min(1)
        distances = smallest.numpy() ** 2
        clusters = nearest.numpy()
        is_known = table.loss > 0  # not before it was trained
        self.origin = "far"
        if self._power and is_known.sum() >= _LEAST:
            self.origin = "far and hard"
            log_losses = np.log(table.loss[is_known])
            expected = _expected(earlier[is_known], log_losses, candidates)
            distances *= np.exp(2 * self._power * (expected - expected.max()))
        largest = np.bincount(clusters, distances).argmax()
        farthest = np.where(clusters == largest, distances, -1).argmax()
        best: NDArray[np.float64] = candidates[farthest]
        return best

    def _is_uniform(self) -> bool:
        """Return whether the next input is one of the uniform ones: so far they are too few."""
        return int(self.drawn * self._uniform) > int((self.drawn - 1) * self._uniform)

    def _places(
        self,
        table: SimulationTable,
        candidates: NDArray[np.float64],
        earlier: NDArray[np.float64],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the places of candidates, and of the simulations that have begun, a row each."""
        for value in table.inputs[len(self._rows) :]:
            self._rows.append(np.asarray(self._network_inputs(value)))
        rows = [np.asarray(self._network_inputs(value)) for value in self.values(candidates)]
        (predicted,) = table.predict(np.concatenate([*rows, *self._rows]), copies=1)
        outputs = torch.from_numpy(predicted).reshape(len(candidates) + len(earlier), -1)
        centred = outputs - outputs.mean(0)
        size = centred.square().sum(1).mean().sqrt().clamp_min(torch.finfo(outputs.dtype).tiny)
        points = torch.from_numpy(np.concatenate([candidates, earlier]))
        box = points * (_INPUTS * (12 / self.parameters) ** 0.5)
        places = torch.cat([centred / size, box], 1)
        return places[: len(candidates)], places[len(candidates) :]

    def state_dict(self) -> dict[str, Any]:
        """Return what decides the next inputs: also those that come first."""
        return {**super().state_dict(), "first": self._first}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned."""
        super().load_state_dict(state)
        self._first = state["first"]
        self._rows = []


def _expected(
    points: NDArray[np.float64], values: NDArray[Any], at: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return a quadratic function ``at`` points, fitted to values at others by ridge regression.

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
    """Return the features of a quadratic function, a row for each point."""
    centred = 2 * points - 1
    rows, columns = np.triu_indices(centred.shape[1])
    products = centred[:, rows] * centred[:, columns]
    return np.column_stack([np.ones(len(points)), centred, products])
