"""The loss and the metrics: from batches in workers to values in the history.

Workers accumulate a state for each metric. The coordinator computes values from the states of all
workers, in worker order: the value over all samples, not the mean of the workers' values.
"""

import copy
import math
import re
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from compss_train._utils.nested import leaves, map_leaves
from compss_train.model.broadcasting import comparing
from compss_train.model.devices import kept_random_state
from compss_train.model.losses import (
    METRICS,
    BatchFunction,
    accuracy_for,
    is_known,
    kind_of,
    resolve_function,
)
from compss_train.model.torch_metric import MetricState, TorchMetric, Value
from compss_train.reports.records import BOOKKEEPING

Metric: TypeAlias = BatchFunction | TorchMetric
"""A function of (output, target) that returns the mean over a batch, or a metric that accumulates
states.
"""

_SUM = (
    "the loss adds up the samples of a batch, so that it changes with the batch size: divide "
    "it by len(target)"
)
_NO_MEAN = (
    "the metric {!r} is not a mean over samples, and its mean over batches depends on their "
    "size; return a mean, or use one of torchmetrics"
)

# Batches after which values are summed, so that they do not pile up on the device.
_MAX_PENDING = 1024


@dataclass(eq=False)
class WeightedSum:
    """The sum of the means of batches times their sizes, in double precision.

    Values are kept and summed later: arithmetic on single numbers costs as much as small layers do,
    and reading a value would wait for the device.
    """

    weight: int = 0
    """The sum of the sizes."""
    _total: float = 0.0
    _values: list[Tensor] = field(default_factory=list)
    _weights: list[int] = field(default_factory=list)

    def add(self, value: Tensor | float, weight: int) -> None:
        """Add the mean of a batch."""
        tensor = (
            value if isinstance(value, Tensor) else torch.tensor(float(value), dtype=torch.float64)
        )
        self._values.append(tensor.detach().reshape(()))
        self._weights.append(weight)
        self.weight += weight
        if len(self._values) == _MAX_PENDING:
            self.state()

    def state(self) -> float:
        """Return the sum so far."""
        if self._values:
            values = torch.stack(self._values).cpu().double()
            self._total += float(values @ torch.tensor(self._weights, dtype=torch.float64))
            self._values = []
            self._weights = []
        return self._total


def mean(sums: Sequence[float], samples: int) -> float:
    """Return the mean over samples from sums over parts of them; NaN for no samples."""
    return sum(sums) / samples if samples else math.nan


@dataclass(kw_only=True, eq=False)
class Measured:
    """What a task has measured on the samples of one worker."""

    samples: int = 0
    """Samples that the worker has trained on, or was evaluated on."""
    batches: int = 0
    skipped_batches: int = 0
    """Batches skipped because their loss or gradients were not finite."""
    loss: float = 0.0
    """The sum of the losses of all samples."""
    metrics: Mapping[str, float | list[MetricState]] = field(default_factory=dict)
    """The states of the metrics by name: sums over the samples, or what metrics of torchmetrics
    accumulate.
    """
    named: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """What training steps and callbacks have measured: the sum over the samples, and their
    number.
    """
    planned_samples: int = 0
    """Samples that the worker was to train; a reservoir's repetitions do not count."""
    unread_samples: int = 0
    """Samples of files that could not be read, or samples missing from a stream."""
    started: float | None = None
    """Unix time."""
    seconds: float = 0.0
    files: Mapping[str, float] | None = None
    """Counts of file reads, ``None`` for samples in memory."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be read, each with the reason."""
    warnings: Sequence[str] = ()
    """What users should know of the outputs or the transform, once a fit."""
    conversions: Sequence[tuple[str, str]] = ()
    """The dtypes that batches had, each with the network's, which they were converted to."""
    trace: bytes | None = None
    """The trace of ``torch.profiler``, compressed JSON."""

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what is empty: the coordinator reads thousands of them."""
        return {name: value for name, value in vars(self).items() if value}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(vars(Measured()) | state)


@dataclass(frozen=True)
class Measures:
    """The loss, and metrics by their names in the history."""

    metrics: Mapping[str, Metric] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the loss and all metrics."""
        return ("loss", *self.metrics)

    def values(self, parts: Sequence[Measured], prefix: str = "") -> dict[str, Value]:
        """Return the values over all samples of these parts, by name; NaN for no samples."""
        samples = sum(part.samples for part in parts)
        result: dict[str, Value] = {f"{prefix}loss": mean([part.loss for part in parts], samples)}
        for name in dict.fromkeys(name for part in parts for name in part.named):
            sums, counts = zip(
                *(part.named[name] for part in parts if name in part.named), strict=True
            )
            result[prefix + name] = mean(sums, sum(counts))
        for name, metric in self.metrics.items():
            states: list[Any] = [part.metrics[name] for part in parts]
            with _annotate_errors(name):
                value = metric.value if isinstance(metric, TorchMetric) else mean
                result[prefix + name] = value(states, samples)
        return result


