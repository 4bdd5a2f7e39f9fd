"""``TorchMetric``: a metric of torchmetrics, whose states on several workers are merged.

The AUROC over all samples is not the mean over batches, so that these metrics accumulate states.
Each worker updates its own copy. States are merged as torchmetrics merges them across processes of
``torch.distributed``: by the reduction of ``add_state``; means over batches are weighted by the
number of batches, as within one process.

torchmetrics is imported only where one of its metrics is used.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from compss_train._utils.private_names import reductions, set_merged
from compss_train.model.losses import full_precision

Value: TypeAlias = float | list[Any] | dict[str, Any]
"""The value of a metric in a record, as JSON can hold it: a number, or lists or dicts of them."""

StateValue: TypeAlias = Tensor | list[Any]
"""One of the states of a metric."""

MetricState: TypeAlias = tuple[int, dict[str, StateValue]]
"""The number of batches of one metric, and its states on the CPU."""


@dataclass(eq=False)
class TorchMetric:
    """A metric of torchmetrics without samples, on the CPU or the device of a replica."""

    metric: Any

    @classmethod
    def of(cls, metric: Any) -> Self:
        """Return a copy of the user's metric, on the CPU and without samples."""
        return cls(_reset_copy(metric).cpu())

    def start(self) -> Self:
        """Return a copy on the same device."""
        return type(self)(_reset_copy(self.metric))

    def update(self, output: Any, target: Any) -> None:
        """Add a batch."""
        self.metric.update(*_match_shapes(output, target))

    def state(self) -> list[MetricState]:
        """Return the states of the metric and of its inner metrics, to send to another process.

        Wrappers and sums of metrics have inner metrics.
        """
        return [_state_of(part) for part in _with_inner(self.metric)]

    def value(self, states: Sequence[list[MetricState]], samples: int) -> Value:
        """Return the value over all ``samples`` samples of these states; NaN for no samples."""
        if not samples:
            return math.nan
        metric = _reset_copy(self.metric)
        for part, *part_states in zip(_with_inner(metric), *states, strict=True):
            _load(part, [(batches, values) for batches, values in part_states if batches])
        return as_plain(metric.compute())


def _reset_copy(metric: Any) -> Any:
    copied = copy.deepcopy(metric)
    copied.reset()
    return copied


def _state_of(metric: Any) -> MetricState:
    values = {
        name: _copy_state(getattr(metric, name), reduction)
        for name, reduction in reductions(metric).items()
    }
    return metric.update_count, values


def _with_inner(metric: nn.Module) -> list[Any]:
    """Return a metric of torchmetrics and all metrics inside of it."""
    from torchmetrics import Metric as TorchmetricsMetric

    return [module for module in metric.modules() if isinstance(module, TorchmetricsMetric)]


def _match_shapes(output: Any, target: Any) -> tuple[Any, Any]:
    """Return outputs in full precision, and both in the same shape if it is clear how.

    Class indices lose a last dimension of 1; outputs with as many numbers as the targets take their
    shape.
    """
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return output, target
    output = full_precision(output)
    if output.shape == target.shape:
        return output, target
    if output.numel() == target.numel():
        return output.reshape(target.shape), target
    is_column = target.dim() == output.dim() > 1 and target.shape[1] == 1
    if is_column and not target.is_floating_point():
        target = target.squeeze(1)
    return output, target


def _copy_state(value: StateValue, reduction: Any) -> StateValue:
    """Return a copy of a state on the CPU.

    A list that would be concatenated later is concatenated now.
    """
    from torchmetrics.utilities import dim_zero_cat

    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if reduction is dim_zero_cat and value:
        value = [dim_zero_cat(value)]
    return [
        _copy_state(item, None) if isinstance(item, Tensor) else copy.deepcopy(item)
        for item in value
    ]


def _load(metric: Any, states: list[MetricState]) -> None:
    """Set a metric to the merged states of several copies; without states it stays empty."""
    if not states:
        return
    updates = [batches for batches, _ in states]
    for name, reduction in reductions(metric).items():
        values = [state[name] for _, state in states]
        merged = values[0] if len(values) == 1 else _merge(values, updates, reduction)
        setattr(metric, name, merged)
    set_merged(metric, updates)


def _merge(values: list[Any], updates: list[int], reduction: Any) -> Any:
    """Return one value of a state from those of several copies, each with its number of updates."""
    from torchmetrics.utilities import dim_zero_cat, dim_zero_mean

    if isinstance(values[0], list):
        items = [item for value in values for item in value]
        return items if reduction in (None, dim_zero_cat) or not items else reduction(items)
    if reduction is dim_zero_cat:
        return dim_zero_cat(values)
    stacked = torch.stack(values)
    if reduction is dim_zero_mean:
        weights = torch.tensor(updates, dtype=torch.float64)
        return torch.tensordot(weights, stacked.double(), 1).div(sum(updates))
    return stacked if reduction is None else reduction(stacked)


def as_plain(value: Any) -> Value:
    """Return the value as numbers, lists and dicts."""
    if isinstance(value, Tensor | np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, dict):
        return {str(name): as_plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_plain(item) for item in value]
    if isinstance(value, int | float):
        return float(value)
    raise TypeError(
        f"the metric computed a {type(value).__name__}; the history holds numbers, lists and "
        "dicts of them"
    )
