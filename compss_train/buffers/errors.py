"""What a buffer raises; each is one of the exceptions of Python's ``queue``."""

from __future__ import annotations

import queue


class BufferFullError(queue.Full):
    """A put found no room in time, or never can."""

    def __init__(self, reason: str, stored: int = 0) -> None:
        super().__init__(reason)
        self.stored = stored
        """How many of the samples given to ``put_many`` were stored before, the first ones."""


class ReceptionOverError(BufferFullError):
    """A put came after, or was waiting when, reception was over."""


class BufferDrainedError(queue.Empty):
    """A get found nothing held and nothing to come: reception is over."""
