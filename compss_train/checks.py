"""Checks of what ``build`` is given, made in the coordinator before any task starts."""

from __future__ import annotations

from typing import Any

import cloudpickle
from torch import nn

from compss_train.optimizers import OptimizerFactory


def check_network(net: object, optimizer: OptimizerFactory) -> None:
    """Raise unless ``net`` is a module with something to train, and the optimizer takes its parameters.

    ``TypeError`` for what is no module, ``ValueError`` for one without trainable parameters; what the
    optimizer itself objects to (a negative learning rate, say) is raised as it is.
    """
    if not isinstance(net, nn.Module):
        hint = "; call the class to make one" if isinstance(net, type) else ""
        raise TypeError(f"net must be a torch.nn.Module, not {type(net).__name__}{hint}")
    if not any(True for _ in net.parameters()):
        raise ValueError(f"{type(net).__name__} has no parameters, so there is nothing to train")
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise ValueError(f"all parameters of {type(net).__name__} are frozen; set requires_grad on some")
    optimizer(net.parameters())


def check_picklable(**values: object) -> None:
    """Raise ``TypeError`` for the first value that cannot travel to another process, naming the attribute."""
    for name, value in values.items():
        if (error := _pickling_error(value)) is not None:
            where = _culprit(name, value)
            raise TypeError(
                f"{where} cannot be pickled, so workers in other processes cannot get it ({error}); make it in "
                "forward when it is first needed, or leave it out in __getstate__"
            )


def _pickling_error(value: object) -> Exception | None:
    try:
        cloudpickle.dumps(value)
    except Exception as error:
        return error
    return None


def _culprit(name: str, value: object) -> str:
    """Return the path of the innermost attribute or item that cannot be pickled, with its type."""
    for part, inner in _parts(value):
        if _pickling_error(inner) is not None:
            return _culprit(name + part, inner)
    return f"{name} ({type(value).__module__}.{type(value).__qualname__})"


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
