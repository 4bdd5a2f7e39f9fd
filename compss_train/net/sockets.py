"""ZeroMQ sockets that nobody without the token can use, for servers and clients.

Over TCP both ends use ZeroMQ's CURVE (CurveZMQ, RFC 26 of ZeroMQ), with keys that follow from the token
(``tokens.curve_keys``): it authenticates both before anything is routed or kept, and encrypts. On one machine a
server listens at a socket file in a folder that only its user can open, which needs no encryption.
"""

import os
import socket as sockets
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import Any, TypeAlias

import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train._utils.files import TemporaryFolder
from compss_train.net.messages import PIECE
from compss_train.net.tokens import curve_keys

Socket: TypeAlias = zmq.Socket[Any]

_MAX_FRAME_BYTES = PIECE + 2**12  # encryption adds some
HANDSHAKE_MILLISECONDS = 10_000
_MAX_SILENT = 128
_KEEPALIVE = {"TCP_KEEPALIVE": 1, "TCP_KEEPALIVE_IDLE": 10, "TCP_KEEPALIVE_INTVL": 5, "TCP_KEEPALIVE_CNT": 3}
"""An idle connection to a node that failed is closed after 25 seconds."""
_MAX_PATH = 100
"""Maximum length of the path of a socket file; systems allow 104 to 108 characters."""
LOOPBACK = "tcp://127.0.0.1:*"
PRIVATE = "ipc://"
"""The start of the addresses of socket files."""

HANDSHAKE_FAILED = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


class ServerSocket:
    """A listening socket, and its ``address``.

    Raises ``OSError`` if it cannot listen, and ``ValueError`` for an address that is not ``None`` or of TCP.
    """

    def __init__(self, address: str | None, token: str) -> None:
        if address is not None and not (isinstance(address, str) and address.startswith("tcp://")):
            raise ValueError(f"address={address!r}: give tcp://HOST:PORT, or None for this machine only")
        self.context = zmq.Context()
        self.socket: Socket = self.context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 1)  # a client that connects again keeps its identity
        self.socket.setsockopt(zmq.RCVHWM, 256)
        self.socket.setsockopt(zmq.LINGER, 1000)
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, HANDSHAKE_MILLISECONDS)  # in all, however slowly bytes arrive
        self.socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
        _keep_alive(self.socket)
        self.connections = Connections(self.context, self.socket)
        self._folder = TemporaryFolder()
        try:
            private = self._bind_privately() if address is None else None
            self.address = private or self._bind_tcp(address or LOOPBACK, token)
        except BaseException:
            self.close(0)
            raise

    @property
    def private(self) -> bool:
        """Whether it listens at a socket file, which nobody else can open."""
        return self.address.startswith(PRIVATE)

    def _bind_privately(self) -> str | None:
        """Listen at a file in a new folder that only this user can open; ``None`` if there can be none."""
        path = os.path.join(self._folder.path, "server")
        if len(path.encode()) > _MAX_PATH or not zmq.has("ipc"):
            return None
        weakref.finalize(self, self._folder.remove)
        try:
            self._folder.create()
            self.socket.bind(f"{PRIVATE}{path}")
        except OSError:  # a full disk, for example; ZMQError is one, too
            self._folder.remove()
            return None
        return f"{PRIVATE}{path}"

    def _bind_tcp(self, address: str, token: str) -> str:
        self.socket.curve_server = 1
        _, self.socket.curve_secretkey = curve_keys(token)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:
            raise OSError(f"cannot listen at {address}: {error}") from error
        bound = self.socket.getsockopt_string(zmq.LAST_ENDPOINT)
        self.connections.port = int(bound.rpartition(":")[2])
        return bound

    def close(self, milliseconds: int) -> None:
        """Send what is waiting, for at most this time, and close; may be called again."""
        if self.socket.closed:
            return
        self.socket.disable_monitor()
        self.connections.join()
        self.context.destroy(milliseconds)
        self._folder.remove()


class Connections:
    """Watches the connections of a listening socket, in a thread.

    Strangers are those from whom no message has come, until their handshake fails. So that they cannot use up the
    file descriptors of this program the oldest are closed when there are more than 128. A client that this affects
    connects again.
    """

    def __init__(self, context: zmq.Context[Socket], socket: Socket) -> None:
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
        """Shut a connection down, if the descriptor is not another file's by now: ZeroMQ closes it then."""
        with suppress(OSError), sockets.fromfd(descriptor, sockets.AF_INET, sockets.SOCK_STREAM) as connection:
            if connection.getsockname()[1] == self.port:
                connection.shutdown(sockets.SHUT_RDWR)

    def join(self) -> None:
        """Wait until the thread has ended, as it does with the socket's monitor."""
        self._thread.join()


def client_socket(context: zmq.Context[Socket], address: str, token: str, identity: str = "") -> Socket:
    """Return a socket that is ready to connect to the address of a server."""
    socket: Socket = context.socket(zmq.DEALER)
    if identity:
        socket.setsockopt_string(zmq.IDENTITY, identity)
    socket.setsockopt(zmq.LINGER, 0)
    socket.setsockopt(zmq.MAXMSGSIZE, _MAX_FRAME_BYTES)
    _keep_alive(socket)
    if not address.startswith(PRIVATE):
        socket.curve_serverkey, _ = curve_keys(token)
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    return socket


def _keep_alive(socket: Socket) -> None:
    for name, value in _KEEPALIVE.items():
        socket.setsockopt(getattr(zmq, name), value)
