"""Studies whose simulations are cheap: five kinds to choose methods on, and two held out.

Each solves for many inputs at a time. A field has a row of points at each of ``STEPS`` times.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
STEPS = 10
"""Samples of a simulation."""
POINTS = 32
"""Points of a field, unless a study has another number of them."""
TIMES = np.arange(1, STEPS + 1)[:, None] / STEPS
"""The times of samples, shape (STEPS, 1)."""
PLACES = np.arange(POINTS) / POINTS
"""The places of the points of a field."""


@dataclass(frozen=True)
class Study:
    """Simulations with uniform inputs, and how a network learns them."""

    title: str
    bounds: Sequence[tuple[float, float]]
    fields: Callable[[Floats], Floats]
    """From inputs (n, parameters) to fields (n, STEPS, points)."""
    simulations: int
    batches: int
    """Batches of the whole study, however many simulations it has."""
    compared_steps: tuple[int, ...] = (3, 6, 10)
    """The steps at which chosen inputs are far from each other."""

    @property
    def parameters(self) -> int:
        """How many parameters an input has."""
        return len(self.bounds)

    def uniform(self, number: int, seed: int) -> Floats:
        """Return uniform inputs, a row each."""
        low, high = np.transpose(self.bounds)
        return np.random.default_rng(seed).uniform(low, high, (number, self.parameters))

    def network_inputs(self, inputs: Floats, steps: Sequence[int]) -> NDArray[np.float32]:
        """Return x: the parameters and the time, from -1 to 1; all steps of the first input first.

        The shape is (inputs * steps, parameters + 1).
        """
        low, high = np.transpose(self.bounds)
        scaled = 2 * (inputs - low) / (high - low) - 1
        times = np.array(steps) * (2 / STEPS) - 1
        rows = np.repeat(scaled, len(times), 0)
        return np.column_stack([rows, np.tile(times, len(inputs))]).astype(np.float32)


def _columns(inputs: Floats) -> list[Floats]:
    """Return each parameter in the shape (n, 1, 1)."""
    return [column[:, None, None] for column in inputs.T]


def heat(inputs: Floats) -> Floats:
    """Diffuse a hot spot between walls of one temperature: centre, width, diffusivity, wall."""
    grid = 12
    places = np.arange(1, grid + 1) / (grid + 1)
    x, y, width, diffusivity, wall = _columns(inputs)
    row = np.exp(-((places - x) ** 2) / (2 * width**2))
    column = np.exp(-((places - y) ** 2) / (2 * width**2))
    spot = column.transpose(0, 2, 1) * row - wall
    modes = np.sqrt(2 / (grid + 1)) * np.sin(np.pi * np.outer(np.arange(1, grid + 1), places))
    decay = 4 * (grid + 1) ** 2 * np.sin(np.pi * np.arange(1, grid + 1) / (2 * (grid + 1))) ** 2
    amplitudes = (modes @ spot @ modes)[:, None]
    times = 0.1 * TIMES[None, :, :, None] * diffusivity[..., None]
    field = modes @ (np.exp(-times * (decay[:, None] + decay)) * amplitudes) @ modes
    result: Floats = field + wall[..., None]
    return result.reshape(len(inputs), STEPS, grid * grid)


def kuramoto_sivashinsky(inputs: Floats) -> Floats:
    """Solve u_t = -u u_x - u_xx - v u_xxxx: length, v, two amplitudes and a phase.

    Fourth-order exponential time differencing (Kassam and Trefethen, SIAM J. Sci. Comput. 26,
    2005), on 64 points of which every second one is kept, halved.
    """
    grid = 2 * POINTS
    substeps = 16
    step = 8.0 / STEPS / substeps
    length, viscosity, first, second, phase = inputs.T[:, :, None]
    places = np.arange(grid) / grid
    numbers = np.arange(grid // 2 + 1)
    wave = first * np.sin(2 * np.pi * places) + second * np.sin(2 * np.pi * (2 * places + phase))
    u = np.fft.rfft(wave)
    k = 2 * np.pi * numbers / length
    linear = k**2 - viscosity * k**4
    half = np.exp(step * linear / 2)
    q, a, b, c = _etdrk4_weights(step, linear)
    factor = -0.5j * k * (numbers < grid // 3)

    def product(values: NDArray[Any]) -> NDArray[Any]:
        slope: NDArray[Any] = factor * np.fft.rfft(np.fft.irfft(values, grid) ** 2)
        return slope

    fields = []
    for _ in range(STEPS):
        for _ in range(substeps):
            n = product(u)
            u_1 = half * u + q * n
            n_1 = product(u_1)
            n_2 = product(half * u + q * n_1)
            n_3 = product(half * u_1 + q * (2 * n_2 - n))
            u = half**2 * u + a * n + 2 * b * (n_1 + n_2) + c * n_3
        fields.append(np.fft.irfft(u, grid)[:, ::2] / 2)
    return np.stack(fields, 1)


def _etdrk4_weights(step: float, linear: Floats) -> list[Floats]:
    """Return the weights q, a, b and c of exponential time differencing, by contour integrals."""
    circle = np.exp(1j * np.pi * (np.arange(1, 17) - 0.5) / 16)
    z = step * linear[..., None] + circle
    ez = np.exp(z)
    integrands = [
        (np.exp(z / 2) - 1) / z,
        (-4 - z + ez * (4 - 3 * z + z**2)) / z**3,
        (2 + z + ez * (z - 2)) / z**3,
        (-4 - 3 * z - z**2 + ez * (4 - z)) / z**3,
    ]
    return [step * integrand.mean(-1).real for integrand in integrands]


def local_feature(inputs: Floats) -> Floats:
    """Superpose slow waves everywhere and fast ones around one point of the box."""
    a, b = _columns(inputs)
    slow = np.sin(2 * np.pi * (PLACES - 0.5 * a * TIMES)) * (0.5 + b)
    near = np.exp(-((a - 0.7) ** 2 + (b - 0.3) ** 2) / (2 * 0.08**2))
    fast = np.sin(2 * np.pi * (3 * PLACES - TIMES + 2 * a + 3 * b))
    field: Floats = slow + 2 * near * fast
    return field


def front(inputs: Floats) -> Floats:
    """Move a front of Burgers' equation: place, speed, height and viscosity.

    The exact travelling wave: u = c - h tanh(h (x - x_0 - c t) / (2 v)).
    """
    place, speed, height, viscosity = _columns(inputs)
    distance = PLACES - place - speed * TIMES
    field: Floats = speed - height * np.tanh(height * distance / (2 * viscosity))
    return field


def ten_parameters(inputs: Floats) -> Floats:
    """Damp a wave whose frequency and damping are two of ten parameters."""
    frequency, damping = _columns(inputs)[:2]
    phase = 2 * np.pi * (1 + 1.5 * frequency) * (PLACES - 0.5 * TIMES)
    return np.exp(-3 * damping**2 * TIMES) * np.sin(phase)


def allen_cahn(inputs: Floats) -> Floats:
    """Solve u_t = e u_xx + r (u - u³), periodic: e, r, amplitude and phase of the second wave."""
    diffusion, rate, amplitude, phase = inputs.T[:, :, None]
    u = np.sin(2 * np.pi * PLACES) + amplitude * np.sin(4 * np.pi * (PLACES + phase))
    substeps = 20
    step = 1 / STEPS / substeps
    k = 2 * np.pi * np.arange(POINTS // 2 + 1)
    implicit = 1 / (1 + step * diffusion * k**2)
    fields = []
    for _ in range(STEPS):
        for _ in range(substeps):
            u = np.fft.irfft(np.fft.rfft(u + step * rate * (u - u**3)) * implicit, POINTS)
        fields.append(u)
    return np.stack(fields, 1)


def oscillator(inputs: Floats) -> Floats:
    """Integrate x'' = -d x' - x - n x³ + f cos(w t) by Runge-Kutta; a field has POINTS times."""
    damping, nonlinear, force, frequency, start = inputs.T
    step = 12 / (STEPS * POINTS)
    state = np.stack([start, np.zeros_like(start)])

    def slope(time: float, values: Floats) -> Floats:
        x, speed = values
        drive = force * np.cos(frequency * time)
        return np.stack([speed, drive - damping * speed - x - nonlinear * x**3])

    positions = []
    for number in range(STEPS * POINTS):
        time = number * step
        first = slope(time, state)
        second = slope(time + step / 2, state + step / 2 * first)
        third = slope(time + step / 2, state + step / 2 * second)
        fourth = slope(time + step, state + step * third)
        state = state + step / 6 * (first + 2 * second + 2 * third + fourth)
        positions.append(state[0])
    return np.stack(positions, 1).reshape(len(inputs), STEPS, POINTS)


