"""The kinds of objects: what tells them apart, and which are looked into."""

import hashlib
import pickle
import sys
from contextlib import suppress
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from compss_train._utils.private_names import HAS_CAPTURING_HOOKS

NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType)
"""What copies share, and what its name tells apart."""

_FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}
"""The libraries whose functions keep nothing, and whose objects decide how they are copied."""

_GRAPHS = "torch.fx.graph"
"""The module of the graphs that traced networks are made of."""

MODULE_ATTRIBUTES = frozenset({*vars(nn.Module()), "_compiled_call_impl", HAS_CAPTURING_HOOKS})
"""What torch gives all modules, and what tells of hooks that copies have not."""


def class_of(value: Any) -> str:
    """Return the name of an object's class, with that of its module."""
    return f"{type(value).__module__}.{type(value).__qualname__}"


def enum_of(name: str) -> type[Enum] | None:
    """Return the enumeration of a name that ``class_of`` returned, if a module of it is imported.

    Those of ``__main__`` are not in every process.
    """
    parts = name.split(".")
    for length in range(len(parts) - 1, 0, -1):
        module = ".".join(parts[:length])
        if module in sys.modules and module != "__main__":
            found: Any = sys.modules[module]
            for part in parts[length:]:
                found = getattr(found, part, None)
            return found if isinstance(found, type) and issubclass(found, Enum) else None
    return None


def name_of(named: Any) -> str:
    """Return the name of a class, function or module, with that of its module."""
    return f"{getattr(named, '__module__', '')}.{getattr(named, '__qualname__', '')}"


def is_foreign(module: str | None) -> bool:
    """Return whether a module is one of ``_FOREIGN``."""
    return (module or "").partition(".")[0] in _FOREIGN


def is_opaque(value: Any) -> bool:
    """Return whether what an object holds is known to its class only.

    Classes of Python and numpy that pickle their objects in ways of their own are so, and the
    graphs of ``torch.fx``, which are programs.
    """
    kind: Any = type(value)
    if kind.__module__ == _GRAPHS:
        return True
    if not is_foreign(kind.__module__) or kind.__module__.startswith("torch"):
        return False
    if isinstance(value, partial | MethodType):
        return False
    has_own_way = kind.__reduce_ex__ is not object.__reduce_ex__ or (
        kind.__reduce__ is not object.__reduce__
    )
    return has_own_way or not kind.__dictoffset__


def digest(value: Any) -> str:
    """Return what tells apart the values of an opaque object; nothing if it cannot be pickled.

    Graphs differ from copy to copy in what they have looked up, but not as programs.
    """
    if type(value).__module__ == _GRAPHS:
        return ""
    with suppress(Exception):
        return f" {hashlib.sha256(pickle.dumps(value)).hexdigest()}"
    return ""


def slots_of(kind: type) -> tuple[str, ...]:
    """Return the names of the attributes that a class keeps in slots."""
    slots = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for entry in slots for name in ((entry,) if isinstance(entry, str) else entry)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
