"""Event server of the coordinator: turns the messages of all clients into one queue of events.

Clients are workers, simulations, external senders and evaluations. ``TaskLiveness`` keeps the connection state of
a task.
"""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from compss_train._utils.closing import Closable
from compss_train.data.block import Block
from compss_train.net.messages import MessageError
from compss_train.net.tokens import new_token
from compss_train.online.authentication import ConnectionLostError
from compss_train.online.connection import Connection, Header, Listener

RECONNECT_SECONDS = 120.0
"""How long a task may take to reconnect after its process died, for engines that cannot report a lost task."""


class Client:
    """A client that is connected to the coordinator."""

    def __init__(self, connection: Connection, handshake: Header) -> None:
        self._connection = connection
        self.role = str(handshake["role"])
        """worker, simulation, sender or evaluation."""
        self.number: Any = handshake.get("number")
        self.name: Any = handshake.get("name")

    def send(self, header: Header, arrays: Sequence[Block] = ()) -> None:
        """Send a message. Ignored if disconnected; a disconnect event follows."""
        with suppress(ConnectionLostError):
            self._connection.send(header, arrays)

    def hide(self, secret: str) -> str:
        """Return a secret as only this client can read it."""
        return self._connection.hide(secret)

    def send_in_background(self, header: Header, load_arrays: Callable[[], Sequence[Block]]) -> None:
        """Load and send large arrays in a thread, without waiting for it."""
        threading.Thread(target=lambda: self.send(header, load_arrays()), name="send", daemon=True).start()


@dataclass(frozen=True)
class Event:
    """A message of a client; the first one is its handshake. ``header`` is ``None`` if it disconnected."""

    client: Client
    header: Header | None
    arrays: Sequence[torch.Tensor] = ()


class EventServer(Closable):
    """Queues the messages of all clients for one thread, so that the coordinator's state needs no locks.

    The fit's own tasks present a secret that is generated for each fit. ``store_checkpoint`` gets workers'
    checkpoints in the threads that receive them, as they may be large.
    """

    def __init__(self, host: str, store_checkpoint: Callable[[int, torch.Tensor], None]) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._store_checkpoint = store_checkpoint
        self._listeners: list[Listener] = []
        self.address = self._listen(host, 0, new_token()).address

    def listen_for_senders(self, host: str, port: int, token: str) -> None:
        """Listen at another address, for senders only, which present this token."""
        self._listen(host, port, token, "sender")

    def _listen(self, host: str, port: int, token: str, role: str | None = None) -> Listener:
        listener = Listener(host, port, token=token, handler=self._serve, role=role)
        self._listeners.append(listener)
        listener.start()
        return listener

    def _serve(self, connection: Connection, handshake: Header) -> None:
        client = Client(connection, handshake)
        self._events.put(Event(client, handshake))
        try:
            while True:
                header, arrays = connection.receive()
                if "checkpoint" in header and client.role == "worker":
                    header, arrays = self._store(int(client.number), header, arrays[0]), []
                self._events.put(Event(client, header, arrays))
        except (OSError, MessageError):
            pass
        finally:
            self._events.put(Event(client, None))

    def _store(self, worker: int, header: Header, checkpoint: torch.Tensor) -> Header:
        """Store a checkpoint; if that fails, the event says why, and the worker goes on."""
        try:
            self._store_checkpoint(worker, checkpoint)
        except OSError as error:
            return {"not_stored": str(error)}
        return header

    def next(self, timeout: float) -> Event | None:
        """Return the next event, ``None`` after ``timeout`` seconds."""
        try:
            return self._events.get(timeout=timeout)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Close all connections; simulations and workers then end."""
        for listener in self._listeners:
            listener.close()


class TaskLiveness:
    """Connection state of one submitted task."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._disconnected_since = clock()
        self.client: Client | None = None
        """The current connection."""
        self.has_connected = False
        """Whether it was ever connected."""

    def connect(self, client: Client) -> None:
        """Mark as connected."""
        self.client, self.has_connected = client, True

    def disconnect(self) -> None:
        """Mark as disconnected."""
        self.client, self._disconnected_since = None, self._clock()

    @property
    def seconds_disconnected(self) -> float:
        """Seconds since it was submitted or disconnected; 0 while it is connected."""
        return self._clock() - self._disconnected_since if self.client is None else 0.0

    @property
    def is_lost(self) -> bool:
        """Whether it was connected and has not reconnected in time."""
        return self.has_connected and self.seconds_disconnected > RECONNECT_SECONDS
