"""Presets: sets of the options of a fit that decide how many workers learn as one.

Each sets what the caller left out. ``"diloco"``, ``"slowmo"`` and ``"post_local"`` are the settings of their
papers. ``"auto"`` chooses by the number of workers, the number of samples and the network; docs/learning.md has the
measurements that its numbers come from. None of them changes the learning rate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from compss_train._utils.validation import check_count
from compss_train.model.several_optimizers import NetOptimizer, make_optimizer
from compss_train.training.merge_intervals import PostLocal

Preset = Literal["auto", "diloco", "slowmo", "post_local"]
OptimizerState = Literal["keep", "average", "reset"]

CHOSEN = (
    *("num_batches_per_worker", "batch_size", "merge_every", "merge_unit"),
    *("outer_optimizer", "optimizer_state"),
)
"""Options that presets choose where they are ``None``, which stands for the default without a preset."""

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


def with_preset(preset: Preset, given: Mapping[str, Any], situation: Callable[[], Situation]) -> dict[str, Any]:
    """Return the options of a fit with those of the preset where ``given`` has none.

    Raises ``ValueError`` for options that no preset can be combined with.
    """
    if given.get("merge", "synchronous") != "synchronous":
        raise ValueError(
            f"preset={preset!r} belongs to merge='synchronous', not to merge={given['merge']!r}: give the options "
            "themselves, as docs/learning.md recommends them"
        )
    for name in {"num_epochs", "batch_size", "num_batches_per_worker"} & set(given):
        check_count(name, given[name])
    if ("merge_every" in given) != ("merge_unit" in given):
        raise ValueError(
            f"preset={preset!r} chooses merge_every= and merge_unit= together: give both or neither of them"
        )
    if preset == "auto":
        return {**_auto(given, situation()), **given}
    return {**_PUBLISHED[preset](given), **given}


def _diloco(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Douillard et al. 2023, "DiLoCo", arXiv 2311.08105, whose inner optimizer is AdamW."""
    return {
        "merge_unit": "batches",
        "merge_every": 500,
        "outer_optimizer": NESTEROV,
        "optimizer_state": "keep",
    }


def _slowmo(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Wang et al. 2020, "SlowMo", arXiv 1910.00643, for image classification."""
    return {
        "merge_unit": "batches",
        "merge_every": 12,
        "outer_optimizer": SLOW_MOMENTUM,
        "optimizer_state": "reset",
    }


def _post_local(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Lin et al. 2020, "Don't use large mini-batches, use local SGD", arXiv 1808.07217."""
    half = max(1, given["num_epochs"] // 2)
    return {"merge_unit": "batches", "merge_every": PostLocal(epochs=half, then=16), "optimizer_state": "keep"}


_PUBLISHED: Mapping[str, Callable[[Mapping[str, Any]], dict[str, Any]]] = {
    "diloco": _diloco,
    "slowmo": _slowmo,
    "post_local": _post_local,
}


def _auto(given: Mapping[str, Any], situation: Situation) -> dict[str, Any]:
    batch = _batch_size(given, situation)
    batches = {} if "num_batches_per_worker" in given else {"batch_size": batch}
    if situation.num_workers == 1:
        return batches
    most = SAMPLES_PER_MERGE_WITH_BATCH_NORM if situation.batch_norm else SAMPLES_PER_MERGE
    samples = min(most, situation.samples / 4)
    outer, state = _momentum(situation)
    return {
        **batches,
        "merge_unit": "batches",
        "merge_every": max(1, round(samples / (batch * situation.num_workers))),
        "outer_optimizer": outer,
        "optimizer_state": state,
    }


def _momentum(situation: Situation) -> tuple[Mapping[str, Any] | None, OptimizerState]:
    """Return the outer optimizer, and what happens to the workers' momentum.

    Frequent merges add up both kinds of momentum, which networks with BatchNorm do not stand: they have one of
    them, the outer one with many workers, or the workers' own, as Adam without its moments is no Adam.
    """
    outer = {**NESTEROV, "momentum": _outer_momentum(situation.num_workers)}
    if not situation.batch_norm:
        return outer, "average"
    if situation.adaptive or situation.num_workers < MANY_WORKERS:
        return None, "average"
    return outer, "reset"


def _outer_momentum(num_workers: int) -> float:
    """Return the momentum with which steps in one direction add up to ``num_workers`` times the mean change.

    That is how far these workers would have moved one after another: lr / (1 - momentum) = workers, up to 7.
    """
    lr, most = float(NESTEROV["lr"]), float(NESTEROV["momentum"])
    return round(min(most, 1 - lr / num_workers), 3)


def _batch_size(given: Mapping[str, Any], situation: Situation) -> int:
    """Return the local batch: the given one, or a share of the joint batch."""
    if "batch_size" in given:
        return int(given["batch_size"])
    if "num_batches_per_worker" in given:
        return -(-situation.block // int(given["num_batches_per_worker"]))
    return min(BATCH, max(SMALLEST_BATCH, JOINT_BATCH // situation.num_workers))
