"""Samples/s of a fit on two slots of which one is slowed down four times, against the sum of both alone."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from _common import Images, image_source, load_images, network, parser, print_table, ratios, spread

from compss_train import BlockedTensor, DistributedTrainer, LocalEngine
from compss_train.training.merge import MergeKind

SLOWER = 4
GOAL = 0.95
WORKERS = (2, 16)
KINDS: tuple[MergeKind, ...] = ("synchronous", "commutative")

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
    program = subprocess.Popen([sys.executable, "-c", SLOW_DOWN, str(pid), str(SLOWER)], stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        program.send_signal(signal.SIGINT)
        program.wait()


def measure(images: Images, workers: int, slots: int, epochs: int, kind: MergeKind, *, slow: bool) -> float:
    """Return the samples/s of a fit after one that starts the processes and shows how fast they are."""
    x = BlockedTensor.from_array(images.x, (workers, 1))
    y = BlockedTensor.from_array(images.y, (workers, 1))
    with LocalEngine(slots) as engine, DistributedTrainer(workers, engine=engine, seed=0) as trainer:
        trainer.build(network("MLP", 0), {"optimizer": "sgd", "lr": 0.05}, "cross_entropy")
        trainer.fit(x, y, num_epochs=1, batch_size=100, progress=False)
        with slowed(engine.pids[0]) if slow else nullcontext():
            began = time.perf_counter()
            trainer.fit(x, y, num_epochs=epochs, batch_size=100, merge=kind, progress=False)
            return len(images.x) * epochs / (time.perf_counter() - began)


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=8)
    options_parser.add_argument("--samples", type=int, default=12_000)
    options_parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="workers on the two slots")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples, options.workers = 1, 1, 2_000, (2, 16)
    images = load_images(options.samples)
    print(f"{image_source()}; MLP, {options.samples:,} samples, one thread a process, merged every epoch")
    rows = []
    for workers in options.workers:
        speeds: dict[str, list[float]] = {name: [] for name in ("fast", "slow", *KINDS)}
        for _ in range(options.repetitions):
            for name in ("fast", "slow"):
                speeds[name].append(measure(images, 1, 1, options.epochs, "synchronous", slow=name == "slow"))
            for kind in KINDS:
                speeds[kind].append(measure(images, workers, 2, options.epochs, kind, slow=True))
        summed = [fast + slow for fast, slow in zip(speeds["fast"], speeds["slow"], strict=True)]
        kept = [spread(ratios(speeds[kind], summed)) for kind in KINDS]
        rows.append([str(workers), *(spread(each, ",.0f") for each in speeds.values()), *kept])
        print(rows[-1], file=sys.stderr)
    of_the_sum = [f"{kind}, of the sum (goal {GOAL})" for kind in KINDS]
    headers = ["workers", "one fast", "one slow", *(f"both, {kind}" for kind in KINDS), *of_the_sum]
    print_table(f"Samples/s with one of two processes slowed down {SLOWER} times", headers, rows)


if __name__ == "__main__":
    main()
