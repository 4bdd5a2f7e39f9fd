"""A transform beside the training steps: how long a fit takes, to the longer of the two, and to both in turn."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from _common import image_source, load_images, network, parser, print_table, ratios, spread

from compss_train import BlockedTensor, DistributedTrainer

BATCH, BLOCKS = 100, (8, 1)
OPTIMIZER = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
WARM_UP_SAMPLES = 2_000


def by_torch(x: torch.Tensor) -> torch.Tensor:
    """Return x after an operation of torch, which other threads can run beside."""
    return torch.sin(x)


def by_random_torch(x: torch.Tensor) -> torch.Tensor:
    """Return x with noise from torch's generator."""
    return x + 0.01 * torch.randn_like(x)


def by_numpy(x: torch.Tensor) -> torch.Tensor:
    """Return x after an operation of numpy, which other threads can run beside."""
    return torch.from_numpy(np.sin(x.numpy()))


def by_random_numpy(x: torch.Tensor) -> torch.Tensor:
    """Return x with noise from numpy's generator, which transforms use between two steps only."""
    return x + 0.01 * torch.from_numpy(np.random.standard_normal(x.shape).astype(np.float32))


def by_python(x: torch.Tensor) -> torch.Tensor:
    """Return x after work that keeps Python's lock."""
    total = 0.0
    for number in range(2_000):
        total += number * 0.5
    return x if total else -x


def by_waiting(x: torch.Tensor) -> torch.Tensor:
    """Return x after a time in which the transform needs no core, as if it asked another machine."""
    time.sleep(0.001)
    return x


KINDS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "torch": by_torch,
    "torch, random": by_random_torch,
    "numpy": by_numpy,
    "numpy, random": by_random_numpy,
    "Python": by_python,
    "waiting": by_waiting,
}


@dataclass(frozen=True)
class Repeated:
    """A transform that is as dear as one wants it."""

    function: Callable[[torch.Tensor], torch.Tensor]
    times: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return x after all calls."""
        for _ in range(self.times):
            x = self.function(x)
        return x


class Measurement:
    """Fits of one number of workers, each with a thread, with a warm engine."""

    def __init__(self, workers: int, samples: int, epochs: int, seed: int) -> None:
        self._trainer = DistributedTrainer(workers, engine="local", seed=seed, threads=1)
        images = load_images(samples)
        self._x, self._y = images.x, images.y
        self._workers, self._epochs, self._seed = workers, epochs, seed

    def fit(self, transform: Repeated | None, samples: int | None = None) -> float:
        """Return the seconds of a fit."""
        net = network("MLP", self._seed)
        self._trainer.build(net, OPTIMIZER, "cross_entropy", transform=transform)
        x, y = (BlockedTensor.from_array(data[:samples], BLOCKS) for data in (self._x, self._y))
        epochs = 1 if samples else self._epochs
        began = time.perf_counter()
        self._trainer.fit(x, y, num_epochs=epochs, batch_size=BATCH, progress=False)
        return time.perf_counter() - began

    def alone(self, transform: Repeated) -> float:
        """Return the seconds that a worker's share of the batches takes in the transform alone."""
        batches = torch.from_numpy(self._x).split(BATCH)
        began = time.perf_counter()
        for batch in batches:
            transform(batch)
        return (time.perf_counter() - began) * self._epochs / self._workers

    def as_dear_as(self, seconds: float, function: Callable[[torch.Tensor], torch.Tensor]) -> Repeated:
        """Return a transform that takes as long alone."""
        tried = Repeated(function, 3)
        return Repeated(function, max(1, round(3 * seconds / self.alone(tried))))

    def close(self) -> None:
        """Stop the workers."""
        self._trainer.close()


def report(options: argparse.Namespace, workers: int) -> None:
    seconds: dict[str, list[tuple[float, float, float]]] = {}
    for repetition in range(options.repetitions):
        measurement = Measurement(workers, options.samples, options.epochs, repetition)
        measurement.fit(None, WARM_UP_SAMPLES)
        transforms = {
            name: measurement.as_dear_as(measurement.fit(None), function) for name, function in KINDS.items()
        }
        for name, transform in transforms.items():
            measured = measurement.fit(None), measurement.alone(transform), measurement.fit(transform)
            seconds.setdefault(name, []).append(measured)
            print(f"{repetition + 1}: {workers} workers: {name}: {measured}", file=sys.stderr)
        measurement.close()
    rows = []
    for name, measured in seconds.items():
        step, alone, both = map(list, zip(*measured, strict=True))
        longer, in_turn = map(max, step, alone), map(sum, zip(step, alone, strict=True))
        of_each = partial(ratios, both)
        columns = (step, alone, both, of_each(list(longer)), of_each(list(in_turn)))
        rows.append([name, *map(spread, columns)])
    print_table(
        f"MLP, batches of {BATCH}, {workers} workers with a thread each",
        ["transform", "steps s", "transform s", "fit s", "of the longer (<= 1.15)", "of both in turn"],
        rows,
    )


def main() -> None:
    options_parser = parser(__doc__, repetitions=5, epochs=2)
    options_parser.add_argument("--samples", type=int, default=20_000, help="training images")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples = 1, 1, 4_000
    torch.set_num_threads(1)
    print(f"{image_source()}; torch {torch.__version__}")
    for workers in (1, 2):
        report(options, workers)


if __name__ == "__main__":
    main()
