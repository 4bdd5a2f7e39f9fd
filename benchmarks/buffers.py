"""What does a buffer cost? Batches between one producer and one consumer, and fits through buffers.

The part ``batches`` compares a Reservoir with a bare gather of rows and with a list under a lock;
``fits`` compares fits through buffers with one without.
"""

from __future__ import annotations

import argparse
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import _common as common
import torch
from torch.utils.data import default_collate

from compss_train import BufferSpec
from compss_train.buffers import BufferDrainedError, ReceptionOverError, Reservoir

FEATURES = 784
BATCH = 128
CAPACITY = 10_000
"""Samples that a buffer holds."""
POOL = 60_000
"""Samples that the producer takes its messages from, in turn."""
PACE = 100_000
"""Samples a second of the producer that is paced: 314 MB/s."""
BARE = "bare gather"
PLAIN = "locked list, default_collate"
NONE = "no buffer"


# -- batches


@dataclass(frozen=True)
class Rates:
    """Samples a second."""

    got: float
    put: float = 0.0


class LockedList:
    """The plain way: a list of samples under a lock, one sample a call. Evicts like a Reservoir."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._entries: list[list[torch.Tensor]] = []
        """``[sample]`` or, once it was got, ``[sample, sample]``."""
        self._seen = 0
        self._over = False
        self._changed = threading.Condition()

    def put(self, sample: torch.Tensor) -> None:
        """Store a sample in the place of one that was got, waiting for such a place."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._over or len(self._entries) < self._capacity or self._seen
            )
            if len(self._entries) < self._capacity:
                self._entries.append([sample])
            elif not self._over:
                place = random.randrange(self._capacity)
                while len(self._entries[place]) == 1:
                    place = random.randrange(self._capacity)
                self._entries[place] = [sample]
                self._seen -= 1
            self._changed.notify_all()

    def get(self) -> torch.Tensor:
        """Return a random sample."""
        with self._changed:
            entry = random.choice(self._entries)
            if len(entry) == 1:
                entry.append(entry[0])
                self._seen += 1
                self._changed.notify_all()
            return entry[0]

    def stop(self) -> None:
        """Let a put that waits go on."""
        with self._changed:
            self._over = True
            self._changed.notify_all()


def measured(
    consume: Callable[[], object],
    seconds: float,
    put: Callable[[torch.Tensor], object],
    *,
    pool: torch.Tensor,
    stop: Callable[[], object],
    pace: int = 0,
) -> Rates:
    """Consume batches for some seconds, while a thread puts messages.

    It puts them as fast as it can, or at a pace.
    """
    stopped = threading.Event()
    samples = 0

    def produce() -> None:
        nonlocal samples
        began = time.perf_counter()
        while not stopped.is_set():
            start = samples % (len(pool) - BATCH)
            put(pool[start : start + BATCH])
            samples += BATCH
            if pace:
                early = began + samples / pace - time.perf_counter()
                stopped.wait(max(0.0, early))

    def run() -> None:
        with suppress(ReceptionOverError):
            produce()

    thread = threading.Thread(target=run)
    thread.start()
    got, elapsed = consumed(consume, seconds)
    rates = Rates(got, samples / elapsed)
    stopped.set()
    stop()
    thread.join()
    return rates


def consumed(consume: Callable[[], object], seconds: float) -> tuple[float, float]:
    """Return samples a second of calls that give a batch each, and the seconds that they took."""
    began = time.perf_counter()
    elapsed = 0.0
    batches = 0
    while elapsed < seconds:
        consume()
        batches += 1
        elapsed = time.perf_counter() - began
    return batches * BATCH / elapsed, elapsed


def run_ours(pool: torch.Tensor, seconds: float, pace: int, *, producing: bool = True) -> Rates:
    buffer = Reservoir(CAPACITY, CAPACITY // 2, seed=0)
    buffer.put_many(pool[:CAPACITY])
    get = partial(buffer.get_batch, BATCH)
    if not producing:
        got, _ = consumed(get, seconds)
        return Rates(got)
    stop = buffer.signal_reception_over
    rates = measured(get, seconds, buffer.put_many, pool=pool, stop=stop, pace=pace)
    with suppress(BufferDrainedError):
        while True:
            buffer.get_batch(1000)
    if buffer.repetitions()[0]:
        raise RuntimeError("samples were lost: some that were put were never got")
    return rates


def run_plain(pool: torch.Tensor, seconds: float) -> Rates:
    buffer = LockedList(CAPACITY)

    def put(message: torch.Tensor) -> None:
        for sample in message:
            buffer.put(sample)

    def get() -> object:
        return default_collate([buffer.get() for _ in range(BATCH)])

    put(pool[:CAPACITY])
    return measured(get, seconds, put, pool=pool, stop=buffer.stop)


def run_bare(pool: torch.Tensor, seconds: float) -> Rates:
    held = pool[:CAPACITY].clone()
    got, _ = consumed(lambda: held.index_select(0, torch.randint(CAPACITY, (BATCH,))), seconds)
    return Rates(got)


def report_batches(options: argparse.Namespace) -> None:
    torch.set_num_threads(1)  # as a worker has them
    pool = torch.rand(POOL, FEATURES)
    seconds = options.seconds
    contestants: dict[str, Callable[[int], Rates]] = {
        BARE: lambda _: run_bare(pool, seconds),
        "ours": lambda _: run_ours(pool, seconds, 0),
        f"ours, {PACE:,} put/s": lambda _: run_ours(pool, seconds, PACE),
        "ours, no producer": lambda _: run_ours(pool, seconds, 0, producing=False),
        PLAIN: lambda _: run_plain(pool, seconds),
    }
    results = common.in_turn(contestants, options.repetitions)
    title = f"Batches of {BATCH} from {CAPACITY:,} samples of {FEATURES} float32"
    got = {label: [rates.got for rates in runs] for label, runs in results.items()}
    common.print_rates(title, got, BARE, goal=">= 0.5", unit="samples got/s")
    for label, runs in results.items():
        if runs[0].put:
            put = common.spread([rates.put for rates in runs], ",.0f")
            print(f"put meanwhile, {label}: {put}/s")


# -- fits


def report_fits(options: argparse.Namespace) -> None:
    images = common.load_images(options.samples)

    def rate(kind: Any, seed: int) -> float:
        buffer = kind and BufferSpec(kind, 4096)
        with common.warm_trainer(common.network("MLP", seed), seed=seed) as trainer:
            x, y = images.blocked(8)
            return common.fit(trainer, x, y, epochs=options.epochs, buffer=buffer).rate

    contestants: dict[str, Callable[[int], float]] = {NONE: partial(rate, None)}
    for kind in ("FIRO", "FIFO", "Reservoir"):
        contestants[f"{kind} of 4,096"] = partial(rate, kind)
    title = (
        f"MLP, {common.WORKERS} workers, {options.epochs} epochs of {options.samples:,} "
        "images in 8 blocks"
    )
    rates = common.in_turn(contestants, options.repetitions)
    common.print_rates(title, rates, NONE, goal="FIRO: >= 0.95")


PARTS = {"batches": report_batches, "fits": report_fits}


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=5, epochs=3, samples=60_000, parts=PARTS)
    options_parser.add_argument(
        "--seconds", type=float, default=3.0, help="of each measurement of batches"
    )
    options = common.parsed(options_parser, seconds=0.3, epochs=1, samples=12_000)
    print(common.image_source())
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
