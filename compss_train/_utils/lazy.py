"""Lazy imports: the public names of packages, and functions that convert values.

The command ``compss-train doctor`` works without torch, so the packages that it imports must not import torch.
"""

from __future__ import annotations

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    ``homes`` maps submodules to the names that they define. Public submodules are attributes, too.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    namespace = vars(sys.modules[package])

    def submodules() -> list[str]:
        return [each.name for each in pkgutil.iter_modules(namespace["__path__"]) if not each.name.startswith("_")]

    def getattribute(name: str) -> object:
        if name in home_of:
            value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
            namespace[name] = value  # found without this function from now on
            return value
        if name in submodules():
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def directory() -> list[str]:
        return sorted({*namespace, *home_of, *submodules()})

    return getattribute, directory


_converters: dict[str, str] = {}
# Filled once, where the root package is imported, which comes before any room: only the root knows all rooms.


def register_converter(package: str, function: str) -> None:
    """Name the function (``"module:name"``) that converts values whose types are in this package.

    A room that meets such values may lie below the room that can convert them, and must not import it.
    """
    _converters[package] = function


def converter(package: str) -> Callable[..., Any]:
    """Return the function registered for values of a package, imported now."""
    function: Callable[..., Any] = pkgutil.resolve_name(_converters[package])
    return function
