"""Names that are imported when they are first asked for: those of packages, and functions that convert values.

The command ``compss-train`` and its doctor have to work where there is no torch, so that packages on their way
must not import it by being imported.
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

    ``homes`` says which of its names each of its submodules has. Public submodules are found, too.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    namespace = vars(sys.modules[package])

    def submodules() -> list[str]:
        return [each.name for each in pkgutil.iter_modules(namespace["__path__"]) if not each.name.startswith("_")]

    def getattribute(name: str) -> object:
        if name in home_of:
            value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
            namespace[name] = value  # the next time it is found without coming here
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
