"""``TrainingLoss``: the loss of a batch whose samples or classes may have weights.

It is Σ wᵢ·lᵢ / Σ wᵢ over the batch, as torch defines it for class weights; only the ratios of the
weights matter. If a sample has several losses, such as one per pixel, each of them has the weight
of the sample times the weight of its own class. The denominator is the *count* of the batch: means
over batches are weighted by it, so that they are the mean over all targets.
"""

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, lru_cache, partial
from numbers import Real
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from compss_train._utils.nested import leaves
from compss_train.model.broadcasting import comparing
from compss_train.model.class_weights import are_weights, class_weights
from compss_train.model.error_hints import kind_of
from compss_train.model.losses import (
    BatchFunction,
    cross_entropy,
    full_precision,
    is_from_library,
)


class BatchLoss(NamedTuple):
    """The loss of a batch, which is a mean."""

    mean: Tensor
    counted: Tensor | float | None
    """What it is a mean over: the sum of the weights of the targets that count; 0 if none does.

    ``None`` for a mean over samples.
    """


class TrainingLoss:
    """The loss itself without weights, and the weighted mean with weights."""

    def __init__(
        self,
        loss: BatchFunction,
        class_weight: Sequence[float] | None = None,
        device: str = "cpu",
        *,
        count: Callable[[Any], Any] | None = None,
    ) -> None:
        self._loss = loss
        self._user_count = count
        self._last: BatchLoss | None = None
        """The last loss that was called for."""
        self._checks_shapes = is_from_library(loss)
        self._class_weight = None
        if class_weight is not None:
            self._class_weight = torch.tensor(class_weight, dtype=torch.float64, device=device)

    def __call__(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the loss of a batch of N samples, whose weights have shape (N,) or (N, 1).

        It is 0 if no target counts. Raises ``ValueError`` for other weights.
        """
        self._last = self.of_batch(output, target, weight)
        return self._last.mean

    def take_count(self, loss: Tensor) -> Tensor | float | None:
        """Return the count of the loss that the last call returned; ``None`` for another one."""
        last = self._last
        self._last = None
        return last.counted if last is not None and last.mean is loss else None

    def of_batch(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> BatchLoss:
        """Return the loss of a batch and its count; the arguments are those of a call."""
        if weight is None and self._class_weight is None:
            return self._unweighted(output, target)
        samples = len(leaves(target)[0])
        if weight is not None and (
            weight.numel() != samples or len(weight) != samples or not are_weights(weight)
        ):
            raise ValueError(
                f"the weights of {samples} samples have shape {tuple(weight.shape)}, or one is "
                "negative, NaN or infinite; give one finite number of at least 0 for each sample"
            )
        of_classes = None
        if self._class_weight is not None:
            of_classes = class_weights(
                self._class_weight, output, target, ignore_index=self._ignore_index
            )
        losses = self._before_the_mean(output, target, samples, weighted=True)
        precision = torch.promote_types(losses.dtype, torch.float32)
        factors = torch.ones(losses.shape, dtype=precision, device=losses.device)
        counted = self._counted(losses, target)
        if counted is not None:
            factors *= counted
        if weight is not None:
            factors *= _like_losses(weight, losses)
        counts = factors
        if of_classes is not None and not self._takes_class_weight:
            factors *= _like_losses(of_classes, losses)
        elif of_classes is not None and target.shape != output.shape:
            # The losses have the weights of their classes. Of soft targets, torch divides by the
            # number.
            counts = factors * _like_losses(of_classes, losses).to(precision)
        total = counts.sum()
        has_share = total > 0
        mean = (losses * factors).sum() / torch.where(has_share, total, torch.ones_like(total))
        return BatchLoss(mean * has_share, total)

    def _unweighted(self, output: Tensor, target: Tensor) -> BatchLoss:
        """Return the loss itself; where no target counts, 0 with gradients of 0 instead of NaN."""
        if self._user_count is not None:
            with comparing(output, target):
                mean = self._loss(output, target)
            return BatchLoss(mean, checked_count(self._user_count(target)))
        count = self._count(output, target)
        if count is None or (count.is_cpu and count > 0):
            with nullcontext() if self._checks_shapes else comparing(output, target):
                return BatchLoss(self._loss(output, target), count)
        # Reading the count of a GPU would make it wait: a class that counts takes the targets'
        # place if none does.
        counts = count > 0
        mean = self._loss(output, torch.where(counts, target, self._counted_class))
        return BatchLoss(mean * counts, count)

    def _count(self, output: Any, target: Any) -> Tensor | None:
        """Return how many class indices count, by the loss's own weights; ``None`` for others."""
        if not self._counts_targets or not isinstance(target, Tensor):
            return None
        if self._ignore_index is None:
            return None
        if target.is_floating_point() or target.shape == getattr(output, "shape", None):
            return None
        counted = target.ne(self._ignore_index)
        weight = self._own_weight
        if weight is None:
            return counted.sum()
        of_targets = weight[torch.where(counted, target, self._counted_class).long()]
        return (of_targets * counted).sum()

    def by_sample(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each of N samples without weights, shape (N,).

        It is the mean over what counts in a sample, and NaN if all of it is ignored.
        """
        samples = len(leaves(target)[0])
        losses = self._before_the_mean(output, target, samples)
        counted = self._counted(losses, target)
        if counted is None:
            precision = torch.promote_types(losses.dtype, torch.float32)
            return losses.flatten(1).mean(1, dtype=precision) if losses.dim() > 1 else losses
        return losses.reshape(samples, -1).sum(1) / counted.reshape(samples, -1).sum(1)

    def _before_the_mean(
        self, output: Tensor, target: Tensor, samples: int, *, weighted: bool = False
    ) -> Tensor:
        """Return the losses of which the loss is the mean: one or more for each sample.

        With ``weighted``, a loss of torch that takes class weights gets them.
        """
        function = self._elementwise
        if weighted and self._class_weight is not None and self._takes_class_weight:
            output = full_precision(output)
            function = _with_class_weight(self._loss, self._class_weight.to(output.dtype))
        losses = function(output, target)
        if not isinstance(losses, Tensor) or losses.dim() == 0 or len(losses) != samples:
            raise ValueError(
                f"the loss with reduction='none' returned {kind_of(losses)} for {samples} "
                "samples; weights and samplers of inputs need a tensor of one or more values for "
                "each sample"
            )
        return losses

    def _counted(self, losses: Tensor, target: Tensor) -> Tensor | None:
        """Return which losses count, in their shape; ``None`` if all do."""
        if self._ignore_index is None:  # the target may then be a dict
            return None
        if target.is_floating_point() or target.numel() != losses.numel():
            return None
        return target.reshape(losses.shape) != self._ignore_index

    @cached_property
    def _elementwise(self) -> BatchFunction:
        return elementwise(self._loss)

    @cached_property
    def _takes_class_weight(self) -> bool:
        """Whether class weights are an argument of the loss, which says what they mean."""
        if isinstance(self._loss, nn.Module):
            return type(self._loss) in (nn.CrossEntropyLoss, nn.NLLLoss)
        function = self._loss.func if isinstance(self._loss, partial) else self._loss
        return function in (functional.cross_entropy, functional.nll_loss, cross_entropy)

    @cached_property
    def _counts_targets(self) -> bool:
        """Whether the loss is known to be a mean over the class indices that are not ignored."""
        return self._checks_shapes and _option(self._loss, "reduction") == "mean"

    @cached_property
    def _own_weight(self) -> Tensor | None:
        """The class weights that were given to the loss itself."""
        weight = _option(self._loss, "weight")
        return weight if isinstance(weight, Tensor) else None

    @cached_property
    def _counted_class(self) -> int:
        """A class that counts."""
        weight = self._own_weight
        weights = [1.0, 1.0] if weight is None else weight.tolist()
        return next(
            (
                index
                for index, weight in enumerate(weights)
                if weight > 0 and index != self._ignore_index
            ),
            0,
        )

    @cached_property
    def _ignore_index(self) -> int | None:
        return ignore_index_of(self._loss)


def checked_count(count: Any) -> float:
    """Return what a user says that a loss is a mean over; raise ``ValueError`` for no number."""
    is_number = isinstance(count, Real) or (isinstance(count, Tensor) and count.numel() == 1)
    number = float(count) if is_number else math.nan
    if not 0 <= number < math.inf:
        raise ValueError(
            f"the count of a batch's loss is {count!r}: give what the loss is a mean over, one "
            "finite number of at least 0"
        )
    return number


def _like_losses(weights: Tensor, losses: Tensor) -> Tensor:
    """Return weights in a shape that multiplies losses: one for each loss, or for each sample."""
    if weights.numel() == losses.numel():
        return weights.reshape(losses.shape)
    return weights.reshape(-1, *(1 for _ in losses.shape[1:]))


def check_weightable(loss: BatchFunction) -> None:
    """Raise ``ValueError`` for a loss that does not support weights."""
    elementwise(loss)
    name = getattr(loss, "__name__", type(loss).__name__)
    reduction = _option(loss, "reduction")
    if reduction != "mean":
        raise ValueError(
            f"the loss {name} has reduction={reduction!r}; a weighted loss must have 'mean'"
        )
    if isinstance(_option(loss, "weight"), Tensor):
        raise ValueError(
            f"the loss {name} has its own weights, which the weighted mean would not take into "
            "account; remove them, and give class weights as build(..., class_weight=...)"
        )


def elementwise(loss: BatchFunction) -> BatchFunction:
    """Return the loss without the mean, by torch's convention ``reduction="none"``.

    Raises ``ValueError`` for a loss without that argument.
    """
    if isinstance(loss, nn.Module) and hasattr(loss, "reduction"):
        copied: Any = copy.copy(loss)
        copied.reduction = "none"
        return copied  # type: ignore[no-any-return]
    if "reduction" not in _signature(loss):
        name = getattr(loss, "__name__", type(loss).__name__)
        raise ValueError(
            f"the loss {name} returns one number for a batch, and weights and samplers of inputs "
            "need one for each sample; use one of EDDL's names or torch's losses, or write a "
            "callable of (output, target, reduction='mean') that returns one number for each "
            "sample with reduction='none'"
        )
    function: Any = loss
    return partial(function, reduction="none")


def _with_class_weight(loss: BatchFunction, weight: Tensor) -> BatchFunction:
    """Return a loss of torch with these class weights, before its mean."""
    function: Any = loss
    options: dict[str, Any] = {"weight": weight, "reduction": "none"}
    if isinstance(loss, nn.CrossEntropyLoss):
        function = functional.cross_entropy
        options |= {"ignore_index": loss.ignore_index, "label_smoothing": loss.label_smoothing}
    elif isinstance(loss, nn.NLLLoss):
        function = functional.nll_loss
        options |= {"ignore_index": loss.ignore_index}
    return partial(function, **options)


def ignore_index_of(loss: BatchFunction) -> int | None:
    """Return the class index that a loss ignores; ``None`` for other losses."""
    index = _option(loss, "ignore_index")
    return index if isinstance(index, int) else None


def _option(loss: BatchFunction, name: str) -> Any:
    """Return an attribute of a module, or a parameter's default in a function; or ``None``."""
    if isinstance(loss, nn.Module):
        return getattr(loss, name, None)
    parameter = _signature(loss).get(name)
    return None if parameter is None else parameter.default


def _signature(loss: BatchFunction) -> Mapping[str, inspect.Parameter]:
    if isinstance(loss, FunctionType):
        return _signature_of_function(loss)
    return _inspected(loss.forward if isinstance(loss, nn.Module) else loss)


@lru_cache(maxsize=16)  # the inspection takes as long as a small layer
def _signature_of_function(function: FunctionType) -> Mapping[str, inspect.Parameter]:
    return _inspected(function)


def _inspected(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):  # a callable that is not written in Python
        return {}
