"""The worker's side of streams: puts what comes into the buffer."""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from typing import Any

from compss_train.buffers import Buffer, ReceptionOverError
from compss_train.buffers.paired import TimeStep
from compss_train.online.connection import Connection, Header, Listener, Message
from compss_train.parameter_server.base import Closable

Received = dict[int, int]
"""By the number of a stream, one more than the last sample that was received of it."""


class Receiver(Closable):
    """Listens for streams of samples and puts each sample into the buffer, once.

    While the buffer is full nothing more is read, so that TCP lets the senders wait.
    """

    def __init__(self, buffer: Buffer, host: str, token: str, *, paired: bool, received: Received) -> None:
        self._buffer, self._paired = buffer, paired
        self._next: Received = dict(received)
        self._saved: Received = dict(received)
        self._since_saved: deque[tuple[int, int]] = deque()  # streams and samples in the order of their puts
        self._saved_puts = buffer.samples_put
        self._putting = threading.Lock()
        self._discarding = False
        self._listener = Listener(host, 0, token, self._serve)

    @property
    def port(self) -> int:
        """Where it listens."""
        return self._listener.address.port

    def start(self) -> None:
        """Begin to receive."""
        self._listener.start()

    def _serve(self, connection: Connection, hello: Header) -> None:
        stream = int(hello["stream"])
        connection.send({"next": self._next.get(stream, 0)})
        try:
            while "end" not in (message := connection.receive())[0]:
                self._put(stream, message)
            connection.send({"ended": True})
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            connection.send({"error": f"{type(error).__name__}: {error}"})
        connection.drain()

    def _put(self, stream: int, message: Message) -> None:
        header, arrays = message
        number, sample = int(header["sample"]), tuple(arrays)
        item: Any = TimeStep(stream, int(header["step"]), sample) if self._paired else sample
        with self._putting:
            if self._discarding or number < self._next.get(stream, 0):
                return  # or it has come from a run of the same simulation that was thought dead
            self._since_saved.append((stream, number))
            try:
                self._buffer.put(item)
            except BaseException as error:
                self._since_saved.pop()
                if not (isinstance(error, ReceptionOverError) and self._discarding):
                    raise
            else:
                self._next[stream] = number + 1

    def snapshot(self) -> tuple[dict[str, Any], Received]:
        """Return the buffer's state, and what had been received for it to be that: both of the same moment."""
        state = self._buffer.state_dict()
        puts = state["usage"]["put"]
        for _ in range(puts - self._saved_puts):
            stream, number = self._since_saved.popleft()
            self._saved[stream] = number + 1
        self._saved_puts = puts
        return state, dict(self._saved)

    def discard(self) -> None:
        """Take what still comes, and forget it: no more is trained on."""
        self._discarding = True
        self._buffer.signal_reception_over()

    def close(self) -> None:
        """Receive nothing more."""
        with suppress(OSError):
            self._listener.close()
