"""What the benchmarks share: options, images, networks, fresh processes, and tables."""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

FASHION_MNIST = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
MEAN, DEVIATION = 0.2860, 0.3530
"""Of Fashion-MNIST's training pixels, scaled to 0..1."""

_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


# -- options -----------------------------------------------------------------------------------------------


def parser(description: str | None, repetitions: int, epochs: int) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    options.add_argument("--repetitions", type=int, default=repetitions, help="times that each contestant runs")
    options.add_argument("--epochs", type=int, default=epochs, help="epochs (rounds) of each fit")
    options.add_argument("--quick", action="store_true", help="small sizes, to see that the benchmark works")
    return options


# -- images ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """Normalised float32 images (n, 1, 28, 28) and int64 labels, for training and for testing."""

    x: NDArray[np.float32]
    y: NDArray[np.int64]
    test_x: NDArray[np.float32]
    test_y: NDArray[np.int64]


def image_source() -> str:
    """Say where the images come from."""
    if FASHION_MNIST.is_dir():
        return f"Fashion-MNIST from {FASHION_MNIST}"
    return f"SYNTHETIC images of Fashion-MNIST's shape (no folder {FASHION_MNIST}): accuracies mean nothing"


def load_images(samples: int = 60_000) -> Images:
    """Return the first ``samples`` training images and up to as many test images."""
    if not FASHION_MNIST.is_dir():
        return _synthetic(samples)
    x, y = _labelled("train", samples)
    test_x, test_y = _labelled("t10k", samples)
    return Images(x, y, test_x, test_y)


def _labelled(part: str, samples: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    pixels = _idx(FASHION_MNIST / f"{part}-images-idx3-ubyte.gz")[:samples, None]
    labels = _idx(FASHION_MNIST / f"{part}-labels-idx1-ubyte.gz")[:samples]
    images = (pixels.astype(np.float32) / np.float32(255) - np.float32(MEAN)) / np.float32(DEVIATION)
    return images, labels.astype(np.int64)


def _idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes: 2 zero bytes, type, number of dimensions, big-endian dimensions, data."""
    data = gzip.decompress(path.read_bytes())
    dimensions = np.frombuffer(data, ">u4", count=data[3], offset=4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * data[3]).reshape(dimensions.astype(int))


def _synthetic(samples: int) -> Images:
    """Return blurry class prototypes under noise, which a network can learn."""
    random = np.random.default_rng(0)
    prototypes = random.standard_normal((10, 1, 28, 28), np.float32)
    labels = random.integers(0, 10, samples + samples // 6)
    x = prototypes[labels] + 2 * random.standard_normal((len(labels), 1, 28, 28), np.float32)
    return Images(x[:samples], labels[:samples], x[samples:], labels[samples:])


# -- networks ----------------------------------------------------------------------------------------------


def mlp() -> nn.Module:
    """784-1024-1024-10."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10)
    )


def cnn() -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 10)),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"MLP": mlp, "CNN": cnn}


def network(name: str, seed: int) -> nn.Module:
    """Return the named network with the parameters that the seed gives, the same for all contestants."""
    torch.manual_seed(seed)
    return NETWORKS[name]()


def accuracy(outputs: torch.Tensor | NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Return the percentage of outputs whose largest entry is the label's."""
    return 100 * float((np.asarray(outputs).argmax(1) == labels).mean())


# -- processes ---------------------------------------------------------------------------------------------


@contextmanager
def threads_of_children(threads: int) -> Iterator[None]:
    """Let processes started meanwhile use so many threads: the libraries read it when they are imported."""
    before = {name: os.environ.get(name) for name in _THREAD_VARIABLES}
    os.environ.update(dict.fromkeys(_THREAD_VARIABLES, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def in_fresh_process(function: Callable[..., Any], *args: Any) -> Any:
    """Return ``function(*args)`` as a new Python process computes it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *args).result()


class Stamp:
    """A transform that notes in a file a process when it is called first.

    ``time.perf_counter`` is the machine's monotonic clock on Linux, so that processes' readings compare.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        """Note the time, and return the batch as it is."""
        now = time.perf_counter()
        path = Path(self.folder, str(os.getpid()))
        if not path.exists():
            path.write_text(repr(now))
        return batch

    def times(self) -> list[float]:
        """Return every process's first call, the earliest first."""
        return sorted(float(path.read_text()) for path in Path(self.folder).iterdir())


# -- tables ------------------------------------------------------------------------------------------------


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return "median (min-max)"; a plain number where there is one value, a dash where there is none."""
    if not values:
        return "-"
    if len(values) == 1:
        return format(values[0], form)
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def ratios(ours: Sequence[float], peers: Sequence[float]) -> list[float]:
    """Return the ratio within each repetition: what disturbs the machine disturbs both sides of it."""
    return [mine / theirs for mine, theirs in zip(ours, peers, strict=True)]


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headers: the first column to the left, numbers to the right."""
    widths = [max(len(row[column]) for row in [headers, *rows]) for column in range(len(headers))]
    print(f"\n{title}", "-" * len(title), sep="\n")
    for row in [headers, *rows]:
        cells = [
            row[0].ljust(widths[0]),
            *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)),
        ]
        print("  ".join(cells).rstrip(), flush=True)
