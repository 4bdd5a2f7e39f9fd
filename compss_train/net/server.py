"""A server of clients that each have one connection: their messages, and when they disconnect."""

import hmac
import math
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train._utils import Closable, files
from compss_train.data.block import Block
from compss_train.net import sockets
from compss_train.net.connection import Address
from compss_train.net.messages import Header, MessageError, ReceivedArray, pack, unpack

_MAX_PATH = 100
"""Maximum length of the path of a socket file; systems allow 104 to 108 characters."""
_MAX_SILENT = 128
_SUSPECT_SECONDS = 1.0
"""Seconds after a connection closes during which its client may still appear to be connected."""
_LINGER_MILLISECONDS = 1000


class Client:
    """A client that is connected to a server."""

    def __init__(self, server: "MessageServer", identity: bytes, descriptor: int, greeting: Header) -> None:
        self._server, self._identity = server, identity
        self.descriptor = descriptor
        """The file descriptor of its connection."""
        self.greeting = greeting
        """Its first message, which says what it is."""

    def send(self, header: Header, arrays: Sequence[Block] = ()) -> bool:
        """Send a message; return False if the client has disconnected. Clients that do not read lose messages."""
        return self._server.send(self._identity, header, arrays)


Received: TypeAlias = tuple[Client, Header | None, list[ReceivedArray]]
"""A client, and its message; ``None`` as header if it has disconnected."""


class MessageServer(Closable):
    """Listens for clients that have the token, receives their messages and sends them some; for one thread.

    ``address`` is as for ``serve``. ROUTER sockets report no disconnections, but refuse to send to clients that are
    gone: when a connection was closed, those that may have had it are sent an empty message.

    Raises ``OSError`` if it cannot listen, and ``ValueError`` for an address that is not ``None`` or of TCP.
    """

    def __init__(self, address: str | None, token: str) -> None:
        if address is not None and not (isinstance(address, str) and address.startswith("tcp://")):
            raise ValueError(f"address={address!r}: give tcp://HOST:PORT, or None for this machine only")
        self._context: sockets.Context = zmq.Context()
        self.socket = sockets.server_socket(self._context)
        self._connections = Connections(self._context, self.socket)
        self._folder = files.TemporaryFolder()
        self._clients: dict[bytes, Client] = {}
        self._lost: deque[bytes] = deque()
        try:
            url = self._bind_privately() if address is None else None
            self.address = Address(url or self._bind_tcp(address or sockets.LOOPBACK, token), token)
        except BaseException:
            self.close()
            raise
        self._proof = sockets.proof_of(token) if url else None

    def _bind_privately(self) -> str | None:
        """Listen at a file in a new folder that only this user can open; ``None`` if there can be none."""
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
        return f"{sockets.PRIVATE}{path}"

    def _bind_tcp(self, address: str, token: str) -> str:
        self.socket.curve_server = 1
        _, self.socket.curve_secretkey = sockets.curve_keys(token)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(f"cannot listen at {address}: {error}") from error
        bound = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self._connections.port = int(bound.rpartition(":")[2])
        return bound

    def receive(self, timeout: float = 0.0) -> Received | None:
        """Return the next message, waiting up to ``timeout`` seconds for one.

        A disconnected client is reported once, after all its messages. ``None`` if nothing has happened.
        """
        if not int(self.socket.EVENTS) & zmq.POLLIN and not (
            timeout and self.socket.poll(math.ceil(1000 * timeout))
        ):
            return self._next_lost()
        sender, *frames = self.socket.recv_multipart(zmq.NOBLOCK, copy=False)
        identity = sender.bytes
        self._connections.heard(frames[0])
        try:
            header, arrays = unpack(frames)
            if (client := self._clients.get(identity)) is None:
                proof = str(header.pop("proof", ""))  # of the token, at a socket file
                if self._proof is not None and not hmac.compare_digest(proof.encode(), self._proof.encode()):
                    raise PermissionError(sockets.WRONG_TOKEN)
                client = self._clients[identity] = Client(self, identity, int(frames[0].get("__fd")), header)
        except (MessageError, PermissionError) as error:
            self.send(identity, {"error": str(error)})
            dropped = self._clients.pop(identity, None)
            return None if dropped is None else (dropped, None, [])
        return client, header, arrays

    def _next_lost(self) -> Received | None:
        """Return a client that has disconnected; its messages have all been received."""
        while self._lost:
            if (client := self._clients.pop(self._lost.popleft(), None)) is not None:
                return client, None, []
        if closed := self._connections.closed:
            now, descriptors = time.monotonic(), {descriptor for descriptor, _ in list(closed)}
            suspects = [own for own, each in self._clients.items() if each.descriptor in descriptors]
            self._lost.extend(each for each in suspects if not self.send(each, {}))  # their last messages first
            while closed and now - closed[0][1] > _SUSPECT_SECONDS:
                closed.popleft()
        return None

    def send(self, identity: bytes, header: Header, arrays: Sequence[Block] = ()) -> bool:
        """Send a message to the client with this identity; as ``Client.send``."""
        try:
            self.socket.send_multipart([identity, *pack(header, arrays)], zmq.NOBLOCK)
        except zmq.Again:
            return True
        except zmq.ZMQError:
            return False
        return True

    def close(self) -> None:
        """Close all connections; sent messages are still transmitted. May be called again."""
        if not self.socket.closed:
            self.socket.disable_monitor()
            self._connections.join()
            sockets.end(self._context, _LINGER_MILLISECONDS)
            self._folder.remove()


class Connections:
    """Watches the connections of a listening socket, in a thread.

    Strangers are connections without any message yet, until their handshake fails. To keep them from using up this
    program's file descriptors, the oldest are closed if there are more than 128. An affected client reconnects.
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
        self.closed: deque[tuple[int, float]] = deque(maxlen=1000)
        """The descriptors of the connections that were closed last, and when they were closed."""
        self.port = 0
        """The port that the socket listens at; 0 at a socket file, where there are no strangers."""
        self._thread = threading.Thread(target=self._watch, name="connections", daemon=True)
        self._thread.start()

    def heard(self, frame: zmq.Frame) -> None:
        """Record a message: its sender has the token."""
        if self._silent:
            with self._lock:
                self._silent.pop(int(frame.get("__fd")), None)

    def _watch(self) -> None:
        """Take note of new and closed connections, and close the oldest silent ones if they are too many."""
        while (event := recv_monitor_message(self._events))["event"] != zmq.EVENT_MONITOR_STOPPED:
            descriptor = event["value"]
            with self._lock:
                self._silent.pop(descriptor, None)
                if event["event"] == zmq.EVENT_ACCEPTED:
                    self._silent[descriptor] = None
                else:
                    self.closed.append((descriptor, time.monotonic()))
                if self.port and len(self._silent) > _MAX_SILENT:
                    oldest = next(iter(self._silent))
                    del self._silent[oldest]
                    self._close(oldest)
        self._events.close()

    def _close(self, descriptor: int) -> None:
        """Shut a connection down, unless ZeroMQ has closed it and another file has its descriptor."""
        with suppress(OSError), socket.fromfd(descriptor, socket.AF_INET, socket.SOCK_STREAM) as connection:
            if connection.getsockname()[1] == self.port:
                connection.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait until the thread has ended, as it does with the socket's monitor."""
        self._thread.join()
