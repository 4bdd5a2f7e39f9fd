"""Samples from many files: partial shuffles against plain reading and the original sampler, fits against memory.

A store that takes 50 ms a file is read with one thread and with several, and a fit's second epoch from a cache.
``--tables`` only compares fits on Parquet, Arrow and a data set of Hugging Face with fits from memory.

``--original FOLDER`` names a checkout of microsoft/PartiallyShuffleDistributedSampler, whose sampler with two pools
then runs too. Current PyTorch refuses the call of its base class, which is let pass here.
"""

from __future__ import annotations

import argparse
import importlib.util
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from _common import image_source, load_images, network, parser, print_table, ratios, spread
from torch.utils.data import Sampler

from compss_train import (
    BlockedTensor,
    DistributedTrainer,
    FileDataset,
    PartialShuffle,
    PartialShuffleSampler,
    Samples,
    write_files,
)
from compss_train.data.readers import NpzReader

FILES, BATCH, POOL, LARGE_POOL = 20, 128, 4096, 65_536
WORKERS, OPTIMIZER = 2, {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
ORIGINAL_BATCHES = 40
"""Batches of the original that are timed, after as many: it makes some ten a second."""
PLAIN = "plain: read a file, permute it"
SLOW_FILES, SECONDS_PER_FILE = 64, 0.05
"""Files of the slow store, and how long each takes to come."""


# -- samplers ----------------------------------------------------------------------------------------------


def seconds_of(function: Callable[[], object]) -> float:
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


def use_up(batches: Iterable[Any]) -> None:
    for _ in batches:
        pass


def read_plainly(dataset: FileDataset, random: np.random.Generator) -> None:
    """Read one file after the other and gather one permutation of each."""
    for name in dataset.files:
        with np.load(name) as file:
            order = random.permutation(dataset.files_len[name])
            for key in file.files:
                file[key][order]


def report_samplers(dataset: FileDataset, options: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    samplers = {
        f"{pools} pool{'s' * (pools - 1)} of {pool:,}, file_buffer={held}": PartialShuffleSampler(
            dataset, shuffle_buffer=pool, pools=pools, file_buffer=held, batch_size=BATCH
        )
        for pools, pool, held in (
            *((1, POOL, 10), (2, POOL, 10), (2, POOL, 1)),
            *((1, LARGE_POOL, 10), (2, LARGE_POOL, 10)),
        )
    }
    random = np.random.default_rng(0)
    speeds: dict[str, list[float]] = {PLAIN: [], **{label: [] for label in samplers}}
    for epoch in range(options.sampler_repetitions + 1):
        plain = seconds_of(lambda: read_plainly(dataset, random))
        seconds = {PLAIN: plain}
        for label, sampler in samplers.items():
            sampler.set_epoch(epoch)
            seconds[label] = seconds_of(lambda sampler=sampler: use_up(sampler))
        if epoch:  # in the first one, the memory of the pools is taken from the system
            for label, taken in seconds.items():
                speeds[label].append(dataset.number_samples / taken)
    if options.original is not None:
        for pool in (POOL, LARGE_POOL):
            speeds[f"original, 2 pools of {pool:,}"] = [original_speed(dataset, options.original, pool)]
    rows = [
        [label, spread(values, ",.0f"), spread(ratios(values, speeds[PLAIN])) if len(values) > 1 else "-"]
        for label, values in speeds.items()
    ]
    title = f"{dataset.number_samples:,} samples of 784 bytes in {FILES} npz files, batches of {BATCH}"
    print_table(title, ["contestant", "samples/s", "of plain (2 pools of 4,096: >= 0.5)"], rows)
    two = "2 pools of {:,}, file_buffer=10"
    print("large to small pool:", spread(ratios(speeds[two.format(LARGE_POOL)], speeds[two.format(POOL)])))


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
    return ORIGINAL_BATCHES * BATCH / seconds_of(lambda: use_up(islice(batches, ORIGINAL_BATCHES)))


def original_reader(filename: str, get_data: bool = False) -> Any:
    """Read as the original's users do."""
    with np.load(filename) as file:
        data = {key: file[key] for key in file.files}
    length = len(next(iter(data.values())))
    return (data, length) if get_data else length


# -- a slow store ------------------------------------------------------------------------------------------


def report_slow_store(dataset: FileDataset, options: argparse.Namespace) -> None:
    """Read files that take as long to come as a model takes to train on them."""
    step = 2e-3  # seconds that a model would train on a batch
    delay = step * dataset.number_samples / BATCH / FILES

    def slow_reader(filename: str, get_data: bool = False) -> Any:
        if get_data:
            time.sleep(delay)
        return dataset.reader(filename, get_data)

    rows = []
    for held in (1, 2, 10):
        taken = []
        for _ in range(options.repetitions):
            sampler = PartialShuffleSampler(
                dataset, slow_reader, shuffle_buffer=POOL, batch_size=BATCH, file_buffer=held
            )
            taken.append(seconds_of(lambda sampler=sampler: [time.sleep(step) for _ in sampler]))
        rows.append([str(held), spread(taken), spread([value / (delay * FILES) for value in taken])])
    title = f"a store of {delay:.2f} s a file, a model that takes as long ({delay * FILES:.1f} s an epoch each)"
    print_table(title, ["file_buffer", "seconds", "of the store's own"], rows)


def fifty_ms_reader(filename: str, get_data: bool = False) -> Any:
    """Read a file of a store that takes its time for the rows, as many at a time as it is asked for."""
    if get_data:
        time.sleep(SECONDS_PER_FILE)
    return NpzReader()(filename, get_data)


def report_threads(dataset: FileDataset, options: argparse.Namespace) -> None:
    """Read an epoch of the slow store with one thread and with several."""
    taken: dict[int, list[float]] = {threads: [] for threads in (1, 2, 4, 8)}
    for _ in range(options.repetitions):
        for threads, seconds in taken.items():
            sampler = PartialShuffleSampler(
                dataset, fifty_ms_reader, shuffle_buffer=POOL, batch_size=BATCH, threads=threads
            )
            seconds.append(seconds_of(lambda sampler=sampler: use_up(sampler)))
    rows = [
        [str(threads), spread(seconds), spread(ratios(taken[1], seconds))] for threads, seconds in taken.items()
    ]
    title = f"{len(dataset.files)} files of a store of {SECONDS_PER_FILE} s a file, file_buffer=10"
    print_table(title, ["threads", "seconds an epoch", "times one thread (4: >= 3.5)"], rows)


def report_cache(folder: Path, options: argparse.Namespace) -> None:
    """Train on the slow store: the first epoch reads it, the second one a cache; beside a fit from memory."""
    images = load_images(options.samples)
    files = write_files(folder / "slow", {"x": images.x, "y": images.y}, rows=-(-len(images.y) // SLOW_FILES))
    partial = {"shuffle": PartialShuffle(POOL)}
    caches: dict[str, Any] = {"no cache": None, "in memory": "memory", "in a folder": folder / "cache"}
    speeds: dict[str, list[tuple[float, float]]] = {"memory, no files": [], **{label: [] for label in caches}}
    for repetition in range(options.repetitions):
        speeds["memory, no files"].append(epoch_speeds(blocked(images), repetition, {}))
        for label, cache in caches.items():
            if cache == folder / "cache":
                shutil.rmtree(cache, ignore_errors=True)  # what the repetition before has left there
            dataset = FileDataset(files, fifty_ms_reader, cache=cache, cache_bytes=cache and 2**30)
            speeds[label].append(epoch_speeds((dataset,), repetition, partial))
    memory = [second for _, second in speeds["memory, no files"]]
    rows = []
    for label, pairs in speeds.items():
        first, second = map(list, zip(*pairs, strict=True))
        rows.append([label, spread(first, ",.0f"), spread(second, ",.0f"), spread(ratios(second, memory), ".3f")])
    title = f"MLP, {WORKERS} workers, one reading thread each, {SLOW_FILES} files of {SECONDS_PER_FILE} s"
    print_table(title, ["cache", "1st epoch, samples/s", "2nd epoch", "2nd of memory (>= 0.9)"], rows)


def epoch_speeds(data: tuple[Any, ...], seed: int, fit_options: dict[str, Any]) -> tuple[float, float]:
    """Return samples/s of the first two epochs of a fit, after one on other data that starts the processes."""
    with DistributedTrainer(WORKERS, engine="local", seed=seed, threads=1) as trainer:
        trainer.build(network("MLP", seed), OPTIMIZER, "cross_entropy")
        warm = np.zeros((1000, 784), np.float32), np.zeros(1000, np.int64)
        trainer.fit(*warm, num_epochs=1, batch_size=100, progress=False)
        trainer.build(network("MLP", seed), OPTIMIZER, "cross_entropy")
        trainer.fit(*data, num_epochs=2, batch_size=100, **fit_options, progress=False)
        first, second = (float(record["samples_per_second"]) for record in trainer.history)
    return first, second


# -- fits --------------------------------------------------------------------------------------------------


def report_fits(folder: Path, options: argparse.Namespace) -> None:
    images = load_images(options.samples)
    rows = -(-len(images.y) // FILES)
    dataset = FileDataset(write_files(folder / "fit", {"x": images.x, "y": images.y}, rows=rows))
    partial = {"shuffle": PartialShuffle(POOL)}
    contestants: dict[str, tuple[bool, dict[str, Any]]] = {
        "memory, shuffled by blocks": (False, {}),
        "files, 1 pool": (True, partial),
        "files, 2 pools": (True, {**partial, "pools": 2}),
        "files, whole ones dealt and shuffled": (True, {}),
    }
    speeds: dict[str, list[float]] = {label: [] for label in contestants}
    for repetition in range(options.repetitions):
        for label, (from_files, fit_options) in contestants.items():
            data = (dataset,) if from_files else blocked(images)
            speeds[label].append(trained_per_second(data, images, options.epochs, repetition, fit_options))
            print(f"{repetition + 1}: {label}: {speeds[label][-1]:,.0f}/s", file=sys.stderr)
    memory = next(iter(speeds.values()))
    table = [[label, spread(v, ",.0f"), spread(ratios(v, memory), ".3f")] for label, v in speeds.items()]
    title = f"MLP, {WORKERS} workers, {options.epochs} epochs of {len(images.y):,} float32 images, {FILES} files"
    print_table(title, ["contestant", "samples/s", "of memory (>= 0.9)"], table)


def report_tables(folder: Path, options: argparse.Namespace) -> None:
    """Train on one file of 20 row groups or record batches, and on a data set: pixels in a list, or in columns."""
    images = load_images(options.samples)
    tables = write_tables(folder, images)
    speeds: dict[str, list[tuple[float, float]]] = {"memory": [], **{label: [] for label in tables}}
    for repetition in range(options.repetitions):
        for label, values in speeds.items():
            data = blocked(images) if label == "memory" else (tables[label],)
            values.append(epoch_speeds(data, repetition, {}))
            print(f"{repetition + 1}: {label}: {values[-1][0]:,.0f}, {values[-1][1]:,.0f}/s", file=sys.stderr)
    memory = [second for _, second in speeds["memory"]]
    table = []
    for label, pairs in speeds.items():
        first, second = map(list, zip(*pairs, strict=True))
        of_memory = spread(ratios(second, memory), ".3f")
        table.append([label, spread(first, ",.0f"), spread(second, ",.0f"), of_memory])
    title = f"MLP, {WORKERS} workers, {len(images.y):,} float32 images in {FILES} blocks"
    columns = ["contestant", "1st epoch, samples/s", "2nd epoch", "2nd of memory (files >= 0.9, data set >= 0.95)"]
    print_table(title, columns, table)


def write_tables(folder: Path, images: Any) -> dict[str, FileDataset | Samples]:
    import datasets
    import pyarrow as pa
    import pyarrow.parquet

    pixels, rows = images.x.reshape(len(images.y), -1), -(-len(images.y) // FILES)
    lists = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), pixels.shape[1])
    names = [f"pixel{number}" for number in range(pixels.shape[1])]
    of_lists = pa.table({"x": lists, "y": images.y})
    of_columns = pa.table({**dict(zip(names, pixels.T, strict=True)), "y": images.y})
    pa.parquet.write_table(of_lists, folder / "lists.parquet", row_group_size=rows)
    pa.parquet.write_table(of_columns, folder / "columns.parquet", row_group_size=rows)
    with pa.ipc.new_file(folder / "lists.arrow", of_lists.schema) as file:
        file.write_table(of_lists, max_chunksize=rows)
    datasets.Dataset(datasets.table.InMemoryTable(of_lists)).save_to_disk(folder / "hugging-face")
    return {
        "Parquet, a list of pixels": FileDataset(folder / "lists.parquet"),
        "Parquet, 784 columns": FileDataset(folder / "columns.parquet", x=names, y="y"),
        "Arrow, a list of pixels": FileDataset(folder / "lists.arrow"),
        "Hugging Face, a list of pixels": Samples(datasets.load_from_disk(folder / "hugging-face"), blocks=FILES),
    }


def blocked(images: Any) -> tuple[BlockedTensor, BlockedTensor]:
    return BlockedTensor.from_array(images.x, (FILES, 1)), BlockedTensor.from_array(images.y, (FILES, 1))


def trained_per_second(
    data: tuple[Any, ...], images: Any, epochs: int, seed: int, fit_options: dict[str, Any]
) -> float:
    """Return samples/s of a fit with a warm engine."""
    with DistributedTrainer(WORKERS, engine="local", seed=seed, threads=1) as trainer:
        trainer.build(network("MLP", seed), OPTIMIZER, "cross_entropy")
        trainer.fit(images.x[:10_000], images.y[:10_000], num_epochs=1, batch_size=100, progress=False)
        trainer.build(network("MLP", seed), OPTIMIZER, "cross_entropy")
        seconds = seconds_of(
            lambda: trainer.fit(*data, num_epochs=epochs, batch_size=100, **fit_options, progress=False)
        )
    return epochs * len(images.y) / seconds


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=3)
    options_parser.add_argument("--samples", type=int, default=60_000, help="training images")
    options_parser.add_argument("--sampler-repetitions", type=int, default=9, help="epochs of each sampler")
    options_parser.add_argument("--original", type=Path, help="checkout of the original sampler")
    options_parser.add_argument("--slow-only", action="store_true", help="only threads and cache of a slow store")
    options_parser.add_argument("--tables", action="store_true", help="only fits on tables and a data set")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples, options.sampler_repetitions = 1, 1, 12_000, 2
    print(f"{image_source()}; torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder, random = Path(name), np.random.default_rng(0)
        if options.tables:
            report_tables(folder, options)
            return
        x = random.integers(0, 256, (options.samples, 784), dtype=np.uint8)
        rows = -(-options.samples // FILES)
        files = write_files(folder / "bytes", {"x": x, "y": random.integers(0, 10, len(x))}, rows=rows)
        dataset = FileDataset(files)
        if not options.slow_only:
            report_samplers(dataset, options)
            report_slow_store(dataset, options)
        many = write_files(folder / "many", {"x": x}, rows=-(-options.samples // SLOW_FILES))
        report_threads(FileDataset(many), options)
        report_cache(folder, options)
        if not options.slow_only:
            report_fits(folder, options)
            report_tables(folder, options)


if __name__ == "__main__":
    main()
