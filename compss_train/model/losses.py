"""Losses and metrics by EDDL's names: functions of a batch's outputs and targets, the mean over its
samples.

As with torch's losses, ``reduction="none"`` returns the losses before the mean, and class indices
equal to ``ignore_index`` do not count.

In a ``TrainingLoss`` samples and classes may have weights: it is Σ wᵢ·lᵢ / Σ wᵢ over the batch, as
torch defines it for class weights; only the ratios of the weights matter. If a sample has several
losses, such as one per pixel, each of them has the weight of the sample times the weight of its own
class.
"""

import copy
import inspect
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, TypeAlias, TypeVar

import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from compss_train._utils.nested import leaves
from compss_train._utils.validation import suggestion
from compss_train.model.broadcasting import ELEMENTWISE_FUNCTIONS, comparing, mismatch

BatchFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]

IGNORE_INDEX = -100
"""The class index that torch's losses ignore by default."""
_EPSILON = 1e-7  # keeps log() finite; EDDL uses an epsilon of this size for probabilities
_MAX_PROBABILITY = 1.01  # allows for rounding
_SUM_TOLERANCE = 1e-4  # of the sum of a softmax in single precision, also over many classes
_LOG_SUM_TOLERANCE = 0.1  # of the logarithm of this sum, also for logarithms in half precision


