"""Metrics of torchmetrics, which accumulate states: the AUROC over all samples is not the mean over batches.

Each worker updates its own copy of the metric. The states are merged as torchmetrics merges those of the processes
of ``torch.distributed``: by the reduction that each state was added with. States that are means over batches are
weighted by the number of batches, as within one process. torchmetrics itself is imported only where a metric is
used.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias, TypedDict

import numpy as np
import torch
from torch import nn

from compss_train.model.losses import full_precision
from compss_train.model.metrics.batch_mean import Metric, RunningMetric, Value

StateValue: TypeAlias = torch.Tensor | list[Any]
"""One of the states of a metric."""


class MetricState(TypedDict):
    """The accumulated states of one metric, on the CPU, as plain values that can be sent as data."""

    updates: int
    """Number of batches."""
    values: dict[str, StateValue]


@dataclass(frozen=True, eq=False)
class TorchMetric(Metric):
    """A metric of torchmetrics on the CPU, which itself stays without samples."""

    metric: Any

    @classmethod
    def from_metric(cls, metric: Any) -> Self:
        """Return it with a copy of the user's metric."""
        return cls(_reset_copy(metric).cpu())

    def start(self) -> RunningMetric:
        """Return a running metric without samples."""
        return _RunningTorchMetric(_reset_copy(self.metric))

    def value(self, states: Sequence[list[MetricState]], samples: int) -> Value:
        """Return the value that the metric computes from all states."""
        if not samples:
            return math.nan
        metric = _reset_copy(self.metric)
        for part, *part_states in zip(_with_inner(metric), *states, strict=True):
            _load(part, [state for state in part_states if state["updates"]])
        return _to_plain(metric.compute())


class _RunningTorchMetric(RunningMetric):
    def __init__(self, metric: Any) -> None:
        self._metric = metric

    def update(self, output: Any, target: torch.Tensor, samples: int) -> None:
        self._metric.update(*_match_shapes(output, target))

    def state(self) -> list[MetricState]:
        """Return the states of the metric and of its inner metrics, which wrappers and sums of metrics have."""
        return [_state_of(part) for part in _with_inner(self._metric)]


def _reset_copy(metric: Any) -> Any:
    own = copy.deepcopy(metric)
    own.reset()
    return own


def _with_inner(metric: nn.Module) -> list[Any]:
    from torchmetrics import Metric as TorchmetricsMetric

    return [module for module in metric.modules() if isinstance(module, TorchmetricsMetric)]


def _match_shapes(output: Any, target: Any) -> tuple[Any, Any]:
    """Return outputs in full precision, and both in the same shape if it is clear how.

    Class indices lose a last dimension of 1; outputs with as many numbers as the targets take their shape.
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
    values = {name: _copy_state(getattr(metric, name), reduction) for name, reduction in metric._reductions.items()}
    return MetricState(updates=metric.update_count, values=values)


def _copy_state(value: StateValue, reduction: Any) -> StateValue:
    """Return a copy of a state on the CPU; a list that would be concatenated later is concatenated now."""
    from torchmetrics.utilities import dim_zero_cat

    if isinstance(value, torch.Tensor):
        return value.detach().cpu().clone()
    if reduction is dim_zero_cat and value:
        value = [dim_zero_cat(value)]
    return [_copy_state(item, None) if isinstance(item, torch.Tensor) else copy.deepcopy(item) for item in value]


def _load(metric: Any, states: list[MetricState]) -> None:
    """Set a metric to the merged states of several; without any it stays without samples."""
    if not states:
        return
    updates = [state["updates"] for state in states]
    for name, reduction in metric._reductions.items():
        values = [state["values"][name] for state in states]
        setattr(metric, name, values[0] if len(values) == 1 else _merge(values, updates, reduction))
    metric._update_count = sum(updates)
    metric._to_sync = False  # all states are merged, even if this process belongs to a torch.distributed group


def _merge(values: list[Any], updates: list[int], reduction: Any) -> Any:
    from torchmetrics.utilities import dim_zero_cat, dim_zero_mean

    if isinstance(values[0], list):
        items = [item for value in values for item in value]
        return items if reduction in (None, dim_zero_cat) or not items else reduction(items)
    if reduction is dim_zero_cat:
        return dim_zero_cat(values)
    stacked = torch.stack(values)
    if reduction is dim_zero_mean:
        return torch.tensordot(torch.tensor(updates, dtype=torch.float64), stacked.double(), 1).div(sum(updates))
    return stacked if reduction is None else reduction(stacked)


def _to_plain(value: Any) -> Value:
    """Return the value as numbers, lists and dicts."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): _to_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item) for item in value]
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(
        f"the metric computed a {type(value).__name__}; the history holds numbers, lists and dicts of them"
    )
