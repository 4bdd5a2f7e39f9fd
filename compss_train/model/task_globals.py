"""Global variables that a user's functions use: a task that changes them is no pure function.

Each process has its own: workers of one process would share them, and a task that runs again would
find them changed. Functions of libraries are not looked into.
"""

import dis
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from compss_train._utils.installed import is_installed
from compss_train._utils.private_names import version_of
from compss_train.model.attributes.plain_values import state_of_generator
from compss_train.model.copies import filled_cells

GlobalUsers: TypeAlias = Sequence[tuple[FunctionType, tuple[str, ...]]]
"""Functions, each with the names of the global variables that it uses and may change."""

_STORES = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
_USES = _STORES | {"LOAD_GLOBAL"}

_PLAIN = (type(None), bool, int, float, complex, str, bytes)

_MOST = 1000
"""Maximum number of items of a container that are compared."""

_DEPTH = 3
"""How deeply containers and objects in each other are compared."""


def global_users(objects: Iterable[Any], *, constants: bool = False) -> GlobalUsers:
    """Return the functions behind objects of a user, and of what they call, that use globals.

    ``constants`` are numbers and texts, which other functions may replace.
    """
    users: list[tuple[FunctionType, tuple[str, ...]]] = []
    known: set[int] = set()
    waiting = [*objects]
    while waiting:
        value = waiting.pop()
        if id(value) in known:
            continue
        known.add(id(value))
        if not isinstance(value, FunctionType):
            waiting += _functions_of(value)
            continue
        if _is_of_library(value.__module__):
            continue
        waiting += filled_cells(value).values()
        names = []
        stored_names = _globals_in(value.__code__, _STORES)
        for name in sorted(_globals_in(value.__code__, _USES)):
            used = value.__globals__.get(name)
            if isinstance(used, FunctionType | type):
                waiting.append(used)
            if isinstance(used, type):  # of which the function may make objects
                waiting.append(used.__init__)  # type: ignore[misc]
            may_change = name in stored_names or not _is_constant(used)
            may_change |= constants and isinstance(used, _PLAIN)
            if may_change and not isinstance(used, FunctionType):
                names.append(name)
        if names:
            users.append((value, tuple(names)))
    return users


def _functions_of(value: Any) -> list[Any]:
    """Return what may run when an object of a user is called, which has been made before."""
    if isinstance(value, partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, MethodType):
        return [value.__func__, value.__self__]
    if isinstance(value, type):
        bases = (base for base in value.__mro__ if not _is_of_library(base.__module__))
        return [
            member
            for base in bases
            for name, member in vars(base).items()
            if name != "__init__" and isinstance(member, FunctionType)
        ]
    if isinstance(value, nn.Module):
        return [*{type(module) for module in value.modules()}]
    return [type(value)] if not isinstance(value, _PLAIN) else []


def _is_of_library(module: str | None) -> bool:
    """Return whether a module is this package, Python's or an installed one."""
    root = (module or "").partition(".")[0]
    if root == "__main__":  # of the program, also where another one runs its tasks
        return False
    if root in ("compss_train", "builtins", *sys.stdlib_module_names):
        return True
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    return is_installed(file)


@lru_cache(maxsize=1000)  # reading takes milliseconds, which small fits notice
def _globals_in(code: CodeType, operations: frozenset[str]) -> frozenset[str]:
    """Return the global variables of these operations in a function, and in those inside of it."""
    names = frozenset(
        instruction.argval
        for instruction in dis.get_instructions(code)
        if instruction.opname in operations
    )
    inner_codes = (part for part in code.co_consts if isinstance(part, CodeType))
    return names.union(*(_globals_in(inner, operations) for inner in inner_codes))


def _is_constant(value: Any) -> bool:
    """Return whether a global value cannot be changed in place, as far as one can see."""
    if isinstance(value, ModuleType):
        return _is_of_library(value.__name__)
    if isinstance(value, type):
        return _is_of_library(value.__module__)
    return isinstance(value, _PLAIN) or not (
        isinstance(value, torch.Tensor | np.ndarray | list | dict | set | deque)
        or state_of_generator(value) is not None
        or hasattr(value, "__dict__")
    )


def network_user(users: GlobalUsers, net: nn.Module) -> tuple[FunctionType, str] | None:
    """Return a function that uses a network by a global variable, and its name; ``None`` for none.

    Constants that the network holds may be used.
    """
    parts = {id(part) for part in (*net.modules(), *net.parameters(), *net.buffers())}
    for function, names in users:
        for name in names:
            value = function.__globals__.get(name)
            if id(value) in parts and not _uses_constants(function.__code__, name, value):
                return function, name
    return None


