"""What the COMPSs engine's values travel as."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import Any, TypeAlias

from compss_train.engines.codec import dumps

Buffer: TypeAlias = "memoryview | bytes | bytearray"


class Packed:
    """A value as a pickle and the buffers of its arrays, which PyCOMPSs writes to a file as they are.

    Packing and unpacking happen inside the task, where what goes wrong can be caught, and classes and functions of
    the main script work, which PyCOMPSs's own pickles cannot take to another process. Each is an object of its own,
    by whose identity the runtime tells values apart.
    """

    __slots__ = ("__weakref__", "buffers", "data")

    def __init__(self, data: Buffer, buffers: Sequence[Buffer]) -> None:
        self.data = data
        self.buffers = buffers

    @classmethod
    def of(cls, value: object) -> Packed:
        """Pack a value; its arrays are shared until they are written."""
        return cls(*dumps(value))

    def value(self) -> Any:
        """Return the value; its arrays are views of the buffers."""
        return pickle.loads(self.data, buffers=self.buffers)

    def copy(self) -> Packed:
        """Return the same value in memory of its own."""
        return Packed(self.data, [bytearray(buffer) for buffer in self.buffers])

    def become(self, other: Packed) -> None:
        """Hold what the other one holds: an update in place, as PyCOMPSs has them."""
        self.data, self.buffers = other.data, other.buffers

    def __reduce_ex__(self, protocol: object) -> tuple[Any, ...]:
        buffers = [pickle.PickleBuffer(buffer) for buffer in self.buffers]
        return Packed, (pickle.PickleBuffer(self.data), buffers)