def mean_squared_error(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean of (output - target)² over all elements; the target takes the output's shape
    and dtype.
    """
    output = full_precision(output)
    return functional.mse_loss(output, match_output(output, target), reduction=reduction)


def cross_entropy(
    output: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """Return the cross entropy of logits (N, C, ...).

    Targets are class indices (N, ...) or (N, 1), or one-hot or soft targets (N, C, ...).
    """
    output = full_precision(output)
    target = class_targets(output, target, least=2)
    return functional.cross_entropy(output, target, reduction=reduction, ignore_index=ignore_index)


def categorical_cross_entropy(
    output: Tensor, target: Tensor, reduction: str = "mean", ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """Return the cross entropy of probabilities (N, C), such as the outputs of a softmax layer.

    Targets are class indices, or one-hot or soft targets. Raises ``ValueError`` for outputs that
    are not probabilities, for which the loss has no meaning.
    """
    output = full_precision(output)
    low, high = output.detach().aminmax() if output.numel() else (0.0, 1.0)
    if low < 0 or high > _MAX_PROBABILITY:
        raise ValueError(
            f"outputs from {float(low):.3g} to {float(high):.3g} are not probabilities; end the "
            "network with a softmax, or use the loss torch.nn.CrossEntropyLoss(), which takes "
            "logits"
        )
    target = class_targets(output, target)
    log = output.clamp(min=_EPSILON).log()
    if target.shape == output.shape:
        return _reduce(-(target * log).sum(dim=1), reduction)
    return functional.nll_loss(log, target, reduction=reduction, ignore_index=ignore_index)


def binary_cross_entropy(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the binary cross entropy of probabilities, such as the outputs of a sigmoid layer.

    Targets are 0 or 1.
    """
    # Autocast rejects the functional form, whose backward pass is unsafe in half precision.
    with torch.autocast(output.device.type, enabled=False):
        target = match_output(output, target).float()
        return functional.binary_cross_entropy(output.float(), target, reduction=reduction)


def dice(output: Tensor, target: Tensor, reduction: str = "mean") -> Tensor:
    """Return the mean over samples of the Dice loss 1 - 2 Σ(p·t) / (Σp + Σt), for masks of any
    shape (N, ...).
    """
    output = full_precision(output)
    output, target = output.flatten(1), match_output(output, target).flatten(1)
    overlap = 2 * (output * target).sum(dim=1)
    return 1 - _reduce((overlap + _EPSILON) / ((output + target).sum(dim=1) + _EPSILON), reduction)


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    return losses.mean() if reduction == "mean" else losses


def class_targets(output: Tensor, target: Tensor, least: int = 1) -> Tensor:
    """Return class indices as int64 without a last dimension of 1, or targets of the output's shape
    in its dtype.

    Raises ``ValueError`` for other targets, and for outputs of fewer than ``least`` classes.
    """
    if output.dim() < 2 or output.shape[1] < least:
        raise ValueError(
            f"outputs have shape {tuple(output.shape)}; give one output for each class, or build "
            "for a single output with loss=torch.nn.BCEWithLogitsLoss(), which 'accuracy' knows; "
            "with a loss of your own give a metric of torchmetrics, or a function of (output, "
            "target)"
        )
    if target.shape == output.shape:
        return target.to(output.dtype)
    if target.dim() == output.dim() and target.shape[1] == 1:
        target = target.squeeze(1)
    if target.shape != (output.shape[0], *output.shape[2:]) or target.is_floating_point():
        raise ValueError(
            f"targets of {target.dtype} {tuple(target.shape)} do not match outputs "
            f"{tuple(output.shape)}; give an integer class index for each sample, such as "
            f"y.long(), or one-hot targets of the outputs' shape{_last_axis(output, target)}"
        )
    return target.long()


def _last_axis(output: Tensor, target: Tensor) -> str:
    """Return what to do with outputs whose classes are on the last axis of several, as those of
    sequences are.
    """
    is_last = (
        output.dim() > 2 and output.shape[:-1] == target.shape and not target.is_floating_point()
    )
    return (
        ". The classes of outputs belong on axis 1: return output.movedim(-1, 1)" if is_last else ""
    )


def is_known(loss: object) -> bool:
    """Return whether a loss is of torch or of this package, so that it takes outputs that are a
    tensor.
    """
    module = getattr(loss.func if isinstance(loss, partial) else loss, "__module__", "") or ""
    return module.partition(".")[0] in ("torch", "compss_train")


_ELEMENTWISE = (
    nn.MSELoss,
    nn.L1Loss,
    nn.SmoothL1Loss,
    nn.HuberLoss,
    nn.BCELoss,
    nn.BCEWithLogitsLoss,
)


def suitable_target(loss: object, output: Tensor, target: Any) -> Any:
    """Return targets for losses of torch: integers as floating-point numbers, where elements are
    compared.

    Bytes become class numbers, which torch itself takes only for a single class a sample. Raises
    ``ValueError`` for targets that torch would broadcast, comparing each sample with all others.
    """
    if (
        isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
        and getattr(target, "dtype", None) == torch.uint8
    ):
        return target.long()
    compares = isinstance(loss, _ELEMENTWISE) or loss in ELEMENTWISE_FUNCTIONS
    if not (compares and isinstance(output, Tensor) and isinstance(target, Tensor)):
        return target
    if output.shape != target.shape:
        raise ValueError(mismatch(output, target, getattr(loss, "__name__", type(loss).__name__)))
    return target.to(torch.promote_types(target.dtype, torch.float32))


def full_precision(output: Tensor) -> Tensor:
    """Return half-precision outputs in float32: targets would lose digits in half precision."""
    return output.float() if output.dtype in (torch.bfloat16, torch.float16) else output


def match_output(output: Tensor, target: Tensor) -> Tensor:
    """Return the target in the output's shape and dtype; ``ValueError`` if shapes differ beyond
    size-1 axes.
    """
    if target.shape == output.shape:
        return target.to(output.dtype)
    if _without_ones(target.shape) != _without_ones(output.shape):
        raise ValueError(
            f"targets have shape {tuple(target.shape)} and outputs {tuple(output.shape)}; their "
            "shapes must match, and only dimensions of 1 may differ: reshape or permute the "
            "targets, or end the network with a Flatten"
        )
    return target.reshape(output.shape).to(output.dtype)


def _without_ones(shape: torch.Size) -> tuple[int, ...]:
    """Return the number of samples and the other dimensions, without those of size 1."""
    return *shape[:1], *(size for size in shape[1:] if size != 1)


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


_SEVERAL_CLASSES = (
    "the targets have several classes for a sample, or none, of which 'accuracy' compares the "
    "largest with the largest output; build with loss=torch.nn.BCEWithLogitsLoss(), whose "
    "'accuracy' compares each, or with a metric of torchmetrics"
)


def accuracy_warning(metrics: Collection[object], output: Any, target: Any) -> str:
    """Return what is wrong with targets whose ``accuracy`` has no meaning; empty if nothing is."""
    compares = accuracy in metrics and isinstance(output, Tensor) and isinstance(target, Tensor)
    if not compares or target.shape != output.shape or target.dim() < 2:
        return ""
    return _SEVERAL_CLASSES if (target.sum(1, dtype=torch.float32) - 1).abs().max() >= 0.01 else ""


_DOUBLE_SIGMOID = (
    "the network ends with a sigmoid, but the loss takes logits, and applies a sigmoid to them "
    "once more; remove the sigmoid at the end, or build with loss='binary_cross_entropy', which "
    "takes probabilities"
)


def binary_warning(loss: BatchFunction, output: object, target: object) -> str:
    """Return what is wrong with outputs and targets of a binary cross entropy that trains on them;
    or nothing.
    """
    binary = accuracy_for(loss)
    if binary is accuracy or not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return ""
    low, high = (float(bound) for bound in target.aminmax()) if target.numel() else (0.0, 1.0)
    if low < 0 or high > 1:
        return (
            f"the targets of a binary cross entropy are 0 or 1, and these go from {low:g} to "
            f"{high:g}: give (y > threshold).float(), or for several classes class numbers and "
            "loss='cross_entropy'"
        )
    return (
        _DOUBLE_SIGMOID
        if binary is accuracy_of_logits and _made_by(output).startswith("Sigmoid")
        else ""
    )


def _made_by(output: Tensor) -> str:
    """Return the name of the function whose result an output is, where gradients are computed."""
    return "" if output.grad_fn is None else output.grad_fn.name()


def output_warning(loss: BatchFunction, output: object) -> str:
    """Return what is wrong with outputs on which this loss trains without an error; empty if
    nothing is known.
    """
    if (
        not isinstance(output, Tensor)
        or not output.is_floating_point()
        or output.dim() < 2
        or not output.numel()
    ):
        return ""
    function = loss.func if isinstance(loss, partial) else loss
    of_classes = isinstance(function, nn.CrossEntropyLoss) or function in (
        cross_entropy,
        functional.cross_entropy,
    )
    if output.shape[1] == 1 and (of_classes or _made_by(output).startswith("Softmax")):
        return _ONE_OUTPUT
    if of_classes:
        return _DOUBLE_SOFTMAX if are_probabilities(output) else ""
    if isinstance(function, nn.NLLLoss) or function is functional.nll_loss:
        return "" if are_log_probabilities(output) else _NO_SOFTMAX
    return ""


def label_hint(loss: object, output: object, target: object) -> str:
    """Return what makes targets that a cross entropy of torch has refused suitable; empty if it is
    not known.
    """
    is_loss_of_classes = isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss)
    if not (is_loss_of_classes and isinstance(output, Tensor) and isinstance(target, Tensor)):
        return ""
    if hint := _last_axis(output, target):
        return hint[2:]
    if target.shape == output.shape and isinstance(loss, nn.CrossEntropyLoss):
        return (
            "One-hot targets are floating-point numbers: give y.float(), or class numbers, "
            "y.argmax(1)."
        )
    column = target.dim() == output.dim() and target.shape[1:2] == (1,)
    if output.dim() < 2 or target.numel() * output.shape[1] != output.numel():
        return ""
    is_number = target.is_floating_point() or target.dtype == torch.bool
    suitable = f"y{'.squeeze(1)' if column else ''}{'.long()' if is_number else ''}"
    return (
        ""
        if suitable == "y"
        else (f"Targets are an integer class number for each sample: give {suitable}.")
    )


