"""The task that ends a merge: it reduces what the workers trained, and steps from it.

A merge has three stages. Workers *encode* what they trained, as parameters or as compressed changes
(``encoding``); a ``MergeRule`` *reduces* it to one; a *step* follows, of an outer optimizer or of a
moving average (``outer_step``). Each part of the parameters is merged in a task of its own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np

from compss_train.model.commutative_updates import change
from compss_train.model.compression import CompressedChange
from compss_train.model.optimizers import OptimizerFactory
from compss_train.model.parameters import Parameters
from compss_train.model.parts import Moments, Part, arrays_of, like
from compss_train.model.training_spec import TensorNames
from compss_train.worker.merging.buffers import NO_BUFFER_RULES, BufferRules
from compss_train.worker.merging.outer_step import NO_STATE, OuterState, moving_average, outer_step
from compss_train.worker.merging.rules import MergeRule
from compss_train.worker.merging.trained import (
    FIRSTS,
    MAXIMA,
    Item,
    Trained,
    unchanged_by_all,
)


@dataclass(frozen=True, kw_only=True)
class MergeStages:
    """How a fit merges: the rule and the steps that follow it."""

    rule: MergeRule
    names: TensorNames
    """The names of the network's tensors; buffers and frozen parameters are only reduced."""
    optimizer: OptimizerFactory | None = None
    """Makes the outer optimizer; ``None`` for no step."""
    moments: bool = False
    """Whether the workers' optimizer states are merged."""
    compressed: bool = False
    """Whether workers return compressed changes."""
    decay: float | None = None
    """The decay of the moving average of the parameters over merges; ``None`` for no average."""
    buffers: BufferRules = NO_BUFFER_RULES
    """How buffers merge that are no statistics."""
    by_steps: bool = False
    """Whether workers return averages of the parameters by steps, which are merged, too."""

    @property
    def only_reduces(self) -> bool:
        """Whether nothing but the merged parameters comes of it, and no value before is needed."""
        return not self.compressed and self.kept == () and not self.buffers

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of what merges keep besides the parameters: fields of ``MergeState``."""
        optional = {
            "moments": self.moments,
            "outer": self.optimizer is not None,
            "averaged": self.decay is not None or self.by_steps,
        }
        return tuple(name for name, is_kept in optional.items() if is_kept)


def gather_items(
    groups: Sequence[Sequence[Item]],
    rule: MergeRule,
    weights: Mapping[int, float] | None = None,
) -> list[Item]:
    """Return the items of several tasks, fewer if they can be added up: a task of a tree."""
    return rule.gathered(_weighed(groups, weights))


def _weighed(groups: Sequence[Sequence[Item]], weights: Mapping[int, float] | None) -> list[Item]:
    """Return the items of several tasks, those of single workers with other ``weights``."""
    items = [*chain.from_iterable(groups)]
    if weights is None:
        return items
    return [
        replace(item, weight=weights[item.worker]) if isinstance(item, Trained) else item
        for item in items
    ]


def merge_part(
    groups: Sequence[Sequence[Item]],
    stages: MergeStages,
    base: Parameters | Part,
    outer: OuterState | None = None,
    averaged: Parameters | Part | None = None,
    moments: Moments | None = None,
    weights: Mapping[int, float] | None = None,
) -> Any:
    """Return the global parameters of a part after a merge.

    If ``stages.kept`` names anything, they are in a tuple with that. ``groups`` are the items of
    all workers, in their order. ``base`` are the global parameters at the start of the round;
    ``outer``, ``averaged`` and ``moments`` the values that the last merge returned, ``None`` before
    the first; ``weights`` those of workers, by number, if they are not the usual ones. Raises
    ``DivergedError`` if a step leads to NaN or infinity.
    """
    items = _weighed(groups, weights)
    before = arrays_of(base)
    merged = stages.rule.merged(items, {"parameters": before, "moments": moments or {}})
    parameters = _whole(merged, before, unchanged_by_all(items))
    # No momentum without samples.
    if stages.optimizer is not None and any(item.total for item in items):
        parameters, outer = outer_step(
            stages.optimizer, stages.names.weights, before, parameters, outer
        )
    kept: dict[str, Any] = {"outer": outer or NO_STATE, "moments": dict(merged.get("moments", {}))}
    if stages.by_steps:
        kept["averaged"] = like(base, {**parameters, **merged.get("average", {})})
    if stages.decay is not None:
        average = None if averaged is None else arrays_of(averaged)
        newest = stages.buffers.names
        kept["averaged"] = like(base, moving_average(average, parameters, stages.decay, newest))
    results = (like(base, parameters), *(kept[name] for name in stages.kept))
    return results if stages.kept else results[0]


def _whole(
    merged: Mapping[str, Mapping[Any, Any]], before: Parameters, unchanged: Collection[str]
) -> Parameters:
    """Return merged parameters with all their buffers, in the order of those before.

    Buffers that no worker has changed have their bits, and so have those of a worker 0 that has
    trained nothing.
    """
    values = {**merged["parameters"], **merged.get(MAXIMA, {}), **merged.get(FIRSTS, {})}
    return {
        name: before[name] if name in unchanged else values.get(name, before[name])
        for name in before
    }


def rebased(
    items: Sequence[Item],
    base: Parameters | Part,
    current: Parameters | Part,
    buffers: Collection[str],
) -> list[Item]:
    """Return what a worker would have trained with its changes from ``current``, not ``base``.

    Statistics in ``buffers``, integers and optimizer states are the worker's own; compressed
    changes need no base.
    """
    before = arrays_of(base)
    now = arrays_of(current)
    return [_rebased(item, before, now, buffers) for item in items]


def _rebased(item: Item, base: Parameters, current: Parameters, buffers: Collection[str]) -> Item:
    if not isinstance(item, Trained):
        raise TypeError("only what one worker trained can be rebased, not a sum of several")
    parameters = dict(item.parameters)
    for name, array in item.parameters.items():
        if isinstance(array, CompressedChange) or array.dtype.kind not in "fc" or name in buffers:
            continue
        moved = np.asarray(change(base[name], array) + current[name])
        parameters[name] = moved.astype(array.dtype, copy=False)
    return replace(item, parameters=parameters)
