"""What every metric is to the workers and to the coordinator."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, TypeAlias

import torch

from compss_train.model.losses import BatchFunction

Value: TypeAlias = "float | list[Any] | dict[str, Any]"
"""What a record holds: a number, or several in lists or by name, which JSON can hold, too."""


class Measuring(ABC):
    """Takes batches in a worker."""

    @abstractmethod
    def add(self, output: Any, target: torch.Tensor, samples: int) -> None:
        """Measure a batch of so many samples."""

    @abstractmethod
    def state(self) -> Any:
        """Return what the batches have added up to, which can travel to another process."""


class Measure(ABC):
    """A metric."""

    @abstractmethod
    def start(self) -> Measuring:
        """Return what has taken no batch yet."""

    @abstractmethod
    def value(self, states: Sequence[Any], samples: int) -> Value:
        """Return the value over all ``samples`` that these states are of; NaN where there are none."""


_FOLD = 1024  # batches after which values are summed, so that they do not pile up on the device


class WeightedSum:
    """A sum of means times their batches' sizes, in double precision.

    Values are kept as they come and summed later: arithmetic on single numbers costs as much as small layers do,
    and reading one would wait for the device.
    """

    def __init__(self) -> None:
        self._total = 0.0
        self._values: list[torch.Tensor] = []
        self._weights: list[int] = []

    def add(self, value: torch.Tensor | float, weight: int) -> None:
        """Add a batch's mean."""
        self._values.append(torch.as_tensor(value).detach().reshape(()))
        self._weights.append(weight)
        if len(self._values) == _FOLD:
            self._fold()

    def _fold(self) -> None:
        if self._values:
            values = torch.stack(self._values).double().cpu()
            self._total += float(values @ torch.tensor(self._weights, dtype=torch.float64))
        self._values, self._weights = [], []

    def total(self) -> float:
        """Return the sum so far."""
        self._fold()
        return self._total


@dataclass(frozen=True)
class BatchMean(Measure):
    """A function of (output, target) that returns a batch's mean."""

    function: BatchFunction

    def start(self) -> Measuring:
        """Return what sums up means."""
        return _MeanSoFar(self.function)

    def value(self, states: Sequence[float], samples: int) -> float:
        """Return the mean over all samples."""
        return mean(states, samples)


class _MeanSoFar(Measuring):
    def __init__(self, function: BatchFunction) -> None:
        self._function = function
        self._sum = WeightedSum()

    def add(self, output: Any, target: torch.Tensor, samples: int) -> None:
        self._sum.add(_number(self._function(output, target)), samples)

    def state(self) -> float:
        return self._sum.total()


def _number(value: Any) -> torch.Tensor | float:
    """Return what a metric has returned; raise where that is no number."""
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        return value
    if not isinstance(value, Real):
        what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else repr(value)
        raise TypeError(f"a metric returned {what}; it has to return one number, the mean over the batch")
    return float(value)


def mean(sums: Sequence[float], samples: int) -> float:
    """Return the mean that these sums over samples give; NaN for no samples."""
    return sum(sums) / samples if samples else math.nan
