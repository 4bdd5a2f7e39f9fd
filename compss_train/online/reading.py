"""Reading from a socket: many small pieces with few calls of the system, and large ones without a copy."""

from __future__ import annotations

import select
import socket

import numpy as np

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
