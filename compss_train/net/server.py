"""A server of clients that each have one connection: their messages, and when they disconnect."""

from __future__ import annotations

import hmac
import logging
import math
import os
import time
import weakref
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import zmq

from compss_train._utils import Closable, files
from compss_train.net import sockets
from compss_train.net.connection import Address
from compss_train.net.connections import Connections
from compss_train.net.messages import Header, MessageError, ReceivedArray, pack, shortened, unpack

if TYPE_CHECKING:
    from compss_train.data.block import Block

_LOG = logging.getLogger(__name__)

_MAX_PATH = 100
"""Maximum length of the path of a socket file; systems allow 104 to 108 characters."""
_SUSPECT_SECONDS = 1.0
"""How long a client may still appear to be connected after its connection has closed.

As long can a client that is to be disconnected read why.
"""

_LINGER_MILLISECONDS = 1000
"""How long the server takes to send what is left when it closes."""


class Client:
    """A client that is connected to a server."""

    def __init__(
        self, server: MessageServer, identity: bytes, descriptor: int, greeting: Header
    ) -> None:
        self._server = server
        self._identity = identity
        self.descriptor = descriptor
        """The file descriptor of its connection."""
        self.greeting = greeting
        """Its first message, which says what it is."""

    @property
    def is_closed(self) -> bool:
        """Whether its connection was closed a moment ago; its last messages may be left."""
        return self.descriptor in self._server.connections.closed

    def send(self, header: Header, arrays: Sequence[Block] = ()) -> bool:
        """Send a message; return False if the client has disconnected.

        Clients that do not read lose messages.

        Texts are shortened.
        """
        return self._server.send(self._identity, header, arrays)

    def refuse(self, error: Exception) -> None:
        """Log an error in the handling of its message, send it, and disconnect the client.

        The server then reports it as lost, and receives nothing else from it.
        """
        self._server.refuse(self._identity, self.descriptor, error)


Received: TypeAlias = tuple[Client, Header | None, list[ReceivedArray]]
"""A client, and its message; ``None`` as header if it has disconnected."""


