"""The coordinator's ear: what workers, simulations and other senders say, one event after the other."""

from __future__ import annotations

import queue
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch

from compss_train._utils.closing import Closable
from compss_train.data.block import Block
from compss_train.online.connection import Connection, ConnectionLostError, Header, Listener
from compss_train.parameter_server.messages import WireError


class Client:
    """Somebody who is connected to the coordinator."""

    def __init__(self, connection: Connection, hello: Header) -> None:
        self._connection = connection
        self.role = str(hello["hello"])
        """What it is: worker, simulation, sender or evaluation."""
        self.number: Any = hello.get("number")
        self.name: Any = hello.get("name")

    def tell(self, header: Header, arrays: Sequence[Block] = ()) -> None:
        """Say something; one who is gone does not hear it, which its leaving will tell."""
        with suppress(ConnectionLostError):
            self._connection.send(header, arrays)

    def tell_aside(self, header: Header, arrays: Callable[[], Sequence[Block]]) -> None:
        """Say something large, that is read meanwhile, without waiting for it."""
        threading.Thread(target=lambda: self.tell(header, arrays()), name="telling", daemon=True).start()


@dataclass(frozen=True)
class Event:
    """What a peer has said; ``header`` is ``None`` where it has left."""

    peer: Client
    header: Header | None
    arrays: Sequence[torch.Tensor] = ()


class Director(Closable):
    """Listens, and lets one thread take all that is said, so that nothing of the coordinator's needs locks.

    The fit's own tasks have a secret of the fit's, which nobody else can know. ``keep`` is given what workers save,
    in the threads that receive it, as it may be large.
    """

    def __init__(self, host: str, keep: Callable[[int, torch.Tensor], None]) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._keep = keep
        self._listeners = [Listener(host, 0, secrets.token_urlsafe(16), self._serve)]
        self.address = self._listeners[0].address
        self._listeners[0].start()

    def let_in_senders(self, host: str, port: int, token: str) -> None:
        """Listen there, too, for senders that know a token."""
        self._listeners.append(Listener(host, port, token, self._serve, "sender"))
        self._listeners[-1].start()

    def _serve(self, connection: Connection, hello: Header) -> None:
        peer = Client(connection, hello)
        self._events.put(Event(peer, hello))
        try:
            while True:
                header, arrays = connection.receive()
                if "saved" in header and peer.role == "worker":
                    self._keep(int(peer.number), arrays[0])
                    arrays = []
                self._events.put(Event(peer, header, arrays))
        except (OSError, WireError):
            pass
        finally:
            self._events.put(Event(peer, None))

    def next(self, seconds: float) -> Event | None:
        """Return the next event, ``None`` where none comes in time."""
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Hang up on everybody: simulations and workers then end."""
        for listener in self._listeners:
            listener.close()


RETURN_SECONDS = 120.0
"""How long a task whose process died may take to be back, where an engine cannot say that it is lost."""


@dataclass(eq=False)
class Attendance:
    """Of one task."""

    peer: Client | None = None
    """Its connection, while there is one."""
    away_since: float = field(default_factory=time.monotonic)
    came: bool = False

    def arrive(self, peer: Client) -> None:
        """Note that it is there."""
        self.peer, self.came = peer, True

    def leave(self) -> None:
        """Note that its connection broke."""
        self.peer, self.away_since = None, time.monotonic()

    @property
    def is_lost(self) -> bool:
        """Whether it was there and has been away too long to come back."""
        return self.came and self.peer is None and time.monotonic() - self.away_since > RETURN_SECONDS
