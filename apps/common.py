"""What the apps share: options, a run from data to saved parameters, tables, and ends by errors."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from datasets import DataError, Dataset
from torch import nn
from tqdm.auto import tqdm

from compss_train import (
    BadFileError,
    BlockedTensor,
    DistributedTrainer,
    DivergedError,
    Merge,
    SimulationError,
    WorkerLostError,
)
from compss_train.callbacks import Callback, JsonLines, ProgressBar
from compss_train.model import parameters
from compss_train.reports.records import measured_names

INTERRUPTED = 130
"""Exit code after Ctrl-C, as shells have it: 128 and the signal's number."""
BLOCKS_PER_WORKER = 4
"""Blocks that the data are cut into by default."""
FAILURES = (
    *(BadFileError, DataError, DivergedError, SimulationError, WorkerLostError),
    *(ModuleNotFoundError, OSError),
)
"""What ends an app with one line that says what is wrong."""


@dataclass(frozen=True)
class Problem:
    """What an app trains: a network on data."""

    net: nn.Module
    dataset: Dataset
    transform: Callable[[torch.Tensor], torch.Tensor] | None = None


def make_parser(app: str, description: str, **defaults: Any) -> argparse.ArgumentParser:
    """Return a parser with the options that all apps have; ``defaults`` are the app's own."""
    parser = argparse.ArgumentParser(description=description, allow_abbrev=False)
    _add_training(parser)
    _add_merging(parser)
    _add_machine(parser)
    parser.add_argument(
        "--output",
        type=Path,
        default=Path("runs") / app,
        metavar="FOLDER",
        help=(
            "folder for history.jsonl and parameters.safetensors, replaced if there (default: "
            "%(default)s)"
        ),
    )
    parser.set_defaults(**defaults)
    return parser


def add_option(
    parser: argparse.ArgumentParser, option: str, kind: Any, default: Any, text: str
) -> None:
    """Add an option whose help tells its default."""
    parser.add_argument(option, type=kind, default=default, help=f"{text} (default: %(default)s)")


