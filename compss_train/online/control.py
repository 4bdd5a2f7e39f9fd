"""The worker's line to the coordinator: what it is told, and what it tells."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from compss_train._utils.closing import Closable
from compss_train.data.block import Block
from compss_train.engines.base import Failure
from compss_train.engines.codec import decode, encode
from compss_train.online.connection import Address, Header


class Control(Closable):
    """Says hello, and later listens in a thread for the end of reception, the end, and the coordinator's death.

    Raises ``OSError`` where there is no coordinator.
    """

    def __init__(self, director: Address, worker: int) -> None:
        self._connection = director.connect({"hello": "worker", "number": worker})
        told, arrays = self._connection.receive()
        self.wanted = bool(told.get("go"))
        """Whether this worker is waited for; not where there is another with its number."""
        self.is_done = bool(told.get("done"))
        """Whether it has trained all that it should before it died, and only receives what still comes."""
        self.saved: torch.Tensor | None = arrays[0] if arrays else None
        """What the worker before this one has saved."""
        self.own_host = self._connection.own_host
        self.ended = threading.Event()
        """Set when this worker is to end."""
        self._orders: dict[str, Callable[[Any], None]] = {}
        self._thread = threading.Thread(target=self._listen, name="worker-control", daemon=True)

    def start(self, port: int, orders: dict[str, Callable[[Any], None]]) -> None:
        """Say where samples are received; what is said from now on goes to the functions by its name."""
        self._orders = orders
        self.tell({"listening": [self.own_host, port]})
        self._thread.start()

    def _listen(self) -> None:
        try:
            while "end" not in (told := self._connection.receive()[0]):
                for name in told.keys() & self._orders.keys():
                    self._orders[name](told[name])
        except OSError:
            pass  # the coordinator has gone, and nobody wants what would still be trained
        finally:
            self.ended.set()

    def tell(self, header: Header, arrays: Sequence[Block] = ()) -> None:
        """Say something to the coordinator."""
        self._connection.send(header, arrays)

    def fail(self, error: BaseException) -> None:
        """Tell what has gone wrong, which ends the fit."""
        self.tell({"failed": True}, [packed(Failure.of(error))])

    def close(self) -> None:
        """Hang up."""
        self._connection.close()


def packed(value: object) -> torch.Tensor:
    """Return a value as bytes."""
    return torch.from_numpy(np.concatenate([np.frombuffer(chunk, np.uint8) for chunk in encode(value)]))


def unpacked(parcel: torch.Tensor) -> Any:
    """Return the value; only of a parcel from one's own tasks, as it may hold code."""
    return decode(parcel.numpy())
