"""Lazy and optional imports: public names of packages, and packages of extras.

The command ``compss-train doctor`` works without torch, so the packages that it imports must not import torch.
"""

import importlib
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package (PEP 562).

    ``homes`` maps submodules to the names that they define. Public submodules are also attributes.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    namespace = vars(sys.modules[package])
    submodules = [each.name for each in pkgutil.iter_modules(namespace["__path__"]) if each.name[0] != "_"]

    def getattribute(name: str) -> object:
        if name in home_of:
            value = getattr(importlib.import_module(f"{package}.{home_of[name]}"), name)
            namespace[name] = value  # later look-ups do not call this function
            return value
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def directory() -> list[str]:
        return sorted({*namespace, *home_of, *submodules})

    return getattribute, directory


def import_optional(module: str, *, extra: str, needed_by: str, package: str | None = None) -> Any:
    """Import and return a module of an optional package, which ``extra`` installs.

    ``needed_by`` names the feature that needs it, ``package`` the package if it differs from the module. Raises
    ``ModuleNotFoundError`` with the command that installs the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f"{needed_by} needs {package or error.name}: pip install 'compss_train[{extra}]'"
        raise ModuleNotFoundError(hint, name=error.name) from error
