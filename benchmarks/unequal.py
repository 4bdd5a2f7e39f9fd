"""Samples/s of a fit on two slots, one of them four times slower, against the sum of both alone."""

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
    images: common.Images, workers: int, slots: int, _: int, *, epochs: int, kind: Any, slow: bool
) -> float:
    """Return the samples/s of a fit.

    One before it starts the processes and shows how fast they are.
    """
    x, y = images.blocked(workers)
    net = common.network("MLP", 0)
    warm = (images.x, images.y)
    with tempfile.TemporaryDirectory() as folder, LocalEngine(slots, threads=1) as engine:
        stamp = common.Stamp(folder)
        options: dict[str, Any] = {"workers": workers, "engine": engine, "warm": warm}
        with (
            common.warm_trainer(net, transform=stamp, **options) as trainer,
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
        alone = partial(measure, images, 1, 1, epochs=options.epochs, kind="synchronous")
        both = partial(measure, images, workers, 2, epochs=options.epochs, slow=True)
        contestants = {"fast": partial(alone, slow=False), "slow": partial(alone, slow=True)}
        contestants |= {kind: partial(both, kind=kind) for kind in KINDS}
        speeds = common.in_turn(contestants, options.repetitions)
        sums = [fast + slow for fast, slow in zip(speeds["fast"], speeds["slow"], strict=True)]
        values = [common.spread(of_contestant, ",.0f") for of_contestant in speeds.values()]
        kept = [common.spread(common.ratios(speeds[kind], sums)) for kind in KINDS]
        rows.append([str(workers), *values, *kept])
    of_the_sum = [f"{kind}, of the sum (goal {GOAL})" for kind in KINDS]
    headers = ["workers", "one fast", "one slow", *(f"both, {kind}" for kind in KINDS), *of_the_sum]
    title = f"Samples/s with one of two processes slowed down {SLOWER} times"
    common.print_table(title, headers, rows)


if __name__ == "__main__":
    main()
