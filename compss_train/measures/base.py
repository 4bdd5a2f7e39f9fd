"""What every metric is to the workers and to the coordinator."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, TypeAlias

import torch

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
