"""The values of a simulated engine: encoded, in memory, and lost with the process that made
them.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from compss_train.engines.calls import Failure
from compss_train.engines.codec import Bytes, decode, encode
from compss_train.engines.local.store import StoredValue
from compss_train.exceptions import WorkerLostError


class HeldValue(StoredValue):
    """A value in the memory of a simulated process."""

    __slots__ = ("held",)
    held: dict[str, Bytes | None]

    def __init__(self, name: str, held: dict[str, Bytes | None]) -> None:
        super().__init__(name)
        object.__setattr__(self, "held", held)

    def load(self) -> Any:
        """Return a new copy of the value; raise ``WorkerLostError`` if its process has vanished."""
        return decode(self.encoded().copy())

    def discard(self) -> None:
        """Free the value."""
        del self.held[str(self.path)]

    def encoded(self) -> Bytes:
        """Return the encoded value; raise ``WorkerLostError`` if its process has vanished."""
        name = str(self.path)
        encoded = self.held[name]  # a KeyError would be a value that is used after it was freed
        if encoded is None:
            raise WorkerLostError(
                f"{name} was held by a process that died, and cannot be made again"
            )
        return encoded


def encoded(value: object) -> Bytes:
    """Return the value as bytes, which do not change with it."""
    return np.frombuffer(b"".join(encode(value)), np.uint8)


class Values:
    """All values that have been stored and not been freed, by a name that says where each came
    from.
    """

    def __init__(self) -> None:
        self.held: dict[str, Bytes | None] = {}
        """Encoded values, ``None`` for those that are lost."""
        self._stored = 0
        self._holders: dict[str, int] = {}

    def store(self, encoded: Bytes, source: str, process: int | None = None) -> HeldValue:
        """Store an encoded value in the memory of a process, or where none can lose it."""
        name = f"{source} {self._stored}"
        self._stored += 1
        self.held[name] = encoded
        if process is not None:
            self._holders[name] = process
        return HeldValue(name, self.held)

    def forget(self, answer: Sequence[HeldValue] | Failure) -> None:
        """Free what a task has returned, if it has not failed."""
        for value in answer if not isinstance(answer, Failure) else ():
            value.discard()

    def lose(self, process: int) -> None:
        """Lose the values that a process has made."""
        for name, holder in self._holders.items():
            if holder == process and name in self.held:
                self.held[name] = None
