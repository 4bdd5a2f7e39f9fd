"""Frames whose memory serves again: to get new memory from the system takes longer than to copy into it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import zmq

from compss_train.wire import PIECE

_SMALL = 2**16  # bytes up to which a frame is cheaper to copy once more than to share
_KEPT = 2**26 // PIECE  # frames of free memory


class Frames:
    """Copies what is to be sent into frames, those that were used before if there are any. For many threads."""

    def __init__(self) -> None:
        self._free: deque[zmq.Frame] = deque(maxlen=_KEPT)

    def copy(self, view: memoryview) -> bytes | zmq.Frame:
        """Return a frame with a copy of this memory."""
        if len(view) <= _SMALL:
            return bytes(view)
        if len(view) < PIECE or (frame := self._used()) is None:
            return zmq.Frame(view, copy=True)
        np.copyto(np.frombuffer(frame.buffer, np.uint8), np.frombuffer(view, np.uint8))
        return frame

    def _used(self) -> zmq.Frame | None:
        try:
            return self._free.pop()
        except IndexError:
            return None

    def give_back(self, frames: Sequence[bytes | zmq.Frame]) -> None:
        """Take frames that have arrived, so that ZeroMQ has no more use for them."""
        self._free.extend(frame for frame in frames if isinstance(frame, zmq.Frame) and len(frame) == PIECE)
