"""Parameter servers: stores of parameters by key that many workers push to and pull from.

``serve``, ``serve_apart`` and ``connect``, for other processes and nodes, need ZeroMQ: the extra ``online``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from compss_train._utils.imports import import_optional
from compss_train.exceptions import ParameterServerClosedError
from compss_train.parameter_server.base import ParameterServer
from compss_train.parameter_server.local import LocalParameterServer

__all__ = [
    "LocalParameterServer",
    "ParameterServer",
    "ParameterServerClosedError",
    "check_installed",
    "connect",
    "serve",
    "serve_apart",
]

if TYPE_CHECKING:
    from compss_train.parameter_server.client import connect
    from compss_train.parameter_server.serving import serve, serve_apart
else:

    def __getattr__(name: str) -> object:
        homes = {"connect": "client", "serve": "serving", "serve_apart": "serving"}
        if name not in homes:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_optional("zmq", extra="online", needed_by=name, package="ZeroMQ")
        return getattr(importlib.import_module(f"{__name__}.{homes[name]}"), name)


def check_installed() -> None:
    """Raise ``ModuleNotFoundError`` unless the packages of the extra ``online`` are installed."""
    importlib.import_module(__name__).serve  # noqa: B018
