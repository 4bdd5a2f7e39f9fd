"""A program on a cluster of three nodes: trains as its arguments say, and writes the parameters."""

import json
import os
import signal
import sys
from contextlib import suppress

import numpy as np
import ray
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer
from compss_train.callbacks import Callback, Checkpoint
from compss_train.engines import RayEngine


class KillProgram(Callback):
    """Kills the program after a round."""

    def on_round_end(self, trainer, record):
        if record["round"] == 1:
            os.kill(os.getpid(), signal.SIGKILL)


class FillDisk(Callback):
    """Fills the disk of a file after a round."""

    def __init__(self, path):
        self.path = path

    def on_round_end(self, trainer, record):
        if record["round"] == 1:
            with suppress(OSError), open(self.path, "wb", buffering=0) as file:
                while True:
                    file.write(bytes(2**20))


def train(
    engine="auto",
    *,
    blocks=8,
    width=6,
    rows=64,
    epochs=3,
    folder=None,
    kills=False,
    fills=None,
):
    """Return the parameters of a fit on rows of ``width`` floats."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, width)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    data = BlockedTensor.from_array(x, blocks), BlockedTensor.from_array(y, blocks)
    torch.manual_seed(0)
    trainer = DistributedTrainer(4, engine=engine, seed=0, threads=1)
    net = nn.Sequential(nn.Linear(width, 16), nn.ReLU(), nn.Linear(16, 2))
    trainer.build(net, {"optimizer": "adam", "lr": 0.01}, "cross_entropy")
    callbacks = [Checkpoint(folder)] if folder else []
    callbacks += [KillProgram()] if kills else []
    callbacks += [FillDisk(fills)] if fills else []
    return trainer.fit(
        *data,
        num_epochs=epochs,
        batch_size=8,
        callbacks=callbacks,
        resume=folder is not None,
        progress=False,
    )


class Trains:
    """An actor."""

    def train(self, options):
        return train("ray", **options)


def train_in(place, options):
    """Train in a task or an actor of Ray."""
    ray.init(address="auto", logging_level="ERROR")
    if place == "task":
        return ray.get(ray.remote(num_cpus=0)(train).remote("ray", **options))

    return ray.get(ray.remote(num_cpus=0)(Trains).remote().train.remote(options))


def left_after(fits, options):
    """Return what Ray holds after the first two fits, and after all."""
    held = []
    engine = RayEngine()
    for number in range(fits):
        train(engine, **options)
        if number in (1, fits - 1):
            actors = ray._private.state.actors().values()  # noqa: SLF001
            alive = sum(actor["State"] == "ALIVE" for actor in actors)
            groups = len(ray.util.placement_group_table())
            held.append([alive, groups])
    engine.shutdown()
    return held


if __name__ == "__main__":
    place, output, options_text = sys.argv[1:]
    options = json.loads(options_text)
    if place == "leaks":
        print(json.dumps(left_after(options.pop("fits"), options)))
    else:
        parameters = (
            train_in(place, options) if place in ("task", "actor") else train(place, **options)
        )
        np.savez(output, **parameters)
