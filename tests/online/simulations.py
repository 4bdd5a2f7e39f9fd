"""Simulations and networks that the tests of online fits share; they run in other processes.

Samples are one-hot, and the network is a matrix whose weights fall by one for each time that a sample was trained
on: what was lost, or trained on twice, can be read off the parameters.
"""

import itertools
import os
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

COUNTING = {"optimizer": "sgd", "lr": 1.0}


def total(output, target):
    """The loss of the network that counts: its gradient by a weight is how often that sample is in the batch."""
    return output.sum()


def counts(parameters, workers: int) -> list[int]:
    """How often each sample was trained on; what a worker learns counts by its share."""
    times = -workers * parameters["weight"][0].astype(np.float64)
    assert np.abs(times - np.rint(times)).max() < 1e-3
    return np.rint(times).astype(int).tolist()


class Counter(nn.Linear):
    """The network that counts; calls ``seeing`` with the samples of every batch before it trains on them."""

    def __init__(self, samples: int, seeing: Callable[[Sequence[int]], None] | None = None) -> None:
        super().__init__(samples, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.seeing = seeing

    def forward(self, x):
        if self.training and self.seeing is not None:
            self.seeing(x.argmax(1).tolist())
        return super().forward(x)


def one_hot(number: int, samples: int) -> np.ndarray:
    x = np.zeros(samples, np.float32)
    x[number] = 1
    return x


@dataclass(frozen=True)
class Hots:
    """Simulates the samples whose numbers it is given; ``before`` is called with each number first."""

    samples: int
    before: Callable[[int], None] | None = None

    def __call__(self, numbers):
        for number in numbers:
            if self.before is not None:
                self.before(number)
            yield one_hot(number, self.samples), np.float32(0)


def rows_of(arrays: Sequence[Any]) -> Any:
    """Simulate the rows of arrays: (x, y), or x alone."""
    for row in zip(*arrays, strict=True):
        yield row if len(row) > 1 else row[0]


def pairing(earlier, later):
    assert torch.equal(torch.from_numpy(earlier.step), earlier.data[0][:, 1].long())
    x = torch.cat([earlier.data[0], earlier.data[1][:, None], later.data[0]], 1)
    return x, later.data[1]


def wait_for(path: Path, seconds: float = 20.0) -> None:
    """Wait until a file is there."""
    until = time.monotonic() + seconds
    while not path.exists():
        if time.monotonic() > until:
            raise TimeoutError(f"nobody has made {path.name}")
        time.sleep(0.005)


def accumulator(path: Path) -> int:
    """Count in a file, across processes; return how many have counted before."""
    with path.open("ab") as file:
        file.write(b".")
        return file.tell() - 1


def tallied(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@dataclass(frozen=True)
class Endless:
    """Counts the samples that it gives in a file."""

    samples: int
    folder: Path

    def __call__(self, first):
        for number in itertools.count(first):
            accumulator(self.folder / "produced")
            yield one_hot(number % self.samples, self.samples), np.float32(0)


@dataclass(frozen=True)
class Trouble:
    """Makes trouble at a sample, as often as it is told to."""

    at: int
    what: Callable[[], None]
    folder: Path
    times: int = 1
    after: Path | None = None
    """A file that is waited for first."""

    def __call__(self, number: int | Sequence[int]) -> None:
        if (number == self.at if isinstance(number, int) else self.at in number) and self.times > self.happened:
            if self.after is not None:
                wait_for(self.after)
            accumulator(self.folder / f"trouble-{self.at}")
            self.what()

    @property
    def happened(self) -> int:
        return tallied(self.folder / f"trouble-{self.at}")


@dataclass(frozen=True)
class All:
    """Calls one after the other."""

    calls: tuple[Callable[[Any], None], ...]

    def __call__(self, number: Any) -> None:
        for call in self.calls:
            call(number)


@dataclass(frozen=True)
class Touch:
    """Makes a file at a sample, and waits there for another one, if any."""

    at: int
    path: Path | None = None
    until: Path | None = None

    def __call__(self, number: int | Sequence[int]) -> None:
        if number == self.at if isinstance(number, int) else self.at in number:
            if self.path is not None:
                self.path.touch()
            if self.until is not None:
                wait_for(self.until)


def fail() -> None:
    raise ArithmeticError("the solver met a singular matrix")


def kill() -> None:
    os.kill(os.getpid(), 9)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]
