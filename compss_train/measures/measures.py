"""``Measures``: all that a trainer measures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from compss_train.measures.base import Measure, Measuring, Value
from compss_train.measures.mean import mean


@dataclass(frozen=True)
class Measures:
    """The loss, and metrics by their names in the history."""

    metrics: Mapping[str, Measure] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """What every record has."""
        return ("loss", *self.metrics)

    def start(self) -> MetricsSoFar:
        """Return what takes batches in a worker."""
        return MetricsSoFar({name: metric.start() for name, metric in self.metrics.items()})

    def values(self, parts: Sequence[Mapping[str, Any]], prefix: str = "") -> dict[str, Value]:
        """Return the values over all samples of these parts, by name; NaN for no samples.

        A part is what a ``Tally`` sums up: ``samples``, the ``loss`` times their number, and states of ``metrics``.
        """
        samples = sum(part["samples"] for part in parts)
        result: dict[str, Value] = {f"{prefix}loss": mean([part["loss"] for part in parts], samples)}
        for name, metric in self.metrics.items():
            with _naming(name):
                result[prefix + name] = metric.value([part["metrics"][name] for part in parts], samples)
        return result

    def modules(self) -> Iterator[nn.Module]:
        """Iterate over the metrics that are modules, or made of one."""
        for metric in self.metrics.values():
            yield from (part for part in vars(metric).values() if isinstance(part, nn.Module))


class MetricsSoFar:
    """Metrics of the batches so far."""

    def __init__(self, metrics: dict[str, Measuring]) -> None:
        self._metrics = metrics

    def add(self, output: Any, target: torch.Tensor, samples: int) -> None:
        """Measure a batch."""
        for name, metric in self._metrics.items():
            with _naming(name):
                metric.add(output, target, samples)

    def states(self) -> dict[str, Any]:
        """Return the state of each metric."""
        return {name: metric.state() for name, metric in self._metrics.items()}

    def __bool__(self) -> bool:
        return bool(self._metrics)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Add the metric's name to an exception that leaves the block."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised by the metric {name!r}.")
        raise
