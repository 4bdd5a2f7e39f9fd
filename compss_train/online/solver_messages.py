"""What a solver sends through ``compss_train.h``, which describes the messages: its time steps."""

import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from io import BufferedReader
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils import Closable

PROTOCOL = 1
"""The version of the messages; that of the header is ``COMPSS_TRAIN_PROTOCOL``."""
_FIELD = 1
"""The kind of a message that declares a field."""
_VALUES = 2
"""The kind of one with the values of a field."""
_TEXT = 3
"""The kind of one with a text that belongs to the next values of a field."""
_END = 4
"""The kind of the last one."""
_ORDERS = {"little": "<", "big": ">"}
"""Byte orders as ``struct`` writes them, by their names in the first line."""
_MAX_TEXT = 2**24
"""Maximum number of bytes of names and texts."""
_AHEAD = 2**20
"""Bytes that are read ahead."""


class SolverFields(dict[str, NDArray[np.float64]]):
    """The fields of one time step: one-dimensional float64 arrays, in the order of sending."""

    def __init__(self) -> None:
        super().__init__()
        self.metadata: dict[str, str] = {}
        """Texts that ``compss_train_send_with_metadata`` sent with fields, by their names."""

    def __missing__(self, name: str) -> NDArray[np.float64]:
        raise KeyError(f"{name}; the solver has sent {', '.join(self)}")


def byte_order_of(line: bytes, token: str) -> str:
    """Return the byte order of a solver's messages, as ``struct`` writes it, from its first line.

    Raises ``ValueError`` for another version or byte order, and ``PermissionError`` for another
    token, or another program.
    """
    words = line.decode(errors="replace").split()
    name, version, order, its_token, *_ = *words, "", "", "", ""
    if name != "compss_train":
        raise PermissionError("what has connected is no solver")
    if its_token != token:  # before what a stranger could make this run fail with
        raise PermissionError("what has connected has another token")
    if version != str(PROTOCOL):
        raise ValueError(
            f"was compiled with a compss_train.h of protocol {version}, and this version of "
            f"compss_train has protocol {PROTOCOL}; compile it again with the header in the "
            "folder that compss-train headers prints"
        )
    if order not in _ORDERS:
        raise ValueError(
            f"has the byte order {order!r}, and this version of compss_train knows "
            f"{' and '.join(_ORDERS)}"
        )
    return _ORDERS[order]


class SolverMessages(Closable):
    """Reads the messages of a connection, after its first line, and closes it."""

    def __init__(self, connection: socket.socket, order: str) -> None:
        self._connection = connection
        self._header = struct.Struct(f"{order}IIQ")
        # The solver goes on while what was read ahead is sent to workers.
        self._file = BufferedReader(socket.SocketIO(connection, "r"), _AHEAD)
        self._dtype = np.dtype(f"{order}f8")
        self._head = bytearray(self._header.size)
        self._names: list[str] = []
        """Of the fields, by number."""
        self._sizes: dict[int, int] = {}
        """The length of each field that was sent, by number."""
        self.ended = False
        """Whether the solver has said that it has sent everything."""

    def steps(self) -> Iterator[SolverFields]:
        """Iterate over the time steps until the solver, or its connection, has ended.

        A step is complete when each field was sent once. Which fields there are is known when one
        is sent again. Raises ``ValueError`` for incomplete time steps and malformed messages.
        """
        fields = SolverFields()
        texts: dict[str, str] = {}
        is_first = True
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
                    fields = SolverFields()
                    is_first = False
                fields[name] = value
                if name in texts:
                    fields.metadata[name] = texts.pop(name)
                if not is_first and len(fields) == len(self._names):
                    yield fields
                    fields = SolverFields()
        if self.ended and fields:
            self._check_complete(fields, "ended")
            yield fields

    def _check_complete(self, fields: SolverFields, what: str) -> None:
        missing = [repr(name) for name in self._names if name not in fields]
        if missing:
            raise ValueError(
                f"{what} without having sent {' and '.join(missing)}; a time step "
                "has each field once"
            )

    def _next(self) -> tuple[int, str, Any] | None:
        """Return the kind, the field and the contents of the next message; ``None`` at the end."""
        if self.ended or not self._read(self._head):
            return None
        kind, number, size = self._header.unpack(self._head)
        if kind == _VALUES and not size % 8:
            values = np.empty(size // 8, self._dtype)
            if not self._read(values.data):
                return None
            return kind, self._name(number), self._sized(number, values)
        if kind == _END:
            self.ended = True
            return None
        if kind not in (_FIELD, _TEXT) or size > _MAX_TEXT:
            raise ValueError(f"sent a malformed message of kind {kind} and {size} bytes")
        data = bytearray(size)
        if not self._read(data):
            return None
        text = data.decode(errors="replace")
        if kind == _TEXT:
            return kind, self._name(number), text
        self._names.append(text)
        return kind, text, text

    def _name(self, number: int) -> str:
        if number >= len(self._names):
            raise ValueError(f"sent a message about field {number} of {len(self._names)}")
        return self._names[number]

    def _sized(self, number: int, values: NDArray[Any]) -> NDArray[np.float64]:
        """Return values in this machine's byte order; raise ``ValueError`` for another number."""
        earlier = self._sizes.setdefault(number, values.size)
        if earlier != values.size:
            raise ValueError(
                f"sent {values.size} values of {self._name(number)!r}, and {earlier} at earlier "
                "time steps"
            )
        return values if self._dtype.isnative else values.astype(np.float64)

    def _read(self, buffer: bytearray | memoryview) -> bool:
        """Fill a buffer; return False if the connection ends before it is full."""
        view = memoryview(buffer)
        with suppress(ConnectionError):
            return self._file.readinto(view) == view.nbytes
        return False

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._connection.close()
