"""``ReceivedStream``: a connection over which samples of a stream come to a worker."""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from compss_train.net import Header, MessageError, ReceivedArray, arrays_in, map_memory, parsing
from compss_train.online.arrived_samples import ArrivedSamples


@dataclass(eq=False)
class ReceivedStream:
    """A connection of a stream, its samples that wait, and how many more it may send."""

    stream: int
    next: int
    """The stream's samples below it were here before, or have come over this connection."""
    messages: deque[ArrivedSamples] = field(default_factory=deque)
    """Those that wait to be put into the buffer, in the order of their numbers."""
    samples: int = 0
    """How many samples these have."""
    ends: bool = False
    """Whether the end of the stream has arrived, and waits for its answer."""
    credit: int = 0
    """How many more samples it may send."""
    ended: bool = False
    """Whether the stream's last sample is in the buffer."""
    refused: bool = False
    """Whether one of its samples does not fit: others may be on their way, which do not count."""
    gone: bool = False
    """Whether it has disconnected."""
    _memory: memoryview | None = None
    """Memory that its sender shares with this worker."""
    _shared: int = 0
    """How many of its messages have come in this memory."""

    @property
    def waiting(self) -> int:
        """How much of it waits: samples, and the end."""
        return self.samples + self.ends

    def take(self, samples: ArrivedSamples) -> bool:
        """Let samples wait, those that were here before excepted; return whether any do."""
        count = len(samples)
        self.credit -= count
        known = bisect_left(samples.numbers, self.next)
        if known == count:
            return False
        self.next = samples.numbers[-1] + 1
        self.messages.append(samples.after(known))
        self.samples += count - known
        return True

    def give_up(self, end: int) -> None:
        """Expect no samples below ``end`` any more; raise ``MessageError`` after the first one."""
        if self.messages:
            raise MessageError('"lost" after a sample; send it before the first one')
        self.next = max(self.next, end)

    def refuse(self) -> None:
        """Forget what waits, and what is on its way: a sample does not fit."""
        self.ended = True
        self.refused = True
        self.messages.clear()
        self.samples = 0
        self.ends = False

    def drop(self, count: int) -> None:
        """Forget the first ``count`` samples that wait: they are in the buffer."""
        self.samples -= count
        while count:
            first = self.messages.popleft()
            if count < len(first):
                self.messages.appendleft(first.after(count))
            count -= min(count, len(first))

    def grant(self, ahead: int) -> int:
        """Give credit for as many samples as may be ahead; return how much that adds.

        Half of these at least, or nothing: each addition is a message.
        """
        added = ahead - self.credit - self.waiting
        if added < max(1, ahead // 2):
            return 0
        self.credit += added
        return added

    # Shared memory

    def map_memory(self, offer: Any) -> None:
        """Map the memory that the sender offers, if it can be opened."""
        if self._memory is not None:
            raise MessageError('"memory" was offered before; offer it once')
        self._memory = map_memory(offer)

    def shared_arrays(self, shared: Any) -> list[ReceivedArray]:
        """Return the arrays of a message that lie in shared memory."""
        if self._memory is None:
            raise MessageError('"shared" without memory that this worker has mapped')
        with parsing():
            start = shared["start"]
            descriptions = shared["arrays"]
        self._shared += 1
        return arrays_in(self._memory, start, descriptions)

    @property
    def released(self) -> Header:
        """How many of its messages in shared memory are not needed any more, if it shares any."""
        if self._memory is None:
            return {}
        waiting = sum([samples.is_shared for samples in self.messages])
        return {"released": self._shared - waiting}
