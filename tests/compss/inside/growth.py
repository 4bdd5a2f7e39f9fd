"""Trains a tiny network by many logical workers and notes what the coordinator and the working folders hold.

``growth.py result.json workers rounds``
"""

import json
import os
import re
import sys
from pathlib import Path

import numpy as np
import psutil
from pycompss.runtime.commons import GLOBALS
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer
from compss_train.callbacks import Callback


def working_folders():
    """Return the folders that workers keep their files in, from the project that COMPSs was started with."""
    options = Path(os.environ["JVM_OPTIONS_FILE"]).read_text()
    project = re.search(r"-Dcompss\.project\.file=(\S+)", options)[1]
    return re.findall(r"<WorkingDir>(.*?)</WorkingDir>", Path(project).read_text())


def files(folder):
    return sum(len(names) for _, _, names in os.walk(folder))


class Sizes(Callback):
    """Notes after each round how much memory this process has and how many files there are."""

    def __init__(self, folders):
        self.folders = folders
        self.rounds = []

    def on_round_end(self, trainer, record):
        memory = psutil.Process().memory_full_info().uss
        self.rounds.append({"memory": memory, "files": [files(folder) for folder in self.folders]})


def main():
    path, workers, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    folders = [GLOBALS.get_temporary_directory(), *working_folders()]
    x = np.random.default_rng(0).normal(size=(workers * 2, 6)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    trainer = DistributedTrainer(workers, seed=0, threads=1)
    trainer.build(nn.Linear(6, 2), {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, "cross_entropy")
    sizes = Sizes(folders)
    grid = (workers, 1)
    trainer.fit(
        BlockedTensor.from_array(x, grid),
        BlockedTensor.from_array(y, grid),
        num_epochs=rounds,
        batch_size=2,
        callbacks=[sizes],
    )
    Path(path).write_text(json.dumps(sizes.rounds))


if __name__ == "__main__":
    main()
