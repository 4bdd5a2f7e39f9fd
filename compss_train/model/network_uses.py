"""How objects of a user use what was given to ``build``, while workers train copies with their own.

Functions, losses and steps hold each worker's copy of the network (``copies.LinkedTemplate``). Data
sets and callbacks are not copied with it: in workers they would use it as it was given. The
optimizer that was given trains nothing, nor does a schedule of it.
"""

import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import nn

from compss_train.model.copies import LEFT_TO_DEEPCOPY, filled_cells, state_of
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
    users = global_users([function for function, _ in _called(value)])
    return _by_variable("network", network_user(users, net))


def optimizer_use(value: Any, optimizers: Sequence[torch.optim.Optimizer]) -> str:
    """Return how a function or callback uses one of these optimizers, or a schedule of it."""
    for name, used in _used_in_calls(value).items():
        if is_of_optimizer(used, optimizers):
            return f"uses the optimizer that was given to build, as {name!r}"
    users = global_users([function for function, _ in _called(value)])
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
        for function, owner in _called(current):
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


def _called(value: Any) -> list[tuple[FunctionType, Any]]:
    """Return the functions that run when a value is called, each with its object or ``None``.

    Of callbacks these are their hooks.
    """
    if isinstance(value, partial):
        arguments = (*value.args, *value.keywords.values())
        return [pair for part in (value.func, *arguments) for pair in _called(part)]
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


class _Nowhere:
    """A file that keeps nothing."""

    def write(self, data: Any) -> int:
        return len(data)


class _Search(pickle.Pickler):
    """Pickles objects to nowhere, to see what they hold as fast as pickle walks through it.

    Of tensors and arrays nothing is copied; objects of this package are left out.
    """

    def __init__(self, net: nn.Module) -> None:
        super().__init__(_Nowhere(), pickle.HIGHEST_PROTOCOL, buffer_callback=lambda _: None)
        self._parts = {id(part) for part in (*net.modules(), *net.parameters(), *net.buffers())}
        self.found = False
        """Whether a part of the network was seen."""
        self.functions: dict[int, FunctionType] = {}
        """The functions that were seen, by their ``id``."""
        self.kinds: dict[type, None] = {}
        """The classes of the objects that were seen."""

    def look_into(self, value: Any) -> None:
        """See what an object holds, and the functions in it, as far as it can be pickled."""
        waiting = [value]
        looked_into = 0
        while waiting and not self.found:
            with suppress(Exception):
                self.dump(waiting.pop())
            functions = [*self.functions.values()]
            waiting += map(state_of, functions[looked_into:])
            looked_into = len(functions)

    def reducer_override(self, obj: Any) -> Any:
        """See an object, and let pickle walk on unless it is a tensor, an array or a function."""
        if id(obj) in self._parts:
            self.found = True
            raise pickle.PicklingError("found")
        if obj is object:
            return NotImplemented
        if isinstance(obj, FunctionType):
            self.functions[id(obj)] = obj
        self.kinds[type(obj)] = None
        if isinstance(obj, MethodType):
            return object, (obj.__func__, obj.__self__)
        # A trainer knows the network that it was given.
        is_ours = type(obj).__module__.startswith("compss_train.")
        return (object, ()) if is_ours or isinstance(obj, LEFT_TO_DEEPCOPY) else NotImplemented
