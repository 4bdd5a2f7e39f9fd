"""The training loop that anybody would write, with which fits are compared."""

import copy

import numpy as np
import torch
from torch import nn

from compss_train.engines.calls import intra_op_threads
from compss_train.model.random_state import random_state
from tests.helpers.models import ADAM, SGD, state_arrays

OPTIMIZERS = [
    (SGD, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    (ADAM, lambda p: torch.optim.Adam(p, lr=0.01)),
    ({"optimizer": "nadam", "lr": 0.01}, lambda p: torch.optim.NAdam(p, lr=0.01)),
    ({"optimizer": torch.optim.AdamW, "lr": 0.01}, lambda p: torch.optim.AdamW(p, lr=0.01)),
    (lambda p: torch.optim.RMSprop(p, lr=0.01), lambda p: torch.optim.RMSprop(p, lr=0.01)),
]


def cut(x, y, blocks, batches):
    """Yield the batches that the trainer makes of these blocks."""
    for block_x, block_y in zip(np.array_split(x, blocks), np.array_split(y, blocks), strict=True):
        yield from zip(np.array_split(block_x, batches), np.array_split(block_y, batches), strict=True)


def plain_loop(net, make_optimizer, x, y, blocks, batches, epochs, seed, **options):
    """Train over the batches that the trainer makes of these blocks."""
    made = (batch for _ in range(epochs) for batch in cut(x, y, blocks, batches))
    return plain_steps(net, make_optimizer, made, seed, **options)


def tensor(rows):
    """Return rows of their own."""
    return rows.clone() if isinstance(rows, torch.Tensor) else torch.from_numpy(np.array(rows))


def plain_steps(net, make_optimizer, batches, seed, loss=nn.functional.cross_entropy, threads=1, after=None):
    """Train over these batches; ``after`` is called with the network after each step."""
    net = copy.deepcopy(net)
    optimizer = make_optimizer(net.parameters())
    with intra_op_threads(threads), random_state(seed, "cpu"):
        for x, y in batches:
            optimizer.zero_grad()
            loss(net(tensor(x)), tensor(y)).backward()
            optimizer.step()
            if after is not None:
                after(net)
    return state_arrays(net)
