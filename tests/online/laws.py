"""What the tests of the laws of online fits share: fits with what matters little, and the loop that they equal."""

import copy

import torch
from torch import nn

from compss_train import DistributedTrainer
from compss_train.engines.machine import intra_op_threads
from tests.helpers.models import SGD, state_arrays
from tests.online.fits import FIFO


def built(engine, workers, net, optimizer=SGD, loss="cross_entropy", metric=None, seed=3):
    trainer = DistributedTrainer(workers, engine=engine, seed=seed, threads=1)
    trainer.build(net, optimizer, loss, metric)
    return trainer


def online(trainer, simulate, inputs, **options):
    """Fit with what matters little."""
    given = {"buffer": FIFO, "batch_size": 7, "num_simulators": 1, "merge_every_batches": 1, "record_every": 0.02}
    return trainer.fit_online(simulate, inputs, **(given | options))


def plain_loop(net, optimizer, batches, loss=nn.functional.cross_entropy, seed=3):
    """Train as anybody would on batches of (x, y)."""
    net = copy.deepcopy(net)
    optimizer = optimizer(net.parameters())
    with intra_op_threads(1):
        torch.manual_seed(seed)
        for x, y in batches:
            optimizer.zero_grad()
            output = net(x)
            loss(output, x if y is None else y).backward()
            optimizer.step()
    return state_arrays(net)


def cut(size, *arrays):
    """Return batches of so many samples of the arrays."""
    tensors = [torch.from_numpy(array) for array in arrays]
    for start in range(0, len(arrays[0]), size):
        parts = [tensor[start : start + size].clone() for tensor in tensors]
        yield parts[0], parts[1] if len(parts) > 1 else None
