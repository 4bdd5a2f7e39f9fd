"""Samples/s that are left where a worker process is killed again and again, on each engine."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import psutil
from _common import network, parser, print_table, spread
from _compss import call

WORKERS, BATCH = 2, 100
PLACES, FAULT_SECONDS = 32, 1800 / 62
"""A larger machine that is computed: torchft's own test had 62 faults in half an hour with so many replicas."""


def rate(engine: str, samples: int, epochs: int, every: float, folder: str) -> dict[str, float]:
    """Return the samples/s of a fit, and how many processes were killed, one every so many seconds."""
    from compss_train import DistributedTrainer

    rng = np.random.default_rng(0)
    x, y = rng.random((samples, 1, 28, 28), np.float32), rng.integers(0, 10, samples)
    kills: list[int] = []
    over = threading.Event()
    with DistributedTrainer(WORKERS, engine=engine, seed=0, threads=1) as trainer:
        trainer.build(network("MLP", 0), {"optimizer": "sgd", "lr": 0.05}, "cross_entropy", transform=noted(folder))
        trainer.fit(x[: 4 * BATCH], y[: 4 * BATCH], num_epochs=2, batch_size=BATCH, progress=False)

        def kill() -> None:
            while every and not over.wait(every):
                pids = [int(path.name) for path in Path(folder).iterdir() if psutil.pid_exists(int(path.name))]
                if pids:
                    kills.append(pids[len(kills) % len(pids)])
                    os.kill(kills[-1], signal.SIGKILL)

        threading.Thread(target=kill, daemon=True).start()
        began = time.perf_counter()
        trainer.fit(x, y, num_epochs=epochs, batch_size=BATCH, progress=False)
        seconds = time.perf_counter() - began
        over.set()
    return {"rate": samples * epochs / seconds, "kills": len(kills), "seconds": seconds}


class noted:  # noqa: N801
    """A transform that notes the number of its process in a folder."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, x: Any) -> Any:
        """Return the batch."""
        Path(self.folder, str(os.getpid())).touch()
        return x


def main() -> None:
    options_parser = parser(__doc__, repetitions=3, epochs=40)
    options_parser.add_argument("--engines", nargs="+", default=["local", "ray"])
    options_parser.add_argument("--samples", type=int, default=60_000)
    options_parser.add_argument("--every", type=float, default=15.0, help="seconds between kills")
    options = options_parser.parse_args()
    if options.quick:
        options.repetitions, options.epochs, options.samples, options.every = 1, 4, 10_000, 2.0
    rows = []
    for engine in options.engines:
        kept, cost, kills = [], [], 0
        for _ in range(options.repetitions):
            runs = []
            for every in (0.0, options.every):
                with TemporaryDirectory() as folder:
                    runs.append(call(rate, engine, options.samples, options.epochs, every, folder))
            still, disturbed = runs
            kept.append(disturbed["rate"] / still["rate"])
            kills += disturbed["kills"]
            if disturbed["kills"]:
                cost.append((disturbed["seconds"] - still["seconds"]) / disturbed["kills"])
        large = 1 - median(cost or [0.0]) / FAULT_SECONDS  # all places wait for the one that trains again
        rows.append([engine, str(kills), spread(kept, ".2f"), spread(cost, ".1f") if cost else "-", f"{large:.3f}"])
    headers = ["engine", "kills", "kept of the samples/s", "seconds a kill", f"{PLACES} places, computed"]
    print_table(f"A worker killed every {options.every:g} s, {WORKERS} places", headers, rows)


if __name__ == "__main__":
    main()
