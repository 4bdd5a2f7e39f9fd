"""Warnings about a loss or metric that does not suit outputs or targets, and raises no error."""

import math
import warnings
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from compss_train._utils.nested import leaves, map_leaves
from compss_train.model.copies import CopyTemplate
from compss_train.model.devices import CPU, kept_random_state
from compss_train.model.losses import BatchFunction, cross_entropy, full_precision, is_from_library
from compss_train.model.measurements import Metric
from compss_train.model.metrics import (
    accuracy,
    accuracy_for,
    accuracy_of_logits,
    accuracy_of_probabilities,
)
from compss_train.model.torch_metric import TorchMetric

_DOUBLE_SOFTMAX = (
    "the outputs of the network are probabilities (at least 0, and those of each sample sum to "
    "1), but the loss takes logits, and applies a softmax to them once more; remove the softmax "
    "at the end of the network, or build with loss='categorical_cross_entropy', which takes "
    "probabilities"
)
_ONE_OUTPUT = (
    "a softmax of one output is 1, and trains nothing: build with torch.nn.BCEWithLogitsLoss(), "
    "without it"
)
_NO_SOFTMAX = (
    "the outputs of the network are not log probabilities (the exponentials of each sample's sum "
    "to 1), which the loss takes; end the network with torch.nn.LogSoftmax(dim=1), or build with "
    "loss='cross_entropy', which takes logits"
)
_DOUBLE_SIGMOID = (
    "the network ends with a sigmoid, but the loss takes logits, and applies a sigmoid to them "
    "once more; remove the sigmoid at the end, or build with loss='binary_cross_entropy', which "
    "takes probabilities"
)
_SEVERAL_CLASSES = (
    "the targets have several classes for a sample, or none, of which 'accuracy' compares the "
    "largest with the largest output; build with loss=torch.nn.BCEWithLogitsLoss(), whose "
    "'accuracy' compares each, or with a metric of torchmetrics"
)
_SUM = (
    "the loss adds up the samples of a batch, so that it changes with the batch size: divide "
    "it by len(target)"
)
_NO_MEAN = (
    "the metric {0!r} is not a mean over samples, and its mean over batches depends on their "
    "size; return a mean, use one of torchmetrics, or measure all validation samples at once, "
    "metric={{{0!r}: Whole(function)}}"
)
_SUM_TOLERANCE = 1e-4  # of the sum of a softmax in single precision, also over many classes
_LOG_SUM_TOLERANCE = 0.1  # of the logarithm of this sum, also for logarithms in half precision


def batch_warning(
    loss: BatchFunction, metrics: Mapping[str, Metric], output: Any, target: Any
) -> str:
    """Return what is wrong with a batch on which the model trains without an error; or nothing.

    ``output`` and ``target`` are what the loss and the metrics get.
    """
    return (
        _softmax_warning(loss, output)
        or _binary_warning(loss, output, target)
        or _accuracy_warning(metrics, output, target)
        or _size_warning(loss, metrics, output=output, target=target)
    )


def _softmax_warning(loss: BatchFunction, output: object) -> str:
    """Return whether the network lacks a softmax that the loss needs, or has one too many."""
    if not isinstance(output, Tensor) or not output.is_floating_point():
        return ""
    if output.dim() < 2 or not output.numel():
        return ""
    function = loss.func if isinstance(loss, partial) else loss
    takes_logits = isinstance(function, nn.CrossEntropyLoss) or function in (
        cross_entropy,
        functional.cross_entropy,
    )
    if output.shape[1] == 1 and (takes_logits or _made_by(output).startswith("Softmax")):
        return _ONE_OUTPUT
    if takes_logits and are_probabilities(output):
        return _DOUBLE_SOFTMAX
    takes_logarithms = isinstance(function, nn.NLLLoss) or function is functional.nll_loss
    if takes_logarithms and not are_log_probabilities(output):
        return _NO_SOFTMAX
    return ""


def are_probabilities(output: Tensor) -> bool:
    """Return whether the outputs (N, C, ...) of each sample sum to 1, and none is negative.

    Both hold up to rounding.
    """
    tolerance = max(_SUM_TOLERANCE, torch.finfo(output.dtype).eps)
    distances = (full_precision(output.detach()).sum(dim=1) - 1).abs()
    return bool((output >= 0).all() & (distances <= tolerance).all())


def are_log_probabilities(output: Tensor) -> bool:
    """Return whether the exponentials of each sample's outputs (N, C, ...) sum to about 1.

    NaN counts as 1.
    """
    distances = full_precision(output.detach()).logsumexp(dim=1).abs()
    return not (distances > _LOG_SUM_TOLERANCE).any()


