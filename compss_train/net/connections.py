"""The connections of a server's socket: which were closed, and which have sent nothing yet."""

import os
import socket
import threading
import time
from contextlib import ExitStack, suppress

import zmq
from zmq.utils.monitor import recv_monitor_message

from compss_train.net import sockets

_MAX_SILENT = 128
"""The most connections without any message."""


class Connections:
    """Watches the connections of a listening socket, in a thread.

    Strangers are connections without any message yet, until their handshake fails. To keep them
    from using up this program's file descriptors, the oldest are closed if there are more than
    ``_MAX_SILENT``. An affected client reconnects.
    """

    def __init__(self, context: sockets.Context, socket: sockets.Socket) -> None:
        events = zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED | zmq.EVENT_MONITOR_STOPPED
        name = f"inproc://connections-{id(socket)}"
        socket.monitor(name, events)
        self._events = context.socket(zmq.PAIR)
        self._events.setsockopt(zmq.RCVHWM, 0)  # ZeroMQ's own thread would wait for this one
        self._events.connect(name)
        self._silent: dict[int, None] = {}
        """The descriptors of connections without a message, oldest first."""
        self._lock = threading.Lock()
        self._closed: dict[int, float] = {}
        """When connections were closed, by their descriptors."""
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
            self._closed = {
                descriptor: when for descriptor, when in self._closed.items() if when >= before
            }

    def end(self, descriptor: int, since: float) -> None:
        """Shut a connection down, unless it was closed since this time."""
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
        while (message := recv_monitor_message(self._events))["event"] != zmq.EVENT_MONITOR_STOPPED:
            descriptor = message["value"]
            with self._lock:
                self._silent.pop(descriptor, None)
                if message["event"] == zmq.EVENT_ACCEPTED:
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
            place = name[1] if isinstance(name, tuple) else name
            if place == self.place:
                connection.shutdown(socket.SHUT_RDWR)

    def join(self) -> None:
        """Wait until the thread has ended, as it does with the socket's monitor."""
        self._thread.join()