def are_probabilities(output: Tensor) -> bool:
    """Return whether all outputs are at least 0 and those of each sample (N, C, ...) sum to 1, up
    to rounding.
    """
    tolerance = max(_SUM_TOLERANCE, torch.finfo(output.dtype).eps)
    return bool(
        (output >= 0).all()
        & ((full_precision(output.detach()).sum(dim=1) - 1).abs() <= tolerance).all()
    )


def are_log_probabilities(output: Tensor) -> bool:
    """Return whether the exponentials of each sample's outputs (N, C, ...) sum to 1 roughly, or are
    NaN.
    """
    return not (full_precision(output.detach()).logsumexp(dim=1).abs() > _LOG_SUM_TOLERANCE).any()


LOSSES: dict[str, BatchFunction] = {
    **dict.fromkeys(("mean_squared_error", "mse"), mean_squared_error),
    **dict.fromkeys(("soft_cross_entropy", "sce"), categorical_cross_entropy),
    **dict.fromkeys(("binary_cross_entropy", "bce"), binary_cross_entropy),
    **dict.fromkeys(("categorical_cross_entropy", "cce"), categorical_cross_entropy),
    **dict.fromkeys(("cross_entropy", "ce", "softmax_cross_entropy"), cross_entropy),
    "dice": dice,
}
"""Losses by EDDL's names."""


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of samples whose largest output is the target's class.

    Targets are class indices, one-hot or soft.
    """
    target = class_targets(output, target, least=2)
    if target.shape == output.shape:
        target = target.argmax(dim=1)
    return (output.argmax(dim=1) == target).to(torch.float32).mean()


def accuracy_of_logits(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of outputs on the side of 0 that their targets say, which are 0 or 1."""
    return ((output > 0) == (match_output(output, target) > 0.5)).to(torch.float32).mean()


