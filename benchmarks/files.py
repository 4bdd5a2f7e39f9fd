"""Samples from many files: partial shuffles against plain reading and the original sampler, fits against memory.

``--original FOLDER`` names a checkout of microsoft/PartiallyShuffleDistributedSampler, whose sampler with two pools
then runs too. Current PyTorch refuses the call of its base class, which is let pass here.
"""

from __future__ import annotations

import argparse
import importlib.util
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

from compss_train import BlockedTensor, DistributedTrainer, FileDataset, PartialShuffleSampler, write_files

FILES, BATCH, POOL, LARGE_POOL = 20, 128, 4096, 65_536
WORKERS, OPTIMIZER = 2, {"optimizer": "sgd", "lr": 0.05, "momentum": 0.9}
ORIGINAL_BATCHES = 40
"""Batches of the original that are timed, after as many: it makes some ten a second."""
PLAIN = "plain: read a file, permute it"


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


# -- fits --------------------------------------------------------------------------------------------------


def report_fits(folder: Path, options: argparse.Namespace) -> None:
    images = load_images(options.samples)
    rows = -(-len(images.y) // FILES)
    dataset = FileDataset(write_files(folder / "fit", {"x": images.x, "y": images.y}, rows=rows))
    partial = {"shuffle": "partial", "shuffle_buffer": POOL}
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
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples, options.sampler_repetitions = 1, 1, 12_000, 2
    print(f"{image_source()}; torch {torch.__version__}")
    with tempfile.TemporaryDirectory() as name:
        folder, random = Path(name), np.random.default_rng(0)
        x = random.integers(0, 256, (options.samples, 784), dtype=np.uint8)
        rows = -(-options.samples // FILES)
        files = write_files(folder / "bytes", {"x": x, "y": random.integers(0, 10, len(x))}, rows=rows)
        dataset = FileDataset(files)
        report_samplers(dataset, options)
        report_slow_store(dataset, options)
        report_fits(folder, options)


if __name__ == "__main__":
    main()
