"""Torch's schedulers, with what a trainer is given for each, and an optimizer that notes what they
set.
"""

from functools import partial

import torch
from torch.optim import lr_scheduler


def warm_up_and_cosine(optimizer):
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=2)
    return lr_scheduler.SequentialLR(
        optimizer, [warm_up, lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)], milestones=[2]
    )


def chained(optimizer):
    return lr_scheduler.ChainedScheduler(
        [
            lr_scheduler.ConstantLR(optimizer, 0.5, total_iters=2),
            lr_scheduler.ExponentialLR(optimizer, 0.7),
        ],
        optimizer=optimizer,
    )


def fall(epoch):
    return 0.8**epoch


SCHEDULERS = {
    "step": partial(lr_scheduler.StepLR, step_size=2, gamma=0.3),
    "cosine": partial(lr_scheduler.CosineAnnealingLR, T_max=5),
    "restarts": partial(lr_scheduler.CosineAnnealingWarmRestarts, T_0=2),
    "one cycle": partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=6),
    "cyclic": partial(lr_scheduler.CyclicLR, base_lr=0.01, max_lr=0.1, step_size_up=2),
    "multiplied": lambda optimizer: lr_scheduler.MultiplicativeLR(optimizer, lambda epoch: 0.9),
    "sequential": warm_up_and_cosine,
    "chained": chained,
}


class Noting(torch.optim.SGD):
    """Notes the learning rate, the momentum and the first gradient of every step, group by
    group.
    """

    def __init__(self, parameters, notes, **options):
        super().__init__(parameters, **options)
        self.notes = notes

    def step(self, closure=None):
        for number, group in enumerate(self.param_groups):
            gradient = group["params"][0].grad
            self.notes.append(
                (number, group["lr"], group["momentum"], float(gradient.flatten()[0]))
            )
        super().step(closure)
