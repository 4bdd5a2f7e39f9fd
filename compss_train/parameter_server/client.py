"""Client of a parameter server that is served over ZeroMQ."""

import uuid
import weakref
from collections.abc import Sequence
from typing import Any, cast

import torch

from compss_train._utils.validation import check_count, check_name, check_seconds, check_token
from compss_train.data.block import Block, as_tensor
from compss_train.model.value_encoding import decode_value, encode_value
from compss_train.net import Address
from compss_train.net.caller import Caller
from compss_train.parameter_server.interface import (
    ArraySpecs,
    Key,
    ParameterServer,
    check_key,
    specs_of,
)
from compss_train.parameter_server.local import copy_values


class RemoteParameterServer(ParameterServer):
    """A parameter server at an address, for any number of threads of this process.

    See ``connect``.
    """

    def __init__(
        self, address: Address, timeout: float, *, name: str | None, generation: int
    ) -> None:
        self._known_specs: dict[Key, ArraySpecs] = {}
        greeting = {"client": f"named {name}", "generation": generation}
        goodbye = None
        # The server can forget it: after its goodbye, or when it repeats no calls any more.
        if name is None:
            greeting |= {"client": f"unnamed {uuid.uuid4().hex}", "timeout": timeout}
            goodbye = {"call": "goodbye"}
        self._caller = Caller(address, greeting, farewell=goodbye, timeout=timeout)
        try:
            answer, _ = self._caller.call("hello", "")
            self._caller.continues = answer.get("server")
        except BaseException:
            self._caller.close(wait=False)
            raise
        self._finalizer = weakref.finalize(self, self._caller.close)

    def _init(self, key: Key, value: Sequence[Block], *, optimized: bool) -> None:
        self._caller.call("init", key, value, changes=True, optimized=optimized)
        self._known_specs[key] = specs_of(value)

    def save(self, parameter_id: Key) -> dict[str, Any]:
        """Have the server send it, once it has executed this client's pushes."""
        _, (saved,) = self._caller.call("save", check_key(parameter_id))
        return cast("dict[str, Any]", decode_value(saved.tensor()))

    def load(self, parameter_id: Key, saved: dict[str, Any], *, optimized: bool = True) -> None:
        """Send what was saved."""
        key = check_key(parameter_id)
        self._caller.call("load", key, [encode_value(saved)], changes=True, optimized=optimized)
        self._known_specs[key] = specs_of(saved["values"])

    def _push(self, key: Key, grads: Sequence[Block], priority: int) -> None:
        self._caller.call("push", key, grads, priority=priority, changes=True, wait=False)

    def _pull(self, key: Key, weights: Sequence[Block] | None, priority: int) -> Sequence[Block]:
        _, pulled = self._caller.call("pull", key, priority=priority)
        self._known_specs[key] = [(array.dtype, array.shape) for array in pulled]
        if weights is None:
            return [array.tensor() for array in pulled]
        # Either one array or as many as weights.
        values = [
            array.tensor(_memory(weight)) for array, weight in zip(pulled, weights, strict=False)
        ]
        copy_values(values, weights)
        return weights

    def _specs(self, key: Key) -> ArraySpecs:
        if key not in self._known_specs:
            self._pull(key, None, 0)
        return self._known_specs[key]

    def close(self) -> None:
        """Wait until the server has executed all pushes, and close the connection."""
        self._finalizer()


def _memory(weight: Block) -> torch.Tensor | None:
    """Return a tensor in the weight's memory, or ``None`` if that is not contiguous.

    It is in the memory of a copy if the weight is read-only.
    """
    tensor = as_tensor(weight).detach()
    return tensor if tensor.device.type == "cpu" and tensor.is_contiguous() else None


def connect(
    address: str, token: str, *, timeout: float = 60.0, name: str | None = None, generation: int = 0
) -> RemoteParameterServer:
    """Return the parameter server at an address.

    Address and token are attributes of what ``serve`` returned.

    A push returns when ZeroMQ has it, which sends it in the background; if the server rejects it,
    the next call raises the error. If the connection breaks, the next call connects again and
    repeats unanswered calls; the server executes none of them twice. Threads that share a client
    wait for one another.

    If a task died and runs again, give its client a ``name``: the same calls for a key in the same
    order count once. Its n-th ``init`` or ``push`` of a key is executed only if that of the earlier
    client was not; a ``pull`` returns the current arrays. Only one client at a time may use a name,
    and it must call each key from one thread, so that the order is the same.

    If tasks with one name follow one another, such as a worker's round after round, give their
    number as ``generation``. The server keeps only the records of the latest one: its first call
    ends earlier generations, whose calls are then ignored.

    Raises ``TimeoutError`` if the server does not answer for ``timeout`` seconds, and
    ``PermissionError`` for a wrong token, both here and in calls of the client. Raises
    ``ValueError`` for an invalid address, a name that is not a string or is empty, an empty token,
    a timeout that is not above 0, and a negative generation.
    """
    check_token(token)
    check_seconds("timeout", timeout)
    check_count("generation", generation, least=0)
    check_name("name", name)
    return RemoteParameterServer(Address(address, token), timeout, name=name, generation=generation)
