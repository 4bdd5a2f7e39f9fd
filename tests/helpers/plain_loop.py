"""The training loop that anybody would write, with which fits are compared."""

import copy
import functools
import inspect

import numpy as np
import torch
from torch import nn

from compss_train.engines.calls import intra_op_threads
from compss_train.model.devices import random_state
from compss_train.model.replica import HALF
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
        yield from zip(
            np.array_split(block_x, batches), np.array_split(block_y, batches), strict=True
        )


def plain_loop(net, make_optimizer, x, y, blocks, batches, epochs, seed, accumulate=1, **options):
    """Train over the batches that the trainer makes of these blocks; the last step of an epoch may
    have fewer.
    """
    each = list(cut(x, y, blocks, batches))
    steps = [each[first : first + accumulate] for first in range(0, len(each), accumulate)]
    return plain_steps(net, make_optimizer, steps * epochs, seed, accumulate=accumulate, **options)


def transformed_batches(transform, x, y, blocks, batches, epochs):
    """Yield what ``transform`` makes of each batch and its place: epoch, block, and the first
    sample's in that.
    """
    for epoch in range(epochs):
        position = 0
        for number, (batch_x, batch_y) in enumerate(cut(x, y, blocks, batches)):
            position *= number % batches > 0
            yield transform(tensor(batch_x), tensor(batch_y), (epoch, number // batches, position))
            position += len(batch_x)


def tensor(rows):
    """Return rows of their own."""
    return rows.clone() if isinstance(rows, torch.Tensor) else torch.from_numpy(np.array(rows))


def plain_steps(
    net,
    make_optimizer,
    steps,
    seed,
    loss=nn.functional.cross_entropy,
    threads=1,
    clip=None,
    after=None,
    accumulate=1,
    precision="fp32",
    losses=None,
):
    """Train with a step for each batch, or for some of them if it may ``accumulate`` gradients.

    ``clip`` and ``after`` are called with the network before and after each step; ``losses`` takes
    the sums of the losses of the samples. Where the optimizer evaluates the loss by itself, that is
    the first one of each step.
    """
    net = copy.deepcopy(net)
    optimizer = make_optimizer(net.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16")

    def gradients(together):
        optimizer.zero_grad()
        total = 0.0
        samples = sum(len(x) for x, _ in together)
        for x, y in together:
            with torch.autocast("cpu", HALF.get(precision), enabled=precision in HALF):
                value = loss(net(tensor(x)), tensor(y))
            scaler.scale(value if accumulate == 1 else value * len(x)).backward()
            total += value.detach() * len(x)
        scaler.unscale_(optimizer)
        for parameter in net.parameters() if accumulate > 1 else ():
            parameter.grad /= samples
        if clip is not None:
            clip(net)
        return value.detach() if accumulate == 1 else total / samples

    with intra_op_threads(threads), random_state(seed, "cpu"):
        for step in steps:
            together = step if isinstance(step, list) else [tuple(step)]
            if getattr(optimizer, "evaluates_again", False):
                value = gradients(together)
                optimizer.step(functools.partial(gradients, together))
            elif inspect.signature(optimizer.step).parameters["closure"].default is None:
                value = gradients(together)
                scaler.step(optimizer)
                scaler.update()
            else:
                value = optimizer.step(functools.partial(gradients, together))
            if losses is not None:
                losses.append(float(value) * sum(len(x) for x, _ in together))
            if after is not None:
                after(net)
    return state_arrays(net)
