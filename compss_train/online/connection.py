"""Messages over TCP between the parts of an online fit, which may run on different nodes.

A message is the length of its header (four bytes, little-endian), the header as JSON, the code of both, the bytes
of the arrays that the header lists under ``arrays``, ``[[dtype, shape], ...]``, one after the other, and their code
if there are any (``authentication.MessageCodes``). Nothing is pickled. The first message on an authenticated
connection is the client's handshake with its ``role``. docs/online.md lists all messages.
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train._utils.closing import Closable
from compss_train.data.block import Block
from compss_train.net.messages import MessageError, array_sizes, pack, unpack
from compss_train.online.authentication import (
    CODE_BYTES,
    ConnectionLostError,
    MessageCodes,
    accept_client,
    join_listener,
)

Header: TypeAlias = dict[str, Any]
Message: TypeAlias = tuple[Header, list[torch.Tensor]]

_LENGTH = struct.Struct("<I")
_MAX_HEADER_BYTES = 2**24
_MAX_COPIED_BYTES = 2**16  # copying an array of at most this size costs less than a system call
_READ_BUFFER_BYTES = 2**16
_HANDSHAKE_SECONDS = 10.0
_CONNECT_SECONDS = 60.0  # threads of a busy coordinator may be late
_MAX_STRANGERS = 128
_RETRY_SECONDS = 0.05
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""An idle connection to a node that failed is closed after 25 seconds."""


@dataclass(frozen=True)
class Address:
    """Host and port of a listener, and the token that it requires."""

    host: str
    port: int
    token: str = field(repr=False)

    def connect(self, handshake: Header) -> Connection:
        """Connect and send the handshake.

        Raises ``OSError`` if the connection is refused, ``PermissionError`` for a wrong token.
        """
        sock = socket.create_connection((self.host, self.port), _HANDSHAKE_SECONDS)
        try:
            connection = Connection(sock, join_listener(sock, self.token, _CONNECT_SECONDS))
            connection.send(handshake)
        except BaseException:
            sock.close()
            raise
        return connection

    def greet(self, handshake: Header) -> tuple[Connection, Message]:
        """Connect, and return the connection and the answer to the handshake.

        Raises what ``connect`` and ``Connection.receive`` raise; the connection is closed then.
        """
        connection = self.connect(handshake)
        try:
            return connection, connection.receive()
        except BaseException:
            connection.close()  # or the listener would take this client for connected
            raise


