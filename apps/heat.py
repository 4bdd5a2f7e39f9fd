"""The heat equation on a square: a solver, and simulations with random temperatures.

``∂u/∂t = Δu`` on the unit square. Each of the four walls has a constant temperature, and the
interior starts at a fifth one. This is the example of Melissa (arXiv 2309.16743), with its
temperatures and its time step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sample = tuple[NDArray[np.float32], NDArray[np.float32]]

COLDEST = 100.0
"""Lower bound of the random temperatures, in kelvin."""
HOTTEST = 500.0
"""Upper bound of the random temperatures, in kelvin."""
TIME_STEP = 0.01
"""Time between samples; after about thirty steps the interior depends on the walls alone."""
TEMPERATURES = 5
"""Parameters of a simulation: the initial temperature, and those of the four walls.

The walls are in the order west, east, south, north.
"""


class HeatEquation:
    """Solves the equation on ``grid`` by ``grid`` points inside the walls.

    The walls are one spacing away from the points next to them. Space is discretised by the
    five-point Laplacian, time by implicit Euler, which is stable for every time step. The
    eigenvectors of that Laplacian are products of sines: in their coordinates (``modes``) a step is
    one division per point, and two products of small matrices transform back.
    """

    def __init__(self, grid: int, time_step: float) -> None:
        numbers = np.arange(1, grid + 1)
        angles = np.pi * np.outer(numbers, numbers) / (grid + 1)
        self._sines = np.sqrt(2 / (grid + 1)) * np.sin(angles)  # symmetric, and its own inverse
        self._inverse_area = float((grid + 1) ** 2)
        eigenvalues = self._inverse_area * (2 - 2 * np.cos(np.diag(angles) / numbers))
        self._damping = 1 / (1 + time_step * (eigenvalues[:, None] + eigenvalues))
        self._time_step = time_step

    def fields(self, initial: Floats, walls: Floats, substeps: int = 1) -> Iterator[Floats]:
        """Iterate over the fields after every ``substeps`` time steps, without end.

        The rows of a field are from south to north.
        """
        modes = self._transform(initial)
        gain = self._time_step * self._transform(self._heating(walls, initial.shape))
        while True:
            for _ in range(substeps):
                modes += gain
                modes *= self._damping
            yield self._transform(modes)

    def _transform(self, field: Floats) -> Floats:
        """Return the modes of a field, or the field of modes."""
        return self._sines @ field @ self._sines

    def _heating(self, walls: Floats, shape: tuple[int, ...]) -> Floats:
        """Return the walls' contribution to the Laplacian of the points next to them."""
        west, east, south, north = walls
        heating = np.zeros(shape)
        heating[:, 0] += west
        heating[:, -1] += east
        heating[0] += south
        heating[-1] += north
        return self._inverse_area * heating


@functools.lru_cache(maxsize=4)
def _equation(grid: int, time_step: float) -> HeatEquation:
    return HeatEquation(grid, time_step)  # shared by all simulations of a process


def simulate(
    parameters: Floats, grid: int = 64, steps: int = 100, substeps: int = 1
) -> Iterator[Sample]:
    """Yield a sample after every time step.

    Its x has the temperatures and the time, its y the field at that time. All values are scaled to
    the range from 0 to 1. ``substeps`` divides each time step: simulations become more accurate and
    more expensive.
    """
    initial, *walls = scale(np.asarray(parameters))
    equation = _equation(grid, TIME_STEP / substeps)
    fields = equation.fields(np.full((grid, grid), initial), np.array(walls), substeps)
    for step in range(1, steps + 1):
        x = np.array([initial, *walls, step / steps], np.float32)
        yield x, next(fields).astype(np.float32)


def scale(kelvin: Floats) -> Floats:
    """Scale temperatures to the range from 0 (coldest) to 1 (hottest)."""
    return (kelvin - COLDEST) / (HOTTEST - COLDEST)


def to_kelvin(temperatures: NDArray[np.float32]) -> NDArray[np.float32]:
    """Convert scaled temperatures to kelvin."""
    return COLDEST + (HOTTEST - COLDEST) * temperatures


def random_parameters(*seed: int) -> Iterator[Floats]:
    """Iterate over random parameters of simulations, without end.

    Other seeds give other parameters.
    """
    random = np.random.default_rng(seed)
    while True:
        yield random.uniform(COLDEST, HOTTEST, TEMPERATURES)


def stack_samples(samples: Iterable[Sample]) -> Sample:
    """Stack samples into an array of x and one of y."""
    x, y = zip(*samples, strict=True)
    return np.stack(x), np.stack(y)