def accuracy_of_probabilities(output: Tensor, target: Tensor) -> Tensor:
    """Return the fraction of outputs on the side of 1/2 that their targets say, which are 0 or
    1.
    """
    return ((output > 0.5) == (match_output(output, target) > 0.5)).to(torch.float32).mean()


def accuracy_for(loss: str | BatchFunction | None) -> BatchFunction:
    """Return what "accuracy" is for a loss: of one class a sample, or for a binary cross entropy of
    each output.
    """
    own = None if loss is None else resolve_function("loss", loss, LOSSES)
    function: object = own.func if isinstance(own, partial) else own
    if (
        isinstance(function, nn.BCEWithLogitsLoss)
        or function is functional.binary_cross_entropy_with_logits
    ):
        return accuracy_of_logits
    if isinstance(function, nn.BCELoss) or function in (
        binary_cross_entropy,
        functional.binary_cross_entropy,
    ):
        return accuracy_of_probabilities
    return accuracy


def mean_absolute_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of |output - target|."""
    return (output - match_output(output, target)).abs().mean()


def mean_relative_error(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean of |output - target| / |target|, or of the absolute error where a target is
    0.
    """
    target = match_output(output, target)
    scale = torch.where(target == 0, torch.ones_like(output), target.abs())
    return ((output - target).abs() / scale).mean()


METRICS: dict[str, BatchFunction] = {
    **dict.fromkeys(("mse", "mean_squared_error"), mean_squared_error),
    **dict.fromkeys(("categorical_accuracy", "accuracy"), accuracy),
    **dict.fromkeys(("mae", "mean_absolute_error"), mean_absolute_error),
    **dict.fromkeys(("mre", "mean_relative_error"), mean_relative_error),
}
"""Metrics by EDDL's names."""


def _plain(name: str) -> str:
    """Return a name without what differs between libraries."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("loss") or name


def _torch_losses() -> dict[str, str]:
    """Return how to write torch's losses, by their plain names and those of others."""
    functions = {
        _plain(name): f"torch.nn.functional.{name}"
        for name in vars(functional)
        if not name.startswith("_") and ("_loss" in name or "cross_entropy" in name)
    }
    classes = {_plain(name): f"torch.nn.{name}()" for name in vars(nn) if name.endswith("Loss")}
    return {
        **functions,
        **classes,
        **dict.fromkeys(("mae", "meanabsoluteerror"), "torch.nn.L1Loss()"),
    }


Function = TypeVar("Function", bound=Callable[..., Any])


