"""The heat equation on a square: a solver, simulations with random temperatures, and samples to learn them from.

``∂u/∂t = Δu`` on the unit square, whose four walls each have a temperature of their own that never changes; all of
the inside begins at a fifth one. This is the example of Melissa (arXiv 2309.16743), with its temperatures and its
time step.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Sample = tuple[NDArray[np.float32], NDArray[np.float32]]

COLDEST, HOTTEST = 100.0, 500.0
"""Temperatures are drawn between these, in kelvin."""
TIME_STEP = 0.01
"""Time from one sample to the next; after about thirty the walls alone decide what the inside is like."""
TEMPERATURES = 5
"""Parameters of a simulation: the initial temperature, then those of the west, east, south and north walls."""


class HeatEquation:
    """Solves the equation on ``grid`` by ``grid`` points inside the walls, which are one spacing away from them.

    Space is discretised by the five-point Laplacian, time by implicit Euler, which is stable for every time step.
    The eigenvectors of that Laplacian are products of sines: in their coordinates (``modes``) a step solves a
    system of equations by as many divisions as there are points, and two products of small matrices lead back.
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
        """Give the field, rows from south to north, after every ``substeps`` time steps, without end."""
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
        """Return what the walls add to the Laplacian of the points next to them."""
        west, east, south, north = walls
        heating = np.zeros(shape)
        heating[:, 0] += west
        heating[:, -1] += east
        heating[0] += south
        heating[-1] += north
        return self._inverse_area * heating


@functools.lru_cache(maxsize=4)
def _equation(grid: int, time_step: float) -> HeatEquation:
    return HeatEquation(grid, time_step)  # one for all simulations of a process


def simulate(parameters: Floats, grid: int = 64, steps: int = 100, substeps: int = 1) -> Iterator[Sample]:
    """Give a sample after every time step: the temperatures and the time, and the field that they lead to.

    Everything is scaled to numbers from 0 to 1. ``substeps`` cut each time step into so many that are solved:
    simulations become more exact and take longer, as costly ones do.
    """
    initial, *walls = scaled(np.asarray(parameters))
    equation = _equation(grid, TIME_STEP / substeps)
    fields = equation.fields(np.full((grid, grid), initial), np.array(walls), substeps)
    for step in range(1, steps + 1):
        x = np.array([initial, *walls, step / steps], np.float32)
        yield x, next(fields).astype(np.float32)


def scaled(kelvin: Floats) -> Floats:
    """Return temperatures as numbers from 0, the coldest, to 1, the hottest."""
    return (kelvin - COLDEST) / (HOTTEST - COLDEST)


def in_kelvin(temperatures: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return scaled temperatures in kelvin."""
    return COLDEST + (HOTTEST - COLDEST) * temperatures


def draws(*seed: int) -> Iterator[Floats]:
    """Give the parameters of one simulation after the other, without end; other seeds give others."""
    random = np.random.default_rng(seed)
    while True:
        yield random.uniform(COLDEST, HOTTEST, TEMPERATURES)


def stacked(samples: Iterable[Sample]) -> Sample:
    """Return samples as one array of all their x and one of all their y."""
    x, y = zip(*samples, strict=True)
    return np.stack(x), np.stack(y)
