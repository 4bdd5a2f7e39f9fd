"""Samples/s of a fit on two slots of which one is slowed down four times, against the sum of both alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from operator import itemgetter
from statistics import median
from typing import Any

from _common import Images, image_source, load_images, network, parser, print_table, ratios, spread

from compss_train import BlockedTensor, DistributedTrainer, LocalEngine

SLOWER = 4
TARGET = 0.9
WORKERS = (2, 16, 64)

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


def measure(images: Images, workers: int, slots: int, rounds: int, *, slow: bool) -> tuple[float, float]:
    """Return the speed of a fit, and its share of the sum of the speeds that its slots had while they trained.

    Both are medians of the rounds after the first, in which the speeds of slots are unknown.
    """
    x = BlockedTensor.from_array(images.x, (workers, 1))
    y = BlockedTensor.from_array(images.y, (workers, 1))
    with LocalEngine(slots) as engine, DistributedTrainer(workers, engine=engine, seed=0) as trainer:
        trainer.build(network("CNN", 0), {"optimizer": "sgd", "lr": 0.05}, "cross_entropy")
        trainer.fit(x, y, num_epochs=1, batch_size=100, progress=False)
        with slowed(engine._processes[0].pid) if slow else nullcontext():
            trainer.fit(x, y, num_epochs=rounds + 1, batch_size=100, progress=False)
        measured = trainer.history[2:]
    speed = median(record["samples_per_second"] for record in measured)
    return speed, median(record["samples_per_second"] / busy_speed(record, slots) for record in measured)


def busy_speed(record: dict[str, Any], slots: int) -> float:
    """Return the sum of the speeds of slots while they trained; a worker goes on where another has just ended."""
    ends, samples, busy = [0.0] * slots, [0] * slots, [0.0] * slots
    for worker in sorted(record["workers"], key=itemgetter("started")):
        slot = max((n for n in range(slots) if ends[n] <= worker["started"]), key=ends.__getitem__, default=0)
        ends[slot] = worker["started"] + worker["seconds"]
        samples[slot] += worker["samples"]
        busy[slot] += worker["seconds"]
    return sum(trained / seconds for trained, seconds in zip(samples, busy, strict=True) if seconds)


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=2)
    options_parser.add_argument("--samples", type=int, default=8_000)
    options_parser.add_argument("--workers", type=int, nargs="+", default=WORKERS, help="workers on the two slots")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples, options.workers = 1, 1, 2_000, (2, 16)
    images = load_images(options.samples)
    print(f"{image_source()}; CNN, {options.samples:,} samples, one thread a process, merged every epoch")
    rows = []
    for workers in options.workers:
        speeds: dict[str, list[float]] = {"fast": [], "slow": [], "both": []}
        busy = []
        for _ in range(options.repetitions):
            for name, slots in (("fast", 1), ("slow", 1), ("both", 2)):
                speed, share = measure(images, workers, slots, options.epochs, slow=name != "fast")
                speeds[name].append(speed)
            busy.append(share)
        summed = [fast + slow for fast, slow in zip(speeds["fast"], speeds["slow"], strict=True)]
        alone = spread(ratios(speeds["both"], summed))
        rows.append([str(workers), *(spread(speeds[name], ",.0f") for name in speeds), alone, spread(busy)])
        print(rows[-1], file=sys.stderr)
    headers = [
        "workers",
        "one fast",
        "one slow",
        "both",
        "of the sum",
        f"of both while they train (target {TARGET})",
    ]
    print_table(f"Samples/s with one of two processes slowed down {SLOWER} times", headers, rows)


if __name__ == "__main__":
    main()