class Connection(Closable):
    """Sends messages from any thread, and receives them in one thread; both ends have been authenticated."""

    def __init__(self, sock: socket.socket, codes: MessageCodes) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        self._socket, self._codes = sock, codes
        self._reader = SocketReader(sock)
        self._send_lock = threading.Lock()

    @property
    def local_host(self) -> str:
        """The address of this machine as the peer sees it."""
        return str(self._socket.getsockname()[0])

    def hide(self, secret: str) -> str:
        """Return a secret as only the peer can read it (``MessageCodes.hide``)."""
        return self._codes.hide(secret)

    def reveal(self, hidden: str) -> str:
        """Return a secret that the peer has hidden."""
        return self._codes.reveal(hidden)

    def send(self, header: Header, arrays: Sequence[Block] = ()) -> None:
        """Send a message; blocks while the peer does not read.

        Raises ``ConnectionLostError``, and ``MessageError`` for a header that is too large.
        """
        head, *rest = pack(header, arrays)
        if len(head) > _MAX_HEADER_BYTES:
            raise MessageError(
                f"a message whose header has {len(head)} bytes; the maximum is {_MAX_HEADER_BYTES}: give it fewer "
                "arrays, and shorter texts"
            )
        length = _LENGTH.pack(len(head))
        try:
            with self._send_lock:
                parts = [length, head, self._codes.sign(length, head), *rest]
                self._send_parts([*parts, self._codes.sign(*rest)] if any(map(len, rest)) else parts)
        except OSError as error:
            raise ConnectionLostError(f"connection lost: {error}") from error

    def _send_parts(self, parts: Sequence[bytes | memoryview]) -> None:
        """Send small parts together, and large ones without copying them."""
        small: list[bytes | memoryview] = []
        for part in parts:
            if len(part) <= _MAX_COPIED_BYTES:
                small.append(part)
                continue
            self._socket.sendall(b"".join(small))
            self._socket.sendall(part)
            small = []
        self._socket.sendall(b"".join(small))

    def receive(self) -> Message:
        """Wait for the next message; raises ``ConnectionLostError``, and ``MessageError`` for malformed data."""
        head = self._receive_header()
        arrays = [self._read(size) for size in array_sizes(head)]
        if any(array.nbytes for array in arrays):
            self._codes.check(self._read(CODE_BYTES).data, *(array.data for array in arrays))
        return unpack([head, *arrays])

    def has_message(self) -> bool:
        """Return True if data have arrived, so that ``receive`` would hardly wait."""
        return self._reader.has_data()

    def drain(self) -> None:
        """Discard data until the peer closes: closing first could drop the last message sent."""
        with contextlib.suppress(OSError):
            while len(self._reader.read(_READ_BUFFER_BYTES)):
                pass

    def receive_handshake(self) -> Header:
        """Receive the first message; it may have no arrays."""
        self._socket.settimeout(_HANDSHAKE_SECONDS)
        head = self._receive_header()
        if array_sizes(head):
            raise MessageError("the handshake has arrays")
        self._socket.settimeout(None)
        handshake = unpack([head])[0]
        if not isinstance(handshake.get("role"), str):
            raise MessageError("the handshake has no role")
        return handshake

    def _receive_header(self) -> bytes:
        size = self._read(_LENGTH.size).tobytes()
        (length,) = _LENGTH.unpack(size)
        if length > _MAX_HEADER_BYTES:
            raise ConnectionLostError(f"a message is not as it was sent: its header has {length} bytes")
        data = self._read(length + CODE_BYTES).tobytes()
        self._codes.check(data[length:], size, data[:length])
        return data[:length]

    def _read(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        try:
            data = self._reader.read(size)
        except MemoryError as error:
            raise MessageError(f"an array of {size} bytes") from error
        except OSError as error:
            raise ConnectionLostError(f"connection lost: {error}") from error
        if len(data) != size:
            raise ConnectionLostError("the peer closed the connection")
        return data

    def close(self) -> None:
        """Close the socket; a pending ``receive`` raises ``ConnectionLostError``. Sent messages still arrive."""
        _shut_down(self._socket)
        self._socket.close()


class SocketReader:
    """Buffered blocking reads from a socket, for one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._memory = memoryview(bytearray(_READ_BUFFER_BYTES))
        self._start = self._end = 0
        self._poll = select.poll()  # select() is limited to 1024 file descriptors
        self._poll.register(sock, select.POLLIN)

    def read(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the next ``size`` bytes, or fewer if the peer closed before."""
        data = np.empty(size, np.uint8)
        into, got = data.data, 0
        while got < size:
            if self._start == self._end and size - got < _READ_BUFFER_BYTES:
                self._start, self._end = 0, self._socket.recv_into(self._memory)
            number = min(size - got, self._end - self._start)
            if number:
                into[got : got + number] = self._memory[self._start : self._start + number]
                self._start += number
            else:
                number = self._socket.recv_into(into[got:]) if size - got >= _READ_BUFFER_BYTES else 0
            if not number:
                return data[:got]
            got += number
        return data

    def has_data(self) -> bool:
        """Return True if there are unread data, or the peer has closed."""
        return self._start < self._end or bool(self._poll.poll(0))


class Listener(Closable):
    """Accepts connections that present the token, and calls ``handler`` for each in a thread of its own.

    ``role`` is the only role that is accepted, ``None`` for any.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        token: str,
        handler: Callable[[Connection, Header], None],
        role: str | None = None,
    ) -> None:
        self._handler, self._token, self._role = handler, token, role
        self._strangers: dict[socket.socket, None] = {}  # not authenticated yet, in the order of their connections
        self._trusted: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._closed = threading.Event()
        try:
            self._socket = socket.create_server((host, port), backlog=256)
        except OSError as error:
            raise OSError(f"cannot listen at {host}:{port}: {error}") from error
        self.address = Address(host, self._socket.getsockname()[1], token)
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)

    def start(self) -> None:
        """Start to accept; connections made before are served from now on."""
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                self._admit(self._socket.accept()[0])
            except Exception:  # closed, or too many files are open, or no thread can be started
                self._closed.wait(_RETRY_SECONDS)

    def _admit(self, sock: socket.socket) -> None:
        """Serve a new connection in a thread; of too many that are not authenticated yet, close the oldest."""
        with self._lock:
            if self._closed.is_set():  # meanwhile
                sock.close()
                return
            self._strangers[sock] = None
            if len(self._strangers) > _MAX_STRANGERS:
                oldest = next(iter(self._strangers))
                del self._strangers[oldest]
                _shut_down(oldest)  # its thread closes it
        try:
            threading.Thread(target=self._serve, args=[sock], name="connection", daemon=True).start()
        except BaseException:
            self._forget(sock)
            raise

    def _serve(self, sock: socket.socket) -> None:
        try:
            codes = accept_client(sock, self._token, _HANDSHAKE_SECONDS)
            if codes is not None:
                self._serve_client(self._trust(sock, codes))
        except (OSError, MessageError):
            pass  # disconnected, or not a client of ours
        finally:
            self._forget(sock)

    def _trust(self, sock: socket.socket, codes: MessageCodes) -> Connection:
        """Return the connection of a client that has proved that it has the token."""
        with self._lock:
            if self._closed.is_set():
                raise ConnectionLostError("the listener was closed")
            self._strangers.pop(sock, None)
            self._trusted.add(sock)
        return Connection(sock, codes)

    def _serve_client(self, connection: Connection) -> None:
        handshake = connection.receive_handshake()
        if self._role not in (None, handshake["role"]):
            connection.send({"error": f"role {handshake['role']!r}; this address accepts {self._role!r}"})
        else:
            self._handler(connection, handshake)

    def _forget(self, sock: socket.socket) -> None:
        with self._lock:
            self._strangers.pop(sock, None)
            self._trusted.discard(sock)
        _shut_down(sock)
        sock.close()

    def close(self) -> None:
        """Stop accepting, and close all connections."""
        with self._lock:
            self._closed.set()
            connections = [*self._strangers, *self._trusted]
        _shut_down(self._socket)
        self._socket.close()
        for sock in connections:
            _shut_down(sock)  # its thread closes it


def _shut_down(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