class MetricAccumulator:
    """Sums of losses over samples, and the states of metrics."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self.samples = self._batches = self._skipped = 0
        self._loss = WeightedSum()
        self._named: dict[str, WeightedSum] = {}
        self._metrics: dict[str, Any] = {
            name: metric.start() if isinstance(metric, TorchMetric) else WeightedSum()
            for name, metric in self._measures.metrics.items()
        }

    def add(
        self,
        samples: int,
        loss: torch.Tensor,
        output: Any,
        target: Any,
        measured: Mapping[str, Any] | None = None,
    ) -> None:
        """Add a batch; its loss and other measurements are means over its samples."""
        self.samples += samples
        self._batches += 1
        self._loss.add(loss, samples)
        self.measure(measured or {}, samples)
        output = output.detach() if isinstance(output, torch.Tensor) else output
        for name, metric in self._measures.metrics.items():
            with torch.no_grad(), _annotate_errors(name, output):
                own = self._metrics[name]
                if isinstance(metric, TorchMetric):
                    own.update(output, target)
                else:
                    with nullcontext() if is_known(metric) else comparing(output, target):
                        value = metric(output, target)
                    own.add(measured_number(name, value), samples)

    def measure(self, numbers: Mapping[str, Any], samples: int) -> None:
        """Add means over this number of samples; means over 0 samples do not count."""
        for name, value in numbers.items():
            self._named.setdefault(name, WeightedSum()).add(value if samples else 0.0, samples)

    def skip(self) -> None:
        """Count a batch that was not trained on."""
        self._skipped += 1

    @property
    def loss(self) -> float:
        """The sum of the losses of all samples."""
        return self._loss.state()

    def measured(self) -> Measured:
        """Return counts, sums and states over the batches so far."""
        return Measured(
            samples=self.samples,
            batches=self._batches,
            skipped_batches=self._skipped,
            loss=self.loss,
            metrics={name: each.state() for name, each in self._metrics.items()},
            named={name: (values.state(), values.weight) for name, values in self._named.items()},
        )


def measured_number(name: str, value: Any) -> Any:
    """Return a number that a metric, step or callback measures; raise for other values and for
    reserved names.
    """
    if not isinstance(name, str) or name in BOOKKEEPING or name.startswith("val_"):
        raise ValueError(
            f"{name!r} has another meaning in the history; choose another name for what is measured"
        )
    if isinstance(value, Real) or (isinstance(value, Tensor) and value.numel() == 1):
        return value
    raise TypeError(
        f"{name!r} was measured as {kind_of(value)}; measure single numbers, the means of the batch"
    )


def batch_warning(loss: object, metrics: Mapping[str, Metric], output: Any, target: Any) -> str:
    """Return which of the loss and the metrics depends on the size of batches, as no mean does;
    empty if none does.

    They are measured on a batch and on its thirds, metrics in double precision. A loss may compare
    samples, and is only told if it is a sum.
    """
    parts = leaves((output, target))
    sizes = {len(part) if isinstance(part, Tensor) and part.dim() else 0 for part in parts}
    if len(sizes) > 1 or (size := sizes.pop()) < 3:
        return ""

    def measured(function: Any, start: int, stop: int) -> Tensor:
        def rows(part: Tensor) -> Tensor:
            own = part.detach()[start:stop]
            return own.double() if function is not loss and own.is_floating_point() else own

        with (
            torch.no_grad(),
            kept_random_state(str(parts[0].device)),
            warnings.catch_warnings(action="ignore"),
        ):
            own = copy.deepcopy(function)  # which may change with each call
            return torch.as_tensor(own(map_leaves(rows, output), map_leaves(rows, target))).reshape(
                ()
            )

    cuts = [*pairwise((0, size // 3, 2 * size // 3, size))]
    for name, function in {"": loss, **metrics}.items():
        with suppress(Exception):  # what takes no part of a batch
            if isinstance(function, TorchMetric) or (name and is_known(function)):
                continue
            # One transfer from a GPU.
            whole, *thirds = torch.stack(
                [measured(function, *cut) for cut in ((0, size), *cuts)]
            ).tolist()
            mean = (
                sum(
                    value * (stop - start)
                    for value, (start, stop) in zip(thirds, cuts, strict=True)
                )
                / size
            )
            if not name and whole and math.isclose(whole, sum(thirds), rel_tol=0.05):
                return _SUM
            if name and not math.isclose(whole, mean, rel_tol=1e-5, abs_tol=1e-9):
                return _NO_MEAN.format(name)
    return ""


@contextmanager
def _annotate_errors(name: str, output: Any = None) -> Iterator[None]:
    """Add the metric's name to an exception that leaves the block, and what it got if that is no
    tensor.
    """
    try:
        yield
    except Exception as error:
        several = (
            ""
            if output is None or isinstance(output, Tensor)
            else (f", which got {kind_of(output)} as output")
        )
        error.add_note(f"Raised by the metric {name!r}{several}.")
        raise


MetricLike: TypeAlias = str | Callable[..., Any]
"""A name, a function of (output, target), or a metric or collection of torchmetrics."""
MetricSpec: TypeAlias = MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike] | None

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def resolve_metrics(metric: MetricSpec, loss: str | BatchFunction | None = None) -> Measures:
    """Return the loss and the given metrics: one, a sequence, a dict by name, or none.

    ``loss`` tells whether outputs are classes, probabilities or logits.

    Raises ``ValueError`` for a name that is unknown, not text, or already used in the history, and
    ``TypeError`` for an object that is not a metric.
    """
    if isinstance(metric, Mapping):
        given: list[tuple[Any, MetricLike]] = list(metric.items())
    else:
        several: Any = metric if isinstance(metric, list | tuple) else [metric]
        given = [] if metric is None else [(None, one) for one in several]
    metrics: dict[str, Metric] = {}
    for name, resolved in (each for own, one in given for each in _resolve(one, own, loss)):
        if name in metrics:
            raise ValueError(
                f"two metrics are called {name!r}; name them, as in metric={{'a': ..., 'b': ...}}"
            )
        if (
            not isinstance(name, str)
            or name in ("", "loss", *BOOKKEEPING)
            or name.startswith("val_")
        ):
            raise ValueError(
                f"metric name {name!r} is not text, or has another meaning in the history; "
                f"choose another name, for example metric={{'my_{name}': ...}}"
            )
        metrics[name] = resolved
    return Measures(metrics)


def _resolve(
    metric: Any, name: str | None, loss: str | BatchFunction | None
) -> Iterator[tuple[str, Metric]]:
    """Iterate over the metric and its name, or over the names and metrics of a collection."""
    resolved = resolve_function("metric", metric, METRICS | {"accuracy": accuracy_for(loss)})
    if _is_from_torchmetrics("MetricCollection", resolved):
        for inner, member in resolved.items():
            yield inner if name is None else f"{name}_{inner}", TorchMetric.of(member)
    elif _is_from_torchmetrics("Metric", resolved):
        default = _WORD_BOUNDARY.sub("_", type(resolved).__name__).lower()
        yield default if name is None else name, TorchMetric.of(resolved)
    else:
        default = (
            metric
            if isinstance(metric, str)
            else getattr(metric, "__name__", type(metric).__name__)
        )
        yield default if name is None else name, resolved


def _is_from_torchmetrics(kind: str, metric: object) -> bool:
    """Return whether the object is of this class of torchmetrics; if it is, torchmetrics is already
    imported.
    """
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(metric, getattr(module, kind))
