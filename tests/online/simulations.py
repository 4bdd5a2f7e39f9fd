"""Simulations of countable samples and networks that count them; they run in other processes.

Samples are one-hot, and the network is a matrix whose weights decrease by one each time a sample is
trained on, so that the parameters show which samples were lost or trained on twice. ``Fault``,
``TouchFile`` and ``CallAll`` are called with the number of a sample, or the numbers of a batch.
"""

import itertools
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from tests.helpers.waiting import pause, wait_until

COUNTING_SGD = {"optimizer": "sgd", "lr": 1.0}


def sum_loss(output, target):
    """The loss of the counting network: its gradient by a weight is how often that sample is in the
    batch.
    """
    return output.sum()


def sample_counts(parameters, workers: int) -> list[int]:
    """Return how often each sample was trained on; a worker's changes count by its share."""
    times = -workers * parameters["weight"][0].astype(np.float64)
    assert np.abs(times - np.rint(times)).max() < 1e-3
    return np.rint(times).astype(int).tolist()


class CountingNet(nn.Linear):
    """The network that counts; calls ``on_batch`` with the samples of every batch before it trains
    on them.
    """

    def __init__(
        self, samples: int, on_batch: Callable[[Sequence[int]], None] | None = None
    ) -> None:
        super().__init__(samples, 1, bias=False)
        nn.init.zeros_(self.weight)
        self.on_batch = on_batch

    def forward(self, x):
        if self.training and self.on_batch is not None:
            self.on_batch(x.argmax(1).tolist())
        return super().forward(x)


def slow_copy(x: torch.Tensor) -> torch.Tensor:
    """A transform that takes long enough to run in a thread beside the steps."""
    pause(0.001)
    return x.clone()


def one_hot(number: int, samples: int) -> np.ndarray:
    x = np.zeros(samples, np.float32)
    x[number] = 1
    return x


@dataclass(frozen=True)
class OneHotSimulation:
    """Yields the samples of the numbers in its input; ``before`` is called with each number
    first.
    """

    samples: int
    before: Callable[[int], None] | None = None

    def __call__(self, numbers):
        for number in numbers:
            if self.before is not None:
                self.before(number)
            yield one_hot(number, self.samples), np.float32(0)


def simulate_rows(arrays: Sequence[Any]) -> Any:
    """Yield the rows of arrays: (x, y), or x alone."""
    for row in zip(*arrays, strict=True):
        yield row if len(row) > 1 else row[0]


def numbered_rows(rows):
    """Send rows with their time steps."""
    for step, (x, y) in enumerate(simulate_rows(rows)):
        yield step, x, y


def pairing(earlier, later):
    assert torch.equal(torch.from_numpy(earlier.step), earlier.data[0][:, 1].long())
    x = torch.cat([earlier.data[0], earlier.data[1][:, None], later.data[0]], 1)
    return x, later.data[1]


def wait_for_file(path: Path) -> None:
    wait_until(path.exists, said=lambda: f"{path.name} was not created")


def increment(path: Path) -> int:
    """Count in a file, across processes; return the count before."""
    with path.open("ab") as file:
        file.write(b".")
        return file.tell() - 1


def read_count(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


@dataclass(frozen=True)
class EndlessSimulation:
    """Yields samples without end, and counts them in a file."""

    samples: int
    folder: Path

    def __call__(self, first):
        for number in itertools.count(first):
            increment(self.folder / "produced")
            yield one_hot(number % self.samples, self.samples), np.float32(0)


@dataclass(frozen=True)
class Fault:
    """Calls ``action`` at a sample, at most ``times`` times across processes."""

    at: int
    action: Callable[[], None]
    folder: Path
    times: int = 1
    after: Path | None = None
    """A file to wait for first."""

    def __call__(self, number: int | Sequence[int]) -> None:
        if (
            number == self.at if isinstance(number, int) else self.at in number
        ) and self.times > self.count:
            if self.after is not None:
                wait_for_file(self.after)
            increment(self.folder / f"fault-{self.at}")
            self.action()

    @property
    def count(self) -> int:
        return read_count(self.folder / f"fault-{self.at}")


@dataclass(frozen=True)
class CallAll:
    """Calls several functions in turn."""

    calls: tuple[Callable[[Any], None], ...]

    def __call__(self, number: Any) -> None:
        for call in self.calls:
            call(number)


@dataclass(frozen=True)
class TouchFile:
    """Creates a file at a sample, and waits there for another one, if any."""

    at: int
    path: Path | None = None
    until: Path | None = None

    def __call__(self, number: int | Sequence[int]) -> None:
        if number == self.at if isinstance(number, int) else self.at in number:
            if self.path is not None:
                self.path.touch()
            if self.until is not None:
                wait_for_file(self.until)


def raise_error() -> None:
    raise ArithmeticError("the solver met a singular matrix")


def kill_process() -> None:
    os.kill(os.getpid(), 9)


def free_port() -> int:
    """Return a port of this machine that is this program's until it ends.

    It stays bound, so that no other program, nor a client that connects, gets it; nothing listens
    at it, so that a server may, which shares the address as all servers do on Unix.
    """
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    sock.bind(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    sock.detach()  # it stays open
    return port
