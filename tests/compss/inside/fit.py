"""Trains a small network and writes the result: the arguments are the result's file and options of
``fit``.

``fit.py result.json workers=3 blocks=6 hidden=16 num_epochs=2 merge=commutative``. Several
``shuffles`` separated by commas run as many fits, one after the other.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, Merge

OURS = {
    "workers": 2,
    "blocks": 4,
    "hidden": 16,
    "samples": 60,
    "shuffles": "blocks",
    "engine": "auto",
}


def options():
    pairs = dict(argument.split("=", 1) for argument in sys.argv[2:])
    return {name: int(value) if value.isdigit() else value for name, value in pairs.items()}


def data(samples, blocks):
    random = np.random.default_rng(0)
    x = random.normal(size=(samples, 6)).astype(np.float32)
    y = (x.sum(1) > 0).astype(np.int64)
    return BlockedTensor.from_array(x, (blocks, 1)), BlockedTensor.from_array(y, (blocks, 1))


def network(hidden):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, 2)
    )


def record_read_sizes():
    """Return a list to which the size of every file that PyCOMPSs reads in this process is
    appended.
    """
    # Not installed where the serial engine's fit runs.
    from pycompss.runtime.management import synchronization

    sizes = []
    read = synchronization.deserialize_from_file

    def noted(path, *args):
        sizes.append(os.path.getsize(path))
        return read(path, *args)

    synchronization.deserialize_from_file = noted
    return sizes


def digest(parameters):
    return hashlib.sha256(b"".join(array.tobytes() for array in parameters.values())).hexdigest()


def main():
    chosen = {**OURS, **options()}
    own = {name: chosen.pop(name) for name in OURS}
    fetched = [] if own["engine"] == "serial" else record_read_sizes()
    trainer = DistributedTrainer(own["workers"], engine=own["engine"], seed=0, threads=1)
    trainer.build(
        network(own["hidden"]), {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}, "cross_entropy"
    )
    x, y = data(own["samples"], own["blocks"])
    if "quorum" in chosen:
        chosen["merge"] = Merge(chosen["merge"], quorum=chosen.pop("quorum"))
    for shuffle in own["shuffles"].split(","):
        parameters = trainer.fit(x, y, batch_size=5, shuffle=shuffle, **chosen)
    result = {
        "digest": digest(parameters),
        "bytes": sum(array.nbytes for array in parameters.values()),
        "fetched": fetched,
        "losses": [record["loss"] for record in trainer.history],
        "scores": trainer.evaluate(x, y),
    }
    Path(sys.argv[1]).write_text(json.dumps(result))


if __name__ == "__main__":
    main()