UNIT = (0.0, 1.0)
STUDIES = {
    "heat": Study(
        "Heat equation, hot spot",
        ((0.15, 0.85), (0.15, 0.85), (0.05, 0.3), (0.1, 1.0), UNIT),
        heat,
        simulations=60,
        batches=6000,
    ),
    "ks": Study(
        "Kuramoto-Sivashinsky",
        ((10.0, 30.0), (0.8, 2.0), (0.1, 2.0), (0.0, 2.0), UNIT),
        kuramoto_sivashinsky,
        simulations=100,
        batches=8000,
    ),
    "feature": Study("A local feature", (UNIT, UNIT), local_feature, simulations=100, batches=6000),
    "front": Study(
        "A front that moves",
        ((0.1, 0.6), (0.0, 0.5), (0.2, 1.0), (0.01, 0.1)),
        front,
        simulations=40,
        batches=6000,
    ),
    "ten": Study("Two parameters of ten", (UNIT,) * 10, ten_parameters, 90, batches=6000),
}
"""The studies that methods may be chosen on."""
HELD_OUT = {
    "allen-cahn": Study(
        "Allen-Cahn",
        ((0.001, 0.02), (1.0, 20.0), UNIT, UNIT),
        allen_cahn,
        simulations=60,
        batches=6000,
    ),
    "oscillator": Study(
        "Forced oscillator",
        ((0.05, 0.5), UNIT, UNIT, (0.5, 2.0), (-1.0, 1.0)),
        oscillator,
        simulations=80,
        batches=6000,
    ),
}
"""Studies that no method was chosen on: they run only if asked for."""
