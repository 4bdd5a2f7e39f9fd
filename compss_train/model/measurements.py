"""The loss and the metrics: from batches in workers to values in the history.

Workers accumulate a state for each metric. The coordinator computes values from the states of all
workers, in worker order: the value over all samples, not the mean of the workers' values.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, TypeAlias

import torch
from torch import Tensor

from compss_train._utils.nested import map_leaves
from compss_train.model.error_hints import kind_of
from compss_train.model.losses import BatchFunction
from compss_train.model.torch_metric import MetricState, TorchMetric, Value
from compss_train.model.training_loss import TrainingLoss
from compss_train.model.training_step import StepResult
from compss_train.model.whole import Gathered, WholeMetric
from compss_train.reports.records import BOOKKEEPING

Metric: TypeAlias = BatchFunction | TorchMetric
"""A function of (output, target) that returns the mean over a batch, or one with states."""

_MAX_PENDING = 1024
"""Batches after which values are summed, so that they do not pile up on the device."""


@dataclass(eq=False)
class WeightedSum:
    """The sum of the means of batches times what they are over, in double precision.

    Values are kept and summed later: arithmetic on single numbers costs as much as small layers do,
    and reading a value would wait for the device.
    """

    _total: float = 0.0
    _weight: float = 0.0
    _values: list[Tensor | float] = field(default_factory=list)
    _weights: list[Tensor | float] = field(default_factory=list)

    def add(self, value: Tensor | float, weight: Tensor | float) -> None:
        """Add the mean of a batch; one over 0 does not count, even if it is NaN."""
        if isinstance(value, Tensor):
            value = value.detach()
        self._values.append(value)
        self._weights.append(weight)
        if len(self._values) == _MAX_PENDING:
            self.state()

    def state(self) -> tuple[float, float]:
        """Return the sum so far, and the sum of what the means are over."""
        if self._values:
            number = len(self._values)
            if all(isinstance(weight, Tensor) for weight in self._weights):
                # A wait for the device for both.
                both = _doubles([*self._values, *self._weights])
                values = both[:number]
                weights = both[number:]
            else:
                values = _doubles(self._values)
                weights = _doubles(self._weights)
            self._total += float(values.where(weights != 0, 0.0) @ weights)
            self._weight += float(weights.sum())
            self._values = []
            self._weights = []
        return self._total, self._weight


def _doubles(numbers: Sequence[Tensor | float]) -> Tensor:
    """Return numbers in one tensor on the CPU, where all on one device arrive at once."""
    tensors = [number.reshape(()) for number in numbers if isinstance(number, Tensor)]
    if len(tensors) == len(numbers) and len({tensor.device for tensor in tensors}) == 1:
        if len({tensor.dtype for tensor in tensors}) > 1:
            tensors = [tensor.double() for tensor in tensors]
        return torch.stack(tensors).cpu().double()
    return torch.tensor([float(number) for number in numbers], dtype=torch.float64)


def mean(parts: Sequence[tuple[float, float]]) -> float:
    """Return the mean from the sum over each part and what it is over; NaN if that is nothing."""
    count = math.fsum(count for _, count in parts)
    return sum(total for total, _ in parts) / count if count else math.nan


@dataclass(kw_only=True, eq=False)
class Measured:
    """What a task has measured on the samples of one worker."""

    samples: int = 0
    """Samples that the worker has trained on, or was evaluated on."""
    batches: int = 0
    skipped_batches: int = 0
    """Batches skipped because their loss or gradients were not finite."""
    skipped_samples: int = 0
    """The samples of these batches."""
    loss: float = 0.0
    """The sum of the losses of all that counts."""
    count: float = 0.0
    """What the loss is a mean over: by default the samples, else the sum of targets' weights."""
    metrics: Mapping[str, tuple[float, float] | list[MetricState]] = field(default_factory=dict)
    """The states of the metrics by name: sums and what they are over, or what torchmetrics has."""
    gathered: Sequence[Gathered] = ()
    """The outputs and targets of each batch, for metrics of all samples."""
    named: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """What steps and callbacks have measured: the sum over the samples, and their number."""
    planned_samples: int = 0
    """Samples that the worker was to train; repetitions and skipped batches do not count."""
    merge_weight: float = 0.0
    """How much the worker counts in a merge."""
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
    model_state: dict[str, Any] | None = None
    """Of worker 0, what its model keeps besides the parameters (``model_state``)."""
    changed_variables: Sequence[tuple[str, str]] = ()
    """In the first round, the variables of the program that functions have changed.

    See ``program_variables``.
    """
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
    whole: Mapping[str, WholeMetric] = field(default_factory=dict)
    """Metrics of all samples at once, which only evaluations measure."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the loss and of all metrics that training measures, too."""
        return ("loss", *self.metrics)

    def values(self, parts: Sequence[Measured], prefix: str = "") -> dict[str, Value]:
        """Return the values over all samples of these parts, by name; NaN for no samples."""
        samples = sum(part.samples for part in parts)
        values: dict[str, Value] = {"loss": mean([(part.loss, part.count) for part in parts])}
        for name in dict.fromkeys(name for part in parts for name in part.named):
            values[name] = mean([part.named[name] for part in parts if name in part.named])
        for name, metric in self.metrics.items():
            states: list[Any] = [part.metrics[name] for part in parts]
            with _annotate_errors(name):
                if isinstance(metric, TorchMetric):
                    values[name] = metric.value(states, samples)
                else:
                    values[name] = mean(states)
        gathered = [batch for part in parts for batch in part.gathered]
        for name, whole_metric in self.whole.items():
            if gathered:
                with _annotate_errors(name):
                    values[name] = whole_metric.value(gathered)
        return {prefix + name: value for name, value in values.items()}


