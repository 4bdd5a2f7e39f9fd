"""A server of clients that each have one connection: their messages, and when they disconnect."""

import hmac
import math
import time
from collections import deque
from collections.abc import Sequence

import torch
import zmq

from compss_train._utils import Closable
from compss_train.data.block import Block
from compss_train.net.connection import Address, Header
from compss_train.net.messages import MessageError, pack, unpack
from compss_train.net.sockets import ServerSocket
from compss_train.net.tokens import WRONG_TOKEN, proof_of

_SUSPECT_SECONDS = 1.0
"""How long after a connection was closed its client may still seem to be there."""

Received = tuple[bytes, Header | None, list[torch.Tensor]]
"""A client, and its message; ``None`` as header if it has disconnected."""


class MessageServer(Closable):
    """Receives messages of clients and sends them some; for one thread.

    ``address`` is as for ``serve``. A client is known by bytes that ZeroMQ gives its connection. ROUTER sockets
    report no disconnections, but refuse to send to clients that are gone: when a connection was closed, those that
    may have had it are sent an empty message.
    """

    def __init__(self, address: str | None, token: str) -> None:
        self._server = ServerSocket(address, token)
        self.address = Address(self._server.address, token)
        self.socket = self._server.socket
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._proof = proof_of(token) if self._server.private else None
        self._clients: dict[bytes, int] = {}  # with the file descriptors of their connections
        self._lost: deque[bytes] = deque()

    def receive(self, timeout: float = 0.0) -> Received | None:
        """Return the next message, waiting up to ``timeout`` seconds for one.

        A disconnected client is reported once, after all its messages. ``None`` if nothing has happened.
        """
        if not int(self.socket.EVENTS) & zmq.POLLIN and not (
            timeout and self.socket.poll(math.ceil(1000 * timeout))
        ):
            return self._next_lost()
        sender, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        client = sender.bytes
        self._server.connections.heard(frames[0])
        try:
            header, arrays = unpack(frames)
            if client not in self._clients:
                proof = str(header.pop("proof", ""))  # of the token, at a socket file
                if self._proof is not None and not hmac.compare_digest(proof.encode(), self._proof.encode()):
                    raise PermissionError(WRONG_TOKEN)
                self._clients[client] = int(frames[0].get("__fd"))
        except (MessageError, PermissionError) as error:
            self.send(client, {"error": str(error)})
            return (client, None, []) if self._clients.pop(client, None) else None
        return client, header, arrays

    def _next_lost(self) -> Received | None:
        """Return a client that has disconnected; its messages have all been received."""
        if self._lost:
            client = self._lost.popleft()
            del self._clients[client]
            return client, None, []
        now, closed = time.monotonic(), self._server.connections.closed
        descriptors = {descriptor for descriptor, _ in list(closed)}
        gone = [client for client, own in self._clients.items() if own in descriptors and not self.send(client, {})]
        self._lost.extend(gone)  # what they have sent last is received first
        while closed and now - closed[0][1] > _SUSPECT_SECONDS:
            closed.popleft()
        return None

    def send(self, client: bytes, header: Header, arrays: Sequence[Block] = ()) -> bool:
        """Send a message; return False if the client has disconnected. One that does not read loses messages."""
        try:
            self.socket.send_multipart([client, *pack(header, arrays)], zmq.NOBLOCK)
        except zmq.Again:
            return True
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Close all connections; what was sent still leaves."""
        self._server.close(1000)