def resolve_function(kind: str, value: str | Function, known: Mapping[str, Function]) -> Function:
    """Return the known function with the name ``value``, or ``value`` if it is a callable.

    A class of ``nn.Module`` (``torch.nn.MSELoss``, as dislib takes it) is instantiated without
    arguments.

    Raises ``ValueError`` for an unknown name, with the known ones and the most similar, and
    ``TypeError`` for anything else.
    """
    if isinstance(value, str):
        if value not in known:
            names = _torch_losses() if kind == "loss" else {}
            names |= {_plain(name): name for name in known}
            close = suggestion(_plain(value), names)
            hint = re.sub(r"mean (\w+)", lambda found: f"mean {names[found[1]]}", close)
            also = ", a metric of torchmetrics," if kind == "metric" else ""
            raise ValueError(
                f"unknown {kind} {value!r}; choose one of {', '.join(known)}{also} or pass a "
                f"callable{hint}"
            )
        return known[value]
    if isinstance(value, type) and issubclass(value, nn.Module):
        return value()  # type: ignore[return-value]
    if callable(value):
        return value
    raise TypeError(
        f"{kind}={value!r} is neither a name nor a callable; names are {', '.join(known)}"
    )


def kind_of(value: Any) -> str:
    """Return a value described for a message."""
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(repr, value)) or 'nothing'}"
    return "None" if value is None else f"a {type(value).__name__}"


ClassWeight: TypeAlias = Sequence[float] | NDArray[Any] | Tensor | Mapping[int, float]
"""A weight for each class, by its index."""


