"""The loss and the metrics: from batches in workers to values in the history.

Workers accumulate a state for each metric. The coordinator computes values from the states of all workers, in
worker order: the value over all samples, not the mean of the workers' values.
"""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import nn

from compss_train.model.losses import resolve_function
from compss_train.model.metric_kinds import METRICS, BatchMean, Metric, TorchMetric, Value, WeightedSum, mean
from compss_train.reports.records import BOOKKEEPING


@dataclass(kw_only=True, eq=False)
class Measured:
    """What a task has measured on the samples of one worker; a merge measures only the ``change``."""

    samples: int = 0
    """Samples that the worker has trained on, or was evaluated on."""
    batches: int = 0
    skipped_batches: int = 0
    """Batches skipped because their loss or gradients were not finite."""
    loss: float = 0.0
    """The sum of the losses of all samples."""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    """The states of the metrics by name."""
    named: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    """What training steps and callbacks have measured: the sum and the number of samples, or the mean and 0 if it
    was not measured on any."""
    given: int = 0
    """Samples that the worker was to train; a reservoir's repetitions do not count."""
    left_out: int = 0
    """Samples of files that could not be read, or samples missing from a stream."""
    weightless: int = 0
    """Samples of batches whose weights are all 0."""
    change: float = 0.0
    """The squared norm of the change of the weights."""
    started: float | None = None
    """Unix time."""
    seconds: float = 0.0
    files: Mapping[str, Any] | None = None
    """Counts of file reads, ``None`` for samples in memory."""
    skipped: Mapping[str, str] = field(default_factory=dict)
    """Files that could not be read, each with the reason."""
    not_compiled: str | None = None
    """Why the network could not be compiled; reported once."""
    probabilities: bool = False
    """Whether the first outputs are probabilities, though the loss takes logits."""
    random_transform: bool = False
    """Whether the transform draws random numbers outside of training."""
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
        """Return the values over all samples of these parts, by name; NaN for no samples.

        A number that training steps and callbacks measured on no samples counts only if no part has samples.
        """
        samples = sum(part.samples for part in parts)
        result: dict[str, Value] = {f"{prefix}loss": mean([part.loss for part in parts], samples)}
        for name in dict.fromkeys(name for part in parts for name in part.named):
            own = [part.named[name] for part in parts if name in part.named]
            counted = [each for each in own if each[1]] or [(value, 1) for value, _ in own]
            result[prefix + name] = mean([total for total, _ in counted], sum(number for _, number in counted))
        for name, metric in self.metrics.items():
            with _annotate_errors(name):
                result[prefix + name] = metric.value([part.metrics[name] for part in parts], samples)
        return result

    def modules(self) -> Iterator[nn.Module]:
        """Iterate over the modules that metrics are or are made of."""
        for metric in self.metrics.values():
            yield from (part for part in vars(metric).values() if isinstance(part, nn.Module))


