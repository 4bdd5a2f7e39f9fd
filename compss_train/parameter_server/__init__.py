"""Parameter servers: stores of parameters by key that many workers push to and pull from. Knows no engine.

``serve`` and ``connect``, for other processes and nodes, need ZeroMQ: the extra ``server``.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from compss_train._utils.optional_imports import import_optional
from compss_train.parameter_server.base import ParameterServer, ParameterServerClosedError
from compss_train.parameter_server.local import LocalParameterServer
from compss_train.parameter_server.subprocess_server import serve_apart

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
    from compss_train.parameter_server.serving import serve
else:

    def __getattr__(name: str) -> object:
        homes = {"connect": "client", "serve": "serving"}
        if name not in homes:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import_optional("zmq", extra="server", needed_by=name, package="ZeroMQ")
        return getattr(importlib.import_module(f"{__name__}.{homes[name]}"), name)


def check_installed() -> None:
    """Raise ``ModuleNotFoundError`` where parameters cannot be served here."""
    importlib.import_module(__name__).serve  # noqa: B018
