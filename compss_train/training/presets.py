"""The presets of ``Merge``, which choose when workers merge and how; ``PostLocal``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

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
"""The batch size of one worker, for which the learning rate should be chosen."""
JOINT_BATCH = 800
"""Maximum global batch size, in samples, which many workers share."""
SMALL_JOINT_BATCH = 200
"""Minimum global batch size: a high learning rate does not tolerate the noise of smaller ones."""
JOINT_BATCHES = 75
"""Minimum number of global batches in an epoch: 60,000 samples have batches of ``JOINT_BATCH``."""
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
ROUND = 15
"""Minimum number of a worker's batches between two outer steps."""
ROUND_WITH_BATCH_NORM = 3
"""The same with BatchNorm, where outer steps reset the workers' momentum."""
MEMORIES = 1.5
"""Minimum length of the same round in memories of the workers' momentum, 1 / (1 - momentum)."""
ENOUGH_MERGES = 16
"""Minimum number of outer steps that make up for a large global batch."""


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


CHOSEN = ("every", "unit", "outer_optimizer", "optimizer_state")
"""The options of ``Merge`` that ``"auto"`` chooses."""


@dataclass(frozen=True, kw_only=True)
class FitFacts:
    """What ``"auto"`` chooses by."""

    samples: int
    """Samples of an epoch."""
    workers: int
    momentum: float
    """Momentum of the workers' SGD, or the first beta of Adam and the like."""
    adaptive: bool
    """Whether the workers have another optimizer than SGD."""
    batch_norm: bool
    """Whether the network has layers of BatchNorm."""
    scheduled: bool
    """Whether the learning rate has a schedule."""

    @classmethod
    def of(
        cls, samples: int, workers: int, net: nn.Module, optimizer: NetOptimizer, *, scheduled: bool
    ) -> Self:
        """Return the facts of a network and its optimizer."""
        instance = make_optimizer(optimizer, net)
        return cls(
            samples=samples,
            workers=workers,
            momentum=max(map(_momentum, instance.param_groups), default=0.0),
            adaptive=not isinstance(instance, torch.optim.SGD),
            batch_norm=has_batch_norm(net),
            scheduled=scheduled,
        )


def _momentum(group: Mapping[str, Any]) -> float:
    """Return the momentum of a group of parameters; 0 if its optimizer has none."""
    betas = group.get("betas")
    momentum = group.get("momentum") if betas is None else betas[0]
    return float(momentum or 0.0)


def auto_batch(facts: FitFacts) -> int:
    """Return a worker's batch size.

    The workers share a global batch. An epoch has ``JOINT_BATCHES`` of these or more, if they need
    not be smaller than ``SMALL_JOINT_BATCH``: little data has small batches, which make up for
    rounds that are too short for an outer step.
    """
    scheduled_batch_norm = facts.scheduled and facts.batch_norm
    largest = SCHEDULED_JOINT_BATCH if scheduled_batch_norm else JOINT_BATCH
    joint = min(largest, max(SMALL_JOINT_BATCH, facts.samples // JOINT_BATCHES))
    return min(BATCH, max(SMALLEST_BATCH, joint // facts.workers))


def auto_merge(facts: FitFacts, batch: int, every: int | None = None) -> Merge:
    """Return when and how ``"auto"`` merges, and what happens to the workers' momentum.

    ``every`` is the number of a worker's batches between two merges, if it was given.

    With frequent merges both kinds of momentum add up, which networks with BatchNorm do not
    tolerate. They get only one kind: the outer momentum with many workers, or the workers' own,
    because Adam needs its moments. With a schedule they get the workers' own, and merge after a few
    batches: outer steps gain nothing from a falling rate.
    """
    if facts.workers == 1:  # the plain loop
        return Merge()
    often = SCHEDULED_SAMPLES_PER_MERGE if facts.scheduled else SAMPLES_PER_MERGE_WITH_BATCH_NORM
    most = often if facts.batch_norm else SAMPLES_PER_MERGE
    if every is None:
        every = max(1, round(min(most, facts.samples / 4) / (batch * facts.workers)))
    outer = None
    if _outer_steps_pay(facts, batch, every):
        # Steps in one direction add up to lr / (1 - momentum) times the mean change: as far as one
        # worker would have moved in batches of ``BATCH``, up to 7 times the change.
        steps = batch * facts.workers / BATCH
        momentum = round(min(NESTEROV["momentum"], 1 - NESTEROV["lr"] / steps), 3)
        outer = {**NESTEROV, "momentum": momentum}
    state: OptimizerState = "reset" if facts.batch_norm and outer is not None else "average"
    return Merge(every=every, unit="batches", outer_optimizer=outer, optimizer_state=state)


def _outer_steps_pay(facts: FitFacts, batch: int, every: int) -> bool:
    """Return whether an outer optimizer learns more than the mean.

    In a short round the workers have hardly moved apart: the mean of their parameters and momentum
    is then a step of SGD with a global batch, whose own momentum goes on through the merges. An
    outer momentum would multiply with it, and the fit diverge. In a long round the workers settle
    in the steep directions, and an outer step lengthens the others only.
    """
    if batch * facts.workers < SMALL_JOINT_BATCH:
        return False
    if facts.batch_norm:
        keeps_momentum = facts.adaptive or facts.scheduled or facts.workers < MANY_WORKERS
        return not keeps_momentum and every >= ROUND_WITH_BATCH_NORM
    memories = every * (1 - facts.momentum)
    return every >= ROUND and memories >= MEMORIES - 1e-9


def enough_epochs(facts: FitFacts, batch: int) -> int | None:
    """Return after how many epochs ``"auto"`` should have learnt as much as one worker, if ever.

    Where the global batch is small it has from the first epoch on; where it is large, an outer
    step makes up for it, once there were ``ENOUGH_MERGES`` of them.
    """
    merge = auto_merge(facts, batch)
    joint = batch * facts.workers
    if merge.outer_optimizer is None or not isinstance(merge.every, int):
        return 1 if joint <= SMALL_JOINT_BATCH else None
    merges = math.ceil(facts.samples / (joint * merge.every))
    return math.ceil(ENOUGH_MERGES / merges)


def enough_workers(facts: FitFacts, epochs: int) -> int:
    """Return the largest number of workers, at most those of the fit, that learn as one.

    They should after so many epochs, in the batches that ``"auto"`` chooses.
    """
    for workers in range(facts.workers, 1, -1):
        fewer = replace(facts, workers=workers)
        needed = enough_epochs(fewer, auto_batch(fewer))
        if needed is not None and needed <= epochs:
            return workers
    return 1
