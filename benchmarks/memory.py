"""Memory of all processes during a fit, as a multiple of the data's size, with 1, 2 and 4 workers.

PSS (a page that n processes map counts 1/n in each) of the coordinator and all its descendants, minus the same
with tiny data. Pages of shared-memory files that nobody maps at the moment are in no process's PSS, though they
take memory; the columns "with unmapped" count the files' whole size instead of their mapped pages.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.synchronize import Event
from pathlib import Path
from statistics import median

import numpy as np
import psutil
import torch
from _common import in_fresh_process, parser, print_table, spread, threads_of_children
from numpy.typing import NDArray
from torch import nn

FEATURES = 1_000
BATCH = 100
TINY_MEGABYTES = 2.0
TARGET = 1.0
INTERVAL = 0.05
"""Seconds between two looks at the processes."""
MEGABYTE = 1e6


@dataclass(frozen=True)
class Usage:
    """Megabytes over the time of training."""

    pss: float
    """Peak of PSS. Tasks map the blocks anew, so that PSS climbs in each; its median would mean little."""
    whole: float
    """Median, with shared-memory files as a whole."""
    whole_peak: float


@dataclass
class Sampler:
    """A thread that looks at this process and its descendants for the duration of a ``with`` block."""

    folders: Sequence[Path] = ()
    """Shared-memory folders whose files count whether they are mapped or not."""
    pss: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Sampler:
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(INTERVAL):
            pss, shared = _tree_pss()
            # The folders are read last: a block that becomes a file meanwhile counts twice, an upper bound.
            self.pss.append(pss / MEGABYTE)
            self.whole.append((pss - shared + sum(map(_folder_bytes, self.folders))) / MEGABYTE)

    def usage(self) -> Usage:
        """Return what was seen; a training too short to be seen is an error."""
        if not self.pss:
            raise RuntimeError(
                f"training took less than {INTERVAL} s, so that its memory was not seen: more epochs"
            )
        return Usage(max(self.pss), median(self.whole), max(self.whole))


def _tree_pss() -> tuple[int, int]:
    """Return the bytes of PSS of this process and its descendants, and the part in shared memory."""
    here = psutil.Process()
    total = shared = 0
    for process in [here, *here.children(recursive=True)]:
        with contextlib.suppress(OSError):  # it has just ended
            lines = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]
            sizes = {name: int(size.split()[0]) * 1024 for name, size in (line.split(":") for line in lines)}
            total += sizes["Pss"]
            shared += sizes["Pss_Shmem"]
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


def ours(workers: int, megabytes: float, epochs: int) -> Usage:
    """Fit a tiny network on blocks whose source array is gone, with a process a worker."""
    from compss_train import BlockedTensor, DistributedTrainer, LocalEngine

    array, labels = _make(megabytes)
    x, y = BlockedTensor.from_array(array, (8, 1)), BlockedTensor.from_array(labels, (8, 1))
    del array, labels
    before = _engine_folders()
    with LocalEngine(processes=workers, threads=1) as engine:
        folders = _engine_folders() - before
        trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
        trainer.build(nn.Linear(FEATURES, 10), {"optimizer": "sgd", "lr": 0.001}, "cross_entropy")
        # Processes first, without the data: the samples are of training and not of the start.
        trainer.fit(
            np.zeros((800, FEATURES), np.float32),
            np.zeros(800, np.int64),
            num_epochs=2,
            batch_size=BATCH,
            progress=False,
        )
        with Sampler(sorted(folders)) as sampler:
            trainer.fit(x, y, num_epochs=epochs, batch_size=BATCH, progress=False)
    return sampler.usage()


def _engine_folders() -> set[Path]:
    return set(Path("/dev/shm").glob("compss_train-*"))


def copies(workers: int, megabytes: float, epochs: int) -> Usage:
    """Hand the data set to every process, as spawned DataLoader workers get it: pickled, whole."""
    array, labels = _make(megabytes)
    context = multiprocessing.get_context("spawn")
    ready, start = context.Semaphore(0), context.Event()
    args = (array, labels, epochs, ready, start)
    processes = [context.Process(target=_plain_loop, args=args) for _ in range(workers)]
    with threads_of_children(1):
        for process in processes:
            process.start()
    for _ in processes:
        ready.acquire()
    with Sampler() as sampler:
        start.set()
        for process in processes:
            process.join()
    return sampler.usage()


def _plain_loop(
    array: NDArray[np.float32],
    labels: NDArray[np.int64],
    epochs: int,
    ready: multiprocessing.synchronize.Semaphore,
    start: Event,
) -> None:
    torch.set_num_threads(1)
    x, y, net = torch.from_numpy(array), torch.from_numpy(labels), nn.Linear(FEATURES, 10)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    ready.release()
    start.wait()
    for _ in range(epochs):
        for rows in torch.randperm(len(x)).split(BATCH):
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
            optimizer.step()
    time.sleep(3 * INTERVAL)  # tiny data are trained on at once: let the sampler see the process


CONTESTANTS: dict[str, Callable[[int, float, int], Usage]] = {"ours": ours, "a copy each": copies}


def multiples(contestant: str, workers: int, options: argparse.Namespace) -> Usage:
    """Return usage beyond that with tiny data, in units of the data's size."""
    run = CONTESTANTS[contestant]
    large = in_fresh_process(run, workers, options.megabytes, options.epochs)
    # As many batches as with the large data would take as long; a second is enough to see the processes.
    tiny = in_fresh_process(run, workers, TINY_MEGABYTES, 20 * options.epochs)
    size = options.megabytes - TINY_MEGABYTES
    return Usage(
        (large.pss - tiny.pss) / size,
        (large.whole - tiny.whole) / size,
        (large.whole_peak - tiny.whole_peak) / size,
    )


def main() -> None:
    options_parser = parser("Memory of all processes during a fit.", repetitions=3, epochs=10)
    options_parser.add_argument("--megabytes", type=float, default=400.0, help="size of the data")
    options_parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4])
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.megabytes, options.epochs, options.workers = 1, 80.0, 5, [1, 2]
    print(f"{options.megabytes:.0f} MB of float32; PSS of all processes while training, over that with tiny data")
    found: dict[tuple[str, int], list[Usage]] = {}
    for _ in range(options.repetitions):
        for workers in options.workers:
            for name in CONTESTANTS:
                found.setdefault((name, workers), []).append(multiples(name, workers, options))
    rows = [
        [
            f"{name}, {workers}",
            spread([usage.pss for usage in usages]),
            spread([usage.whole for usage in usages]),
            spread([usage.whole_peak for usage in usages]),
            f"{TARGET:.1f}" if name == "ours" else "peer",
        ]
        for (name, workers), usages in sorted(found.items(), key=lambda item: (item[0][0] != "ours", item[0]))
    ]
    headers = ["who, processes", "PSS, peak", "with unmapped, median", "with unmapped, peak", "target"]
    print_table("Memory, as a multiple of the data's size", headers, rows)


if __name__ == "__main__":
    main()