def _binary_warning(loss: BatchFunction, output: object, target: object) -> str:
    """Return what is wrong with outputs or targets of a binary cross entropy; or nothing."""
    binary_accuracy = accuracy_for(loss)
    if binary_accuracy not in (accuracy_of_logits, accuracy_of_probabilities):
        return ""
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return ""
    low, high = map(float, target.aminmax()) if target.numel() else (0.0, 1.0)
    if low < 0 or high > 1:
        return (
            f"the targets of a binary cross entropy are 0 or 1, and these go from {low:g} to "
            f"{high:g}: give (y > threshold).float(), or for several classes class numbers and "
            "loss='cross_entropy'"
        )
    if binary_accuracy is accuracy_of_logits and _made_by(output).startswith("Sigmoid"):
        return _DOUBLE_SIGMOID
    return ""


def _made_by(output: Tensor) -> str:
    """Return the name of the function whose result an output is, where gradients are computed."""
    return "" if output.grad_fn is None else output.grad_fn.name()


def _accuracy_warning(metrics: Mapping[str, Metric], output: Any, target: Any) -> str:
    """Return what is wrong with targets whose ``accuracy`` has no meaning; or nothing."""
    functions = [getattr(metric, "func", metric) for metric in metrics.values()]
    if accuracy not in functions:
        return ""
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return ""
    if target.shape != output.shape or target.dim() < 2:
        return ""
    distances = (target.sum(1, dtype=torch.float32) - 1).abs()
    return _SEVERAL_CLASSES if distances.max() >= 0.01 else ""


def _size_warning(
    loss: BatchFunction, metrics: Mapping[str, Metric], *, output: Any, target: Any
) -> str:
    """Return which of the loss and the metrics depends on the size of batches, as no mean does.

    They are measured on a batch and on its thirds, metrics in double precision. A loss may compare
    samples, so that it is reported only if it is a sum.
    """
    parts = leaves((output, target))
    sizes = {len(part) if isinstance(part, Tensor) and part.dim() else 0 for part in parts}
    size = min(sizes)
    if len(sizes) > 1 or size < 3:
        return ""
    with suppress(Exception):  # a loss that takes no part of a batch
        values = _measured_parts(loss, output, target, size=size)
        if values.whole and math.isclose(values.whole, values.sum_of_thirds, rel_tol=0.05):
            return _SUM
    for name, metric in metrics.items():
        if isinstance(metric, TorchMetric) or is_from_library(metric):
            continue
        with suppress(Exception):  # a metric that takes no part of a batch
            values = _measured_parts(
                metric,
                map_leaves(_in_double_precision, output),
                map_leaves(_in_double_precision, target),
                size=size,
            )
            if not math.isclose(values.whole, values.mean_of_thirds, rel_tol=1e-5, abs_tol=1e-9):
                return _NO_MEAN.format(name)
    return ""


class _Values(NamedTuple):
    """The values of a loss or metric on a batch and on its thirds."""

    whole: float
    sum_of_thirds: float
    mean_of_thirds: float
    """Weighted by the sizes of the thirds."""


def _measured_parts(function: BatchFunction, output: Any, target: Any, *, size: int) -> _Values:
    """Measure the ``size`` samples of a batch, and each third of them."""
    thirds = [*pairwise((0, size // 3, 2 * size // 3, size))]
    measured = [
        _measured_part(function, output, target, part=slice(*bounds))
        for bounds in ((0, size), *thirds)
    ]
    whole, *values = torch.stack(measured).tolist()  # one transfer from a GPU
    weighted = (value * (stop - start) for value, (start, stop) in zip(values, thirds, strict=True))
    return _Values(whole, sum(values), sum(weighted) / size)


def _measured_part(function: BatchFunction, output: Any, target: Any, *, part: slice) -> Tensor:
    """Return the value of a loss or metric on some samples, and leave no trace of the call."""

    def samples(values: Any) -> Any:
        return map_leaves(lambda tensor: tensor.detach()[part], values)

    device = str(leaves(output)[0].device)
    with (
        torch.no_grad(),
        kept_random_state(device),
        warnings.catch_warnings(action="ignore"),
    ):
        copied = CopyTemplate(function, []).copy(CPU)  # as it may change with each call
        return torch.as_tensor(copied(samples(output), samples(target))).reshape(())


def _in_double_precision(tensor: Tensor) -> Tensor:
    return tensor.detach().double() if tensor.is_floating_point() else tensor
