"""Trains networks that fail: faulty.py raise|die|wait FLAG_FILE."""

import os
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train import DistributedTrainer


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
        if self.how == "wait":
            self.flag.touch()
            time.sleep(0.2)
        return self.linear(x)


def main():
    how, flag = sys.argv[1:]
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    trainer = DistributedTrainer(2, seed=0, threads=1)
    torch.manual_seed(0)
    trainer.build(Faulty(how, flag), {"optimizer": "sgd", "lr": 0.1}, "cross_entropy")
    merge = "commutative" if how == "raise" else "synchronous"
    trainer.fit(x, (x.sum(1) > 0).astype(np.int64), num_epochs=100, batch_size=5, merge=merge)
    print("trained to the end")


if __name__ == "__main__":
    main()
