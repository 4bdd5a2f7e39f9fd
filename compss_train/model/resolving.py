"""What arguments of ``build`` stand for: the loss, metrics, steps and optimizer that they name."""

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

from torch import nn
from torch.nn import functional

from compss_train._utils.validation import suggestion
from compss_train.model.lightning_style import ConfiguredOptimizer, ModuleStep, check_hooks
from compss_train.model.losses import LOSSES, BatchFunction
from compss_train.model.measurements import Measures, Metric
from compss_train.model.metrics import METRICS, accuracy_for
from compss_train.model.net_optimizers import NetOptimizer, SeveralOptimizers, net_optimizer
from compss_train.model.optimizers import OptimizerSpec
from compss_train.model.output_loss import OUTPUT_LOSS, output_loss
from compss_train.model.torch_metric import TorchMetric
from compss_train.model.training_step import Step, as_step
from compss_train.model.whole import Whole, WholeMetric
from compss_train.reports.records import BOOKKEEPING

Function = TypeVar("Function", bound=Callable[..., Any])

MetricLike: TypeAlias = str | Callable[..., Any] | Whole
"""A name, a function of (output, target) or of all samples, or what torchmetrics has."""

MetricSpec: TypeAlias = MetricLike | Sequence[MetricLike] | Mapping[str, MetricLike] | None
"""What ``build(metric=...)`` takes."""

_WORD_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def resolve_loss(
    loss: str | BatchFunction, known: Mapping[str, BatchFunction] = LOSSES
) -> BatchFunction:
    """Return the loss of this name, or the loss itself if it is a callable.

    A class of ``nn.Module`` (``torch.nn.MSELoss``, as dislib takes it) is instantiated without
    arguments.

    ``"output.loss"`` is the network's own. Raises ``ValueError`` for an unknown name, with the
    known ones and the most similar, and ``TypeError`` for anything else.
    """
    if loss == OUTPUT_LOSS:
        return output_loss
    return _resolve_function("loss", loss, known)


