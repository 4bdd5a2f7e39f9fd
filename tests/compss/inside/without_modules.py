"""Trains a network of a module that nodes lack: without_modules.py TIMEOUT_OR_0.

Beside it are the modules that ``write_modules`` writes. It removes them before the first task.
"""

import shutil
import sys
from pathlib import Path

import numpy as np
from network import Net, loss

from compss_train import DistributedTrainer
from compss_train.engines import CompssEngine


def parameters(engine, timeout=None):
    """Return the parameters of a fit on an engine."""
    trainer = DistributedTrainer(2, engine=engine, seed=0, threads=1, worker_timeout=timeout)
    trainer.build(Net(), {"optimizer": "sgd", "lr": 0.1}, loss)
    x = np.arange(12, dtype="float32").reshape(6, 2)
    return trainer.fit(x, x[:, :1], num_epochs=2, batch_size=2, progress=False)


def main():
    timeout = float(sys.argv[1]) or None
    serial = parameters("serial")
    engine = CompssEngine()
    folder = Path(sys.argv[0]).parent  # __file__ is PyCOMPSs's launcher
    (folder / "network.py").unlink()
    shutil.rmtree(folder / "layers")
    trained = parameters(engine, timeout)
    print("same bits", [bool((serial[name] == trained[name]).all()) for name in serial])


if __name__ == "__main__":
    main()
