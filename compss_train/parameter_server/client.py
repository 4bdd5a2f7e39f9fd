"""A client of a parameter server that is served over ZeroMQ."""

from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from compss_train._utils.validation import check_integer
from compss_train.data.block import Block, as_tensor
from compss_train.parameter_server.base import ParameterServer
from compss_train.parameter_server.entry import Kinds, check_arrays, checked, copy_values, dtype_of
from compss_train.parameter_server.in_flight import Request
from compss_train.parameter_server.link import Link


class RemoteParameterServer(ParameterServer):
    """The parameter server at an address, for any number of threads of this process; see ``connect``."""

    def __init__(self, address: str, token: str, timeout: float, name: str | None) -> None:
        self._kinds: dict[str, Kinds] = {}
        self._link = Link(address, token.encode(), timeout, name)
        self._finalizer = weakref.finalize(self, self._link.close)

    def init(self, parameter_id: str, value: Sequence[Block]) -> None:
        """Set what a new key holds, and wait until it does."""
        self._ask(self._link.request("init", parameter_id, checked("value", value)))
        self._kinds[parameter_id] = [(dtype_of(array), tuple(array.shape)) for array in value]

    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Send gradients; returns before they are sent. What the server says against them the next call raises."""
        check_arrays(parameter_id, self._kinds_of(parameter_id), "grads", grads)
        self._link.send(self._link.request("push", parameter_id, grads, check_integer("priority", priority)))

    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Wait for what the key holds after this client's pushes; new arrays are tensors."""
        if weights is not None:
            check_arrays(parameter_id, self._kinds_of(parameter_id), "weights", weights)
        pulled = self._ask(self._link.request("pull", parameter_id, (), check_integer("priority", priority))).answer
        if weights is None:
            return [array.tensor() for array in pulled]
        # The key's one array, or as many as there are weights.
        values = [array.tensor(_memory(weight)) for array, weight in zip(pulled, weights, strict=False)]
        copy_values(values, weights)
        return weights

    def close(self) -> None:
        """Wait until the server has executed all pushes, and end."""
        self._finalizer()
        self._link.check()

    def _ask(self, request: Request) -> Request:
        self._link.send(request)
        request.finished.wait()
        self._link.check()
        if request.error is not None:
            raise request.error
        return request

    def _kinds_of(self, key: str) -> Kinds:
        if key not in self._kinds:
            told = self._ask(self._link.request("describe", key)).fields["kinds"]
            self._kinds[key] = [(getattr(torch, name.removeprefix("torch.")), tuple(shape)) for name, shape in told]
        return self._kinds[key]


def _memory(weight: Block) -> torch.Tensor | None:
    """Return the memory that an array can be put together in, if it is such; a copy of one that is read-only."""
    tensor = as_tensor(weight).detach()
    return tensor if tensor.device.type == "cpu" and tensor.is_contiguous() else None


def connect(address: str, token: str, *, timeout: float = 60.0, name: str | None = None) -> RemoteParameterServer:
    """Return the parameter server that ``serve`` told the address and the token of.

    Pushes are sent in the background, those of a higher priority first. When the connection breaks it is made anew,
    and what was not answered is sent again; the server executes nothing twice. Where it does not answer for
    ``timeout`` seconds, that is a ``TimeoutError``. A wrong token is a ``PermissionError``.

    A client with a ``name`` can be made again, by a task that died and is run again: what it says for a key in the
    same order as before counts once. Its n-th ``init`` or ``push`` of a key is executed if that of the client
    before was not; a ``pull`` gives what the key holds now. One at a time may have a name, and it calls a key from
    one thread, so that the order is the same.
    """
    if name is not None and not (isinstance(name, str) and name):
        raise ValueError(f"name={name!r}: give a string that is not empty, or None")
    server = RemoteParameterServer(address, token, timeout, name)
    try:
        server._ask(server._link.request("hello", ""))
    except BaseException:
        server._link.close(wait=False)
        raise
    return server
