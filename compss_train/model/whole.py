"""``Whole``: a metric of all samples at once, such as the area under the ROC curve."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from compss_train._utils.nested import leaves, map_leaves, rebuilt
from compss_train._utils.validation import check_choice, check_count
from compss_train.model.class_probabilities import (
    as_classes,
    known_probabilities_for,
    probabilities_for,
)
from compss_train.model.losses import BatchFunction
from compss_train.model.torch_metric import Value, as_plain
from compss_train.model.training_loss import ignore_index_of
from compss_train.model.training_step import no_loss

Of = Literal["probabilities", "classes", "outputs"]
"""What a metric of all samples gets of the outputs."""

LIMIT = 2**30
"""Bytes of outputs and targets that are gathered by default."""


class Gathered(NamedTuple):
    """The outputs and targets of a batch, on the CPU."""

    output: Any
    target: Any


@dataclass(frozen=True)
class Whole:
    """A metric of all validation samples at once, for those that are no means over samples.

    The outputs and targets of all samples are gathered in the coordinator, after each round in
    which ``fit`` validates, and in ``evaluate``. The history has ``val_`` values only: training
    samples are not gathered.

    Parameters
    ----------
    function:
        A function of scikit-learn, which gets (targets, outputs), like any other whose first
        parameter is ``y_true``; or one of (outputs, targets). They are numpy arrays, or tuples,
        lists and dicts of arrays, with a row for each sample, in order. It returns a number, or
        lists or dicts of numbers.
    of:
        What it gets of the outputs. By default ``"probabilities"`` where the loss is a cross
        entropy: those of class 1, shape (samples,), for two classes or a single output, else
        (samples, classes). ``"classes"`` for the most probable ones, as ``f1_score`` needs;
        ``"outputs"``, the default for other losses, for what the network returns.
    limit:
        Maximum number of bytes that are gathered, 1 GiB by default.

    Raises ``ValueError`` for other values of ``of`` and ``limit``, and ``TypeError`` for what is no
    function. An evaluation that would gather more raises ``ValueError``.
    """

    function: Callable[..., Any]
    of: Of | None = None
    limit: int = LIMIT

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                f"Whole({self.function!r}): give a function, such as sklearn.metrics.roc_auc_score"
            )
        if self.of is not None:
            check_choice("of", self.of, get_args(Of))
        check_count("limit", self.limit)


@dataclass(frozen=True)
class WholeMetric:
    """A metric of all samples, with what the loss says of outputs."""

    whole: Whole
    probabilities: Callable[[Tensor], Tensor] | None
    """What turns outputs into probabilities."""
    ignore_index: int | None
    """The class index that does not count."""

    @classmethod
    def of(cls, whole: Whole, loss: BatchFunction | None) -> Self:
        """Return the metric of a network with this loss.

        Raises ``ValueError`` if the loss does not say what the probabilities are.
        """
        probabilities = None if loss is None else probabilities_for(loss)
        of = whole.of
        if of is None:
            of = "outputs" if probabilities is None else "probabilities"
        if of != "outputs":
            function = no_loss if loss is None else loss
            probabilities = known_probabilities_for(function, f"Whole(of={of!r})")
        ignored = None if loss is None else ignore_index_of(loss)
        return cls(replace(whole, of=of), probabilities, ignored)

    def value(self, batches: Sequence[Gathered]) -> Value:
        """Return the value over all samples of these batches.

        Raises ``ValueError`` if they are more than the metric allows, or cannot be joined.
        """
        _check_limit(sum(map(_bytes_of, batches)), self.whole.limit)
        output = _joined([batch.output for batch in batches])
        target = _joined([batch.target for batch in batches])
        arguments = [self._converted(output), target]
        if isinstance(target, Tensor):
            arguments = self._of_classes(*arguments)
        arrays = [map_leaves(_as_array, argument) for argument in arguments]
        if _takes_targets_first(self.whole.function):
            arrays.reverse()
        try:
            return as_plain(self.whole.function(*arrays))
        except Exception as error:
            shapes = " and ".join(str(part.shape) for array in arrays for part in leaves(array))
            error.add_note(
                f"Whole(of={self.whole.of!r}) called {_name_of(self.whole.function)} with arrays "
                f"of shapes {shapes}; of='classes' and of='outputs' give it something else."
            )
            raise

    def _converted(self, output: Any) -> Any:
        """Return what the function gets of the outputs."""
        if self.whole.of == "outputs" or self.probabilities is None:
            return output
        if not isinstance(output, Tensor):
            raise TypeError(
                f"Whole(of={self.whole.of!r}) takes a network that returns a tensor, or one with "
                "'logits'; give of='outputs', and let the function choose"
            )
        probabilities = self.probabilities(output)
        if self.whole.of == "classes":
            return as_classes(probabilities)
        if probabilities.dim() == 2 and probabilities.shape[1] <= 2:
            return probabilities[:, -1]
        return probabilities

    def _of_classes(self, output: Any, target: Tensor) -> list[Any]:
        """Return outputs and class indices (samples,), without those that do not count."""
        if target.dim() == 2 and target.shape[1] == 1:
            target = target[:, 0]
        if self.ignore_index is None or target.dim() != 1 or target.is_floating_point():
            return [output, target]
        counts = target != self.ignore_index
        if bool(counts.all()):
            return [output, target]
        return [map_leaves(lambda part: part[counts], output), target[counts]]


class Gatherer:
    """Gathers the outputs and targets of batches in a task, for metrics of all samples."""

    def __init__(self, metrics: Mapping[str, WholeMetric]) -> None:
        self._limit = max(metric.whole.limit for metric in metrics.values())
        self._bytes = 0
        self.batches: list[Gathered] = []

    def add(self, output: Any, target: Any) -> None:
        """Add a batch; raise ``ValueError`` if that is more than any of the metrics allows."""
        parts = [map_leaves(_on_host, part) for part in (output, target)]
        batch = Gathered(*parts)
        self._bytes += _bytes_of(batch)
        _check_limit(self._bytes, self._limit)
        self.batches.append(batch)


def _on_host(part: Any) -> Any:
    return part.detach().cpu() if isinstance(part, Tensor) else part


def _bytes_of(batch: Gathered) -> int:
    return sum(part.nbytes for part in leaves(tuple(batch)) if isinstance(part, Tensor))


def _check_limit(total: int, limit: int) -> None:
    """Raise ``ValueError`` if more bytes were gathered than a metric allows."""
    if total > limit:
        raise ValueError(
            f"a metric Whole(...) would gather more than {limit:,} bytes of outputs and targets; "
            "give Whole(..., limit=...) more if the coordinator has the memory, evaluate on fewer "
            "samples, or use a metric of torchmetrics, which keeps sums"
        )


def _joined(parts: Sequence[Any]) -> Any:
    """Return the outputs or targets of all batches; those of sequences have to have one length."""
    columns = zip(*map(leaves, parts), strict=True)
    try:
        return rebuilt(parts[0], [torch.cat(column) for column in columns])
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            "a metric Whole(...) needs outputs and targets with a row for each sample, of one "
            f"shape in all batches: {error}"
        ) from error


def _as_array(part: Tensor) -> NDArray[Any]:
    return np.asarray(part.float() if part.dtype in (torch.bfloat16, torch.float16) else part)


def _takes_targets_first(function: Callable[..., Any]) -> bool:
    """Return whether the first parameter of a function is ``y_true``, as in scikit-learn."""
    try:
        first = next(iter(inspect.signature(function).parameters), "")
    except (TypeError, ValueError):  # a callable that is not written in Python
        return False
    return first in ("y_true", "labels_true")


def _name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__name__", type(function).__name__)
