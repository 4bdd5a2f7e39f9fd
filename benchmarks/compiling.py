"""Compiled networks and fused optimizers: samples a second of whole fits, and the seconds before the first step.

With ``--cpu`` fits run in this process, and seconds are those of the CPU, compilers included: for a machine that
other programs use as well.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

import torch
from _common import NETWORKS, image_source, load_images, network, parser, print_table, ratios, spread
from _loops import BATCH, LEARNING_RATE, MOMENTUM

from compss_train import BlockedTensor, DistributedTrainer

SGD = {"optimizer": "sgd", "lr": LEARNING_RATE, "momentum": MOMENTUM}
FUSED = {**SGD, "fused": True}
EAGER = "eager"
VARIANTS = {
    EAGER: {"optimizer": SGD},
    "fused": {"optimizer": FUSED},
    "compile": {"optimizer": SGD, "compile": True},
    "both": {"optimizer": FUSED, "compile": True},
}
PRECISIONS = {"fp32": {}, "bf16": {"precision": "bf16", "memory_format": "channels_last"}}
GOAL = "1.2 for one network at least, never below 1"


@contextmanager
def empty_cache() -> Iterator[None]:
    """Let nothing be compiled yet."""
    with tempfile.TemporaryDirectory() as folder:
        before = os.environ.get("TORCHINDUCTOR_CACHE_DIR")
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        try:
            yield
        finally:
            os.environ.pop("TORCHINDUCTOR_CACHE_DIR")
            if before is not None:
                os.environ["TORCHINDUCTOR_CACHE_DIR"] = before


def measure(name: str, precision: str, options: argparse.Namespace) -> None:
    """Run the variants in turn, again and again, with processes that stay; and print what came out."""
    images = load_images(options.samples)
    x, y = (BlockedTensor.from_array(data, (4, 1)) for data in (images.x, images.y))
    fit = {"num_epochs": options.epochs, "batch_size": BATCH, "progress": False}
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    warm_up: dict[str, float] = {}
    with empty_cache(), ExitStack() as stack:
        trainers = {}
        for variant, arguments in VARIANTS.items():
            engine = "serial" if options.cpu else "local"
            trainer = stack.enter_context(DistributedTrainer(options.workers, engine=engine, seed=0, threads=1))
            trainer.build(network(name, 0), loss="cross_entropy", **arguments, **PRECISIONS[precision])
            trainer.evaluate(images.x[:BATCH], images.y[:BATCH])  # the processes have started
            warm_up[variant] = timed(partial(trainer.fit, x, y, **fit | {"num_epochs": 1}), cpu=options.cpu)
            trainers[variant] = trainer
            print(f"{name} {precision} {variant}: first epoch {warm_up[variant]:.1f} s", file=sys.stderr)
        for _ in range(options.repetitions):
            for variant, trainer in trainers.items():
                seconds[variant].append(timed(partial(trainer.fit, x, y, **fit), cpu=options.cpu))
    trained = options.epochs * options.samples
    rows = [
        [
            variant,
            spread([trained / each for each in values], ",.0f"),
            spread(ratios(seconds[EAGER], values), ".2f"),
            f"{warm_up[variant] - min(values) / options.epochs:.1f}",
        ]
        for variant, values in seconds.items()
    ]
    headers = ["variant", "samples/s", f"to {EAGER} (goal of both, fp32: {GOAL})", "s more in the first epoch"]
    print_table(f"{name}, {precision}", headers, rows)


def timed(call: partial, *, cpu: bool) -> float:
    """Return the seconds of a call."""
    clock = cpu_seconds if cpu else time.perf_counter
    began = clock()
    call()
    return clock() - began


def cpu_seconds() -> float:
    """Return the seconds that this process and those that it has started have had of the CPU."""
    return sum(os.times()[:4])


def main() -> None:
    options_parser = parser(__doc__, repetitions=5, epochs=2)
    options_parser.add_argument("--samples", type=int, default=20_000, help="training images")
    options_parser.add_argument("--workers", type=int, default=2, help="workers, a thread each")
    options_parser.add_argument("--cpu", action="store_true", help="count seconds of the CPU, in this process")
    options_parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    options_parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples = 1, 1, 2_000
    print(f"{image_source()}: {options.samples} of them, {options.epochs} epochs a fit, {BATCH} a batch")
    print(f"torch {torch.__version__}; {options.workers} workers, a thread each")
    for name in options.networks:
        for precision in options.precisions:
            measure(name, precision, options)


if __name__ == "__main__":
    main()
