"""Imports of optional packages, which the extras of this package install."""

from __future__ import annotations

import importlib
from typing import Any


def import_optional(module: str, *, extra: str, needed_by: str, package: str | None = None) -> Any:
    """Import and return ``module``.

    ``needed_by`` names the feature that needs it, ``package`` the package if the module is called otherwise. Raises
    ``ModuleNotFoundError`` with the command that installs ``extra``.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f"{needed_by} needs {package or error.name}: pip install 'compss_train[{extra}]'"
        raise ModuleNotFoundError(hint, name=error.name) from error