class TrainingLoss:
    """The loss itself without weights, and the weighted mean with weights."""

    def __init__(
        self, loss: BatchFunction, class_weight: Sequence[float] | None = None, device: str = "cpu"
    ) -> None:
        self._loss = loss
        self._is_users = not is_known(loss)
        self._class_weight = None
        if class_weight is not None:
            self._class_weight = torch.tensor(class_weight, dtype=torch.float64, device=device)

    def __call__(self, output: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
        """Return the loss of a batch of N samples, whose weights have shape (N,) or (N, 1); 0 if
        all are 0.
        """
        if weight is None and self._class_weight is None:
            with comparing(output, target) if self._is_users else nullcontext():
                return self._loss(output, target)
        samples = len(leaves(target)[0])
        weights = []
        if weight is not None:
            if weight.numel() != samples or len(weight) != samples or not _are_weights(weight):
                raise ValueError(
                    f"the weights of {samples} samples have shape {tuple(weight.shape)}, or one "
                    "is negative, NaN or infinite; give one finite number of at least 0 for each "
                    "sample"
                )
            weights.append(weight)
        if self._class_weight is not None:
            weights.append(class_weights(self._class_weight, output, target, self._ignore_index))
        losses = self._before_the_mean(output, target, samples)
        precision = torch.promote_types(losses.dtype, torch.float32)
        product = torch.ones(losses.shape, dtype=precision, device=losses.device)
        for each in weights:
            one_per_loss = each.numel() == losses.numel()
            product *= each.reshape(
                losses.shape if one_per_loss else (-1, *[1] * (losses.dim() - 1))
            )
        if (counted := self._counted(losses, target)) is not None:
            product = product * counted
        total = product.sum()
        return (losses * product).sum() / torch.where(total > 0, total, torch.ones_like(total))

    def by_sample(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each of N samples without weights, shape (N,): the mean over what
        counts in it.

        NaN for a sample in which all is ignored.
        """
        samples = len(leaves(target)[0])
        losses = self._before_the_mean(output, target, samples)
        counted = self._counted(losses, target)
        if counted is None:
            precision = torch.promote_types(losses.dtype, torch.float32)
            return losses.flatten(1).mean(1, dtype=precision) if losses.dim() > 1 else losses
        return losses.reshape(samples, -1).sum(1) / counted.reshape(samples, -1).sum(1)

    def _before_the_mean(self, output: Tensor, target: Tensor, samples: int) -> Tensor:
        losses = self._elementwise(output, target)
        if not isinstance(losses, Tensor) or losses.dim() == 0 or len(losses) != samples:
            raise ValueError(
                f"the loss with reduction='none' returned {kind_of(losses)} for {samples} "
                "samples; weights and samplers of inputs need a tensor of one or more values for "
                "each sample"
            )
        return losses

    def _counted(self, losses: Tensor, target: Tensor) -> Tensor | None:
        """Return which losses count, in their shape; ``None`` if all do."""
        if (
            self._ignore_index is None
            or target.is_floating_point()
            or target.numel() != losses.numel()
        ):
            return None  # without an index to ignore the targets may be a dict
        return target.reshape(losses.shape) != self._ignore_index

    @cached_property
    def _elementwise(self) -> BatchFunction:
        return elementwise(self._loss)

    @cached_property
    def _ignore_index(self) -> int | None:
        index = _option(self._loss, "ignore_index")
        return index if isinstance(index, int) else None


def _are_weights(numbers: Tensor) -> bool:
    """Return whether all numbers are finite and not negative."""
    return bool(((numbers >= 0) & numbers.isfinite()).all())


def class_weights(
    weights: Tensor, output: object, target: Tensor, ignore_index: int | None = None
) -> Tensor:
    """Return the weight of the class of each target, in the shape (N, ...) of the targets without
    classes.

    Targets are class indices; one-hot or soft targets (N, C, ...) in the shape of the outputs,
    which get the mean weight of their classes; or, for two classes, probabilities of the second
    class. Ignored targets get an arbitrary weight. Raises ``ValueError`` for other targets.
    """
    shape = output.shape if isinstance(output, Tensor) else None
    if target.shape == shape and target.dim() > 1 and target.shape[1] == len(weights):
        mixed: Tensor = torch.tensordot(target.to(weights.dtype), weights, dims=([1], [0]))
        return mixed
    if not target.is_floating_point():
        indices = target.long()
        if ignore_index is not None:
            indices = indices.masked_fill(indices == ignore_index, 0)
        first, last = (int(bound) for bound in indices.aminmax()) if indices.numel() else (0, 0)
        if first < 0 or last >= len(weights):
            raise ValueError(
                f"class_weight has {len(weights)} classes, and targets go from {first} to {last}"
            )
        # The probability of the second class.
        one_each = shape is not None and shape.numel() == target.numel()
        if (
            shape is not None
            and not one_each
            and len(shape) == target.dim() + 1
            and len(weights) not in shape[1:]
        ):
            raise ValueError(
                f"class_weight has {len(weights)} classes, and the network outputs "
                f"of {tuple(shape)}"
            )
        selected: Tensor = weights[indices]
        return selected
    if len(weights) == 2 and shape is not None and shape.numel() == target.numel():
        return torch.lerp(weights[0], weights[1], target.to(weights.dtype))
    raise ValueError(
        f"class_weight has {len(weights)} classes, but targets of {target.dtype} "
        f"{tuple(target.shape)} have no classes for outputs "
        f"{None if shape is None else tuple(shape)}; give class indices, or one-hot targets"
    )


def check_class_weight(class_weight: ClassWeight | None) -> tuple[float, ...] | None:
    """Return one weight for each class; raise ``ValueError`` for other values."""
    if class_weight is None:
        return None
    values: Any = class_weight
    if isinstance(values, Mapping):
        values = [values.get(index) for index in range(len(values))]
    try:
        weights = torch.as_tensor(values, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError):
        weights = torch.empty(0)
    if weights.dim() != 1 or len(weights) < 2 or not _are_weights(weights) or not weights.any():
        raise ValueError(
            f"class_weight={class_weight!r}: give a finite number of at least 0 to each of two "
            "or more classes, from 0 to the last one, and not 0 to all of them"
        )
    return tuple(weights.tolist())


def check_weightable(loss: BatchFunction) -> None:
    """Raise ``ValueError`` for a loss that does not support weights."""
    elementwise(loss)
    name = getattr(loss, "__name__", type(loss).__name__)
    if (reduction := _option(loss, "reduction")) != "mean":
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
        own: Any = copy.copy(loss)
        own.reduction = "none"
        return own  # type: ignore[no-any-return]
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


def _option(loss: BatchFunction, name: str) -> Any:
    """Return the attribute of a module, or the default value of a function's parameter; otherwise
    ``None``.
    """
    if isinstance(loss, nn.Module):
        return getattr(loss, name, None)
    parameter = _signature(loss).get(name)
    return None if parameter is None else parameter.default


def _signature(loss: BatchFunction) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(loss.forward if isinstance(loss, nn.Module) else loss).parameters
    except (TypeError, ValueError):  # a callable that is not written in Python
        return {}
