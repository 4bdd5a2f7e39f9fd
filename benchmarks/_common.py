"""What the benchmarks share: options, data, networks, fits, processes and tables."""

from __future__ import annotations

import argparse
import gzip
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, TypeVar
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

if TYPE_CHECKING:
    from compss_train import BlockedTensor, DistributedTrainer

HERE = Path(__file__).resolve().parent
FASHION_MNIST = Path(os.environ.get("FASHION_MNIST", "/usr/share/datasets/fashion-mnist"))
MEAN = 0.2860
"""Mean of Fashion-MNIST's training pixels, scaled to 0..1."""
DEVIATION = 0.3530
"""Standard deviation of the same pixels."""
WORKERS = 2
BATCH = 100
"""Samples of a batch, for us and for peers, unless a benchmark says otherwise."""
SGD: dict[str, Any] = {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
"""The optimizer, for us and for peers, unless a benchmark says otherwise."""

T = TypeVar("T")


# -- options


def parser(
    description: str | None,
    repetitions: int,
    epochs: int = 0,
    samples: int = 0,
    parts: Iterable[str] = (),
    default: Sequence[str] = (),
) -> argparse.ArgumentParser:
    """Return a parser with the options that benchmarks have.

    ``parts`` are measurements that can be asked for by name; those of ``default``, or all, run if
    none is.
    """
    options = argparse.ArgumentParser(
        description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    names = list(parts)
    if names:
        default = default or names
        text = f"{', '.join(names)}; {', '.join(default)} if none is given"
        options.add_argument("parts", nargs="*", choices=[*names, []], metavar="PART", help=text)
        options.set_defaults(default_parts=default)
    options.add_argument(
        "--repetitions", type=int, default=repetitions, help="times that each contestant runs"
    )
    if epochs:
        options.add_argument(
            "--epochs", type=int, default=epochs, help="epochs (rounds) of each fit"
        )
    if samples:
        options.add_argument("--samples", type=int, default=samples, help="samples to train on")
    options.add_argument(
        "--quick", action="store_true", help="small sizes, to see that the benchmark works"
    )
    return options


def parsed(options: argparse.ArgumentParser, **quick: Any) -> argparse.Namespace:
    """Return the command line's options.

    With ``--quick`` there is a single repetition, and ``quick`` replaces options.
    """
    arguments = options.parse_args()
    if "parts" in arguments:
        arguments.parts = arguments.parts or arguments.default_parts
    if arguments.quick:
        vars(arguments).update({"repetitions": 1, **quick})
    return arguments


# -- data and networks


@dataclass(frozen=True)
class Images:
    """Normalised float32 images (n, 1, 28, 28) and int64 labels, for training and for testing."""

    x: NDArray[Any]
    y: NDArray[np.int64]
    test_x: NDArray[Any]
    test_y: NDArray[np.int64]

    def blocked(self, blocks: int) -> tuple[BlockedTensor, BlockedTensor]:
        """Return the training images and their labels in so many blocks."""
        from compss_train import BlockedTensor  # not at the top: peers do without

        x = BlockedTensor.from_array(self.x, (blocks, 1))
        y = BlockedTensor.from_array(self.y, (blocks, 1))
        return x, y


def image_source() -> str:
    """Say where the images come from."""
    if FASHION_MNIST.is_dir():
        return f"Fashion-MNIST from {FASHION_MNIST}; torch {torch.__version__}"
    return (
        f"SYNTHETIC images of Fashion-MNIST's shape (no folder {FASHION_MNIST}): accuracies "
        "mean nothing"
    )


def load_images(samples: int = 60_000) -> Images:
    """Return the first ``samples`` training images and up to as many test images."""
    if not FASHION_MNIST.is_dir():
        return _synthetic(samples)
    return Images(*_labelled("train", samples), *_labelled("t10k", samples))


def _labelled(part: str, samples: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    pixels = _idx(FASHION_MNIST / f"{part}-images-idx3-ubyte.gz")[:samples, None]
    labels = _idx(FASHION_MNIST / f"{part}-labels-idx1-ubyte.gz")[:samples]
    scaled = pixels.astype(np.float32) / np.float32(255)
    images = (scaled - np.float32(MEAN)) / np.float32(DEVIATION)
    return images, labels.astype(np.int64)


def _idx(path: Path) -> NDArray[np.uint8]:
    """Read an idx file of bytes.

    It has 2 zero bytes, a type, the number of dimensions, big-endian dimensions, and the data.
    """
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


def mlp() -> nn.Module:
    """784-1024-1024-10."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 1024),
        nn.ReLU(),
        nn.Linear(1024, 1024),
        nn.ReLU(),
        nn.Linear(1024, 10),
    )


def cnn() -> nn.Module:
    """Two convolutions with BatchNorm and a linear layer."""
    return nn.Sequential(
        *(nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(1568, 10)),
    )


def wide_mlp() -> nn.Module:
    """10 million parameters."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, 2240),
        nn.ReLU(),
        nn.Linear(2240, 2240),
        nn.ReLU(),
        nn.Linear(2240, 1440),
        nn.ReLU(),
        nn.Linear(1440, 10),
    )


NETWORKS: dict[str, Callable[[], nn.Module]] = {"MLP": mlp, "CNN": cnn}
ALL_NETWORKS = {**NETWORKS, "wide MLP": wide_mlp}
"""Those of single benchmarks, too."""


def network(name: str, seed: int) -> nn.Module:
    """Return the named network with the parameters of a seed, the same for all contestants."""
    torch.manual_seed(seed)
    return ALL_NETWORKS[name]()


def accuracy(outputs: torch.Tensor | NDArray[Any], labels: NDArray[np.int64]) -> float:
    """Return the percentage of outputs whose largest entry is the label's."""
    return 100 * float((np.asarray(outputs).argmax(1) == labels).mean())


def accuracy_of(net: nn.Module, images: Images) -> float:
    """Return the percentage of the test images that a network recognises."""
    net.eval()
    with torch.no_grad():
        outputs = torch.cat([net(batch) for batch in torch.from_numpy(images.test_x).split(1000)])
    net.train()
    return accuracy(outputs.float(), images.test_y)


# -- our fits


@contextmanager
def warm_trainer(
    net: nn.Module,
    optimizer: Mapping[str, Any] = SGD,
    *,
    workers: int = WORKERS,
    engine: Any = "local",
    seed: int = 0,
    warm: tuple[Any, Any] | None = None,
    **build: Any,
) -> Iterator[DistributedTrainer]:
    """Yield a trainer, with a thread a worker, whose processes a fit has started.

    It was one on ``warm``, or on zeros. Building the network anew forgets what that fit has
    trained.
    """
    from compss_train import DistributedTrainer  # not at the top: peers do without

    x, y = warm or (np.zeros((20 * BATCH, 1, 28, 28), np.float32), np.zeros(20 * BATCH, np.int64))
    with DistributedTrainer(workers, engine=engine, seed=seed, threads=1) as trainer:
        trainer.build(net, optimizer, "cross_entropy", **build)
        trainer.fit(x, y, num_epochs=2, batch_size=BATCH, progress=False)
        trainer.build(net, optimizer, "cross_entropy", **build)
        yield trainer


@dataclass(frozen=True)
class Fitted:
    """What a fit took."""

    seconds: float
    history: Sequence[Any]

    @property
    def rate(self) -> float:
        """Samples a second; those that a reservoir repeats count."""
        return float(sum(record["samples"] for record in self.history) / self.seconds)


def fit(trainer: DistributedTrainer, *data: Any, epochs: int, **options: Any) -> Fitted:
    """Fit in batches of 100, and return what it took."""
    options = {"batch_size": BATCH, "progress": False, **options}
    seconds = seconds_of(lambda: trainer.fit(*data, num_epochs=epochs, **options))
    return Fitted(seconds, trainer.history)


def seconds_of(
    function: Callable[[], object], clock: Callable[[], float] = time.perf_counter
) -> float:
    """Return what a call takes."""
    began = clock()
    function()
    return clock() - began


class Stamp:
    """A transform that notes in a file a process when it is called first.

    ``time.perf_counter`` is the machine's monotonic clock on Linux, so that processes' readings
    compare.
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

    def processes(self) -> list[int]:
        """Return the processes that have called it and run."""
        numbers = sorted(int(path.name) for path in Path(self.folder).iterdir())
        return [number for number in numbers if Path("/proc", str(number)).exists()]


# -- processes


def environment(**variables: str) -> AbstractContextManager[Any]:
    """Set environment variables, for processes that are started meanwhile."""
    return patch.dict(os.environ, variables)


def threads_of_children(threads: int) -> AbstractContextManager[Any]:
    """Let processes that are started meanwhile use so many threads.

    The libraries read it when they are imported.
    """
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return environment(**dict.fromkeys(names, str(threads)))


def spawned(target: Callable[..., None], *args: Any) -> Any:
    """Return a new Python process, started."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=args)
    process.start()
    return process


def in_fresh_process(function: Callable[..., T], *args: Any) -> T:
    """Return ``function(*args)`` as a new Python process computes it."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as executor:
        return executor.submit(function, *args).result()


# -- tables


def in_turn(contestants: Mapping[str, Callable[[int], T]], repetitions: int) -> dict[str, list[T]]:
    """Call all contestants with the repetition's number, one after another.

    So noise meets all of them.
    """
    results: dict[str, list[T]] = {label: [] for label in contestants}
    for repetition in range(repetitions):
        for label, contestant in contestants.items():
            result = contestant(repetition)
            results[label].append(result)
            line = f"{repetition + 1}: {label}: {result}"
            print(line[:200], file=sys.stderr, flush=True)
    return results


def spread(values: Sequence[float], form: str = ".2f") -> str:
    """Return "median (min to max)", one value as a plain number, and none as a dash."""
    if not values:
        return "-"
    if len(values) == 1:
        return format(values[0], form)
    return f"{median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


def ratios(ours: Sequence[float], peers: Sequence[float]) -> list[float]:
    """Return the ratio within each repetition.

    What disturbs the machine disturbs both sides of it.
    """
    return [mine / theirs for mine, theirs in zip(ours, peers, strict=True)]


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under headers: the first column to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    print(f"\n{title}", "-" * len(title), sep="\n")
    for name, *values in [headers, *rows]:
        cells = [name.ljust(widths[0])]
        cells += [value.rjust(width) for value, width in zip(values, widths[1:], strict=True)]
        print("  ".join(cells).rstrip(), flush=True)


def print_rates(
    title: str,
    rates: Mapping[str, Sequence[float]],
    base: str,
    *,
    goal: str = "",
    unit: str = "samples/s",
    form: str = ",.0f",
) -> None:
    """Print each contestant's rates, and their ratios to those of ``base``, one of them."""
    rows = []
    for label, values in rates.items():
        is_paired = len(values) == len(rates[base])
        ratio = spread(ratios(values, rates[base])) if is_paired else "-"
        rows.append([label, spread(values, form), ratio])
    to_base = f"to {base} (goal {goal})" if goal else f"to {base}"
    print_table(title, ["contestant", unit, to_base], rows)
