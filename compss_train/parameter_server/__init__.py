"""Parameter servers: stores of parameters by key that many workers push to and pull from. Knows no engine."""

from compss_train.parameter_server.base import ParameterServer, ParameterServerClosedError
from compss_train.parameter_server.local import LocalParameterServer

__all__ = ["LocalParameterServer", "ParameterServer", "ParameterServerClosedError"]
