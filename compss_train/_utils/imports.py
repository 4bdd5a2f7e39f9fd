"""Lazy and optional imports: public names of packages, and packages of extras.

The command ``compss-train doctor`` works without torch, so the packages that it imports must not
import torch.
"""

import ast
import importlib
import pkgutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

FOLDER_MODULES = "COMPSS_TRAIN_FOLDER_MODULES"
"""The environment variable that gives worker processes the arguments of ``FolderModules`` as JSON.
"""


@dataclass(frozen=True)
class FolderModules(MetaPathFinder):
    """Finds some modules of a folder, and no others, where no installed module has their name."""

    folder: str
    names: Sequence[str]

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module is, or ``None`` (PEP 451)."""
        if path is not None or fullname not in self.names:
            return None
        return PathFinder.find_spec(fullname, [self.folder])


def lazy_names(package: str) -> tuple[Callable[[str], object], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package (PEP 562), and its public names.

    They are the names that the package's stub, ``__init__.pyi``, imports. Public submodules are
    also attributes.
    """
    namespace = vars(sys.modules[package])
    stub = ast.parse(Path(namespace["__file__"]).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    modules = pkgutil.iter_modules(namespace["__path__"])
    submodules = [module.name for module in modules if not module.name.startswith("_")]

    def getattribute(name: str) -> object:
        if name in homes:
            value = getattr(importlib.import_module(homes[name]), name)
            namespace[name] = value  # later look-ups do not call this function
            return value
        if name in submodules:
            return importlib.import_module(f"{package}.{name}")
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    def directory() -> list[str]:
        return sorted({*namespace, *homes, *submodules})

    return getattribute, directory, list(homes)


def import_optional(module: str, *, extra: str, needed_by: str, package: str | None = None) -> Any:
    """Import and return a module of an optional package, which ``extra`` installs.

    ``needed_by`` names the feature that needs it, ``package`` the package if it differs from the
    module. Raises ``ModuleNotFoundError`` with the command that installs the extra.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f"{needed_by} needs {package or error.name}: pip install 'compss_train[{extra}]'"
        raise ModuleNotFoundError(hint, name=error.name) from error