def _resolve_function(kind: str, value: str | Function, known: Mapping[str, Function]) -> Function:
    """Return the known function with the name ``value``, or ``value`` if it is a callable."""
    if isinstance(value, str):
        if value not in known:
            names = _torch_losses() if kind == "loss" else {}
            names |= {_plain(name): name for name in known}
            close = suggestion(_plain(value), names)
            hint = re.sub(r"mean (\w+)", lambda match: f"mean {names[match[1]]}", close)
            metric = ", a metric of torchmetrics," if kind == "metric" else ""
            raise ValueError(
                f"unknown {kind} {value!r}; choose one of {', '.join(known)}{metric} or pass a "
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


def _torch_losses() -> dict[str, str]:
    """Return how to write torch's losses, by their plain names and those of others."""
    functions = {
        _plain(name): f"torch.nn.functional.{name}"
        for name in vars(functional)
        if not name.startswith("_") and ("_loss" in name or "cross_entropy" in name)
    }
    classes = {_plain(name): f"torch.nn.{name}()" for name in vars(nn) if name.endswith("Loss")}
    absolute_errors = dict.fromkeys(("mae", "meanabsoluteerror"), "torch.nn.L1Loss()")
    return functions | classes | absolute_errors


def _plain(name: str) -> str:
    """Return a name without what differs between libraries."""
    return re.sub(r"[^a-z0-9]", "", name.lower()).removesuffix("loss") or name


def resolve_metrics(metric: MetricSpec, loss: str | BatchFunction | None = None) -> Measures:
    """Return the loss and the metrics: one, a sequence, a dict by name, or none.

    ``loss`` tells whether outputs are classes, probabilities or logits.

    Raises ``ValueError`` for a name that is unknown, not text, or already used in the history, and
    ``TypeError`` for an object that is not a metric.
    """
    function = None if loss is None else resolve_loss(loss)
    accuracy = accuracy_for(function)
    known = {**METRICS, "accuracy": accuracy}
    metrics: dict[str, Metric] = {}
    whole: dict[str, WholeMetric] = {}
    for chosen_name, spec in _named_specs(metric):
        if isinstance(spec, Whole):
            whole_name = chosen_name or getattr(spec.function, "__name__", "whole")
            _check_metric_name(whole_name, {**metrics, **whole})
            whole[whole_name] = WholeMetric.of(spec, function)
            continue
        for name, resolved in _resolve_metric(spec, chosen_name, known):
            _check_metric_name(name, {**metrics, **whole})
            metrics[name] = resolved
    return Measures(metrics, whole)


def _named_specs(metric: MetricSpec) -> Iterable[tuple[Any, Any]]:
    """Return what was given for each metric, with its name if it has one, or ``None``."""
    if metric is None:
        return []
    if isinstance(metric, Mapping):
        return metric.items()
    if isinstance(metric, list | tuple):
        return [(None, spec) for spec in metric]
    return [(None, metric)]


def _check_metric_name(name: object, metrics: Collection[str]) -> None:
    """Raise ``ValueError`` for a name that is not text, or has another meaning in the history."""
    if name in metrics:
        raise ValueError(
            f"two metrics are called {name!r}; name them, as in metric={{'a': ..., 'b': ...}}"
        )
    reserved = ("", "loss", *BOOKKEEPING)
    if not isinstance(name, str) or name in reserved or name.startswith("val_"):
        raise ValueError(
            f"metric name {name!r} is not text, or has another meaning in the history; "
            f"choose another name, for example metric={{'my_{name}': ...}}"
        )


def _resolve_metric(
    metric: Any, name: str | None, known: Mapping[str, BatchFunction]
) -> Iterator[tuple[str, Metric]]:
    """Iterate over the metric and its name, or over the names and metrics of a collection."""
    resolved = _resolve_function("metric", metric, known)
    if _is_from_torchmetrics("MetricCollection", resolved):
        for member_name, member in resolved.items():
            full_name = member_name if name is None else f"{name}_{member_name}"
            yield full_name, TorchMetric.of(member)
    elif _is_from_torchmetrics("Metric", resolved):
        words = _WORD_BOUNDARY.sub("_", type(resolved).__name__).lower()
        yield words if name is None else name, TorchMetric.of(resolved)
    else:
        if name is None and isinstance(metric, str):
            name = metric
        if name is None:
            name = getattr(metric, "__name__", type(metric).__name__)
        yield name, resolved


def _is_from_torchmetrics(kind: str, metric: object) -> bool:
    """Return whether the object is of this class of torchmetrics.

    If it is, torchmetrics is already imported.
    """
    module = sys.modules.get("torchmetrics")
    return module is not None and isinstance(metric, getattr(module, kind))


def resolve_steps(
    net: nn.Module,
    optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] | None,
    loss: str | BatchFunction | None,
    training_step: Step | str | None,
    validation_step: Step | str | None,
) -> tuple[NetOptimizer, Step | None, Step | None]:
    """Return the optimizer, the training step and the validation step.

    A step is ``None`` if the model is trained, or evaluated, by its outputs and the loss. Without
    ``loss`` and steps, a Lightning-style module provides them. A model is evaluated by the
    validation step, or by its outputs and the loss, or without a loss by the training step.

    Raises ``TypeError`` and ``ValueError`` for arguments that are missing or do not fit.
    """
    training = as_step(training_step, net, "training_step")
    validation = as_step(validation_step, net, "validation_step")
    methods = ("training_step", "configure_optimizers")
    is_lightning_style = all(callable(getattr(net, name, None)) for name in methods)
    if training is None and loss is None:
        if not is_lightning_style:
            raise TypeError('build needs a loss, for example "cross_entropy", or a training_step')
        check_hooks(net)
        training = ModuleStep("training_step")
        if validation is None and callable(getattr(net, "validation_step", None)):
            validation = ModuleStep("validation_step")
    if optimizer is None and not is_lightning_style:
        raise TypeError('build needs an optimizer, for example {"optimizer": "sgd", "lr": 0.05}')
    factory = ConfiguredOptimizer() if optimizer is None else net_optimizer(optimizer, net)
    if validation is None and loss is None and not isinstance(factory, SeveralOptimizers):
        validation = training
    return factory, training, validation
