"""What ``build(metric=...)`` accepts, and the names that metrics have in the history."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from compss_train.measures.accumulated import Accumulated
from compss_train.measures.base import Measure
from compss_train.measures.mean import BatchMean
from compss_train.measures.measures import Measures
from compss_train.metrics import BOOKKEEPING, METRICS
from compss_train.registry import resolve

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
