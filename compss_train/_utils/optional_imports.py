"""Packages that only some features need: the extras of this package."""

from __future__ import annotations

import importlib
from typing import Any


def need(module: str, *, extra: str, by: str) -> Any:
    """Return the module; raise ``ModuleNotFoundError`` that says which extra brings it, and who needs it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        hint = f"{by} needs {error.name}: pip install 'compss_train[{extra}]'"
        raise ModuleNotFoundError(hint, name=error.name) from error
