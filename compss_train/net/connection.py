"""A client's connection: messages arrive in order, or it is lost. It never reconnects itself."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train._utils import Closable, validation
from compss_train.net import sockets
from compss_train.net.messages import Header, Message, pack, unpack

if TYPE_CHECKING:
    from compss_train.data.block import Block

_MAX_REFUSALS = 5
"""How often a handshake may fail before the token counts as wrong.

A server that has many strangers closes connections.
"""
_RETRY_SECONDS = 0.05
_POLL_MILLISECONDS = 100
_CONNECT_SECONDS = 30.0


class ConnectionLostError(OSError):
    """The peer has closed the connection, or it broke."""


@dataclass(frozen=True)
class Address:
    """Where a server listens, such as ``tcp://10.0.0.5:5555``, and the token that it requires.

    Raises ``ValueError`` for what is neither that nor a socket file.
    """

    url: str
    token: str = field(repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.url, str) or not self.url.startswith(sockets.PRIVATE):
            validation.host_and_port(self.url)

    def connect(
        self,
        greeting: Header,
        context: sockets.Context | None = None,
        timeout: float = _CONNECT_SECONDS,
    ) -> Connection:
        """Connect and send the first message, which says what this client is.

        Raises ``ConnectionRefusedError`` if nothing listens, ``TimeoutError`` if nothing answers
        for ``timeout`` seconds, and ``PermissionError`` for a wrong token.
        """
        connection = Connection(self, context, timeout)
        try:
            if self.url.startswith(sockets.PRIVATE):
                greeting = greeting | {"proof": sockets.proof_of(self.token)}
            connection.send(greeting)
        except BaseException:
            connection.close()
            raise
        return connection


class Connection(Closable):
    """Sends and receives messages; for one thread at a time."""

    def __init__(self, address: Address, context: sockets.Context | None, timeout: float) -> None:
        self._url = address.url
        self._context = context or zmq.Context()
        self._owns_context = context is None
        self._lost = True
        for _ in range(_MAX_REFUSALS):
            if self._open(address, timeout):
                self._lost = False
                return
            self._close_socket()
            time.sleep(_RETRY_SECONDS)
        self.close()
        raise PermissionError(
            f"{self._url}: {sockets.WRONG_TOKEN}, or another program listens there"
        )

    def _open(self, address: Address, timeout: float) -> bool:
        """Connect; return False if the handshake has failed."""
        self._socket = sockets.client_socket(self._context, address.url, address.token)
        ended = sockets.HANDSHAKE_FAILED | zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED
        self._monitor = self._socket.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | ended)
        self.poller = zmq.Poller()
        """Finds messages and the connection's loss; callers may add what else they wait for."""
        self.poller.register(self._monitor, zmq.POLLIN)
        self._sending = zmq.Poller()
        """Finds room for a message, and the loss of the connection."""
        self._sending.register(self._monitor, zmq.POLLIN)
        try:
            self._socket.connect(address.url)
        except zmq.ZMQError as error:  # of a path that is too long, for example
            self.close()
            raise ValueError(f"address={self._url!r}: {error}") from error
        if not self.poller.poll(math.ceil(1000 * timeout)):
            self.close()
            raise TimeoutError(f"{self._url} does not answer")
        event = recv_monitor_message(self._monitor)["event"]
        if event == zmq.EVENT_CLOSED:
            self.close()
            raise ConnectionRefusedError(f"nobody listens at {self._url}")
        self.poller.register(self._socket, zmq.POLLIN)
        self._sending.register(self._socket, zmq.POLLOUT)
        return bool(event == zmq.EVENT_HANDSHAKE_SUCCEEDED)

    def send(self, header: Header, arrays: Sequence[Block] = (), *, copy: bool = True) -> None:
        """Send a copy of a message.

        Raises ``ConnectionLostError``, and ``ValueError`` for a header that is too large.

        Without ``copy`` nobody may write to the arrays' memory any more: they are sent later.
        """
        first, *frames = pack(header, arrays)
        if not copy:
            frames = [zmq.Frame(frame, copy=False) for frame in frames]
        self.send_frames([first, *frames])

    def send_frames(self, frames: Sequence[Any]) -> None:
        """Send a packed message, without copying frames of ZeroMQ.

        Raises ``ConnectionLostError``.
        """
        while not self.is_lost:  # otherwise ZeroMQ would keep them until it connects again
            try:
                self._socket.send_multipart(frames, zmq.NOBLOCK)
                return
            except zmq.Again:  # the peer does not read, or is gone
                self._wait(self._sending, _POLL_MILLISECONDS)
        self._check()

    def receive(self, timeout: float | None = None) -> Message | None:
        """Wait for the next message; return ``None`` after ``timeout`` seconds without one.

        Raises ``ConnectionLostError``, ``MessageError`` for malformed data, and ``PermissionError``
        if the server has refused the token.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                header, arrays = unpack(sockets.receive_frames(self._socket))
            except zmq.Again:
                # ZeroMQ tells that a connection is lost a moment before it hands over its last
                # message.
                if self._lost and self._socket.poll(_POLL_MILLISECONDS):
                    continue
                self._check()
                seconds = math.inf if deadline is None else max(0.0, deadline - time.monotonic())
                has_news = self._wait(self.poller, min(_POLL_MILLISECONDS, 1000 * seconds))
                if not has_news and not seconds:
                    return None
                continue
            if header.get("error") == sockets.WRONG_TOKEN:
                raise PermissionError(f"{self._url}: {sockets.WRONG_TOKEN}")
            if header:  # otherwise the server asked whether this client is still there
                return header, arrays

    @property
    def is_lost(self) -> bool:
        """Whether the connection is known to be lost; messages that arrived before may be left."""
        self._lost = self._lost or bool(int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN)
        return self._lost

    def _wait(self, poller: zmq.Poller, milliseconds: float) -> bool:
        """Wait for what a poller finds; what arrived before a loss can still be received."""
        ready = dict(poller.poll(math.ceil(milliseconds)))
        self._lost = self._lost or self._monitor in ready
        return self._monitor in ready or self._socket in ready

    def _check(self) -> None:
        if self._lost:
            raise ConnectionLostError(f"the connection to {self._url} is lost")

    def close(self) -> None:
        """Disconnect once everything sent has been transmitted; may be called again."""
        self._close_socket()
        if self._owns_context:
            sockets.end(self._context, sockets.LINGER_MILLISECONDS)

    def _close_socket(self) -> None:
        if not self._socket.closed:
            lost = self.is_lost
            self._socket.disable_monitor()
            self._monitor.close()
            self._socket.close(0 if lost else sockets.LINGER_MILLISECONDS)
