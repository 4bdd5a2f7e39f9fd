"""How objects of a user use what was given to ``build``, while workers train copies with their own.

Functions, losses and steps hold each worker's copy of the network (``copies.LinkedTemplate``). Data
sets and callbacks are not copied with it: in workers they would use it as it was given. The
optimizer that was given trains nothing, nor does a schedule of it.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from compss_train._utils.object_walk import ObjectWalk
from compss_train.model.copies import filled_cells
from compss_train.model.task_globals import (
    global_users,
    is_of_optimizer,
    network_user,
    optimizer_user,
)


def network_use(value: Any, net: nn.Module) -> str:
    """Return how an object, or what it holds, uses a network, for a message; or nothing."""
    search = _Search(net)
    search.look_into(value)
    if search.found:
        return "holds the network that was given to build"
    users = global_users([*search.functions.values(), *search.kinds])
    return _by_variable("network", network_user(users, net))


def network_use_in_calls(value: Any, net: nn.Module) -> str:
    """Return the same of what runs when a function or callback is called."""
    for name, used in _used_in_calls(value).items():
        search = _Search(net)
        search.look_into(used)
        if search.found:
            return f"uses the network that was given to build, as {name!r}"
    users = global_users([function for function, _ in called_functions(value)])
    return _by_variable("network", network_user(users, net))


def optimizer_use(value: Any, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Return how a function or callback uses one of these optimizers, or a schedule of it."""
    for name, used in _used_in_calls(value).items():
        if is_of_optimizer(used, optimizers):
            return f"uses the optimizer that was given to build, as {name!r}"
    users = global_users([function for function, _ in called_functions(value)])
    return _by_variable("optimizer", optimizer_user(users, optimizers))


def _used_in_calls(value: Any) -> dict[str, Any]:
    """Return the variables and attributes that run with a function, by their names.

    Those are variables of the functions around it, and attributes of its object.
    """
    used: dict[str, Any] = {}
    waiting = [value]
    known: set[int] = set()
    while waiting:
        current = waiting.pop()
        if id(current) in known:
            continue
        known.add(id(current))
        for function, owner in called_functions(current):
            attributes = getattr(owner, "__dict__", {})
            names = set(function.__code__.co_names)
            parts = filled_cells(function) | {
                name: attribute for name, attribute in attributes.items() if name in names
            }
            used |= parts
            waiting += [
                part
                for part in parts.values()
                if isinstance(part, FunctionType | MethodType | partial)
            ]
    return used


def called_functions(value: Any) -> list[tuple[FunctionType, Any]]:
    """Return the functions that run when a value is called, each with its object or ``None``.

    Of callbacks these are their hooks.
    """
    if isinstance(value, partial):
        arguments = (*value.args, *value.keywords.values())
        return [pair for part in (value.func, *arguments) for pair in called_functions(part)]
    if isinstance(value, FunctionType):
        return [(value, None)]
    functions: list[Any]
    owner = value
    if isinstance(value, MethodType):
        functions = [value.__func__]
        owner = value.__self__
    else:
        hooks = [name for name in dir(type(value)) if name.startswith("on_")]
        names = ("__call__", "forward", *hooks)
        functions = [getattr(type(value), name, None) for name in names]
    return [(function, owner) for function in functions if isinstance(function, FunctionType)]


def check_optimizers_unused(
    functions: Mapping[str, Any], optimizers: Sequence[torch.optim.Optimizer]
) -> None:
    """Raise ``ValueError`` for one of the functions, by name, that uses one of these optimizers."""
    for name, function in functions.items() if optimizers else ():
        use = optimizer_use(function, optimizers)
        if use:
            raise ValueError(
                f"{name} {use}, but each worker makes an optimizer of its own, and calls its "
                "zero_grad() and step(): leave them out. Give a schedule as build(schedule=), "
                "several optimizers as a dict; a WorkerCallback has the worker's as "
                "context.optimizer"
            )


def given_optimizers(spec: object) -> list[torch.optim.Optimizer]:
    """Return the optimizers of torch, not what makes some, in the ``optimizer`` of ``build``."""
    parts = spec.values() if isinstance(spec, Mapping) else [spec]
    return [part for part in parts if isinstance(part, torch.optim.Optimizer)]


def _by_variable(what: str, user: tuple[FunctionType, str] | None) -> str:
    """Return that a function uses something by a global variable; nothing for no function."""
    if user is None:
        return ""
    function, name = user
    return (
        f"uses the {what} that was given to build, by the global variable {name!r} in "
        f"{function.__qualname__}"
    )


class _Search(ObjectWalk):
    """Looks for a part of a network; keeps the classes of what it has seen."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self._parts = {id(part) for part in (*net.modules(), *net.parameters(), *net.buffers())}
        self.kinds: dict[type, None] = {}
        """The classes of the objects that were seen."""

    def sees(self, obj: Any) -> bool:
        """Look at an object; a part of the network ends the search."""
        self.is_over = id(obj) in self._parts
        self.kinds[type(obj)] = None
        return False

    @property
    def found(self) -> bool:
        """Whether a part of the network was seen."""
        return self.is_over
