"""The interface of metrics, and metrics that are the mean of a function over samples, with EDDL's names of such.

A ``RunningMetric`` accumulates a state over the batches of a worker; the ``Metric`` computes the value from the
states of all workers.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from compss_train.model.losses import BatchFunction, class_targets, match_output, mean_squared_error

Value: TypeAlias = float | list[Any] | dict[str, Any]
"""The value of a metric in a record: a number, or lists or dicts of numbers, which JSON can hold, too."""


class RunningMetric(ABC):
    """A metric over the batches that a worker has processed so far."""

    @abstractmethod
    def update(self, output: Any, target: Tensor, samples: int) -> None:
        """Add a batch of ``samples`` samples."""

    @abstractmethod
    def state(self) -> Any:
        """Return the accumulated state, which can be sent to another process."""


class Metric(ABC):
    """A metric."""

    @abstractmethod
    def start(self) -> RunningMetric:
        """Return a running metric without batches."""

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
            self._sum_pending()

    def _sum_pending(self) -> None:
        if self._values:
            values = torch.stack(self._values).double().cpu()
            self._total += float(values @ torch.tensor(self._weights, dtype=torch.float64))
        self._values, self._weights = [], []

    def total(self) -> float:
        """Return the sum so far."""
        self._sum_pending()
        return self._total


@dataclass(frozen=True)
class BatchMean(Metric):
    """The mean over samples of a function of (output, target) that returns the mean of a batch."""

    function: BatchFunction

    def start(self) -> RunningMetric:
        """Return a running mean without batches."""
        return _RunningMean(self.function)

    def value(self, states: Sequence[float], samples: int) -> float:
        """Return the mean over all samples."""
        return mean(states, samples)


class _RunningMean(RunningMetric):
    def __init__(self, function: BatchFunction) -> None:
        self._function = function
        self._sum = WeightedSum()

    def update(self, output: Any, target: Tensor, samples: int) -> None:
        self._sum.add(_check_number(self._function(output, target)), samples)

    def state(self) -> float:
        return self._sum.total()


def _check_number(value: Any) -> Tensor | float:
    """Return the value of a metric; raise ``TypeError`` if it is not one number."""
    if isinstance(value, Tensor) and value.numel() == 1:
        return value
    if not isinstance(value, Real):
        description = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else repr(value)
        raise TypeError(f"a metric returned {description}; it has to return one number, the mean over the batch")
    return float(value)


def mean(sums: Sequence[float], samples: int) -> float:
    """Return the mean over samples from sums over parts of them; NaN for no samples."""
    return sum(sums) / samples if samples else math.nan


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of samples whose largest output is the target's class.

    Targets are class indices, one-hot or soft.
    """
    target = class_targets(output, target)
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
    return (output - match_output(output, target)).abs().mean()


def mean_relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of |output - target| / |target|, or of the absolute error where a target is 0."""
    target = match_output(output, target)
    scale = torch.where(target == 0, torch.ones_like(output), target.abs())
    return ((output - target).abs() / scale).mean()


METRICS: dict[str, BatchFunction] = {
    "mse": mean_squared_error,
    "mean_squared_error": mean_squared_error,
    "categorical_accuracy": accuracy,
    "accuracy": accuracy,
    "mae": mean_absolute_error,
    "mean_absolute_error": mean_absolute_error,
    "mre": mean_relative_error,
    "mean_relative_error": mean_relative_error,
}
"""Metrics by EDDL's names."""
