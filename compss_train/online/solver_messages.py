"""What a solver sends through ``compss_train.h``, which describes the messages: the fields of its time steps."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils import Closable

PROTOCOL = 1
"""The version of the messages; that of the header is ``COMPSS_TRAIN_PROTOCOL``."""
_FIELD, _VALUES, _TEXT, _END = 1, 2, 3, 4
_MAX_HELLO, _MAX_TEXT = 256, 2**24
"""Bytes of the first line, and of names and texts."""


class SolverFields(dict[str, NDArray[np.float64]]):
    """The fields of one time step: a dict of one-dimensional float64 arrays, in the order in which they were sent.

    ``metadata`` has the texts that ``compss_train_send_with_metadata`` sent with fields, by the names of these.
    """

    def __init__(self) -> None:
        super().__init__()
        self.metadata: dict[str, str] = {}


def check_hello(connection: socket.socket, token: str) -> str:
    """Read a solver's first line; return the byte order of its messages, as ``struct`` writes it.

    Raises ``ValueError`` for another version, and ``PermissionError`` for another token, or another program.
    """
    hello = b""
    while not hello.endswith(b"\n") and len(hello) < _MAX_HELLO:
        if not (byte := connection.recv(1)):
            break
        hello += byte
    name, version, order, given, *_ = *hello.decode(errors="replace").split(), "", "", "", ""
    if name != "compss_train":
        raise PermissionError("what has connected is no solver")
    if version != str(PROTOCOL):
        raise ValueError(
            f"was compiled with a compss_train.h of protocol {version}, and this version of compss_train has "
            f"protocol {PROTOCOL}; compile it again with the header in the folder that compss-train headers prints"
        )
    if given != token:
        raise PermissionError("what has connected has another token")
    return {"little": "<", "big": ">"}[order]


class SolverMessages(Closable):
    """Reads the messages of a connection, after its first line, and closes it."""

    def __init__(self, connection: socket.socket, order: str) -> None:
        self._connection, self._header = connection, struct.Struct(f"{order}IIQ")
        self._dtype = np.dtype(f"{order}f8")
        self._sizes: dict[str, int | None] = {}
        """The length of each field, by its name, once it was sent."""
        self.ended = False
        """Whether the solver has said that it has sent everything."""

    def steps(self) -> Iterator[SolverFields]:
        """Iterate over the time steps until the solver says that it has ended, or its connection does.

        A step is complete when each field was sent once. Which fields there are is known when one is sent again.
        Raises ``ValueError`` for incomplete time steps and malformed messages.
        """
        fields, texts, is_first = SolverFields(), dict[str, str](), True
        while (message := self._next()) is not None:
            kind, name, value = message
            if kind == _TEXT:
                texts[name] = value
            elif kind == _FIELD and not is_first:
                raise ValueError(f"declared the field {name!r} after the first time step")
            elif kind == _VALUES:
                if name in fields:
                    self._check_complete(fields, f"sent {name!r} again")
                    yield fields
                    fields, is_first = SolverFields(), False
                fields[name] = value
                if name in texts:
                    fields.metadata[name] = texts.pop(name)
                if not is_first and len(fields) == len(self._sizes):
                    yield fields
                    fields = SolverFields()
        if self.ended and fields:
            self._check_complete(fields, "ended")
            yield fields

    def _check_complete(self, fields: SolverFields, what: str) -> None:
        if missing := [repr(name) for name in self._sizes if name not in fields]:
            raise ValueError(f"{what} without having sent {' and '.join(missing)}; a time step has each field once")

    def _next(self) -> tuple[int, str, Any] | None:
        """Return the kind, the field and the contents of the next message; ``None`` after the last one."""
        if self.ended or (header := self._read(np.empty(self._header.size, np.uint8))) is None:
            return None
        kind, number, size = self._header.unpack(header.data)
        if kind == _END:
            self.ended = True
            return None
        if kind in (_FIELD, _TEXT) and size <= _MAX_TEXT:
            if (data := self._read(np.empty(size, np.uint8))) is None:
                return None
            text = data.tobytes().decode(errors="replace")
            if kind == _FIELD:
                self._sizes[text] = None
            return kind, text if kind == _FIELD else self._name(number), text
        if kind != _VALUES or size % 8:
            raise ValueError(f"sent a malformed message of kind {kind} and {size} bytes")
        name, values = self._name(number), self._read(np.empty(size // 8, self._dtype))
        if values is None:
            return None
        if (known := self._sizes[name]) not in (None, values.size):
            raise ValueError(f"sent {values.size} values of {name!r}, and {known} at earlier time steps")
        self._sizes[name] = values.size
        return kind, name, values if self._dtype.isnative else values.astype(np.float64)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _name(self, number: int) -> str:
        if number >= len(self._sizes):
            raise ValueError(f"sent a message about field {number} of {len(self._sizes)}")
        return list(self._sizes)[number]

    def _read(self, array: NDArray[Any]) -> NDArray[Any] | None:
        """Fill an array; return ``None`` if the connection ends before it is full."""
        view, size = array.data.cast("B"), 0
        with suppress(ConnectionError):
            while size < len(view):
                if not (read := self._connection.recv_into(view[size:], 0, socket.MSG_WAITALL)):
                    return None
                size += read
            return array
        return None