def optimizer_user(
    users: GlobalUsers, optimizers: Sequence[torch.optim.Optimizer]
) -> tuple[FunctionType, str] | None:
    """Return the same for optimizers and their schedules."""
    for function, names in users:
        for name in names:
            if is_of_optimizer(function.__globals__.get(name), optimizers):
                return function, name
    return None


def is_of_optimizer(value: Any, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
    """Return whether a value is one of these optimizers, or a schedule of one."""
    own_optimizer = getattr(value, "optimizer", None)
    return any(optimizer is value or optimizer is own_optimizer for optimizer in optimizers)


def check_network_unused(users: GlobalUsers, net: nn.Module) -> None:
    """Raise ``ValueError`` for a function that uses a network by a global variable.

    Workers train copies of it.
    """
    user = network_user(users, net)
    if user is None:
        return
    function, name = user
    raise ValueError(
        f"{function.__qualname__} uses the network by the global variable {name!r}, but each "
        "worker trains a copy: the function would go on with the network as it is now, and train "
        f"nothing of it. Define it inside of a function where {name!r} is a local variable, or in "
        "an object that keeps it in an attribute, such as self.net: these get the copy; or use "
        "the model that training_step= gets"
    )


def _uses_constants(code: CodeType, name: str, value: Any) -> bool:
    """Return whether a function, and those inside of it, use only constants of a global value."""
    instructions = [*dis.get_instructions(code)]
    for number, instruction in enumerate(instructions):
        if instruction.opname not in _USES or instruction.argval != name:
            continue
        used = value
        for following in instructions[number + 1 :]:
            if following.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            with suppress(Exception):  # of a property: what it belongs to counts
                used = getattr(used, following.argval)
        if isinstance(used, nn.Module | torch.Tensor) or callable(used):
            return False
    inner_codes = (part for part in code.co_consts if isinstance(part, CodeType))
    return all(_uses_constants(inner, name, value) for inner in inner_codes)


def global_values(users: GlobalUsers) -> list[list[Any]]:
    """Return what ``changed_global`` compares: the values of the variables, as they are now."""
    return [
        [*_parts(function.__globals__.get(name), _DEPTH)]
        for function, names in users
        for name in names
    ]


def changed_global(users: GlobalUsers, before: Sequence[Sequence[Any]]) -> str | None:
    """Return the name of a variable that has changed, with its function; ``None`` for none."""
    places = [(function, name) for function, names in users for name in names]
    for (function, name), parts, new in zip(places, before, global_values(users), strict=True):
        if len(parts) != len(new) or not all(map(_is_same, parts, new)):
            return f"the global variable {name!r}, which {function.__qualname__} uses,"
    return None


def _is_same(first: Any, second: Any) -> bool:
    if first is second:
        return True
    return type(first) is type(second) and isinstance(first, _PLAIN) and first == second


def _parts(value: Any, depth: int) -> Iterator[Any]:
    """Iterate over objects that are others, or unequal numbers, once a value has changed."""
    yield value
    if isinstance(value, torch.Tensor):
        yield None if value.is_inference() else version_of(value)
    elif isinstance(value, np.ndarray):
        yield value.tobytes() if value.size <= _MOST else None
    elif isinstance(value, nn.Module):
        for tensor in (*value.parameters(), *value.buffers()):
            yield from _parts(tensor, depth)
    elif depth:
        yield from _inner_parts(value, depth - 1)


def _inner_parts(value: Any, depth: int) -> Iterator[Any]:
    generator = state_of_generator(value)
    if generator is not None:
        yield repr(generator)
    elif isinstance(value, Mapping):
        yield len(value)
        for key, item in [*value.items()][:_MOST]:
            yield key
            yield from _parts(item, depth)
    elif isinstance(value, list | tuple | set | deque):
        yield len(value)
        for item in [*value][:_MOST]:
            yield from _parts(item, depth)
    elif isinstance(value, ModuleType | type):
        for name, item in [*vars(value).items()]:
            if isinstance(item, (*_PLAIN, list, dict, set)) and not name.startswith("__"):
                yield from _parts(item, depth)
    elif hasattr(value, "__dict__") and not _is_of_library(type(value).__module__):
        yield from _inner_parts(vars(value), depth)
