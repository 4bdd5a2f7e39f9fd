"""Samples/s of a fit on two slots of which one is slowed down four times, against the sum of both
alone.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import _common as common

from compss_train import LocalEngine

SLOWER = 4
GOAL = 0.95
WORKERS = (2, 16)
KINDS = ("synchronous", "commutative")

SLOW_DOWN = """
import os, signal, sys, time
pid, slower, period = int(sys.argv[1]), float(sys.argv[2]), 0.04
try:
    while True:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(period * (slower - 1) / slower)
        os.kill(pid, signal.SIGCONT)
        time.sleep(period / slower)
finally:
    os.kill(pid, signal.SIGCONT)
"""
"""A program that lets a process run for a quarter of the time."""


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Stop a process for three quarters of the time."""
    program = subprocess.Popen(
        [sys.executable, "-c", SLOW_DOWN, str(pid), str(SLOWER)], stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        program.send_signal(signal.SIGINT)
        program.wait()


def measure(
    images: common.Images, workers: int, slots: int, epochs: int, kind: Any, slow: bool, _: int
) -> float:
    """Return the samples/s of a fit after one that starts the processes and shows how fast they
    are.
    """
    x, y = images.blocked(workers)
    net = common.network("MLP", 0)
    warm = (images.x, images.y)
    with tempfile.TemporaryDirectory() as folder, LocalEngine(slots, threads=1) as engine:
        stamp = common.Stamp(folder)
        with (
            common.warm_trainer(
                net, workers=workers, engine=engine, warm=warm, transform=stamp
            ) as trainer,
            slowed(stamp.processes()[0]) if slow else nullcontext(),
        ):
            return common.fit(trainer, x, y, epochs=epochs, merge=kind).rate


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=3, epochs=8, samples=12_000)
    options_parser.add_argument(
        "--workers", type=int, nargs="+", default=WORKERS, help="workers on the two slots"
    )
    options = common.parsed(options_parser, epochs=1, samples=2_000)
    images = common.load_images(options.samples)
    print(
        f"{common.image_source()}; MLP, {options.samples:,} samples, one thread a process, "
        "merged every epoch"
    )
    rows = []
    for workers in options.workers:
        alone = partial(measure, images, 1, 1, options.epochs, "synchronous")
        contestants = {name: partial(alone, name == "slow") for name in ("fast", "slow")}
        for kind in KINDS:
            contestants[kind] = partial(measure, images, workers, 2, options.epochs, kind, True)
        speeds = common.in_turn(contestants, options.repetitions)
        summed = [fast + slow for fast, slow in zip(speeds["fast"], speeds["slow"], strict=True)]
        kept = [common.spread(common.ratios(speeds[kind], summed)) for kind in KINDS]
        rows.append(
            [str(workers), *(common.spread(each, ",.0f") for each in speeds.values()), *kept]
        )
    of_the_sum = [f"{kind}, of the sum (goal {GOAL})" for kind in KINDS]
    headers = ["workers", "one fast", "one slow", *(f"both, {kind}" for kind in KINDS), *of_the_sum]
    common.print_table(
        f"Samples/s with one of two processes slowed down {SLOWER} times", headers, rows
    )


if __name__ == "__main__":
    main()