class MetricAccumulator:
    """Sums of losses over samples, and the states of metrics."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self.samples = 0
        self._batches = 0
        self._skipped_batches = 0
        self._skipped_samples = 0
        self._loss = WeightedSum()
        self._named: dict[str, WeightedSum] = {}
        self._states: dict[str, Any] = {
            name: metric.start() if isinstance(metric, TorchMetric) else WeightedSum()
            for name, metric in measures.metrics.items()
        }
        self._functions = {
            name: TrainingLoss(metric)
            for name, metric in measures.metrics.items()
            if not isinstance(metric, TorchMetric)
        }

    def add(self, samples: int, result: StepResult, weight: Tensor | None = None) -> None:
        """Add a batch; its loss is a mean over its count, other measurements over its samples.

        Metrics leave out samples of ``weight`` 0.
        """
        self.samples += samples
        self._batches += 1
        self._loss.add(result.loss, samples if result.counted is None else result.counted)
        for name, value in result.measured.items():
            self.measure({name: value}, result.counts.get(name, samples))
        output = result.output
        target = result.target
        if self._states and weight is not None:
            weighing = weight.flatten() > 0
            output, target = (_rows(values, weighing) for values in (output, target))
            samples = int(weighing.sum())
        if not samples:
            return
        if isinstance(output, Tensor):
            output = output.detach()
        for name, metric in self._measures.metrics.items():
            state = self._states[name]
            with torch.no_grad(), _annotate_errors(name, output, target):
                if isinstance(metric, TorchMetric):
                    state.update(output, target)
                    continue
                value, counted = self._functions[name].of_batch(output, target)
                state.add(measured_number(name, value), samples if counted is None else counted)

    def measure(self, numbers: Mapping[str, Any], samples: float) -> None:
        """Add means over this number of samples; means over 0 samples do not count."""
        for name, value in numbers.items():
            self._named.setdefault(name, WeightedSum()).add(value if samples else 0.0, samples)

    def skip(self, samples: int) -> None:
        """Count a batch that was not trained on."""
        self._skipped_batches += 1
        self._skipped_samples += samples

    def loss(self) -> tuple[float, float]:
        """Return the sum of the losses of all that counts, and what the loss is a mean over."""
        return self._loss.state()

    def measured(self) -> Measured:
        """Return counts, sums and states over the batches so far."""
        loss, count = self.loss()
        return Measured(
            samples=self.samples,
            batches=self._batches,
            skipped_batches=self._skipped_batches,
            skipped_samples=self._skipped_samples,
            loss=loss,
            count=count,
            metrics={name: state.state() for name, state in self._states.items()},
            named={name: values.state() for name, values in self._named.items()},
        )


def _rows(values: Any, kept: Tensor) -> Any:
    """Return the kept rows of each tensor that has a row for each sample."""

    def of_part(part: Any) -> Any:
        has_rows = isinstance(part, Tensor) and part.dim() and len(part) == len(kept)
        return part[kept] if has_rows else part

    return values if kept.all() else map_leaves(of_part, values)


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
def _annotate_errors(name: str, output: Any = None, target: Any = None) -> Iterator[None]:
    """Add to an exception the metric's name, an output that is no tensor, and soft labels."""
    try:
        yield
    except Exception as error:
        note = f"Raised by the metric {name!r}"
        if output is not None and not isinstance(output, Tensor):
            note += f", which got {kind_of(output)} as output"
        error.add_note(f"{note}.")
        if (
            isinstance(target, Tensor)
            and target.is_floating_point()
            and target.dim() > 1
            and target.shape == getattr(output, "shape", None)
        ):
            error.add_note(
                f"Its targets are soft labels of shape {tuple(target.shape)}, as mixup makes in "
                "training: compare with target.argmax(dim=1) if target.ndim == output.ndim."
            )
        raise
