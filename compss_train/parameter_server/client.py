"""Client of a parameter server that is served over ZeroMQ."""

import weakref
from collections.abc import Sequence

import torch

from compss_train._utils.validation import check_count, check_integer
from compss_train.data.block import Block, as_tensor
from compss_train.net.caller import Caller, Request
from compss_train.net.tokens import check_token, proof_of
from compss_train.parameter_server.base import (
    ArraySpecs,
    ParameterServer,
    check_arrays,
    specs_of,
    without_replicas,
)
from compss_train.parameter_server.store import copy_values


class RemoteParameterServer(ParameterServer):
    """A parameter server at an address, for any number of threads of this process; see ``connect``."""

    def __init__(self, address: str, token: str, timeout: float, name: str | None, generation: int) -> None:
        self._specs: dict[str, ArraySpecs] = {}
        self._caller = Caller(address, token, timeout, name, generation)
        self._finalizer = weakref.finalize(self, self._caller.close)

    def init(
        self,
        parameter_id: str,
        value: Sequence[Block],
        *,
        optimized: bool = True,
        replicas: bool | None = None,
    ) -> None:
        """Set the arrays of a new key, and wait for the answer."""
        own, number = without_replicas(parameter_id, value, replicas)
        request = self._caller.request("init", parameter_id, own)
        request.options = {"optimized": optimized, "replicas": number}
        self._ask(request)
        self._specs[parameter_id] = specs_of(own)

    def push(self, parameter_id: str, grads: Sequence[Block], priority: int = 0) -> None:
        """Send gradients in the background; if the server rejects them, the next call raises its error."""
        check_arrays(parameter_id, self._specs_of(parameter_id), "grads", grads)
        self._caller.send(self._request("push", parameter_id, grads, priority))

    def pull(self, parameter_id: str, weights: Sequence[Block] | None = None, priority: int = 0) -> Sequence[Block]:
        """Wait for the key's arrays after this client's pushes; new arrays are tensors."""
        if weights is not None:
            check_arrays(parameter_id, self._specs_of(parameter_id), "weights", weights)
        pulled = self._ask(self._request("pull", parameter_id, (), priority))
        if weights is None:
            arrays = [array.tensor() for array in pulled.answer]
            return arrays + [arrays[0].clone() for _ in range(pulled.fields["replicas"] - 1)]
        # Either one array or as many as weights.
        values = [array.tensor(_memory(weight)) for array, weight in zip(pulled.answer, weights, strict=False)]
        copy_values(values, weights)
        return weights

    def close(self) -> None:
        """Wait until the server has executed all pushes, and close the connection."""
        self._finalizer()
        self._caller.check()

    def _request(self, call: str, key: str, arrays: Sequence[Block], priority: int) -> Request:
        return self._caller.request(call, key, arrays, check_integer("priority", priority))

    def _ask(self, request: Request) -> Request:
        self._caller.send(request)
        request.finished.wait()
        self._caller.check()
        if request.error is not None:
            raise request.error
        return request

    def _specs_of(self, key: str) -> ArraySpecs:
        if key not in self._specs:
            specs = self._ask(self._caller.request("describe", key)).fields["specs"]
            self._specs[key] = [
                (getattr(torch, name.removeprefix("torch.")), tuple(shape)) for name, shape in specs
            ]
        return self._specs[key]


def _memory(weight: Block) -> torch.Tensor | None:
    """Return a tensor in the weight's memory (in a copy's if it is read-only), ``None`` if it is not contiguous."""
    tensor = as_tensor(weight).detach()
    return tensor if tensor.device.type == "cpu" and tensor.is_contiguous() else None


def connect(
    address: str, token: str, *, timeout: float = 60.0, name: str | None = None, generation: int = 0
) -> RemoteParameterServer:
    """Return the parameter server at an address; address and token are attributes of what ``serve`` returned.

    Pushes are sent in the background, those with a higher priority first. A broken connection is made again and
    unanswered calls are sent again; the server executes none of them twice.

    A client with a ``name`` can be made again by a task that died and is run again: the same calls for a key in the
    same order count once. Its n-th ``init`` or ``push`` of a key is executed only if that of the earlier client was
    not; a ``pull`` returns the present arrays. Only one client at a time may use a name, and it must call each key
    from one thread, so that the order is the same.

    Tasks of one name that follow one another, such as those of a worker round after round, give their number as
    ``generation``. The server keeps the records of the latest one only: the first call of a later generation says
    that the earlier ones have ended, and their calls are not executed any more.

    Raises ``TimeoutError`` if the server does not answer for ``timeout`` seconds, and ``PermissionError`` for a
    wrong token; both here and in calls of the client. Raises ``ValueError`` for a name that is not a string or is
    empty, an empty token, and a negative generation.
    """
    check_token(token)
    check_count("generation", generation, least=0)
    if name is not None and not (isinstance(name, str) and name):
        raise ValueError(f"name={name!r}: give a string that is not empty, or None")
    server = RemoteParameterServer(address, token, timeout, name, generation)
    try:
        hello = server._caller.request("hello", "")
        hello.options = {"proof": proof_of(token)}
        server._ask(hello)
    except BaseException:
        server._caller.close(wait=False)
        raise
    return server
