"""Learn a surrogate from simulations whose inputs are chosen while it learns.

Two problems with five parameters each, of which some regions are much harder than others: the heat
equation with a hot spot, and the Kuramoto-Sivashinsky equation. The network predicts the field at
any time from the parameters. A simulation takes as long as a fixed number of batches, as if it were
expensive, so that all methods train the same batches on as many simulations; uniform inputs that
were not trained on measure the error of each simulation. The worst errors matter.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from heat import HeatEquation
from numpy.typing import NDArray
from torch import nn

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    InputSampler,
    Merge,
    Simulations,
    SpacedInputs,
)

Floats = NDArray[np.float64]
METHODS = ("uniform", "sobol", "spaced")
STEPS = 20
"""Samples of a simulation."""
PARAMETERS = 5
"""Parameters of a simulation."""
WIDTH = 64
"""Width of the network."""
BATCH = 32
FIRST = 10
"""Simulations before the first batch."""
ALL_STEPS = range(1, STEPS + 1)
"""The steps that a simulation yields."""
COMPARED_STEPS = (6, 13, 20)
"""The steps at which chosen inputs are far from each other."""


class Problem(Protocol):
    """Simulations of a partial differential equation."""

    bounds: Sequence[tuple[float, float]]
    simulations: int
    """Simulations of a study."""
    batches: int
    """Batches of a study for each simulation."""
    points: int
    """Points of a field."""

    def fields(self, parameters: Floats) -> Iterator[Floats]:
        """Iterate over the fields after each of ``STEPS`` time steps."""
        ...


class HotSpot:
    """The heat equation with a hot spot.

    Its parameters are the centre (x, y) and width of the spot, the diffusivity, and the temperature
    of the walls.
    """

    bounds = ((0.15, 0.85), (0.15, 0.85), (0.05, 0.3), (0.1, 1.0), (0.0, 1.0))
    simulations = 100
    batches = 60
    grid = 12
    duration = 0.1
    points = grid * grid

    def fields(self, parameters: Floats) -> Iterator[Floats]:
        """Solve by the spectrum of the discrete Laplacian; the diffusivity is a factor of time."""
        x, y, width, diffusivity, wall = parameters
        place = np.arange(1, self.grid + 1) / (self.grid + 1)
        spot = np.exp(-((place - x) ** 2 + (place[:, None] - y) ** 2) / (2 * width**2))
        substeps = 20
        equation = HeatEquation(self.grid, diffusivity * self.duration / STEPS / substeps)
        fields = equation.fields(spot, np.full(4, wall), substeps)
        return (field.reshape(-1) for field in itertools.islice(fields, STEPS))


class KuramotoSivashinsky:
    """u_t = -u u_x - u_xx - v u_xxxx, periodic.

    Its parameters are the length, v, the amplitudes of the first two waves, and the phase of the
    second. Fourth-order exponential time differencing (Kassam and Trefethen, SIAM J. Sci. Comput.
    26, 2005).
    """

    bounds = ((10.0, 30.0), (0.8, 2.0), (0.1, 2.0), (0.0, 2.0), (0.0, 1.0))
    simulations = 200
    batches = 40
    duration = 8.0
    substeps = 10
    grid = 64
    points = grid // 2

    def fields(self, parameters: Floats) -> Iterator[Floats]:
        """Solve on ``grid`` points, and yield every second one, halved."""
        length, viscosity, first, second, phase = parameters
        place = np.arange(self.grid) / self.grid
        numbers = np.arange(self.grid // 2 + 1)
        wave = first * np.sin(2 * np.pi * place) + second * np.sin(2 * np.pi * (2 * place + phase))
        u = np.fft.rfft(wave)
        k = 2 * np.pi * numbers / length
        linear = k**2 - viscosity * k**4
        step = self.duration / STEPS / self.substeps
        whole = np.exp(step * linear)
        half = np.exp(step * linear / 2)
        circle = np.exp(1j * np.pi * (np.arange(1, 17) - 0.5) / 16)  # around each value
        z = step * linear[:, None] + circle
        ez = np.exp(z)
        q = step * ((np.exp(z / 2) - 1) / z).mean(1).real
        a = step * ((-4 - z + ez * (4 - 3 * z + z**2)) / z**3).mean(1).real
        b = step * ((2 + z + ez * (z - 2)) / z**3).mean(1).real
        c = step * ((-4 - 3 * z - z**2 + ez * (4 - z)) / z**3).mean(1).real
        factor = -0.5j * k * (numbers < self.grid // 3)

        def product(modes: NDArray[Any]) -> NDArray[Any]:
            return factor * np.fft.rfft(np.fft.irfft(modes, self.grid) ** 2)

        for _ in range(STEPS):
            for _ in range(self.substeps):
                n = product(u)
                u_1 = half * u + q * n
                n_1 = product(u_1)
                n_2 = product(half * u + q * n_1)
                n_3 = product(half * u_1 + q * (2 * n_2 - n))
                u = whole * u + a * n + 2 * b * (n_1 + n_2) + c * n_3
            yield np.fft.irfft(u, self.grid)[::2] / 2


PROBLEMS: dict[str, Problem] = {"heat": HotSpot(), "ks": KuramotoSivashinsky()}


def network_inputs(
    problem: Problem, steps: Sequence[int], parameters: Floats
) -> NDArray[np.float32]:
    """Return the network's inputs after some steps: the parameters and the time, from -1 to 1."""
    low, high = np.transpose(problem.bounds)
    x = np.empty((len(steps), PARAMETERS + 1), np.float32)
    x[:, :-1] = 2 * (parameters - low) / (high - low) - 1
    x[:, -1] = np.array(steps) * (2 / STEPS) - 1
    return x


