"""Do files and tables keep up with training? Partial shuffles, slow stores, caches, tables.

The part ``samplers`` compares partial shuffles with plain reading, and with the original sampler if
``--original`` names a checkout of microsoft/PartiallyShuffleDistributedSampler, whose call of its
base class current PyTorch refuses, and which is let pass here. ``threads`` and ``cache`` read a
store that takes 50 ms a file; ``fits`` and ``tables`` compare fits on files, and on Parquet, Arrow
and a data set of Hugging Face, with fits from memory.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _common as common
import numpy as np
import torch
from torch.utils.data import Sampler

from compss_train import FileDataset, PartialShuffle, PartialShuffleSampler, Samples, write_files
from compss_train.data.readers import NpzReader

FILES = 20
BATCH = 128
POOL = 4096
ORIGINAL_BATCHES = 40
"""Batches of the original that are timed, after as many: it makes some ten a second."""
PLAIN = "plain: read a file, permute it"
MEMORY = "memory"
SLOW_FILES = 64
"""Files of the slow store."""
SECONDS_PER_FILE = 0.05
"""Seconds that the slow store takes for a file."""


def use_up(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def written(folder: Path, files: int, **arrays: Any) -> Any:
    """Return the files that hold the arrays' rows."""
    samples = len(next(iter(arrays.values())))
    return write_files(folder, arrays, rows=-(-samples // files))


# -- samplers


def read_plainly(dataset: FileDataset, random: np.random.Generator) -> None:
    """Read one file after the other and gather one permutation of each."""
    for name in dataset.files:
        with np.load(name) as file:
            order = random.permutation(dataset.files_len[name])
            for key in file.files:
                file[key][order]


def report_samplers(folder: Path, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    x = random.integers(0, 256, (options.samples, 784), dtype=np.uint8)
    y = random.integers(0, 10, options.samples)
    dataset = FileDataset(written(folder / "bytes", FILES, x=x, y=y))

    def rate(read: Callable[[], object]) -> float:
        return dataset.number_samples / common.seconds_of(read)

    def sample(sampler: PartialShuffleSampler, epoch: int) -> float:
        sampler.set_epoch(epoch)
        return rate(partial(use_up, sampler))

    contestants: dict[str, Callable[[int], float]] = {
        PLAIN: lambda _: rate(lambda: read_plainly(dataset, random))
    }
    for pools, pool in ((1, POOL), (2, POOL), (1, 16 * POOL), (2, 16 * POOL)):
        sampler = PartialShuffleSampler(dataset, shuffle_buffer=pool, pools=pools, batch_size=BATCH)
        contestants[f"{pools} pool(s) of {pool:,}"] = partial(sample, sampler)
    speeds = common.in_turn(contestants, 3 * options.repetitions + 1)
    # The first epoch takes memory from the system.
    speeds = {label: rates[1:] for label, rates in speeds.items()}
    if options.original is not None:
        for pool in (POOL, 16 * POOL):
            speed = original_speed(dataset, options.original, pool)
            speeds[f"original, 2 pools of {pool:,}"] = [speed]
    samples = f"{dataset.number_samples:,} samples of 784 bytes in {FILES} npz files"
    title = f"{samples}, batches of {BATCH}"
    common.print_rates(title, speeds, PLAIN, goal="2 pools of 4,096: >= 0.5")


def original_speed(dataset: FileDataset, folder: Path, pool: int) -> float:
    """Return the original's samples/s with two pools, over batches in the middle of an epoch."""
    path = folder / "DistributedSamplerViaLocallyShuffleV2.py"
    spec = importlib.util.spec_from_file_location("original", path)
    if spec is None or spec.loader is None:
        raise FileNotFoundError(path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    data = SimpleNamespace(files=list(dataset.files), reset=lambda: None)
    before = Sampler.__init__
    Sampler.__init__ = lambda self, *_: None  # type: ignore[method-assign]
    try:
        sampler = module.DistributedSamplerViaLocallyShuffle(
            *(data, original_reader, 1, 0, True, pool, dataset.number_samples, BATCH, 10, False),
            dict(dataset.files_len),
        )
    finally:
        Sampler.__init__ = before  # type: ignore[method-assign]
    batches = iter(sampler)
    use_up(islice(batches, ORIGINAL_BATCHES))
    seconds = common.seconds_of(lambda: use_up(islice(batches, ORIGINAL_BATCHES)))
    return ORIGINAL_BATCHES * BATCH / seconds


def original_reader(filename: str, get_data: bool = False) -> Any:
    """Read as the original's users do."""
    with np.load(filename) as file:
        data = {key: file[key] for key in file.files}
    length = len(next(iter(data.values())))
    return (data, length) if get_data else length


# -- a slow store


def slow_reader(filename: str, get_data: bool = False) -> Any:
    """Read a file of a store that takes its time for the rows of each file."""
    if get_data:
        time.sleep(SECONDS_PER_FILE)
    return NpzReader()(filename, get_data)


def report_threads(folder: Path, options: argparse.Namespace) -> None:
    """Read an epoch of the slow store with one thread and with several."""
    x = np.random.default_rng(0).integers(0, 256, (options.samples, 784), dtype=np.uint8)
    files = written(folder / "many", SLOW_FILES, x=x)

    def rate(threads: int, _: int) -> float:
        dataset = FileDataset(files, reader=slow_reader, threads=threads)
        sampler = PartialShuffleSampler(dataset, shuffle_buffer=POOL, batch_size=BATCH)
        return dataset.number_samples / common.seconds_of(lambda: use_up(sampler))

    contestants = {f"{threads} thread(s)": partial(rate, threads) for threads in (1, 2, 4, 8)}
    title = f"{SLOW_FILES} files of a store of {SECONDS_PER_FILE} s a file, file_buffer=10"
    rates = common.in_turn(contestants, options.repetitions)
    common.print_rates(title, rates, "1 thread(s)", goal="4 threads: >= 3.5")


# -- fits

Contestants = dict[str, tuple[Callable[[], tuple[Any, ...]], dict[str, Any]]]
"""What makes the data of a fit, and the fit's options."""


def report_fits_of(
    title: str, contestants: Contestants, goal: str, options: argparse.Namespace
) -> None:
    """Print samples/s of whole fits with processes that run, and of their first two epochs."""

    def run(
        data: Callable[[], tuple[Any, ...]], fit_options: dict[str, Any], seed: int
    ) -> common.Fitted:
        with common.warm_trainer(common.network("MLP", seed), seed=seed) as trainer:
            return common.fit(trainer, *data(), epochs=max(2, options.epochs), **fit_options)

    images = common.load_images(options.samples)
    runs = {MEMORY: partial(run, lambda: images.blocked(FILES), {})}
    for label, contestant in contestants.items():
        runs[label] = partial(run, *contestant)
    results = common.in_turn(runs, options.repetitions)

    def speed_of(fitted: common.Fitted, column: str) -> float:
        if column == "whole fit":
            return fitted.rate
        epoch = int(column.removeprefix("epoch ")) - 1
        return float(fitted.history[epoch]["samples_per_second"])

    headers = ["samples/s from"]
    rows = [[label] for label in runs]
    for column in ("whole fit", "epoch 1", "epoch 2"):
        headers += [column, f"to {MEMORY}" if column == "epoch 1" else f"to {MEMORY} (goal {goal})"]
        base = [speed_of(fitted, column) for fitted in results[MEMORY]]
        for row in rows:
            speeds = [speed_of(fitted, column) for fitted in results[row[0]]]
            row += [common.spread(speeds, ",.0f"), common.spread(common.ratios(speeds, base))]
    epochs = max(2, options.epochs)
    common.print_table(f"{title}; MLP, {common.WORKERS} workers, {epochs} epochs", headers, rows)


def report_cache(folder: Path, options: argparse.Namespace) -> None:
    """Train on the slow store: the first epoch reads it, later ones a cache."""
    images = common.load_images(options.samples)
    files = written(folder / "slow", SLOW_FILES, x=images.x, y=images.y)

    def dataset(cache: Any) -> tuple[Any, ...]:
        shutil.rmtree(folder / "cache", ignore_errors=True)  # of the repetition before
        return (FileDataset(files, reader=slow_reader, cache=cache, cache_bytes=cache and 2**30),)

    caches = {
        "no cache": None,
        "a cache in memory": "memory",
        "a cache in a folder": folder / "cache",
    }
    shuffle = {"shuffle": PartialShuffle(POOL)}
    contestants: Contestants = {
        label: (partial(dataset, cache), shuffle) for label, cache in caches.items()
    }
    title = f"One reading thread a worker, {SLOW_FILES} files of {SECONDS_PER_FILE} s"
    report_fits_of(title, contestants, "epoch 2: 0.9", options)


def report_fits(folder: Path, options: argparse.Namespace) -> None:
    images = common.load_images(options.samples)
    dataset = FileDataset(written(folder / "fit", FILES, x=images.x, y=images.y))
    contestants: Contestants = {
        "files, 1 pool": (lambda: (dataset,), {"shuffle": PartialShuffle(POOL)}),
        "files, 2 pools": (lambda: (dataset,), {"shuffle": PartialShuffle(POOL, pools=2)}),
        "files, whole ones dealt and shuffled": (lambda: (dataset,), {}),
    }
    title = f"{len(images.y):,} float32 images in {FILES} files"
    report_fits_of(title, contestants, "0.9", options)


def report_tables(folder: Path, options: argparse.Namespace) -> None:
    """Train on one file of 20 row groups or record batches, and on a data set.

    Pixels are in a list, or in columns.
    """
    import datasets
    import pyarrow as pa
    import pyarrow.parquet

    images = common.load_images(options.samples)
    pixels = images.x.reshape(len(images.y), -1)
    rows = -(-len(images.y) // FILES)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), pixels.shape[1])
    names = [f"pixel{number}" for number in range(pixels.shape[1])]
    of_lists = pa.table({"x": lists, "y": images.y})
    of_columns = pa.table({**dict(zip(names, pixels.T, strict=True)), "y": images.y})
    pa.parquet.write_table(of_lists, folder / "lists.parquet", row_group_size=rows)
    pa.parquet.write_table(of_columns, folder / "columns.parquet", row_group_size=rows)
    with pa.ipc.new_file(folder / "lists.arrow", of_lists.schema) as file:
        file.write_table(of_lists, max_chunksize=rows)
    datasets.Dataset(datasets.table.InMemoryTable(of_lists)).save_to_disk(folder / "hugging-face")
    hugging_face = datasets.load_from_disk(folder / "hugging-face")
    sources: dict[str, FileDataset | Samples] = {
        "Parquet, a list of pixels": FileDataset(folder / "lists.parquet"),
        "Parquet, 784 columns": FileDataset(folder / "columns.parquet", x=names, y="y"),
        "Arrow, a list of pixels": FileDataset(folder / "lists.arrow"),
        "Hugging Face, a list of pixels": Samples(hugging_face, blocks=FILES),
    }
    contestants: Contestants = {
        label: (partial(tuple, (data,)), {}) for label, data in sources.items()
    }
    title = f"{len(images.y):,} float32 images in {FILES} blocks"
    report_fits_of(title, contestants, "epoch 2: files 0.9, data set 0.95", options)


PARTS = {
    "samplers": report_samplers,
    "threads": report_threads,
    "cache": report_cache,
    "fits": report_fits,
    "tables": report_tables,
}


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=3, epochs=3, samples=60_000, parts=PARTS)
    options_parser.add_argument("--original", type=Path, help="checkout of the original sampler")
    options = common.parsed(options_parser, epochs=2, samples=12_000)
    print(common.image_source())
    for part in options.parts:
        with tempfile.TemporaryDirectory() as folder:
            PARTS[part](Path(folder), options)


if __name__ == "__main__":
    main()
