"""The coordinator's ear: what workers, simulations and other senders say, one event after the other."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from compss_train.data.block import Block
from compss_train.online.connection import Connection, ConnectionLostError, Header, Listener
from compss_train.parameter_server.base import Closable
from compss_train.wire import WireError


class Peer:
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


@dataclass(frozen=True)
class Event:
    """What a peer has said; ``header`` is ``None`` where it has left."""

    peer: Peer
    header: Header | None
    arrays: Sequence[torch.Tensor] = ()


class Director(Closable):
    """Listens, and lets one thread take all that is said, so that nothing of the coordinator's needs locks."""

    def __init__(self, host: str, port: int, token: str) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._listener = Listener(host, port, token, self._serve)
        self.address = self._listener.address
        self._listener.start()

    def _serve(self, connection: Connection, hello: Header) -> None:
        peer = Peer(connection, hello)
        self._events.put(Event(peer, hello))
        try:
            while True:
                self._events.put(Event(peer, *connection.receive()))
        except (OSError, WireError):
            self._events.put(Event(peer, None))

    def next(self, seconds: float) -> Event | None:
        """Return the next event, ``None`` where none comes in time."""
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Hang up on everybody: simulations and workers then end."""
        self._listener.close()
