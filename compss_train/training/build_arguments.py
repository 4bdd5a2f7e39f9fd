"""``BuildArguments``: the arguments of ``build``, and their checks, made before any task starts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import cloudpickle
import torch
from torch import nn

from compss_train.model.lr_schedules import LrSchedule, ScheduleSpec
from compss_train.model.optimizers import OptimizerFactory, OptimizerSpec, optimizer_factory
from compss_train.model.training_spec import TrainingSpec


@dataclass(frozen=True)
class BuildArguments:
    """The arguments of ``build`` after their checks."""

    training_spec: TrainingSpec
    num_gpu: int
    schedule: ScheduleSpec | None = None
    """The argument ``schedule``."""
    schedule_steps: int = 1
    lr_schedule: LrSchedule | None = field(default=None, repr=False)


def check_network(net: object) -> None:
    """Raise ``TypeError`` unless ``net`` is a module, ``ValueError`` if it has no trainable parameters."""
    if not isinstance(net, nn.Module):
        hint = "; call the class to make one" if isinstance(net, type) else ""
        raise TypeError(f"net must be a torch.nn.Module, not {type(net).__name__}{hint}")
    if not any(True for _ in net.parameters()):
        raise ValueError(f"{type(net).__name__} has no parameters, so there is nothing to train")
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise ValueError(f"all parameters of {type(net).__name__} are frozen; set requires_grad on some")


def check_optimizer(net: nn.Module, factory: OptimizerFactory) -> None:
    """Raise unless the factory makes an optimizer of the parameters that it is called with.

    ``net`` is a copy, as every worker trains a copy: an optimizer of the original's parameters would train nothing.
    Errors of the optimizer itself (a negative learning rate, say) are raised unchanged.
    """
    optimizer = factory(net.parameters())
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(f"the optimizer callable returned a {type(optimizer).__name__}, no torch.optim.Optimizer")
    if isinstance(optimizer, torch.optim.LBFGS):
        raise ValueError("LBFGS evaluates the loss several times a step, which is not supported; choose another")
    own = {id(parameter) for parameter in net.parameters()}
    trained = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not trained or any(id(parameter) not in own for parameter in trained):
        raise ValueError(
            "the optimizer callable uses other parameters than those it is called with; every worker trains a copy "
            "of the network, so write lambda parameters: torch.optim.SGD(parameters, lr=0.05)"
        )


def check_outer_factory(net: nn.Module, spec: OptimizerSpec) -> None:
    """Raise as ``check_optimizer`` and ``check_picklable``, with a message that names ``outer_optimizer``."""
    factory = optimizer_factory(spec)
    with _naming_outer(spec):
        check_optimizer(net, factory)
    check_picklable(outer_optimizer=factory)


def check_outer_optimizer(spec: OptimizerSpec | None) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless the value is a valid ``outer_optimizer``; needs no network."""
    with _naming_outer(spec):
        if spec is not None:
            optimizer_factory(spec)


@contextmanager
def _naming_outer(spec: object) -> Iterator[None]:
    """Let errors in the block name the argument ``outer_optimizer``."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"outer_optimizer={spec!r}: {error}") from error


def check_picklable(**values: object) -> None:
    """Raise ``TypeError`` for the first value that cannot be pickled, naming the attribute."""
    for name, value in values.items():
        if (error := _pickling_error(value)) is not None:
            where = _culprit(name, value) or name
            raise TypeError(
                f"{where} cannot be pickled, so it cannot be sent to other processes ({error}); create it "
                "in forward on first use, or exclude it in __getstate__"
            )


def _pickling_error(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None


def _culprit(name: str, value: object, seen: frozenset[int] = frozenset()) -> str | None:
    """Return the path and type of the innermost part that cannot be pickled.

    Returns ``None`` if the only such parts refer back to a value in ``seen``.
    """
    failing = [(part, inner) for part, inner in _parts(value) if _pickling_error(inner) is not None]
    if not failing:
        return f"{name} ({type(value).__module__}.{type(value).__qualname__})"
    seen = seen | {id(value)}
    found = (_culprit(name + part, inner, seen) for part, inner in failing if id(inner) not in seen)
    return next(filter(None, found), None)


def _parts(value: object) -> list[tuple[str, Any]]:
    if isinstance(value, nn.Module):
        own = {key: item for key, item in vars(value).items() if key != "_modules"}
        return [*((f".{key}", child) for key, child in value.named_children()), *_attributes(own)]
    if isinstance(value, dict):
        return [(f"[{key!r}]", item) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{index}]", item) for index, item in enumerate(value)]
    return _attributes(getattr(value, "__dict__", {})) if not isinstance(value, type) else []


def _attributes(attributes: dict[str, Any]) -> list[tuple[str, Any]]:
    return [(f".{key}", item) for key, item in attributes.items()]
