"""A server of clients that each have one connection: their messages, and when they disconnect."""

import hmac
import logging
import math
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train._utils import Closable, files
from compss_train.data.block import Block
from compss_train.net import sockets
from compss_train.net.connection import Address
from compss_train.net.messages import Header, MessageError, ReceivedArray, pack, shortened, unpack

_LOG = logging.getLogger(__name__)

_MAX_PATH = 100
"""Maximum length of the path of a socket file; systems allow 104 to 108 characters."""
_MAX_SILENT = 128
_SUSPECT_SECONDS = 1.0
"""Seconds after a connection closes during which its client may still appear to be connected, and
those in which a client that is to be disconnected can read why."""
_LINGER_MILLISECONDS = 1000


class Client:
    """A client that is connected to a server."""

    def __init__(
        self, server: "MessageServer", identity: bytes, descriptor: int, greeting: Header
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
        if len(path.encode()) > _MAX_PATH or not zmq.has("ipc"):
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
            if (client := self._clients.get(identity)) is None:
                self._check_proof(header.pop("proof", None))
                client = self._clients[identity] = Client(self, identity, descriptor, header)
        except (MessageError, PermissionError) as error:
            self.refuse(identity, descriptor, error)
            return None
        return client, header, arrays

    def _check_proof(self, proof: Any) -> None:
        """Raise ``PermissionError`` unless a first message at a socket file proves the token."""
        if self._proof is None:
            return
        given = proof.encode(errors="surrogatepass") if isinstance(proof, str) else b""
        if not hmac.compare_digest(given, self._proof.encode()):
            raise PermissionError(sockets.WRONG_TOKEN)

    def refuse(self, identity: bytes, descriptor: int, error: Exception) -> None:
        """Disconnect the client with this identity; as ``Client.refuse``."""
        expected = isinstance(error, MessageError | PermissionError)
        text = shortened(str(error) if expected else f"{type(error).__name__}: {error}")
        shown = None if expected else error
        _LOG.warning("%s disconnects a client: %.1000r", self.address.url, text, exc_info=shown)
        if self.send(identity, {"error": text}) and identity not in self._refused:
            self._refused[identity] = descriptor
            self._refusals.append((descriptor, time.monotonic()))
            if identity in self._clients:
                self._lost.append(identity)

    def _next_lost(self) -> Received | None:
        """Return a client that has disconnected or was refused, and has no messages left."""
        while self._lost:
            identity = self._lost.popleft()
            if (client := self._clients.pop(identity, None)) is not None:
                return client, None, []
            self._refused.pop(identity, None)
        if closed := self.connections.closed:
            now = time.monotonic()
            descriptors = set(closed)
            known = {
                **self._refused,
                **{own: each.descriptor for own, each in self._clients.items()},
            }
            suspects = [own for own, descriptor in known.items() if descriptor in descriptors]
            # Their last messages first.
            self._lost.extend(each for each in suspects if not self.send(each, {}))
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
    return [_with_short_texts(each) for each in value] if isinstance(value, list | tuple) else value


class Connections:
    """Watches the connections of a listening socket, in a thread.

    Strangers are connections without any message yet, until their handshake fails. To keep them
    from using up this program's file descriptors, the oldest are closed if there are more than 128.
    An affected client reconnects.
    """

    def __init__(self, context: sockets.Context, socket: sockets.Socket) -> None:
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
        name = f"inproc://connections-{id(socket)}"
        socket.monitor(name, events)
        self._events = context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.RCVHWM, 0)  # ZeroMQ's own thread would wait for this one
        self._events.connect(name)
        self._silent: dict[int, None] = {}  # file descriptors, in the order of their connections
        self._lock = threading.Lock()
        self._closed: dict[int, float] = {}
        self._failed: BaseException | None = None
        self.place: int | str = 0
        """The port that the socket listens at, or the path of its file; 0 until it listens."""
        self._thread = threading.Thread(target=self._run, name="connections", daemon=True)
        self._thread.start()

    def heard(self, descriptor: int) -> None:
        """Record a message: its sender has the token."""
        if self._silent:
            with self._lock:
                self._silent.pop(descriptor, None)

    @property
    def closed(self) -> list[int]:
        """The descriptors of the connections that were closed a short while ago."""
        with self._lock:
            return list(self._closed)

    def forget_closed(self, before: float) -> None:
        """Forget those that were closed before this time."""
        with self._lock:
            self._closed = {each: when for each, when in self._closed.items() if when >= before}

    def end(self, descriptor: int, since: float) -> None:
        """Shut a connection down, unless it is closed and another file has its descriptor."""
        with self._lock:
            if self._closed.get(descriptor, 0.0) < since:
                self.shut_down(descriptor)

    def check(self) -> None:
        """Raise ``RuntimeError`` if the thread has died: nobody would notice lost clients."""
        if self._failed is not None:
            failed = f"{type(self._failed).__name__}: {self._failed}"
            raise RuntimeError(
                f"the thread that watches connections has died: {failed}"
            ) from self._failed

    def _run(self) -> None:
        try:
            self._watch()
        except BaseException as error:
            self._failed = error
        else:
            self._events.close()  # otherwise ZeroMQ would wait for a reader of its events

    def _watch(self) -> None:
        """Note new and closed connections; close the oldest silent ones if they are too many."""
        while (event := recv_monitor_message(self._events))["event"] != zmq.EVENT_MONITOR_STOPPED:
            descriptor = event["value"]
            with self._lock:
                self._silent.pop(descriptor, None)
                if event["event"] == zmq.EVENT_ACCEPTED:
                    self._silent[descriptor] = None
                else:
                    self._closed[descriptor] = time.monotonic()
                # At a socket file there are no strangers.
                if isinstance(self.place, int) and len(self._silent) > _MAX_SILENT:
                    oldest = next(iter(self._silent))
                    del self._silent[oldest]
                    self.shut_down(oldest)

    def shut_down(self, descriptor: int) -> None:
        """Shut a connection down, unless it is closed and another file has its descriptor."""
        with suppress(OSError), ExitStack() as stack:
            copy = os.dup(descriptor)  # which stays the same file
            stack.callback(os.close, copy)
            connection = socket.socket(fileno=copy)  # raises for other files
            stack.callback(connection.detach)
            name = connection.getsockname()  # of other sockets it may be empty
            if (name[1] if isinstance(name, tuple) else name) == self.place:
                connection.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait until the thread has ended, as it does with the socket's monitor."""
        self._thread.join()
