"""The loss and the metrics: from batches in workers to values in the history.

Workers accumulate a state for each metric. The coordinator computes values from the states of all
workers, in worker order: the value over all samples, not the mean of the workers' values.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from compss_train.model.broadcasting import comparing
from compss_train.model.error_hints import kind_of
from compss_train.model.losses import BatchFunction, is_from_library
from compss_train.model.torch_metric import MetricState, TorchMetric, Value
from compss_train.model.training_step import StepResult
from compss_train.reports.records import BOOKKEEPING

Metric: TypeAlias = BatchFunction | TorchMetric
"""A function of (output, target) that returns the mean over a batch, or one with states."""

_MAX_PENDING = 1024
"""Batches after which values are summed, so that they do not pile up on the device."""


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
        if not isinstance(value, Tensor):
            value = torch.tensor(float(value), dtype=torch.float64)
        self._values.append(value.detach().reshape(()))
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
    """The states of the metrics by name: sums over the samples, or what torchmetrics has."""
    named: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """What steps and callbacks have measured: the sum over the samples, and their number."""
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
        values: dict[str, Value] = {"loss": mean([part.loss for part in parts], samples)}
        for name in dict.fromkeys(name for part in parts for name in part.named):
            measured = [part.named[name] for part in parts if name in part.named]
            counted = sum(count for _, count in measured)
            values[name] = mean([total for total, _ in measured], counted)
        for name, metric in self.metrics.items():
            states: list[Any] = [part.metrics[name] for part in parts]
            with _annotate_errors(name):
                value_of = metric.value if isinstance(metric, TorchMetric) else mean
                values[name] = value_of(states, samples)
        return {prefix + name: value for name, value in values.items()}


class MetricAccumulator:
    """Sums of losses over samples, and the states of metrics."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self.samples = 0
        self._batches = 0
        self._skipped = 0
        self._loss = WeightedSum()
        self._named: dict[str, WeightedSum] = {}
        self._states: dict[str, Any] = {
            name: metric.start() if isinstance(metric, TorchMetric) else WeightedSum()
            for name, metric in measures.metrics.items()
        }

    def add(self, samples: int, result: StepResult) -> None:
        """Add a batch; its loss and other measurements are means over its samples."""
        self.samples += samples
        self._batches += 1
        self._loss.add(result.loss, samples)
        self.measure(result.measured, samples)
        output = result.output
        target = result.target
        if isinstance(output, Tensor):
            output = output.detach()
        for name, metric in self._measures.metrics.items():
            state = self._states[name]
            with torch.no_grad(), _annotate_errors(name, output):
                if isinstance(metric, TorchMetric):
                    state.update(output, target)
                    continue
                with nullcontext() if is_from_library(metric) else comparing(output, target):
                    value = metric(output, target)
                state.add(measured_number(name, value), samples)

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
            metrics={name: state.state() for name, state in self._states.items()},
            named={name: (values.state(), values.weight) for name, values in self._named.items()},
        )


def measured_number(name: str, value: Any) -> Any:
    """Return a number that a metric, step or callback measures, which may be in a tensor.

    Raises ``ValueError`` for a name that is reserved, and ``TypeError`` for another value.
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


@contextmanager
def _annotate_errors(name: str, output: Any = None) -> Iterator[None]:
    """Add the metric's name to an exception, and what it got as output if that is no tensor."""
    try:
        yield
    except Exception as error:
        note = f"Raised by the metric {name!r}"
        if output is not None and not isinstance(output, Tensor):
            note += f", which got {kind_of(output)} as output"
        error.add_note(f"{note}.")
        raise
