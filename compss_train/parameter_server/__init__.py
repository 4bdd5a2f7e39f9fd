"""Parameter servers: stores of parameters by key that many workers push to and pull from.

``serve``, ``serve_apart`` and ``connect``, for other processes and nodes, need ZeroMQ: the extra ``online``.
"""

from typing import TYPE_CHECKING

from compss_train._utils.imports import lazy_names
from compss_train.exceptions import ParameterServerClosedError
from compss_train.parameter_server.base import ParameterServer
from compss_train.parameter_server.local import LocalParameterServer

__all__ = [
    "LocalParameterServer",
    "ParameterServer",
    "ParameterServerClosedError",
    "connect",
    "serve",
    "serve_apart",
]

if TYPE_CHECKING:
    from compss_train.parameter_server.client import connect
    from compss_train.parameter_server.serving import serve, serve_apart
else:
    __getattr__, __dir__ = lazy_names(__name__, {"client": ["connect"], "serving": ["serve", "serve_apart"]})
