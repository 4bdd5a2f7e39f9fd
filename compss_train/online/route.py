"""``Route``: the connection of a stream to one worker, and the memory that they share."""

from __future__ import annotations

from contextlib import suppress

from compss_train.net import Connection, Header, SharedMemory, pack_header, sockets
from compss_train.online.gathered_samples import SampleMessage

_LEAST_BYTES = 2**16
"""Size from which the samples of a message lie in shared memory."""
_MOST_BYTES = 2**26
"""Size up to which they do."""
_MOST_AHEAD = 256
"""Maximum number of samples of a sender that may be on their way or wait; at least two are."""
_BYTES_AHEAD = 2**23
"""Approximate maximum size of these."""
_OFFER_BYTES = 2**22
"""Size of what was sent in such messages when memory is offered: it costs a millisecond."""


def samples_ahead(sample_bytes: int) -> int:
    """Return how many samples of this size a sender may have sent that are in no buffer yet."""
    return max(2, min(_MOST_AHEAD, _BYTES_AHEAD // max(1, sample_bytes)))


class Route:
    """The connection of a stream to one worker.

    To a worker that listens at a socket file, large messages go through shared memory as soon as
    the worker has mapped it; ZeroMQ carries what finds no room there.
    """

    def __init__(self, connection: Connection, url: str) -> None:
        self.connection = connection
        self.url = url
        """Where the worker listens."""
        self.credit = 0
        """How many more samples it accepts."""
        self._may_share = url.startswith(sockets.PRIVATE)
        """Whether memory may still be offered."""
        self._sent_bytes = 0
        """Size of the messages that could lie in shared memory."""
        self._memory: SharedMemory | None = None
        self._is_mapped = False
        """Whether the worker has mapped the memory."""

    def send(self, message: SampleMessage) -> None:
        """Send samples, for which there must be credit; raises ``ConnectionLostError``."""
        start = self._shared_start(message)
        if start is None:
            frames = message.frames()
        else:
            shared = {"start": start, "arrays": message.descriptions}
            frames = [pack_header({**message.header, "shared": shared}, [])]
        self.connection.send_frames(frames)
        self.credit -= message.count

    def _shared_start(self, message: SampleMessage) -> int | None:
        """Write samples to shared memory; return where they start, ``None`` if they do not."""
        if not _LEAST_BYTES <= message.size <= _MOST_BYTES:
            return None
        if self._memory is not None and self._is_mapped:
            return self._memory.write(message.columns)
        self._sent_bytes += message.size
        if self._may_share and self._sent_bytes > _OFFER_BYTES:
            self._offer(message)
        return None

    def _offer(self, message: SampleMessage) -> None:
        """Offer the worker memory for messages such as this one, once."""
        self._may_share = False
        slot_bytes = message.most_bytes + 2**10  # for the alignment of arrays
        bytes_ahead = samples_ahead(message.sample_bytes) * message.sample_bytes
        slots = bytes_ahead // slot_bytes + 2
        with suppress(OSError):  # ZeroMQ can carry all
            self._memory = SharedMemory(slots, slot_bytes)
            self.connection.send({"memory": self._memory.offer})

    def note(self, answer: Header) -> None:
        """Note what a worker's answer says: more credit, and what it has released in memory."""
        self.credit += answer.get("credit", 0)
        if self._memory is not None and "released" in answer:
            self._is_mapped = True
            self._memory.released = answer["released"]
            self._memory.close()  # its file, which is mapped now

    def close(self) -> None:
        """Disconnect once everything sent has been transmitted."""
        self.connection.close()
        if self._memory is not None:
            self._memory.close()
