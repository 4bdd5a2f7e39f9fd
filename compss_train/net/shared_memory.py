"""Shared memory: on one machine a message may only say where its arrays lie.

The memory is a file without a name (``memfd_create``) of the client, which the server opens under
/proc. It ends with the last process that has mapped it, however these end: nothing is left behind.
"""

from __future__ import annotations

import fcntl
import hmac
import mmap
import os
import secrets
from collections.abc import Sequence
from typing import Any

from compss_train.net.messages import ArrayDescriptions, Header, ReceivedArray, array_at, parsing

_KEY_BYTES = 32
_ALIGNMENT = 64
"""Arrays start at multiples of this number of bytes."""


def _aligned(size: int) -> int:
    """Return the next multiple of the alignment."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


class SharedMemory:
    """A client's memory for so many messages that are on their way, in slots that are reused.

    Raises ``OSError`` where there is none: on other systems than Linux, or without room for it.
    """

    def __init__(self, slots: int, slot_bytes: int) -> None:
        if not hasattr(os, "memfd_create"):
            raise OSError("shared memory needs Linux")
        self._slots = slots
        self._slot_bytes = _aligned(slot_bytes)
        self.written = 0
        """How many messages were written."""
        self.released = 0
        """How many of these the server does not need any more."""
        size = _ALIGNMENT + slots * self._slot_bytes
        self._file = os.memfd_create("compss-train", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.posix_fallocate(self._file, 0, size)  # which fails here, rather than a write later
            # A file that became shorter would kill the server.
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL)
            self._bytes = memoryview(mmap.mmap(self._file, size))
        except BaseException:
            self.close()
            raise
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._bytes[:_KEY_BYTES] = self._key

    @property
    def offer(self) -> Header:
        """What the server needs to open it."""
        return {"process": os.getpid(), "file": self._file, "key": self._key.hex()}

    def write(self, columns: Sequence[Sequence[bytes | memoryview]]) -> int | None:
        """Copy arrays, each of one or more pieces, into the next slot; return where they start.

        Returns ``None`` if the slot is not free, or too small.
        """
        size = sum([_aligned(sum(map(len, pieces))) for pieces in columns])
        if self.written - self.released >= self._slots or size > self._slot_bytes:
            return None
        start = _ALIGNMENT + self.written % self._slots * self._slot_bytes
        place = start
        for pieces in columns:
            for piece in pieces:
                self._bytes[place : place + len(piece)] = piece
                place += len(piece)
            place = _aligned(place)
        self.written += 1
        return start

    def close(self) -> None:
        """Close the file; what the server has mapped stays."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def map_memory(offer: Any) -> memoryview | None:
    """Return the memory that a client on this machine offers; ``None`` if it cannot be opened.

    Its key tells that it is the client's: in a container, processes may have other numbers. Raises
    ``MessageError`` for a malformed offer.
    """
    with parsing():
        path = f"/proc/{int(offer['process'])}/fd/{int(offer['file'])}"
        key = bytes.fromhex(offer["key"])
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        if not fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            return None
        memory = memoryview(mmap.mmap(file, 0))
    except (OSError, ValueError):  # another kind of file, or an empty one
        return None
    finally:
        os.close(file)
    is_offered = len(key) == _KEY_BYTES and hmac.compare_digest(memory[:_KEY_BYTES], key)
    return memory if is_offered else None


def arrays_in(
    memory: memoryview, start: int, descriptions: ArrayDescriptions
) -> list[ReceivedArray]:
    """Return the arrays of a message that lie in a client's memory; they share it.

    Raises ``MessageError`` for what is malformed, or not within the memory.
    """
    arrays: list[ReceivedArray] = []
    with parsing():
        for name, shape in descriptions:
            array = array_at(memory, start, name, shape)
            arrays.append(array)
            start = _aligned(start + array.size)
    return arrays
