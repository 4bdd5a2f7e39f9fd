"""Where a solver connects: of all that connects, the first that has the token of its run."""

import os
import secrets
import selectors
import socket
import time
from contextlib import ExitStack, suppress

from compss_train._utils import Closable, files
from compss_train.engines import nodes
from compss_train.online.solver_messages import SolverMessages, byte_order_of
from compss_train.online.solver_process import SolverProcess

NOT_CONNECTED = (
    "ended with status 0 and has not connected: does it call compss_train_init, and does its "
    "launcher export COMPSS_TRAIN_SOLVER (mpirun -x COMPSS_TRAIN_SOLVER)?"
)
_MAX_PATH = 100
"""Maximum length of the path of a socket file; systems allow 104 to 108 characters."""
_TICK = 0.05
"""Seconds between checks whether a program that has not connected has ended."""
_HELLO_SECONDS = 5.0
"""How long a connection may take to send its first line."""
_MAX_HELLO = 256
"""Maximum number of bytes of that line."""
_MAX_STRANGERS = 128
"""The most connections without a first line; beyond that the oldest is closed."""


class _Stranger(Closable):
    """A connection whose first line is not complete."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.line = b""
        """What has come of the first line."""
        self.deadline = time.monotonic() + _HELLO_SECONDS
        """When the line must be complete."""

    def read(self) -> bool:
        """Read what has come of the first line; return whether no more of it will."""
        with suppress(BlockingIOError):
            while not self.line.endswith(b"\n") and len(self.line) < _MAX_HELLO:
                byte = self.connection.recv(1)  # what follows the line is left for others
                if not byte:
                    return True
                self.line += byte
            return True
        return False

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class SolverListener(Closable):
    """Listens for one connection, of a solver: at a socket file of this user, or by TCP.

    ``address`` is what the solver gets. It includes the token of a TCP connection, which is sent as
    it is, but only works once. Connections say who they are at the same time, so that none that is
    silent delays the solver.
    """

    def __init__(self, *, tcp: bool) -> None:
        self._folder = files.TemporaryFolder()
        path = os.path.join(self._folder.path, "solver")
        tcp = tcp or len(os.fsencode(path)) > _MAX_PATH
        self._token = secrets.token_urlsafe(16) if tcp else "-"
        self._socket = socket.socket(socket.AF_INET if tcp else socket.AF_UNIX)
        if tcp:
            self._socket.bind((nodes.address_for(()), 0))
            host, port = self._socket.getsockname()
            self.address = f"tcp://{host}:{port}/{self._token}"
        else:
            self._folder.create()
            self.address = path
            self._socket.bind(path)
        self._socket.listen()
        self._socket.setblocking(False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._socket, selectors.EVENT_READ)
        self._strangers: list[_Stranger] = []
        """Connections whose first line is not complete, the oldest first."""

    def accept(self, process: SolverProcess) -> SolverMessages:
        """Wait until the solver connects.

        Raises ``ValueError`` for another version of the header, and ``ChildProcessError`` if the
        solver ends before that.
        """
        while True:
            has_ended = process.status() is not None
            ready = self._selector.select(0 if has_ended else _TICK)
            for key, _ in ready:
                if key.fileobj is self._socket:
                    self._admit()
                    continue
                messages = self._messages_of(key.data)
                if messages is not None:
                    self.close()
                    return messages
            self._drop_late()
            if has_ended and not ready:
                raise process.failure("" if process.status() else NOT_CONNECTED)

    def _admit(self) -> None:
        """Accept the connection that has waited longest, if it is still there."""
        with suppress(OSError):
            connection, _ = self._socket.accept()
            stranger = _Stranger(connection)
            self._strangers.append(stranger)
            self._selector.register(connection, selectors.EVENT_READ, stranger)

    def _messages_of(self, stranger: _Stranger) -> SolverMessages | None:
        """Return the messages of the solver; ``None`` if its line is not complete, or others'."""
        with ExitStack() as stack:
            stack.callback(self._drop, stranger)
            with suppress(OSError):
                if not stranger.read():
                    stack.pop_all()
                    return None
                order = byte_order_of(stranger.line, self._token)
                stack.pop_all()
                self._forget(stranger)
                stranger.connection.setblocking(True)
                return SolverMessages(stranger.connection, order)
        return None

    def _forget(self, stranger: _Stranger) -> None:
        self._selector.unregister(stranger.connection)
        self._strangers.remove(stranger)

    def _drop(self, stranger: _Stranger) -> None:
        self._forget(stranger)
        stranger.close()

    def _drop_late(self) -> None:
        """Close connections that take too long, and the oldest if there are too many."""
        now = time.monotonic()
        while self._strangers and (
            len(self._strangers) > _MAX_STRANGERS or self._strangers[0].deadline < now
        ):
            self._drop(self._strangers[0])

    def close(self) -> None:
        """Listen no more; close all other connections."""
        for stranger in list(self._strangers):
            self._drop(stranger)
        self._selector.close()
        self._socket.close()
        self._folder.remove()
