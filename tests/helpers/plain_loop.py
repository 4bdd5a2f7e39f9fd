"""Plain PyTorch training over the batches that the trainer makes."""

import copy

import numpy as np
import torch
from torch import nn

from compss_train.engines.machine import intra_op_threads
from tests.helpers.models import ADAM, SGD, state_arrays

OPTIMIZERS = [
    (SGD, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    (ADAM, lambda p: torch.optim.Adam(p, lr=0.01)),
    ({"optimizer": "nadam", "lr": 0.01}, lambda p: torch.optim.NAdam(p, lr=0.01)),
    ({"optimizer": torch.optim.AdamW, "lr": 0.01}, lambda p: torch.optim.AdamW(p, lr=0.01)),
    (lambda p: torch.optim.RMSprop(p, lr=0.01), lambda p: torch.optim.RMSprop(p, lr=0.01)),
]


def plain_loop(
    net, make_optimizer, x, y, blocks, batches, epochs, seed, loss=nn.functional.cross_entropy, threads=1
):
    """Train as anybody would, over the batches that the trainer makes of these blocks."""
    with intra_op_threads(threads):
        return _loop(copy.deepcopy(net), make_optimizer, x, y, blocks, batches, epochs, seed, loss)


def _loop(net, make_optimizer, x, y, blocks, batches, epochs, seed, loss):
    optimizer = make_optimizer(net.parameters())
    torch.manual_seed(seed)
    for _ in range(epochs):
        for block_x, block_y in zip(np.array_split(x, blocks), np.array_split(y, blocks), strict=True):
            for bx, by in zip(np.array_split(block_x, batches), np.array_split(block_y, batches), strict=True):
                optimizer.zero_grad()
                output = net(torch.from_numpy(bx.copy()))
                loss(output, torch.from_numpy(by.copy())).backward()
                optimizer.step()
    return state_arrays(net)
