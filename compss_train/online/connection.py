"""Connections: messages over TCP between the parts of an online fit, which may be on different nodes.

A message is the length of its header (four bytes, the lowest first), the header in JSON, and the bytes of the
arrays that the header's ``arrays`` announces, ``[[dtype, shape], ...]``, one after the other. Nothing is pickled.
The first message of whoever connects has ``hello`` (what it is) and ``token``. docs/online.md describes them all.
"""

from __future__ import annotations

import contextlib
import hmac
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
from compss_train.parameter_server.messages import WireError, array_sizes, pack, unpack

Header: TypeAlias = "dict[str, Any]"
Message: TypeAlias = "tuple[Header, list[torch.Tensor]]"

_LENGTH = struct.Struct("<I")
_LARGEST_HEADER = 2**24
_SMALL = 2**16  # bytes of an array up to which copying it costs less than a call of the system
_HELLO_SECONDS = 10.0
_RETRY_SECONDS = 0.05
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3}
"""A node that is gone without a word is noticed after 25 seconds, by those who have nothing on their way to it."""


class ConnectionLostError(OSError):
    """The other side is gone."""


@dataclass(frozen=True)
class Address:
    """Where somebody listens, and what is to be said there."""

    host: str
    port: int
    token: str = field(repr=False)

    def connect(self, hello: Header, timeout: float = _HELLO_SECONDS) -> Connection:
        """Connect and say hello; raises ``OSError`` where nobody listens."""
        sock = socket.create_connection((self.host, self.port), timeout)
        sock.settimeout(None)
        connection = Connection(sock)
        try:
            connection.send({**hello, "token": self.token})
        except BaseException:
            connection.close()
            raise
        return connection


class Connection(Closable):
    """Sends messages, from any thread, and receives them, in one thread."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, seconds in _KEEPALIVE.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)
        self._socket = sock
        self._reader = SocketReader(sock)
        self._sending = threading.Lock()

    @property
    def own_host(self) -> str:
        """This machine's address as the other side sees it."""
        return str(self._socket.getsockname()[0])

    def send(self, header: Header, arrays: Sequence[Block] = ()) -> None:
        """Send a message; waits while the other side does not read. Raises ``ConnectionLostError``."""
        head, *rest = pack(header, arrays)
        parts = [_LENGTH.pack(len(head)), head]
        try:
            with self._sending:
                for part in rest:
                    parts.append(part)
                    if part.nbytes > _SMALL:
                        self._socket.sendall(b"".join(parts[:-1]))
                        self._socket.sendall(part)
                        parts = []
                self._socket.sendall(b"".join(parts))
        except OSError as error:
            raise ConnectionLostError(f"the other side is gone: {error}") from error

    def receive(self) -> Message:
        """Wait for the next message; raises ``ConnectionLostError``, and ``WireError`` for what is none."""
        head = self._header()
        return unpack([head, *(self._read(size) for size in array_sizes(head))])

    def has_message(self) -> bool:
        """Tell whether something has come, so that ``receive`` would hardly wait."""
        return self._reader.has_some()

    def drain(self) -> None:
        """Forget what comes until the other side closes: closing first could take from it what was sent last."""
        with contextlib.suppress(OSError):
            while len(self._reader.read(_SMALL)):
                pass

    def receive_hello(self) -> Header:
        """Receive the first message, which has no arrays and does not keep us waiting."""
        self._socket.settimeout(_HELLO_SECONDS)
        head = self._header()
        if array_sizes(head):
            raise WireError("arrays came before a token")
        self._socket.settimeout(None)
        hello = unpack([head])[0]
        if not isinstance(hello.get("hello"), str):
            raise WireError("the first message does not say hello")
        return hello

    def _header(self) -> bytes:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size).data)
        if length > _LARGEST_HEADER:
            raise WireError(f"a header of {length} bytes: this is no message")
        return self._read(length).tobytes()

    def _read(self, size: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
        try:
            data = self._reader.read(size)
        except MemoryError as error:
            raise WireError(f"an array of {size} bytes") from error
        except OSError as error:
            raise ConnectionLostError(f"the other side is gone: {error}") from error
        if len(data) != size:
            raise ConnectionLostError("the other side has closed the connection")
        return data

    def close(self) -> None:
        """Close it; whoever waits for a message gets ``ConnectionLostError``. What was sent before arrives."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Listener(Closable):
    """Accepts connections of those who know the token, and gives each to ``serve`` in a thread of its own.

    ``role`` is what all of them are, ``None`` for anything.
    """

    def __init__(
        self,
        host: str,
        port: int,
        token: str,
        serve: Callable[[Connection, Header], None],
        role: str | None = None,
    ) -> None:
        self._serve, self._token, self._role = serve, token, role
        self._open: set[Connection] = set()
        self._changing = threading.Lock()
        self._closed = threading.Event()
        try:
            self._socket = socket.create_server((host, port), backlog=256)
        except OSError as error:
            raise OSError(f"cannot listen at {host}:{port}: {error}") from error
        self.address = Address(host, self._socket.getsockname()[1], token)
        self._thread = threading.Thread(target=self._accept, name="listener", daemon=True)

    def start(self) -> None:
        """Begin to accept; who has connected before is served now."""
        self._thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                connection = Connection(self._socket.accept()[0])
            except OSError:  # closed, or gone before it was accepted, or there are too many open files
                self._closed.wait(_RETRY_SECONDS)
                continue
            with self._changing:
                if self._closed.is_set():  # meanwhile
                    connection.close()
                    return
                self._open.add(connection)
            threading.Thread(target=self._talk, args=[connection], name="connection", daemon=True).start()

    def _talk(self, connection: Connection) -> None:
        try:
            hello = connection.receive_hello()
            if not self._knows_token(hello):
                connection.send({"error": "the token is not the one that is asked for here"})
            elif self._role not in (None, hello["hello"]):
                connection.send({"error": f"this is for {self._role}, not for {hello['hello']}"})
            else:
                self._serve(connection, hello)
        except (OSError, WireError):
            pass  # it is gone, or is none of ours
        finally:
            with self._changing:
                self._open.discard(connection)
            connection.close()

    def _knows_token(self, hello: Header) -> bool:
        token = str(hello.get("token")).encode(errors="surrogatepass")
        return hmac.compare_digest(token, self._token.encode())

    def close(self) -> None:
        """Accept nothing more, and close all connections."""
        with self._changing:
            self._closed.set()
            connections = list(self._open)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        for connection in connections:
            connection.close()


_SIZE = 2**16


class SocketReader:
    """Reads so many bytes, waiting for them; for one thread."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._memory = memoryview(bytearray(_SIZE))
        self._start = self._end = 0
        self._waiting = select.poll()  # select() knows no more than 1024 files
        self._waiting.register(sock, select.POLLIN)

    def read(self, size: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
        """Return the next ``size`` bytes, or fewer where the other side has closed before."""
        data = np.empty(size, np.uint8)
        into, got = data.data, 0
        while got < size:
            if self._start == self._end and size - got < _SIZE:
                self._start, self._end = 0, self._socket.recv_into(self._memory)
            number = min(size - got, self._end - self._start)
            if number:
                into[got : got + number] = self._memory[self._start : self._start + number]
                self._start += number
            else:
                number = self._socket.recv_into(into[got:]) if size - got >= _SIZE else 0
            if not number:
                return data[:got]
            got += number
        return data

    def has_some(self) -> bool:
        """Tell whether something has come that was not read yet, or the end."""
        return self._start < self._end or bool(self._waiting.poll(0))
