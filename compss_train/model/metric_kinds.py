"""Metrics: means of a function over samples, also by EDDL's names, and metrics of torchmetrics.

A metric of torchmetrics accumulates states: the AUROC over all samples is not the mean over batches. Each worker
updates its own copy. States are merged as torchmetrics merges them across the processes of ``torch.distributed``:
by the reduction given to ``add_state``. States that are means over batches are weighted by the number of batches,
as within one process. torchmetrics is imported only where one of its metrics is used.
"""

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, Self, TypeAlias, TypedDict

import numpy as np
import torch
from torch import Tensor, nn

from compss_train.model import losses
from compss_train.model.losses import BatchFunction

Value: TypeAlias = float | list[Any] | dict[str, Any]
"""The value of a metric in a record: a number, or lists or dicts of numbers, so that it can be stored as JSON."""


class Metric(ABC):
    """A metric. Workers update copies of it with batches; its value is computed from the states of all copies."""

    @abstractmethod
    def start(self) -> Self:
        """Return a copy without batches."""

    @abstractmethod
    def update(self, output: Any, target: Tensor, samples: int) -> None:
        """Add a batch of ``samples`` samples."""

    @abstractmethod
    def state(self) -> Any:
        """Return the accumulated state, which can be sent to another process."""

    @abstractmethod
    def value(self, states: Sequence[Any], samples: int) -> Value:
        """Return the value over all ``samples`` samples of these states; NaN for no samples."""


_MAX_PENDING = 1024  # batches after which values are summed, so that they do not pile up on the device


class WeightedSum:
    """The sum of the means of batches times their sizes, in double precision.

    Values are kept and summed later: arithmetic on single numbers costs as much as small layers do, and reading a
    value would wait for the device.
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._values: list[Tensor] = []
        self._weights: list[int] = []

    def add(self, value: Tensor | float, weight: int) -> None:
        """Add the mean of a batch."""
        self._values.append(torch.as_tensor(value).detach().reshape(()))
        self._weights.append(weight)
        if len(self._values) == _MAX_PENDING:
            self.total()

    def total(self) -> float:
        """Return the sum so far."""
        if self._values:
            values = torch.stack(self._values).double().cpu()
            self._total += float(values @ torch.tensor(self._weights, dtype=torch.float64))
            self._values, self._weights = [], []
        return self._total


@dataclass(eq=False)
class BatchMean(Metric):
    """The mean over samples of a function of (output, target) that returns the mean of a batch."""

    function: BatchFunction
    _sum: WeightedSum = field(default_factory=WeightedSum, init=False, repr=False)

    def start(self) -> Self:
        """Return a mean without batches."""
        return type(self)(self.function)

    def update(self, output: Any, target: Tensor, samples: int) -> None:
        """Add a batch; raise ``TypeError`` if the function does not return one number."""
        value: Any = self.function(output, target)
        if not (isinstance(value, Tensor) and value.numel() == 1) and not isinstance(value, Real):
            given = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
            raise TypeError(f"a metric returned {given}; it has to return one number, the mean over the batch")
        self._sum.add(value if isinstance(value, Tensor) else float(value), samples)

    def state(self) -> float:
        """Return the sum over the samples."""
        return self._sum.total()

    def value(self, states: Sequence[float], samples: int) -> float:
        """Return the mean over all samples."""
        return mean(states, samples)


def mean(sums: Sequence[float], samples: int) -> float:
    """Return the mean over samples from sums over parts of them; NaN for no samples."""
    return sum(sums) / samples if samples else math.nan


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of samples whose largest output is the target's class.

    Targets are class indices, one-hot or soft.
    """
    target = losses.class_targets(output, target)
    if output.dim() < 2 or output.shape[1] < 2:
        raise ValueError(
            f"accuracy needs one output for each class, but outputs have shape {tuple(output.shape)}; "
            "pass a callable metric for a single output"
        )
    if target.shape == output.shape:
        target = target.argmax(dim=1)
    return (output.argmax(dim=1) == target).to(torch.float32).mean()


def mean_absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of |output - target|."""
    return (output - losses.match_output(output, target)).abs().mean()


def mean_relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of |output - target| / |target|, or of the absolute error where a target is 0."""
    target = losses.match_output(output, target)
    scale = torch.where(target == 0, torch.ones_like(output), target.abs())
    return ((output - target).abs() / scale).mean()


METRICS: dict[str, BatchFunction] = {
    "mse": losses.mean_squared_error,
    "mean_squared_error": losses.mean_squared_error,
    "categorical_accuracy": accuracy,
    "accuracy": accuracy,
    "mae": mean_absolute_error,
    "mean_absolute_error": mean_absolute_error,
    "mre": mean_relative_error,
    "mean_relative_error": mean_relative_error,
}
"""Metrics by EDDL's names."""


StateValue: TypeAlias = Tensor | list[Any]
"""One of the states of a metric."""


class MetricState(TypedDict):
    """The accumulated states of one metric, on the CPU, as plain values that can be sent as data."""

    updates: int
    """Number of batches."""
    values: dict[str, StateValue]


@dataclass(eq=False)
class TorchMetric(Metric):
    """A copy of a metric of torchmetrics, on the CPU and without samples."""

    metric: Any

    def __post_init__(self) -> None:
        self.metric = _reset_copy(self.metric).cpu()

    def start(self) -> Self:
        """Return a copy without samples."""
        return type(self)(self.metric)

    def update(self, output: Any, target: Tensor, samples: int) -> None:
        """Add a batch."""
        self.metric.update(*_match_shapes(output, target))

    def state(self) -> list[MetricState]:
        """Return the states of the metric and of its inner metrics, which wrappers and sums of metrics have."""
        return [
            MetricState(
                updates=part.update_count,
                values={name: _copy_state(getattr(part, name), how) for name, how in part._reductions.items()},
            )
            for part in _with_inner(self.metric)
        ]

    def value(self, states: Sequence[list[MetricState]], samples: int) -> Value:
        """Return the value that the metric computes from all states."""
        if not samples:
            return math.nan
        metric = _reset_copy(self.metric)
        for part, *part_states in zip(_with_inner(metric), *states, strict=True):
            _load(part, [state for state in part_states if state["updates"]])
        return _to_plain(metric.compute())


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
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return output, target
    output = losses.full_precision(output)
    if output.shape == target.shape:
        return output, target
    if output.numel() == target.numel():
        return output.reshape(target.shape), target
    is_column = target.dim() == output.dim() > 1 and target.shape[1] == 1 and not target.is_floating_point()
    return output, target.squeeze(1) if is_column else target


def _copy_state(value: StateValue, reduction: Any) -> StateValue:
    """Return a copy of a state on the CPU; a list that would be concatenated later is concatenated now."""
    from torchmetrics.utilities import dim_zero_cat

    if isinstance(value, Tensor):
        return value.detach().cpu().clone()
    if reduction is dim_zero_cat and value:
        value = [dim_zero_cat(value)]
    return [_copy_state(item, None) if isinstance(item, Tensor) else copy.deepcopy(item) for item in value]


def _load(metric: Any, states: list[MetricState]) -> None:
    """Set a metric to the merged states of several copies; without states it stays empty."""
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
    if isinstance(value, Tensor | np.ndarray | np.generic):
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
