"""``Measures``: all that a trainer measures."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train.model.losses import resolve
from compss_train.model.metrics.functions import METRICS
from compss_train.model.metrics.mean import BatchMean, Measure, Measuring, Value, mean
from compss_train.model.metrics.torchmetrics import Accumulated
from compss_train.reports.records import BOOKKEEPING


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


Metric: TypeAlias = "str | Callable[..., Any]"
"""A name, a function of (output, target), or a metric or collection of torchmetrics."""
MetricSpec: TypeAlias = "Metric | Sequence[Metric] | Mapping[str, Metric] | None"

_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def resolve_metrics(metric: MetricSpec) -> Measures:
    """Return the loss and the metrics given: one, several, several by name, or none.

    Raises ``ValueError`` for a name that is unknown, or that is taken in the history, and ``TypeError`` for what is
    no metric.
    """
    found: dict[str, Measure] = {}
    for name, measure in _entries(metric):
        if name in found:
            raise ValueError(
                f"two metrics are called {name!r}; say what to call them, as in "
                f"metric={{{name + '_a'!r}: ..., {name + '_b'!r}: ...}}"
            )
        _check_name(name)
        found[name] = measure
    return Measures(found)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name:
        raise TypeError(f"metric={{{name!r}: ...}}: the names of metrics are strings that are not empty")
    if name == "loss" or name in BOOKKEEPING or name.startswith("val_"):
        raise ValueError(
            f"metric name {name!r} stands for something else in the history; "
            f"say what to call it, as in metric={{{'my_' + name!r}: ...}}"
        )


def _entries(metric: Any) -> Iterator[tuple[str, Measure]]:
    if isinstance(metric, Mapping):
        for name, one in metric.items():
            yield from _measures(one, name)
    elif metric is not None:
        for one in metric if isinstance(metric, list | tuple) else [metric]:
            yield from _measures(one)


def _measures(metric: Any, name: str | None = None) -> Iterator[tuple[str, Measure]]:
    """Iterate over a metric's name and measure, or those of all in a collection."""
    resolved = resolve("metric", metric, METRICS)
    if _is_of_torchmetrics("MetricCollection", resolved):
        for inner, member in resolved.items():
            yield inner if name is None else f"{name}_{inner}", Accumulated.of(member)
    elif _is_of_torchmetrics("Metric", resolved):
        own = _WORDS.sub("_", type(resolved).__name__).lower()
        yield own if name is None else name, Accumulated.of(resolved)
    else:
        own = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
        yield own if name is None else name, BatchMean(resolved)


def _is_of_torchmetrics(kind: str, metric: object) -> bool:
    """Tell whether it is such an object, without importing torchmetrics: who has one has imported it."""
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(metric, getattr(module, kind))
