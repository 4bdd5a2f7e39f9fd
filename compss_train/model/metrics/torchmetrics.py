"""Metrics of torchmetrics, which accumulate states: an AUROC over all samples is no mean of AUROCs of batches.

Each worker updates a metric of its own. Their states are merged as torchmetrics merges those of the processes of
``torch.distributed``: by the reduction that each was added with. States that are means of batches are weighted by
how many batches there were, as within one process. torchmetrics itself is imported where a metric is used.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import nn

from compss_train.model.losses import full_precision
from compss_train.model.metrics.mean import Measure, Measuring, Value

Held: TypeAlias = "torch.Tensor | list[Any]"
"""One state of a metric."""


@dataclass(frozen=True)
class MetricState:
    """What one metric has accumulated, on the CPU."""

    updates: int
    """Batches."""
    held: dict[str, Held]


@dataclass(frozen=True, eq=False)
class Accumulated(Measure):
    """A metric of torchmetrics, on the CPU; what is measured is not left in it."""

    metric: Any

    @classmethod
    def of(cls, metric: Any) -> Self:
        """Return it of one that the user goes on having."""
        return cls(_anew(metric).cpu())

    def start(self) -> Measuring:
        """Return a metric without samples."""
        return _Accumulating(_anew(self.metric))

    def value(self, states: Sequence[list[MetricState]], samples: int) -> Value:
        """Return what the metric computes from all states."""
        if not samples:
            return math.nan
        metric = _anew(self.metric)
        for part, *theirs in zip(_with_inner(metric), *states, strict=True):
            _load(part, [state for state in theirs if state.updates])
        return _plain(metric.compute())


class _Accumulating(Measuring):
    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def add(self, output: Any, target: torch.Tensor, samples: int) -> None:
        self._metric.update(*_as_expected(output, target))

    def state(self) -> list[MetricState]:
        """Return the states of the metric and of those inside it, as wrappers and sums of metrics have."""
        return [_state_of(part) for part in _with_inner(self._metric)]


def _anew(metric: Any) -> Any:
    own = copy.deepcopy(metric)
    own.reset()
    return own


def _with_inner(metric: nn.Module) -> list[Any]:
    from torchmetrics import Metric

    return [module for module in metric.modules() if isinstance(module, Metric)]


def _as_expected(output: Any, target: Any) -> tuple[Any, Any]:
    """Return outputs in full precision, and both in one shape where it is clear how.

    Class indices lose a last dimension of 1; outputs of as many numbers as there are targets take their shape.
    """
    if not (isinstance(output, torch.Tensor) and isinstance(target, torch.Tensor)):
        return output, target
    output = full_precision(output)
    if output.shape == target.shape:
        return output, target
    if output.numel() == target.numel():
        return output.reshape(target.shape), target
    is_column = target.dim() == output.dim() > 1 and target.shape[1] == 1 and not target.is_floating_point()
    return output, target.squeeze(1) if is_column else target


def _state_of(metric: Any) -> MetricState:
    held = {name: _held(getattr(metric, name), reduction) for name, reduction in metric._reductions.items()}
    return MetricState(metric.update_count, held)


def _held(value: Held, reduction: Any) -> Held:
    """Return a state that is the worker's no longer; what would be put together later is put together now."""
    from torchmetrics.utilities import dim_zero_cat

    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if reduction is dim_zero_cat and value:
        value = [dim_zero_cat(value)]
    return [_held(item, None) if isinstance(item, torch.Tensor) else copy.deepcopy(item) for item in value]


def _load(metric: Any, states: list[MetricState]) -> None:
    """Give a metric what the states of several come to; none leave it without samples."""
    if not states:
        return
    updates = [state.updates for state in states]
    for name, reduction in metric._reductions.items():
        held = [state.held[name] for state in states]
        setattr(metric, name, held[0] if len(held) == 1 else _merged(held, updates, reduction))
    metric._update_count = sum(updates)
    metric._to_sync = False  # all is here, whatever other processes this one is joined with


def _merged(held: list[Any], updates: list[int], reduction: Any) -> Any:
    from torchmetrics.utilities import dim_zero_cat, dim_zero_mean

    if isinstance(held[0], list):
        items = [item for one in held for item in one]
        return items if reduction in (None, dim_zero_cat) or not items else reduction(items)
    if reduction is dim_zero_cat:
        return dim_zero_cat(held)
    stacked = torch.stack(held)
    if reduction is dim_zero_mean:
        return torch.tensordot(torch.tensor(updates, dtype=torch.float64), stacked.double(), 1).div(sum(updates))
    return stacked if reduction is None else reduction(stacked)


def _plain(value: Any) -> Value:
    """Return numbers as a record holds them."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(
        f"the metric computed a {type(value).__name__}; the history holds numbers, lists and dicts of them"
    )
