"""The presets of ``Merge``, which choose when workers merge and how; ``PostLocal``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from compss_train._utils.private_names import is_batch_norm
from compss_train._utils.validation import check_count
from compss_train.model.net_optimizers import NetOptimizer, make_optimizer
from compss_train.training.merge import Merge, Preset
from compss_train.worker.work import OptimizerState


@dataclass(frozen=True, kw_only=True)
class PostLocal:
    """Post-local SGD: merge after every batch until an epoch, then less often.

    Parameters
    ----------
    epochs:
        Number of initial epochs in which workers merge after every batch.
    then:
        Number of batches (or other units, by ``unit``) between two merges afterwards.

    Raises ``ValueError`` unless both are integers of at least 1.

    Source: Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
    """

    epochs: int
    then: int

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_count("then", self.then)

    def __call__(self, epoch: int) -> int:
        """Return the number of batches between merges in an epoch."""
        return 1 if epoch < self.epochs else self.then


NESTEROV: Mapping[str, Any] = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}

BATCH = 100
"""The local batch size of few workers.

The learning rate should be chosen for one worker with this batch size.
"""
JOINT_BATCH = 800
"""The global batch size, in samples, which many workers share."""
SMALLEST_BATCH = 16
"""Minimum local batch size: smaller batches cost more time than they are worth."""
SAMPLES_PER_MERGE = 15_000
"""Samples of all workers between two merges; a quarter of an epoch if that is less."""
SAMPLES_PER_MERGE_WITH_BATCH_NORM = 3_200
SCHEDULED_JOINT_BATCH = 400
"""``JOINT_BATCH`` with BatchNorm and a schedule.

A falling rate gains only with small batches, merged often.
"""
SCHEDULED_SAMPLES_PER_MERGE = 800
MANY_WORKERS = 8
"""The number of workers with BatchNorm from which on outer steps are better.

Fewer learn better from the mean and their own momentum.
"""


def published_merge(preset: Preset, num_epochs: int) -> Merge:
    """Return the options of a paper, all for image classification.

    Douillard et al. 2023, "DiLoCo", arXiv 2311.08105, whose inner optimizer is AdamW. Wang et al.
    2020, "SlowMo", arXiv 1910.00643. Lin et al. 2020, "Don't use large mini-batches, use local
    SGD", arXiv 1808.07217.
    """
    if preset == "diloco":
        return Merge(every=500, unit="batches", outer_optimizer=NESTEROV, optimizer_state="keep")
    if preset == "slowmo":
        outer = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.7}
        return Merge(every=12, unit="batches", outer_optimizer=outer, optimizer_state="reset")
    return Merge(
        every=PostLocal(epochs=max(1, num_epochs // 2), then=16),
        unit="batches",
        optimizer_state="keep",
    )


def has_batch_norm(net: nn.Module) -> bool:
    """Return whether a network has layers of BatchNorm."""
    return any(map(is_batch_norm, net.modules()))


def auto_batch(num_workers: int, net: nn.Module, *, scheduled: bool) -> int:
    """Return a worker's batch size; ``scheduled`` says whether the learning rate has a schedule."""
    joint = SCHEDULED_JOINT_BATCH if scheduled and has_batch_norm(net) else JOINT_BATCH
    return min(BATCH, max(SMALLEST_BATCH, joint // num_workers))


def auto_merge(
    samples: int,
    batch: int,
    num_workers: int,
    *,
    net: nn.Module,
    optimizer: NetOptimizer,
    scheduled: bool,
) -> Merge:
    """Return when and how ``"auto"`` merges, and what happens to the workers' momentum.

    With frequent merges both kinds of momentum add up, which networks with BatchNorm do not
    tolerate. They get only one kind: the outer momentum with many workers, or the workers' own,
    because Adam needs its moments. With a schedule they get the workers' own, and merge after a few
    batches: outer steps gain nothing from a falling rate.
    """
    if num_workers == 1:  # the plain loop
        return Merge()
    batch_norm = has_batch_norm(net)
    adaptive = not isinstance(make_optimizer(optimizer, net), torch.optim.SGD)
    often = SCHEDULED_SAMPLES_PER_MERGE if scheduled else SAMPLES_PER_MERGE_WITH_BATCH_NORM
    most = often if batch_norm else SAMPLES_PER_MERGE
    every = max(1, round(min(most, samples / 4) / (batch * num_workers)))
    # Steps in one direction add up to lr / (1 - momentum) times the mean change: as far as these
    # workers would have moved one after another, up to 7 of them.
    momentum = round(min(NESTEROV["momentum"], 1 - NESTEROV["lr"] / num_workers), 3)
    keeps_momentum = adaptive or scheduled or num_workers < MANY_WORKERS
    outer = None if batch_norm and keeps_momentum else {**NESTEROV, "momentum": momentum}
    state: OptimizerState = "reset" if batch_norm and outer is not None else "average"
    return Merge(every=every, unit="batches", outer_optimizer=outer, optimizer_state=state)
