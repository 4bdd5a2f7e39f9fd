"""The interface of ``ai.djl.training.ParameterServer``: a key is one parameter.

Each device holds it in an array.
``compss_train.parameter_server`` has the same methods, and also keys with several parameters.
"""

from collections.abc import Sequence

from compss_train import parameter_server
from compss_train._utils import Closable
from compss_train.data.block import Block
from compss_train.parameter_server.interface import check_arrays, check_sequence, specs_of


class ParameterServer(Closable):
    """A store of parameters by key, with the methods, parameters and meanings of DJL's interface.

    ``server`` holds the parameters: a ``LocalParameterServer``, whose optimizer updates them, or
    what ``connect`` returned. Arrays are numpy arrays or tensors, on any device.

    Raises the exceptions of ``compss_train.parameter_server.ParameterServer``.
    """

    def __init__(self, server: parameter_server.ParameterServer) -> None:
        self._server = server

    def init(self, parameterId: str, value: Sequence[Block]) -> None:
        """Set a new key to ``value``: arrays of one shape and dtype, the same on each device."""
        first = check_sequence("value", value)[:1]
        check_arrays(parameterId, specs_of(first), "value", value)
        self._server.init(parameterId, first)

    def push(self, parameterId: str, grads: Sequence[Block], priority: int) -> None:
        """Update a key with the sum of the gradients of all devices.

        Higher priorities are executed first.
        """
        self._server.push(parameterId, grads, priority)

    def pull(self, parameterId: str, weights: Sequence[Block], priority: int) -> None:
        """Copy a key's value into each of the arrays, on their devices.

        Higher priorities are executed first.
        """
        self._server.pull(parameterId, weights, priority)

    def close(self) -> None:
        """Close the server, or the connection to it; also at the end of a ``with`` block."""
        self._server.close()