def samples(
    problem: Problem, parameters: Floats
) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Yield x, an input of the network, and y, the field."""
    inputs_of_steps = network_inputs(problem, ALL_STEPS, parameters)
    for x, field in zip(inputs_of_steps, problem.fields(parameters), strict=True):
        yield x, field.astype(np.float32)


@dataclass(frozen=True)
class Clock:
    """Lets a simulation take a number of batches.

    A file counts batches trained, simulations begun and ended. Simulations wait for batches, and
    batches for simulations, so that slow processes change nothing.
    """

    path: Path
    simulations: int
    batches: int

    @property
    def _numbers(self) -> Any:
        return np.memmap(self.path, np.int64, "r+", shape=3)

    def due(self, number: int) -> float:
        """Return how many batches are trained before the simulation of this number ends."""
        return (number - FIRST) * self.batches / (self.simulations - FIRST)

    def step(self, net: nn.Module, batch: Any, context: Any) -> dict[str, Any]:
        """Train on a batch, and count it.

        It waits first for a simulation that is due and late by more than another.
        """
        x, y = batch
        output = net(x)
        numbers = self._numbers
        while numbers[2] < self.simulations and numbers[0] >= self.due(int(numbers[2]) + 1):
            time.sleep(0.0005)
        numbers[0] += 1
        return {"loss": context.loss(output, y), "output": output}

    def simulate(self, problem: Problem, parameters: Floats) -> Iterator[Any]:
        """Wait for the batches that this simulation takes, and yield its samples."""
        numbers = self._numbers
        number = int(numbers[1])
        numbers[1] += 1
        while numbers[0] < self.due(number):
            time.sleep(0.0005)
        yield from samples(problem, parameters)
        numbers[2] += 1


def inputs(
    method: str, problem: Problem, number: int, seed: int
) -> Iterable[Floats] | InputSampler:
    """Return the inputs of a method."""
    low, high = np.transpose(problem.bounds)
    if method == "sobol":
        from scipy.stats import qmc

        points = qmc.Sobol(PARAMETERS, seed=seed).random_base2((number - 1).bit_length())
        return list(qmc.scale(points[:number], low, high))
    if method == "uniform":
        return list(np.random.default_rng(seed).uniform(low, high, (number, PARAMETERS)))
    compared = functools.partial(network_inputs, problem, COMPARED_STEPS)
    return SpacedInputs(problem.bounds, number, compared, seed=seed)


def network(problem: Problem, seed: int) -> nn.Module:
    """Return an MLP from parameters and time to a field."""
    torch.manual_seed(seed)
    sizes = [PARAMETERS + 1, WIDTH, WIDTH, WIDTH]
    hidden = [part for pair in itertools.pairwise(sizes) for part in (nn.Linear(*pair), nn.SiLU())]
    return nn.Sequential(*hidden, nn.Linear(WIDTH, problem.points))


@functools.lru_cache
def held_out(name: str, number: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    """Return samples of simulations of uniform inputs, those of each one after another."""
    problem = PROBLEMS[name]
    drawn: Any = inputs("uniform", problem, number, 2**31)
    all_samples = [sample for parameters in drawn for sample in samples(problem, parameters)]
    x, y = zip(*all_samples, strict=True)
    return torch.from_numpy(np.stack(x)), torch.from_numpy(np.stack(y))


def study(
    name: str, method: str, seed: int, engine: Any = "local", simulations: int = 0
) -> tuple[Floats, float, Any]:
    """Train; return the error of each held-out simulation, the seconds and the history.

    Errors are root mean squares. With another number of ``simulations`` as many batches are
    trained.
    """
    problem = PROBLEMS[name]
    number = simulations or problem.simulations
    batches = problem.simulations * problem.batches
    with (
        tempfile.TemporaryDirectory() as folder,
        DistributedTrainer(1, engine=engine, seed=seed, threads=1) as trainer,
    ):
        path = Path(folder) / "clock"
        capacity = 12 * problem.simulations
        np.zeros(3, np.int64).tofile(path)
        clock = Clock(path, number, batches - 20)  # the rest when the buffer empties
        options = {"optimizer": "adam", "lr": 0.001}
        trainer.build(network(problem, seed), options, "mse", training_step=clock.step)
        simulate = functools.partial(clock.simulate, problem)
        began = time.perf_counter()
        trainer.fit_online(
            Simulations(simulate, inputs(method, problem, number, seed)),
            buffer=BufferSpec("Reservoir", capacity, threshold=FIRST * STEPS),
            batch_size=BATCH,
            merge=Merge(every=50),
            max_batches=batches,
            progress=False,
        )
        seconds = time.perf_counter() - began
        net = trainer.model()
        history = list(trainer.history)
    x, y = held_out(name)
    with torch.no_grad():
        squares = (net(x) - y).square().mean(1)
    return squares.reshape(-1, STEPS).mean(1).sqrt().double().numpy(), seconds, history


def main() -> None:
    """Run the app."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--problem", default="heat", choices=list(PROBLEMS))
    parser.add_argument("--methods", nargs="+", default=["uniform", "spaced"], choices=METHODS)
    parser.add_argument("--simulations", type=int, default=0, help="0 for those of the problem")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engine", default="local", choices=["local", "compss", "ray"])
    arguments = parser.parse_args()
    for method in arguments.methods:
        errors, seconds, _ = study(
            arguments.problem, method, arguments.seed, arguments.engine, arguments.simulations
        )
        median, worst = np.quantile(errors, [0.5, 0.99])
        values = f"median {median:.4f}, mean {errors.mean():.4f}, 99th percentile {worst:.4f}"
        print(f"{method}: error {values}, {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    main()
