"""Trains networks that fail: faulty.py raise|die|wait|stop|kill|node|never FLAG_FILE.

What stop, kill and node (all processes of COMPSs's worker) do happens once.
"""

import hashlib
import os
import signal
import sys
from pathlib import Path

import numpy as np
import psutil
import torch
from torch import nn

from compss_train import DistributedTrainer
from tests.helpers.waiting import hang


class Faulty(nn.Module):
    """A network that is defined in the main script, and sent to the workers nevertheless."""

    def __init__(self, how, flag):
        super().__init__()
        self.linear = nn.Linear(6, 2)
        self.how = how
        self.flag = Path(flag)

    def forward(self, x):
        if self.how == "raise":
            raise RuntimeError("the network is broken here")
        if self.how == "die":
            os.kill(os.getpid(), 9)
        if self.how in ("stop", "kill") and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), signal.SIGSTOP if self.how == "stop" else signal.SIGKILL)
        if self.how == "node" and not self.flag.exists():
            self.flag.touch()
            kill_node()
        if self.how == "wait":
            self.flag.touch()
            hang()
        return self.linear(x)


def kill_node():
    """End the worker of COMPSs that this process belongs to, with all its processes."""
    worker = next(
        process for process in psutil.Process().parents() if "NIOWorker" in str(process.cmdline())
    )
    processes = worker.children(recursive=True)
    worker.kill()
    for process in processes:
        process.kill()


def main():
    how, flag = sys.argv[1:]
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    timed = how in ("stop", "kill", "never")
    trainer = DistributedTrainer(2, seed=0, threads=1, worker_timeout=4.0 if timed else None)
    torch.manual_seed(0)
    trainer.build(Faulty(how, flag), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
    merge = "commutative" if how == "raise" else "synchronous"
    epochs = 3 if timed else 100
    fitted = trainer.fit(
        x, (x.sum(1) > 0).astype(np.int64), num_epochs=epochs, batch_size=5, merge=merge
    )
    print(
        "trained to the end",
        hashlib.sha256(b"".join(array.tobytes() for array in fitted.values())).hexdigest(),
    )


if __name__ == "__main__":
    main()
