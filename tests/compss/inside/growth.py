"""Trains a tiny network with many workers and records the memory and files of coordinator and
workers.

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
from pycompss.runtime.management.object_tracker import OT
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer
from compss_train.callbacks import Callback
from compss_train.engines.compss.runtime import JVM_OPTIONS


def working_folders():
    """Return the folders of the workers' files, from the project file of the application."""
    (file,) = re.findall(r"-Dcompss.project.file=(.*)", Path(os.environ[JVM_OPTIONS]).read_text())
    project = Path(file)
    return re.findall(r"<WorkingDir>(.*?)</WorkingDir>", project.read_text())


def values(folders):
    """Count the files of tasks' values, by their suffix; COMPSs also keeps two empty logs per
    task.
    """
    return sum(
        name.endswith(".IT")
        for folder in folders
        for _, _, names in os.walk(folder)
        for name in names
    )


class Sizes(Callback):
    """Records memory and files after each round."""

    def __init__(self):
        self.rounds = []

    def on_round_end(self, trainer, record):
        here = GLOBALS.get_temporary_directory()
        self.rounds.append(
            {
                "memory": psutil.Process().memory_full_info().uss,
                "tracked": len(OT.obj_id_to_obj),
                "files here": sum(len(names) for _, _, names in os.walk(here)),
                "values on workers": values(working_folders()),
            }
        )


def main():
    path = sys.argv[1]
    workers = int(sys.argv[2])
    rounds = int(sys.argv[3])
    x = np.random.default_rng(0).normal(size=(workers * 2, 6)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    trainer = DistributedTrainer(workers, seed=0, threads=1)
    trainer.build(
        nn.Linear(6, 2), {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, "cross_entropy"
    )
    sizes = Sizes()
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
