"""Memory of all processes during a fit, as a multiple of the data's size, with 1, 2 and 4 workers.

PSS (a page that n processes map counts 1/n in each) of the coordinator and all its descendants,
minus the same with tiny data. Pages of shared-memory files that nobody maps at the moment are in no
process's PSS, though they take memory; the columns "with unmapped" count the files' whole size
instead of their mapped pages.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import multiprocessing
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import _common as common
import _peers as peers
import numpy as np
import psutil
import torch
from numpy.typing import NDArray
from torch import nn

FEATURES = 1_000
MEGABYTE = 1e6
TINY_MEGABYTES = 2.0
"""Size of data whose memory is subtracted."""
INTERVAL = 0.05
"""Seconds between two looks at the processes."""
SHARED = "compss_train-*"
"""Folders of the local engine in ``/dev/shm``."""

Usage = tuple[float, float, float]
"""Megabytes while training: peak of PSS, and median and peak with unmapped files.

Tasks map the blocks anew, so that PSS climbs in each; its median would mean little.
"""


@contextlib.contextmanager
def watched(folders: set[Path]) -> Iterator[Callable[[], Usage]]:
    """Look at this process and its descendants meanwhile; yield what tells the usage after it."""
    ended = threading.Event()
    pss: list[float] = []
    whole: list[float] = []

    def run() -> None:
        while not ended.wait(INTERVAL):
            total, shared = _tree_pss()
            # The folders are read last: a block that becomes a file meanwhile counts twice, an
            # upper bound.
            pss.append(total / MEGABYTE)
            whole.append((total - shared + sum(map(_folder_bytes, folders))) / MEGABYTE)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield lambda: (max(pss), median(whole), max(whole))
    finally:
        ended.set()
        thread.join()


def _tree_pss() -> tuple[int, int]:
    """Return the bytes of PSS of this process and its descendants, and those in shared memory."""
    here = psutil.Process()
    total = 0
    shared = 0
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(OSError):  # it has just ended
            for line in Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]:
                name, _, size = line.partition(":")
                kilobytes = int(size.split()[0])
                total += 1024 * kilobytes if name == "Pss" else 0
                shared += 1024 * kilobytes if name == "Pss_Shmem" else 0
    return total, shared


def _folder_bytes(folder: Path) -> int:
    total = 0
    with contextlib.suppress(OSError):  # files come and go
        for path in folder.iterdir():
            total += path.stat().st_blocks * 512
    return total


def _make(megabytes: float) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    rows = max(100, int(megabytes * MEGABYTE) // (4 * FEATURES))
    random = np.random.default_rng(0)
    return random.standard_normal((rows, FEATURES), np.float32), random.integers(0, 10, rows)


def ours(workers: int, megabytes: float, epochs: int, *, mapped: bool = False) -> Usage:
    """Fit a tiny network on blocks whose source array is gone, with a process a worker.

    The blocks are in memory or mapped.
    """
    from compss_train import BlockedTensor, LocalEngine

    arrays = _in_files(_make(megabytes)) if mapped else _make(megabytes)
    x, y = (BlockedTensor.from_array(array, (8, 1)) for array in arrays)
    del arrays
    before = set(Path("/dev/shm").glob(SHARED))
    warm = (np.zeros((800, FEATURES), np.float32), np.zeros(800, np.int64))
    with LocalEngine(processes=workers, threads=1) as engine:
        folders = set(Path("/dev/shm").glob(SHARED)) - before
        net = nn.Linear(FEATURES, 10)
        with common.warm_trainer(net, workers=workers, engine=engine, warm=warm) as trainer:
            with watched(folders) as usage:
                common.fit(trainer, x, y, epochs=epochs)
            return usage()


def _in_files(arrays: Iterable[NDArray[Any]]) -> list[NDArray[Any]]:
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    mapped = []
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
        mapped.append(np.load(folder / f"{number}.npy", mmap_mode="r"))
    return mapped


def copies(workers: int, megabytes: float, epochs: int) -> Usage:
    """Hand the data set to every process, as spawned DataLoader workers get it: pickled, whole."""
    array, labels = _make(megabytes)
    context = multiprocessing.get_context("spawn")
    ready = context.Semaphore(0)
    start = context.Event()
    with common.threads_of_children(1):
        args = (array, labels, epochs, ready, start)
        processes = [common.spawned(_plain_loop, *args) for _ in range(workers)]
    for _ in processes:
        ready.acquire()
    with watched(set()) as usage:
        start.set()
        for process in processes:
            process.join()
    return usage()


def _plain_loop(
    array: NDArray[np.float32], labels: NDArray[np.int64], epochs: int, ready: Any, start: Any
) -> None:
    torch.set_num_threads(1)
    x = torch.from_numpy(array)
    y = torch.from_numpy(labels)
    net = nn.Linear(FEATURES, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    ready.release()
    start.wait()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(common.BATCH):
            peers.step(net, optimizer, x[rows], y[rows])
    time.sleep(3 * INTERVAL)  # tiny data are trained on at once: let the process be seen


def multiples(
    run: Callable[[int, float, int], Usage], workers: int, options: argparse.Namespace, _: int
) -> Usage:
    """Return usage beyond that with tiny data, in units of the data's size."""
    large = common.in_fresh_process(run, workers, options.megabytes, options.epochs)
    # As many batches as with the large data would take as long; a second is enough to see the
    # processes.
    tiny = common.in_fresh_process(run, workers, TINY_MEGABYTES, 20 * options.epochs)
    size = options.megabytes - TINY_MEGABYTES
    pss, whole, peak = ((usage - base) / size for usage, base in zip(large, tiny, strict=True))
    return pss, whole, peak


CONTESTANTS: tuple[tuple[str, Callable[[int, float, int], Usage]], ...] = (
    ("ours, memory-mapped (goal 1.0)", partial(ours, mapped=True)),
    ("ours, in memory", ours),
    ("a copy each", copies),
)


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=3, epochs=10)
    options_parser.add_argument("--megabytes", type=float, default=400.0, help="size of the data")
    options_parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    options = common.parsed(options_parser, megabytes=80.0, epochs=5, workers=[1, 2])
    contestants = {
        f"{name}, {workers}": partial(multiples, run, workers, options)
        for name, run in CONTESTANTS
        for workers in options.workers
    }
    results = common.in_turn(contestants, options.repetitions)
    rows = []
    for name, usages in results.items():
        pss, whole, peak = (common.spread(values) for values in zip(*usages, strict=True))
        rows.append([name, pss, whole, peak])
    headers = ["who, processes", "PSS, peak", "with unmapped, median", "with unmapped, peak"]
    title = (
        f"Memory of all processes while training on {options.megabytes:.0f} MB, as a "
        "multiple of that"
    )
    common.print_table(title, headers, rows)


if __name__ == "__main__":
    main()