def _add_training(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("training")
    _add(group, "--epochs", "how often every sample is trained on", type=int, default=5)
    sizes = group.add_mutually_exclusive_group()
    _add(sizes, "--batch-size", "most samples in a batch", type=int, default=100)
    sizes.add_argument(
        "--batches", type=int, help="batches that each block is cut into, instead of --batch-size"
    )
    _add(group, "--lr", "learning rate of SGD with momentum 0.9", type=float, default=0.05)
    order = "deal blocks anew each epoch, mix all samples, or keep the order"
    _add(group, "--shuffle", order, choices=("blocks", "total", "none"), default="blocks")
    _add(group, "--seed", "fixes the initial weights and the order of samples", type=int, default=0)
    arithmetic = "arithmetic of the forward pass"
    _add(group, "--precision", arithmetic, choices=("fp32", "bf16"), default="fp32")
    layout = "layout of images in memory"
    layouts = ("contiguous", "channels_last")
    _add(group, "--memory-format", layout, choices=layouts, default="contiguous")
    group.add_argument(
        "--validate", action="store_true", help="evaluate on the test data after every round too"
    )


def _add_merging(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("workers and merging")
    _add(group, "--workers", "model copies that are trained and merged", type=int, default=2)
    group.add_argument(
        "--blocks",
        type=int,
        help=f"blocks that the data are cut into (default: {BLOCKS_PER_WORKER} a worker)",
    )
    merge = (
        "average all workers at once, add each when it is ready, or have each add itself at a "
        "server"
    )
    kinds = ("synchronous", "commutative", "parameter_server")
    _add(group, "--merge", merge, choices=kinds, default="synchronous")
    every = "merge every so many units, 0 for once at the end"
    _add(group, "--merge-every", every, type=int, default=1)
    unit = "whole epochs, or blocks or batches a worker"
    _add(group, "--merge-unit", unit, choices=("epochs", "blocks", "batches"), default="epochs")


def _add_machine(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("machine")
    engine = (
        "where tasks run: local worker processes, compss, serial in this process for "
        "debugging, or auto"
    )
    _add(group, "--engine", engine, default="auto")
    threads = "threads of each worker (default: the cores shared among them)"
    group.add_argument("--threads", type=int, help=threads)
    gpus = "GPUs that the workers are spread over, 0 for the CPU"
    _add(group, "--num-gpu", gpus, type=int, default=0)


def _add(group: argparse._ActionsContainer, option: str, text: str, **arguments: Any) -> None:
    group.add_argument(option, help=f"{text} (default: %(default)s)", **arguments)


def run_app(
    parser: argparse.ArgumentParser,
    prepare: Callable[[argparse.Namespace], Problem],
    train: Callable[[Problem, argparse.Namespace], None] | None = None,
) -> int:
    """Parse the command line, train what ``prepare`` makes of it, and return the exit code.

    ``train`` does so in another way than cutting the samples into blocks. The code is 0 after a
    complete run, 1 where data, files or training fail, 2 for wrong options, 130 after Ctrl-C.
    """
    arguments = parser.parse_args()
    warnings.formatwarning = _one_line

    def run() -> None:
        torch.manual_seed(arguments.seed)
        (train or train_on_blocks)(prepare(arguments), arguments)

    return exit_code(parser, run)


def exit_code(parser: argparse.ArgumentParser, run: Callable[[], None]) -> int:
    """Run an app whose options were parsed; return its exit code.

    Before that it prints one line about what has ended it early.
    """
    try:
        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except FAILURES as error:
        print(f"{parser.prog}: error: {error}", file=sys.stderr)
        return 1
    except ValueError as error:
        # From inside a task: no option's fault, so that its traceback matters.
        if error.__cause__ is not None:
            raise
        parser.error(str(error))
    return 0


def _one_line(message: Warning | str, *_: object, **__: object) -> str:
    return f"warning: {message}\n"


def train_on_blocks(problem: Problem, arguments: argparse.Namespace) -> None:
    """Train, print what was reached and how fast, and write the history and the parameters."""
    data = problem.dataset
    grid = (_number_of_blocks(len(data.train_x), arguments), 1)
    x = BlockedTensor.from_array(data.train_x, grid)
    y = BlockedTensor.from_array(data.train_y, grid)
    with DistributedTrainer(
        arguments.workers, engine=arguments.engine, seed=arguments.seed, threads=arguments.threads
    ) as trainer:
        _build(trainer, problem, arguments)
        training = f"{len(data.train_x):,} samples to train on in {grid[0]} blocks"
        print(f"{training}, {len(data.test_x):,} to test", flush=True)
        _fit(trainer, x, y, problem.dataset, arguments)
        test = trainer.evaluate(data.test_x, data.test_y)
    _report(trainer, test, arguments)


def _number_of_blocks(samples: int, arguments: argparse.Namespace) -> int:
    if arguments.blocks is not None:
        return int(arguments.blocks)
    return min(samples, BLOCKS_PER_WORKER * max(1, arguments.workers))


def _build(trainer: DistributedTrainer, problem: Problem, arguments: argparse.Namespace) -> None:
    trainer.build(
        problem.net,
        {"optimizer": "sgd", "lr": arguments.lr, "momentum": 0.9},
        "cross_entropy",
        "accuracy",
        num_gpu=arguments.num_gpu,
        transform=problem.transform,
        precision=arguments.precision,
        memory_format=arguments.memory_format,
    )


def _fit(
    trainer: DistributedTrainer,
    x: BlockedTensor,
    y: BlockedTensor,
    data: Dataset,
    arguments: argparse.Namespace,
) -> None:
    make_folder(arguments.output)
    try:
        trainer.fit(
            x,
            y,
            num_epochs=arguments.epochs,
            num_batches_per_worker=arguments.batches,
            batch_size=arguments.batch_size if arguments.batches is None else None,
            merge=Merge(arguments.merge, every=arguments.merge_every, unit=arguments.merge_unit),
            shuffle=None if arguments.shuffle == "none" else arguments.shuffle,
            validation_data=(data.test_x, data.test_y) if arguments.validate else None,
            callbacks=_callbacks(arguments.output),
            progress=False,
        )
    finally:
        if trainer.history:  # an interrupted fit leaves the parameters of its last round
            parameters.save(_parameters_file(arguments.output), trainer.get_parameters())


def make_folder(folder: Path) -> None:
    """Make the folder of the option ``--output``; raise ``OSError`` if that is impossible."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(
            f"cannot make the folder {folder} ({error.strerror}); give another with --output"
        ) from error


def _parameters_file(output: Path) -> Path:
    return output / "parameters.safetensors"


def _history_file(output: Path) -> Path:
    return output / "history.jsonl"


def _callbacks(output: Path) -> list[Callback]:
    bar: list[Callback] = [ProgressBar()] if sys.stderr.isatty() else []
    return [FreshStart(output), JsonLines(_history_file(output)), Table(), *bar]


class FreshStart(Callback):
    """Removes an earlier run's files when a fit begins.

    Its options have been found to be right by then.
    """

    def __init__(self, output: Path) -> None:
        self.output = output

    def on_fit_start(self, trainer: DistributedTrainer, total_samples: int) -> None:
        """Remove the files."""
        _history_file(self.output).unlink(missing_ok=True)
        _parameters_file(self.output).unlink(missing_ok=True)


class Table(Callback):
    """Prints each round as a row of a table, above the progress bar if there is one."""

    def __init__(self) -> None:
        self._started = False

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Print the round, with the heading before the first."""
        cells = _cells(record)
        if not self._started:
            _write_row({name: name for name in cells})
            self._started = True
        _write_row(cells)


def _cells(record: dict[str, Any]) -> dict[str, str]:
    return {
        "round": str(record["round"]),
        "epoch": str(record["epoch"]),
        **{name.replace("_", " "): f"{record[name]:.4f}" for name in measured_names(record)},
        "seconds": f"{record['seconds']:.2f}",
        "samples/s": f"{record['samples_per_second']:,.0f}",
    }


def _write_row(cells: dict[str, str]) -> None:
    columns = []
    for name, cell in cells.items():
        width = 8 if name == "loss" else len(name)
        columns.append(cell.rjust(width))
    tqdm.write("  ".join(columns))
    sys.stdout.flush()


def _report(
    trainer: DistributedTrainer, test: dict[str, float], arguments: argparse.Namespace
) -> None:
    print(f"test loss {test['loss']:.4f}, test accuracy {100 * test['accuracy']:.2f}%")
    crew = f"{_count(trainer.num_workers, 'worker')}, {_count(trainer.threads, 'thread')} each"
    print(f"{_speed(trainer.history)}; {crew}")
    history = _history_file(arguments.output)
    print(f"history in {history}, parameters in {_parameters_file(arguments.output)}")


def _count(number: int, name: str) -> str:
    return f"{number} {name}" if number == 1 else f"{number} {name}s"


def _speed(history: list[dict[str, Any]]) -> str:
    samples = sum(record["samples"] for record in history)
    seconds = sum(record["seconds"] for record in history)
    best = max(record["samples_per_second"] for record in history)
    return (
        f"{samples / seconds:,.0f} samples/s over all {seconds:.1f} s with the start, "
        f"{best:,.0f} in the best round"
    )