class MetricAccumulator:
    """Sums of losses over samples, and the states of metrics."""

    def __init__(self, measures: Measures) -> None:
        self._measures = measures
        self.clear()

    def clear(self) -> None:
        """Reset the accumulator."""
        self.samples = self._batches = self._skipped = 0
        self._loss = WeightedSum()
        self._measured: dict[str, tuple[WeightedSum, list[int]]] = {}
        self._of_no_samples: dict[str, list[float]] = {}
        self._metrics = {name: metric.start() for name, metric in self._measures.metrics.items()}

    def add(
        self, samples: int, loss: torch.Tensor, output: Any, target: Any, measured: Mapping[str, Any] | None = None
    ) -> None:
        """Add a batch; its loss and other measurements are means over its samples."""
        self.samples += samples
        self._batches += 1
        self._loss.add(loss, samples)
        self.measure(measured or {}, samples)
        output = output.detach() if isinstance(output, torch.Tensor) else output
        for name, metric in self._metrics.items():
            with torch.no_grad(), _annotate_errors(name):
                metric.update(output, target, samples)

    def measure(self, numbers: Mapping[str, Any], samples: int) -> None:
        """Add means over this number of samples; means over 0 samples count only if there are no others."""
        for name, value in numbers.items():
            if not samples:
                self._of_no_samples.setdefault(name, []).append(float(value))
                continue
            values, counts = self._measured.setdefault(name, (WeightedSum(), []))
            values.add(value, samples)
            counts.append(samples)

    def skip(self) -> None:
        """Count a batch that was not trained on."""
        self._skipped += 1

    @property
    def loss(self) -> float:
        """The sum of the losses of all samples."""
        return self._loss.total()

    def measured(self) -> Measured:
        """Return counts, sums and states over the batches so far."""
        named = {name: (mean(values, len(values)), 0) for name, values in self._of_no_samples.items()}
        named |= {name: (values.total(), sum(samples)) for name, (values, samples) in self._measured.items()}
        return Measured(
            samples=self.samples,
            batches=self._batches,
            skipped_batches=self._skipped,
            loss=self.loss,
            metrics={name: metric.state() for name, metric in self._metrics.items()},
            named=named,
        )


@contextmanager
def _annotate_errors(name: str) -> Iterator[None]:
    """Add the metric's name to an exception that leaves the block."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Raised by the metric {name!r}.")
        raise


MetricLike: TypeAlias = str | Callable[..., Any]
"""A name, a function of (output, target), or a metric or collection of torchmetrics."""
MetricSpec: TypeAlias = MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike] | None

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def resolve_metrics(metric: MetricSpec) -> Measures:
    """Return the loss and the given metrics: one, a sequence, a dict by name, or none.

    Raises ``ValueError`` for a name that is unknown, or already used in the history, and ``TypeError`` for an
    object that is not a metric.
    """
    if isinstance(metric, Mapping):
        given: list[tuple[Any, MetricLike]] = list(metric.items())
    else:
        several: Any = metric if isinstance(metric, list | tuple) else [metric]
        given = [] if metric is None else [(None, one) for one in several]
    metrics: dict[str, Metric] = {}
    for name, resolved in chain.from_iterable(_resolve(one, name) for name, one in given):
        if name in metrics:
            raise ValueError(
                f"two metrics are called {name!r}; name them, for example "
                f"metric={{{name + '_a'!r}: ..., {name + '_b'!r}: ...}}"
            )
        if not isinstance(name, str) or not name:
            raise TypeError(f"metric={{{name!r}: ...}}: the names of metrics must be non-empty strings")
        if name == "loss" or name in BOOKKEEPING or name.startswith("val_"):
            raise ValueError(
                f"metric name {name!r} has another meaning in the history; "
                f"choose another name, for example metric={{{'my_' + name!r}: ...}}"
            )
        metrics[name] = resolved
    return Measures(metrics)


def _resolve(metric: Any, name: str | None = None) -> Iterator[tuple[str, Metric]]:
    """Iterate over the metric and its name, or over the names and metrics of a collection."""
    resolved = resolve_function("metric", metric, METRICS)
    if _is_from_torchmetrics("MetricCollection", resolved):
        for inner, member in resolved.items():
            yield inner if name is None else f"{name}_{inner}", TorchMetric(member)
    elif _is_from_torchmetrics("Metric", resolved):
        default = _WORD_BOUNDARY.sub("_", type(resolved).__name__).lower()
        yield default if name is None else name, TorchMetric(resolved)
    else:
        default = metric if isinstance(metric, str) else getattr(metric, "__name__", type(metric).__name__)
        yield default if name is None else name, BatchMean(resolved)


def _is_from_torchmetrics(kind: str, metric: object) -> bool:
    """Return whether the object is of this class of torchmetrics; if it is, torchmetrics is already imported."""
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(metric, getattr(module, kind))
