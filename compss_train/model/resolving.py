"""What the arguments of ``build`` stand for: the loss, the metrics and the steps that they name."""

import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
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
from compss_train.model.torch_metric import TorchMetric
from compss_train.model.training_step import Step, as_step
from compss_train.reports.records import BOOKKEEPING


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


def resolve_loss(
    loss: str | BatchFunction, known: Mapping[str, BatchFunction] = LOSSES
) -> BatchFunction:
    """Return the loss of this name, or the loss itself if it is a callable.

    A class of ``nn.Module`` (``torch.nn.MSELoss``, as dislib takes it) is instantiated without
    arguments.

    Raises ``ValueError`` for an unknown name, with the known ones and the most similar, and
    ``TypeError`` for anything else.
    """
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
    accuracy = accuracy_for(None if loss is None else resolve_loss(loss))
    known = {**METRICS, "accuracy": accuracy}
    metrics: dict[str, Metric] = {}
    for name, resolved in chain.from_iterable(
        _resolve_metric(item, given_name, known) for given_name, item in _named_metrics(metric)
    ):
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


def _named_metrics(metric: MetricSpec) -> list[tuple[Any, MetricLike]]:
    """Return each metric with the name that it was given, or ``None``."""
    if metric is None:
        return []
    if isinstance(metric, Mapping):
        return list(metric.items())
    if isinstance(metric, list | tuple):
        return [(None, item) for item in metric]
    single: Any = metric
    return [(None, single)]


def _resolve_metric(
    metric: Any, name: str | None, known: Mapping[str, BatchFunction]
) -> Iterator[tuple[str, Metric]]:
    """Iterate over the metric and its name, or over the names and metrics of a collection."""
    resolved = _resolve_function("metric", metric, known)
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


def resolve_steps(
    net: nn.Module,
    optimizer: OptimizerSpec | Mapping[str, OptimizerSpec] | None,
    loss: str | BatchFunction | None,
    training_step: Step | str | None,
    validation_step: Step | str | None,
) -> tuple[NetOptimizer, Step | None, Step | None]:
    """Return the optimizer, the training and the validation step; a step is ``None`` for the
    outputs and the loss.

    Without ``loss`` and steps, a Lightning-style module provides them. A model is evaluated by the
    validation step, or by its outputs and the loss, or without a loss by the training step. Raises
    ``TypeError`` and ``ValueError`` for arguments that are missing or do not fit.
    """
    training = as_step(training_step, net, "training_step")
    validation = as_step(validation_step, net, "validation_step")
    lightning_style = all(
        callable(getattr(net, name, None)) for name in ("training_step", "configure_optimizers")
    )
    if training is None and loss is None:
        if not lightning_style:
            raise TypeError('build needs a loss, for example "cross_entropy", or a training_step')
        check_hooks(net)
        training = ModuleStep("training_step")
        if validation is None and callable(getattr(net, "validation_step", None)):
            validation = ModuleStep("validation_step")
    if optimizer is None and not lightning_style:
        raise TypeError('build needs an optimizer, for example {"optimizer": "sgd", "lr": 0.05}')
    factory = ConfiguredOptimizer() if optimizer is None else net_optimizer(optimizer, net)
    if validation is None and loss is None and not isinstance(factory, SeveralOptimizers):
        validation = training
    return factory, training, validation
