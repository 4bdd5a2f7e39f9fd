"""The fit of ``faults``, in an application of its own, whose workers are killed."""

from __future__ import annotations

import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from _common import network

WORKERS, BATCH = 2, 100


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
