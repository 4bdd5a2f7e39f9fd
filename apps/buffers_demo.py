"""Show what buffers make of a stream that arrives class by class, and what a network learns.

The stream has all images of class 0, then all of class 1, and so on, each image once. A thread puts
it into a buffer in small chunks while the main thread gets batches and trains on them. FIFO gives
the classes one after the other, so that the network forgets each for the next; FIRO and the
reservoirs mix what they hold.

The pace is an option: ``--batches-per-chunk`` batches can be trained on while a chunk arrives. FIFO
and FIRO give each sample once, so that the training waits for the stream where it could take more
batches than a chunk fills; the reservoirs fill that time with samples that were got before. How
often they repeat them is thus a matter of the pace alone, not of the machine's speed, and a seed
fixes the whole run.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import buffer_plots
import common
import datasets
import models
import numpy as np
import torch
from buffer_plots import Run
from streams import Producer, Samples
from torch import nn

from compss_train import DivergedError
from compss_train._utils.validation import check_count, check_seed
from compss_train.buffers import FIFO, FIRO, BatchReservoir, Buffer, Reservoir

MEASUREMENTS = 30
"""Times that the test accuracy is measured while the stream arrives."""
DIGITS = "digits"


@dataclass(frozen=True)
class Defaults:
    """Defaults of options: small batches for small data."""

    batch_size: int
    lr: float


FASHION_MNIST_DEFAULTS = Defaults(64, 0.01)
DIGITS_DEFAULTS = Defaults(8, 0.05)


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        description="Train a network on a stream sorted by class, once through each buffer.",
        allow_abbrev=False,
    )
    _add_data(parser)
    _add_buffers(parser)
    large = FASHION_MNIST_DEFAULTS
    small = DIGITS_DEFAULTS
    _add(
        parser,
        "--batch-size",
        int,
        f"samples in a batch (default: {large.batch_size}, {small.batch_size} for digits)",
    )
    _add(
        parser,
        "--lr",
        float,
        f"learning rate of SGD with momentum 0.9 (default: {large.lr}, {small.lr} for digits)",
    )
    seed = "fixes the initial weights, the stream and all draws (default: %(default)s)"
    _add(parser, "--seed", int, seed, default=0)
    return parser


def _add_data(parser: argparse.ArgumentParser) -> None:
    _add(
        parser,
        "--data",
        str,
        "folder with Fashion-MNIST's four idx files, gzipped, or the word digits for "
        f"scikit-learn's digits (default: {datasets.FASHION_MNIST_FOLDER} if there, else digits)",
    )
    folder = "folder for buffers.png, which is replaced if there (default: %(default)s)"
    parser.add_argument(
        "--output", type=Path, default=Path("runs/buffers_demo"), metavar="FOLDER", help=folder
    )


def _add_buffers(parser: argparse.ArgumentParser) -> None:
    size = "most samples that a buffer holds (default: a fifth of the stream)"
    _add(parser, "--buffer-size", int, size)
    threshold = (
        "FIRO and the reservoirs give samples while they hold at least this many (default: 3/4 "
        "of the buffer)"
    )
    _add(parser, "--threshold", int, threshold)
    _add(parser, "--chunk", int, "samples that arrive at a time (default: as many as a batch has)")
    pace = "batches that can be trained on while a chunk arrives (default: %(default)s)"
    _add(parser, "--batches-per-chunk", int, pace, default=4)


def _add(
    parser: argparse.ArgumentParser,
    option: str,
    kind: Callable[[str], Any],
    text: str,
    *,
    default: Any = None,
) -> None:
    parser.add_argument(option, type=kind, default=default, help=text)


def main() -> int:
    """Run the app and return its exit code.

    0 after a complete run, 1 where data, files or training fail, 2 for wrong options, 130 after
    Ctrl-C.
    """
    parser = make_parser()
    options = parser.parse_args()
    try:
        buffer_plots.check_matplotlib()
        problem = prepare(options, parser)
        common.make_folder(options.output)
        runs = train_all(problem, options)
        print_table(runs)
        print(f"plot in {buffer_plots.save(runs, options.output / 'buffers.png')}")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return common.INTERRUPTED
    except (datasets.DataError, DivergedError, ModuleNotFoundError, OSError) as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    return 0


def prepare(options: argparse.Namespace, parser: argparse.ArgumentParser) -> common.Problem:
    """Return data and a network for them; check the options, and fill in defaults."""
    try:
        torch.manual_seed(check_seed(options.seed))
        problem, defaults = load(options.data)
        fill_in(options, defaults, len(problem.dataset.train_x))
    except ValueError as error:
        parser.error(str(error))
    return problem


def load(data: str | None) -> tuple[common.Problem, Defaults]:
    """Return Fashion-MNIST where it is named or there, else the digits."""
    if data is None and not datasets.FASHION_MNIST_FOLDER.is_dir():
        print(
            f"no Fashion-MNIST in {datasets.FASHION_MNIST_FOLDER}: the stream is of "
            "scikit-learn's digits"
        )
        data = DIGITS
    if data == DIGITS:
        return common.Problem(models.digits_mlp(), datasets.digits()), DIGITS_DEFAULTS
    images = datasets.fashion_mnist(Path(data or datasets.FASHION_MNIST_FOLDER))
    problem = common.Problem(models.image_mlp(), images, models.normalize_images)
    return problem, FASHION_MNIST_DEFAULTS


def fill_in(options: argparse.Namespace, defaults: Defaults, samples: int) -> None:
    """Set the options that were not given; raise ``ValueError`` for one that is out of range."""
    _default(options, "batch_size", defaults.batch_size)
    _default(options, "chunk", options.batch_size)
    _default(options, "buffer_size", max(1, samples // 5))
    _default(options, "threshold", options.buffer_size * 3 // 4)
    _default(options, "lr", defaults.lr)
    for name in ("batch_size", "chunk", "buffer_size", "batches_per_chunk"):
        check_count(_option(name), getattr(options, name))
    check_count("--threshold", options.threshold, least=0)
    if not 0 < options.lr < math.inf:
        raise ValueError(f"--lr={options.lr}: give a number above 0")
    if max(options.threshold, options.batch_size) > options.buffer_size:
        raise ValueError(
            f"--threshold={options.threshold}, --batch-size={options.batch_size}, --buffer-size="
            f"{options.buffer_size}: a buffer needs room for the threshold, and for a batch; "
            "give a larger buffer, or a lower threshold or batch size"
        )


def _default(options: argparse.Namespace, name: str, value: float) -> None:
    if getattr(options, name) is None:
        setattr(options, name, value)


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


def buffers(options: argparse.Namespace) -> dict[str, Callable[[], Buffer]]:
    """Return what makes each buffer, by its name."""
    size = options.buffer_size
    threshold = options.threshold
    seed = options.seed
    return {
        "FIFO": lambda: FIFO(size, seed=seed),
        "FIRO": lambda: FIRO(size, threshold, seed=seed),
        "Reservoir": lambda: Reservoir(size, threshold, seed=seed),
        "BatchReservoir": lambda: BatchReservoir(size, threshold, options.batch_size, seed=seed),
    }


def train_all(problem: common.Problem, options: argparse.Namespace) -> list[Run]:
    """Train on the sorted stream through each buffer, and on the same samples shuffled."""
    x = problem.dataset.train_x
    y = problem.dataset.train_y
    order = np.random.default_rng(options.seed).permutation(len(y))
    shuffled = _samples(x[order], y[order])
    by_class = order[np.argsort(y[order], kind="stable")]
    stream = _samples(x[by_class], y[by_class])
    size = options.buffer_size
    print(f"{len(y):,} samples, class by class, through buffers of {size:,}", flush=True)
    runs = [
        train(name, make(), stream, problem, options) for name, make in buffers(options).items()
    ]
    runs.append(train(buffer_plots.SHUFFLED, FIFO(size), shuffled, problem, options))
    return runs


def _samples(x: datasets.Array, y: datasets.Array) -> Samples:
    return torch.tensor(x), torch.tensor(y, dtype=torch.int64)


def train(
    name: str, buffer: Buffer, stream: Samples, problem: common.Problem, options: argparse.Namespace
) -> Run:
    """Train a copy of the network on the stream, once, through the buffer."""
    learner = Learner(problem, options.lr)
    run = Run(name, len(stream[0]), learner.classes)
    interval = max(1, run.samples // MEASUREMENTS)
    with Producer(buffer, stream, options.chunk) as producer:
        for x, y in producer.batches(options.batch_size, options.batches_per_chunk):
            learner.train(x, y)
            run.add_batch(y.numpy())
            is_due = buffer.samples_put // interval > run.last_measured // interval
            if is_due and not buffer.reception_over:
                run.add_accuracy(buffer.samples_put, learner.accuracy())
    run.add_accuracy(buffer.samples_put, learner.accuracy())
    run.repetitions = buffer.repetitions()
    print(f"{name}: test accuracy {run.final_accuracy:.1%}", flush=True)
    return run


class Learner:
    """A network in training, and the test data."""

    def __init__(self, problem: common.Problem, lr: float) -> None:
        self._net = copy.deepcopy(problem.net)
        self._transform = problem.transform or (lambda x: x)
        self._optimizer = torch.optim.SGD(self._net.parameters(), lr=lr, momentum=0.9)
        self._test = _samples(problem.dataset.test_x, problem.dataset.test_y)
        self.classes = int(problem.dataset.train_y.max()) + 1

    def train(self, x: torch.Tensor, y: torch.Tensor) -> None:
        """Take one step; raise ``DivergedError`` where the loss is no number any more."""
        loss = nn.functional.cross_entropy(self._net(self._transform(x)), y)
        if not math.isfinite(loss.item()):
            raise DivergedError(f"the loss became {loss.item()}; lower the learning rate with --lr")
        self._optimizer.zero_grad()
        loss.backward()
        self._optimizer.step()

    @torch.no_grad()
    def accuracy(self) -> float:
        """Return the share of the test samples whose class the network tells."""
        x, y = self._test
        right = 0
        for batch, classes in zip(x.split(1000), y.split(1000), strict=True):
            predicted = self._net(self._transform(batch)).argmax(1)
            right += int((predicted == classes).sum())
        return right / len(y)


def print_table(runs: list[Run]) -> None:
    """Print what each run came to."""
    print(
        f"{'buffer':16}  {'test accuracy':>13}  {'batches':>7}  {'mean repetitions':>16}  "
        f"{'never got':>9}"
    )
    for run in runs:
        print(
            f"{run.name:16}  {run.final_accuracy:13.1%}  {len(run.batches):7,}  "
            f"{run.mean_repetitions:16.2f}  {run.unseen_share:9.1%}"
        )


if __name__ == "__main__":
    sys.exit(main())