class MessageServer(Closable):
    """Listens for clients that have the token, receives their messages and sends them some.

    For one thread.

    ``address`` is as for ``serve``. ROUTER sockets report no disconnections, but refuse to send to
    clients that are gone: when a connection was closed, those that may have had it are sent an
    empty message.

    Raises ``OSError`` if it cannot listen, and ``ValueError`` for an address that is not ``None``
    or of TCP.
    """

    def __init__(self, address: str | None, token: str) -> None:
        if address is not None and not (isinstance(address, str) and address.startswith("tcp://")):
            raise ValueError(
                f"address={address!r}: give tcp://HOST:PORT, or None for this machine only"
            )
        self._context: sockets.Context = zmq.Context()
        self.socket = sockets.server_socket(self._context)
        self.connections = Connections(self._context, self.socket)
        self._folder = files.TemporaryFolder()
        self._clients: dict[bytes, Client] = {}
        self._lost: deque[bytes] = deque()
        self._refused: dict[bytes, int] = {}
        """Clients to which nobody listens any more, and their descriptors."""
        self._refusals: deque[tuple[int, float]] = deque()
        """The descriptors to close, and when their clients were refused."""
        try:
            url = self._bind_privately() if address is None else None
            self.address = Address(url or self._bind_tcp(address or sockets.LOOPBACK, token), token)
        except BaseException:
            self.close()
            raise
        self._proof = sockets.proof_of(token) if url else None

    def _bind_privately(self) -> str | None:
        """Listen at a file in a new folder that only this user can open; ``None`` if that fails."""
        path = os.path.join(self._folder.path, "server")
        # What is no text, as a folder's name in another encoding, cannot be sent as an address.
        if not path.isprintable() or len(path.encode()) > _MAX_PATH or not zmq.has("ipc"):
            return None
        weakref.finalize(self, self._folder.remove)
        try:
            self._folder.create()
            self.socket.bind(f"{sockets.PRIVATE}{path}")
        except (OSError, zmq.ZMQError):  # a full disk, for example
            self._folder.remove()
            return None
        self.connections.place = path
        return f"{sockets.PRIVATE}{path}"

    def _bind_tcp(self, address: str, token: str) -> str:
        self.socket.curve_server = 1
        _, self.socket.curve_secretkey = sockets.curve_keys(token)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(f"cannot listen at {address}: {error}") from error
        bound = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.connections.place = int(bound.rpartition(":")[2])
        return bound

    def receive(self, timeout: float = 0.0) -> Received | None:
        """Return the next message, waiting up to ``timeout`` seconds for one.

        A client that has disconnected or was refused is reported once, after all its messages.
        ``None`` if nothing has happened. No message raises an error: a client whose message is
        malformed is refused.
        """
        self.connections.check()
        while self._refusals and time.monotonic() - self._refusals[0][1] > _SUSPECT_SECONDS:
            self.connections.end(*self._refusals.popleft())
        try:
            sender, *frames = sockets.receive_frames(self.socket)
        except zmq.Again:
            if not timeout or not self.socket.poll(math.ceil(1000 * timeout)):
                return self._next_lost()
            sender, *frames = sockets.receive_frames(self.socket)
        identity = sender.bytes
        descriptor = int(frames[0].get("__fd"))
        self.connections.heard(descriptor)
        if identity in self._refused:
            return None
        try:
            header, arrays = unpack(frames)
            if identity not in self._clients:
                self._check_proof(header.pop("proof", None))
                self._clients[identity] = Client(self, identity, descriptor, greeting=header)
        except (MessageError, PermissionError) as error:
            self.refuse(identity, descriptor, error)
            return None
        return self._clients[identity], header, arrays

    def _check_proof(self, proof: Any) -> None:
        """Raise ``PermissionError`` unless a first message at a socket file proves the token."""
        if self._proof is None:
            return
        received = proof.encode(errors="surrogatepass") if isinstance(proof, str) else b""
        if not hmac.compare_digest(received, self._proof.encode()):
            raise PermissionError(sockets.WRONG_TOKEN)

    def refuse(self, identity: bytes, descriptor: int, error: Exception) -> None:
        """Disconnect the client with this identity; as ``Client.refuse``."""
        if isinstance(error, MessageError | PermissionError):
            text = shortened(str(error))
            unexpected = None
        else:
            text = shortened(f"{type(error).__name__}: {error}")
            unexpected = error
        _LOG.warning(
            "%s disconnects a client: %.1000r", self.address.url, text, exc_info=unexpected
        )
        if self.send(identity, {"error": text}) and identity not in self._refused:
            self._refused[identity] = descriptor
            self._refusals.append((descriptor, time.monotonic()))
            if identity in self._clients:
                self._lost.append(identity)

    def _next_lost(self) -> Received | None:
        """Return a client that has disconnected or was refused, and has no messages left."""
        while self._lost:
            identity = self._lost.popleft()
            if identity in self._clients:
                return self._clients.pop(identity), None, []
            self._refused.pop(identity, None)
        closed = set(self.connections.closed)
        if closed:
            now = time.monotonic()
            descriptors = dict(self._refused)
            for identity, client in self._clients.items():
                descriptors[identity] = client.descriptor
            suspects = [
                identity for identity, descriptor in descriptors.items() if descriptor in closed
            ]
            # A later call returns them: their last messages come first.
            self._lost.extend(identity for identity in suspects if not self.send(identity, {}))
            self.connections.forget_closed(now - _SUSPECT_SECONDS)
        return None

    def send(self, identity: bytes, header: Header, arrays: Sequence[Block] = ()) -> bool:
        """Send a message to the client with this identity; as ``Client.send``."""
        frames = pack({name: _with_short_texts(value) for name, value in header.items()}, arrays)
        try:
            self.socket.send_multipart([identity, *frames], zmq.NOBLOCK)
        except zmq.Again:
            return True
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Close all connections; sent messages are still transmitted. May be called again."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self.connections.join()
            sockets.end(self._context, _LINGER_MILLISECONDS)
            self._folder.remove()


def _with_short_texts(value: Any) -> Any:
    """Return a header's value with shortened texts: they may quote what clients have sent."""
    if isinstance(value, str):
        return shortened(value)
    if isinstance(value, list | tuple):
        return [_with_short_texts(item) for item in value]
    return value
