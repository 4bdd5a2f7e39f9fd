"""Train from many .npz files, which workers read and mix while they train.

The table says of each round how many files the workers have opened, how many of those were there
before they were needed, how long workers waited for the others, and the most files that a worker
had in memory.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import common
import datasets
import models
from common import add_option

from compss_train import DistributedTrainer, FileDataset, PartialShuffle, write_files
from compss_train._utils.validation import check_count
from compss_train.callbacks import Callback

DIGITS = "digits"


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        description="Write images as .npz files and train from them with many workers.",
        allow_abbrev=False,
    )
    data = (
        f"folder with Fashion-MNIST's four idx files, or {DIGITS} (default: Fashion-MNIST where "
        "it is, else digits)"
    )
    parser.add_argument("--data", metavar="FOLDER", help=data)
    add_option(parser, "--files", int, 20, "files to write")
    add_option(parser, "--workers", int, 2, "model copies that are trained and merged")
    add_option(parser, "--epochs", int, 5, "how often every sample is trained on")
    add_option(parser, "--batch-size", int, 100, "most samples in a batch")
    add_option(parser, "--lr", float, 0.05, "learning rate of SGD with momentum 0.9")
    add_option(parser, "--shuffle-buffer", int, 4096, "samples in a pool of the partial shuffle")
    add_option(parser, "--pools", int, 2, "pools: 1, or 2 that mix over longer distances")
    file_buffer = "most files that a worker has in memory; 1 reads none ahead"
    add_option(parser, "--file-buffer", int, 10, file_buffer)
    add_option(parser, "--seed", int, 0, "fixes the initial weights and the order of samples")
    add_option(parser, "--engine", str, "auto", "where tasks run: local, compss, serial or auto")
    output = "folder of the files, which are replaced if there"
    add_option(parser, "--output", Path, Path("runs/npz_files"), output)
    return parser


def prepare(options: argparse.Namespace) -> common.Problem:
    """Return a network and the images, which stay bytes in the files."""
    data = options.data
    if data is None and not datasets.FASHION_MNIST_FOLDER.is_dir():
        print(f"no Fashion-MNIST in {datasets.FASHION_MNIST_FOLDER}: scikit-learn's digits")
        data = DIGITS
    if data == DIGITS:
        return common.Problem(models.digits_mlp(), datasets.digits())
    images = datasets.fashion_mnist(Path(data or datasets.FASHION_MNIST_FOLDER))
    return common.Problem(models.image_mlp(), images, models.normalize_images)


def write(problem: common.Problem, options: argparse.Namespace) -> FileDataset:
    """Write the training samples as files, in place of those of an earlier run."""
    rows = -(-len(problem.dataset.train_y) // check_count("--files", options.files))
    folder = options.output / "train"
    common.make_folder(options.output)
    for path in folder.glob("part-*.npz"):
        path.unlink()
    y = problem.dataset.train_y.astype("int64")
    files = write_files(folder, {"x": problem.dataset.train_x, "y": y}, rows=rows)
    return FileDataset(files, index=options.output / "index.json", file_buffer=options.file_buffer)


def train(problem: common.Problem, options: argparse.Namespace) -> None:
    """Train from files, and print what was reached, how fast, and how the files were read."""
    with DistributedTrainer(options.workers, engine=options.engine, seed=options.seed) as trainer:
        optimizer = {"optimizer": "sgd", "lr": options.lr, "momentum": 0.9}
        trainer.build(
            problem.net, optimizer, "cross_entropy", "accuracy", transform=problem.transform
        )
        dataset = write(problem, options)
        files = f"{len(dataset.files)} files in {options.output / 'train'}"
        print(f"{dataset.number_samples:,} samples in {files}")
        trainer.fit(
            dataset,
            num_epochs=options.epochs,
            batch_size=options.batch_size,
            shuffle=PartialShuffle(options.shuffle_buffer, pools=options.pools),
            callbacks=[common.Table(), FileTable()],
            progress=False,
        )
        test = trainer.evaluate(problem.dataset.test_x, problem.dataset.test_y)
    best = max(record["samples_per_second"] for record in trainer.history)
    print(f"test loss {test['loss']:.4f}, test accuracy {100 * test['accuracy']:.2f}%")
    print(f"{best:,.0f} samples/s in the best round")


class FileTable(Callback):
    """Prints how the workers read their files in a round."""

    def on_round_end(self, trainer: DistributedTrainer, record: dict[str, Any]) -> None:
        """Print a line a round."""
        reads = [worker["files"] for worker in record["workers"]]
        opened = sum(of_worker["files"] for of_worker in reads)
        ahead = sum(of_worker["ahead"] for of_worker in reads)
        waited = max(of_worker["seconds_waited"] for of_worker in reads)
        held = max(of_worker["most_held"] for of_worker in reads)
        print(
            f"       {opened} files opened, {ahead} of them there before they were needed; a "
            f"worker waited {waited:.2f} s at most, and had {held} files in memory at most",
            flush=True,
        )


def main() -> int:
    """Run the app and return its exit code."""
    return common.run_app(make_parser(), prepare, train)


if __name__ == "__main__":
    sys.exit(main())
