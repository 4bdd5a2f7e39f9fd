"""Presets: kinds of ``Merge`` that choose the options which decide how many workers learn as one.

Each sets what the caller left out. ``"diloco"``, ``"slowmo"`` and ``"post_local"`` are the settings of their
papers. ``"auto"`` chooses by the number of workers, the number of samples and the network; docs/learning.md has the
measurements that its numbers come from. None of them changes the learning rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from compss_train._utils.validation import check_count
from compss_train.data.order import Batching
from compss_train.model.optimizers import NetOptimizer, make_optimizer
from compss_train.training.merge import Merge, PostLocal, Preset
from compss_train.worker import OptimizerState

NESTEROV: Mapping[str, Any] = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
SLOW_MOMENTUM: Mapping[str, Any] = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.7}

BATCH = 100
"""The local batch of few workers: the learning rate is meant to be chosen for one worker with such batches."""
JOINT_BATCH = 800
"""The samples of all workers' batches together, which many workers share."""
SMALLEST_BATCH = 16
"""Smaller local batches cost more time than they are worth."""
SAMPLES_PER_MERGE = 15_000
"""Samples of all workers between two merges; a quarter of an epoch if that is less."""
SAMPLES_PER_MERGE_WITH_BATCH_NORM = 3_200
MANY_WORKERS = 8
"""With BatchNorm, fewer workers learn more from the mean, with their momentum, than from outer steps."""


@dataclass(frozen=True, kw_only=True)
class Situation:
    """What ``"auto"`` depends on."""

    num_workers: int
    samples: int
    block: int
    """Samples of the largest block."""
    batch_norm: bool
    """Whether the network has BatchNorm."""
    adaptive: bool
    """Whether the workers' optimizer scales each gradient by its history, as Adam does."""

    @classmethod
    def of(cls, num_workers: int, sizes: Sequence[int], net: nn.Module, factory: NetOptimizer) -> "Situation":
        """Return the situation of a trainer and blocks of these sizes."""
        return cls(
            num_workers=num_workers,
            samples=sum(sizes),
            block=max(sizes),
            batch_norm=any(isinstance(module, _BatchNorm) for module in net.modules()),
            adaptive=not isinstance(make_optimizer(factory, net), torch.optim.SGD),
        )


def with_preset(
    merge: Merge, situation: Callable[[], Situation], *, num_epochs: int, batches: Batching
) -> tuple[Merge, int | None]:
    """Return the merge with the options of its preset where it has none, and the batch size.

    The size is the given one, or that of ``"auto"``; ``None`` for neither.
    """
    for name, value in (("batch_size", batches.size), ("num_batches_per_worker", batches.number)):
        if value is not None:
            check_count(name, value)
    preset = merge.preset
    chosen, batch = Merge(), batches.size
    if preset == "auto":
        known = situation()
        size = _batch_size(known, batches)
        chosen, batch = _auto(known, size), size if batches.number is None else batch
    elif preset is not None:
        chosen = _published(preset, num_epochs)
    return replace(merge, kind="synchronous").filled(chosen) if preset is not None else merge, batch


def _published(preset: Preset, num_epochs: int) -> Merge:
    """Return the options of a paper, all for image classification.

    Douillard et al. 2023, "DiLoCo", arXiv 2311.08105, whose inner optimizer is AdamW. Wang et al. 2020, "SlowMo",
    arXiv 1910.00643. Lin et al. 2020, "Don't use large mini-batches, use local SGD", arXiv 1808.07217.
    """
    if preset == "diloco":
        return Merge(every=500, unit="batches", outer_optimizer=NESTEROV, optimizer_state="keep")
    if preset == "slowmo":
        return Merge(every=12, unit="batches", outer_optimizer=SLOW_MOMENTUM, optimizer_state="reset")
    every = PostLocal(epochs=max(1, num_epochs // 2), then=16)
    return Merge(every=every, unit="batches", optimizer_state="keep")


def _auto(situation: Situation, batch: int) -> Merge:
    if situation.num_workers == 1:
        return Merge()
    most = SAMPLES_PER_MERGE_WITH_BATCH_NORM if situation.batch_norm else SAMPLES_PER_MERGE
    samples = min(most, situation.samples / 4)
    outer, state = _momentum(situation)
    every = max(1, round(samples / (batch * situation.num_workers)))
    return Merge(every=every, unit="batches", outer_optimizer=outer, optimizer_state=state)


def _momentum(situation: Situation) -> tuple[Mapping[str, Any] | None, OptimizerState]:
    """Return the outer optimizer, and what happens to the workers' momentum.

    Frequent merges add up both kinds of momentum, which networks with BatchNorm do not stand: they have one of
    them, the outer one with many workers, or the workers' own, as Adam without its moments is no Adam.
    """
    # Steps in one direction add up to lr / (1 - momentum) times the mean change: as far as these workers would have
    # moved one after another, up to 7 of them.
    lr, most = float(NESTEROV["lr"]), float(NESTEROV["momentum"])
    outer = {**NESTEROV, "momentum": round(min(most, 1 - lr / situation.num_workers), 3)}
    if not situation.batch_norm:
        return outer, "average"
    if situation.adaptive or situation.num_workers < MANY_WORKERS:
        return None, "average"
    return outer, "reset"


def _batch_size(situation: Situation, batches: Batching) -> int:
    """Return the local batch: the given one, or a share of the joint batch."""
    if batches.size is not None:
        return batches.size
    if batches.number is not None:
        return -(-situation.block // batches.number)
    return min(BATCH, max(SMALLEST_BATCH, JOINT_BATCH // situation.num_workers))
