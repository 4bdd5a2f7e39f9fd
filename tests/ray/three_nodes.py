"""A program on a cluster of three nodes: trains where its argument says; writes the parameters."""

import sys

import numpy as np
import ray
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer


def train(engine):
    """Return the parameters of a fit."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 6)).astype("float32")
    y = (x[:, 0] > 0).astype("int64")
    data = BlockedTensor.from_array(x, 8), BlockedTensor.from_array(y, 8)
    torch.manual_seed(0)
    trainer = DistributedTrainer(4, engine=engine, seed=0, threads=1)
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    trainer.build(net, {"optimizer": "adam", "lr": 0.01}, "cross_entropy")
    return trainer.fit(*data, num_epochs=3, batch_size=8, progress=False)


class Trains:
    """An actor."""

    def train(self):
        return train("ray")


def train_in(place):
    """Train in a task or an actor of Ray."""
    ray.init(address="auto", logging_level="ERROR")
    if place == "task":
        return ray.get(ray.remote(num_cpus=0)(train).remote("ray"))
    return ray.get(ray.remote(num_cpus=0)(Trains).remote().train.remote())


if __name__ == "__main__":
    place, output = sys.argv[1:]
    parameters = train(place) if place == "auto" else train_in(place)
    np.savez(output, **parameters)
