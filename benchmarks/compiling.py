"""Do compiled networks and fused optimizers gain? Samples/s of fits, and seconds before them.

With ``--cpu`` fits run in this process, and seconds are those of the CPU, compilers included: for a
machine that other programs use as well.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import _common as common

from compss_train import DistributedTrainer

FUSED = {**common.SGD, "fused": True}
EAGER = "eager"
VARIANTS: dict[str, dict[str, Any]] = {
    EAGER: {"optimizer": common.SGD},
    "fused": {"optimizer": FUSED},
    "compile": {"optimizer": common.SGD, "compile": True},
    "both": {"optimizer": FUSED, "compile": True},
}
PRECISIONS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"precision": "bf16", "memory_format": "channels_last"},
}
GOAL = "1.2 for one network at least, never below 1"


def measure(name: str, precision: str, options: argparse.Namespace) -> None:
    """Run the variants in turn, again and again, with processes that stay, and print the result."""
    images = common.load_images(options.samples)
    x, y = images.blocked(4)
    seconds_of = partial(common.seconds_of, clock=cpu_seconds if options.cpu else time.perf_counter)
    contestants: dict[str, Callable[[int], float]] = {}
    warm_up: dict[str, float] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        # A folder of its own, in which nothing is compiled yet.
        stack.enter_context(common.environment(TORCHINDUCTOR_CACHE_DIR=folder))
        for variant, build in VARIANTS.items():
            engine = "serial" if options.cpu else "local"
            trainer = stack.enter_context(
                DistributedTrainer(options.workers, engine=engine, seed=0, threads=1)
            )
            trainer.build(
                common.network(name, 0), loss="cross_entropy", **build, **PRECISIONS[precision]
            )
            # Starts the processes.
            trainer.evaluate(images.x[: common.BATCH], images.y[: common.BATCH])
            warm_up[variant] = seconds_of(partial(common.fit, trainer, x, y, epochs=1))
            whole = partial(common.fit, trainer, x, y, epochs=options.epochs)
            contestants[variant] = partial(lambda fit, _: seconds_of(fit), whole)
        seconds = common.in_turn(contestants, options.repetitions)
    samples = options.epochs * options.samples
    rows = []
    for variant, values in seconds.items():
        rates = common.spread([samples / value for value in values], ",.0f")
        to_eager = common.spread(common.ratios(seconds[EAGER], values), ".2f")
        startup = warm_up[variant] - min(values) / options.epochs
        rows.append([variant, rates, to_eager, f"{startup:.1f}"])
    headers = [
        "variant",
        "samples/s",
        f"to {EAGER} (goal of both, fp32: {GOAL})",
        "s more in the first epoch",
    ]
    common.print_table(f"{name}, {precision}", headers, rows)


def cpu_seconds() -> float:
    """Return the seconds that this process and those that it has started have had of the CPU."""
    return sum(os.times()[:4])


def main() -> None:
    options_parser = common.parser(__doc__, repetitions=5, epochs=2, samples=20_000)
    add = options_parser.add_argument
    add("--workers", type=int, default=2, help="workers, a thread each")
    add("--cpu", action="store_true", help="count seconds of the CPU, in this process")
    add("--networks", nargs="+", choices=common.NETWORKS, default=list(common.NETWORKS))
    add("--precisions", nargs="+", choices=PRECISIONS, default=list(PRECISIONS))
    options = common.parsed(options_parser, epochs=1, samples=2_000)
    print(f"{common.image_source()}; {options.samples} of them, {options.epochs} epochs a fit")
    for name in options.networks:
        for precision in options.precisions:
            measure(name, precision, options)


if __name__ == "__main__":
    main()
