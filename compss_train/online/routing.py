"""Which worker gets which sample of a stream, and the keys that open the workers for streams.

An offset counts the samples of a stream, as in a log: a worker with offset n has received all
samples of the stream below n that are routed to it.
"""

from dataclasses import dataclass, field

from compss_train.net import derived_token


@dataclass(frozen=True)
class Routing:
    """Which worker gets a sample: the next one in turn, or one worker all of a ``whole`` stream."""

    workers: int
    """How many there are."""
    whole: bool

    def worker_of(self, stream: int, sample: int) -> int:
        """Return the worker that gets a sample."""
        return (stream if self.whole else stream + sample) % self.workers

    def next_sample(self, worker: int, stream: int, offset: int) -> int | None:
        """Return the first sample from an offset on that a worker gets, ``None`` if none."""
        ahead = (worker - self.worker_of(stream, offset)) % self.workers
        if self.whole and ahead:
            return None
        return offset + ahead

    @property
    def stride(self) -> int:
        """How far the numbers of successive samples of one worker are apart."""
        return 1 if self.whole else self.workers

    def numbers(self, sample: int, count: int) -> range:
        """Return the numbers of ``count`` successive samples of one worker, from a sample on."""
        return range(sample, sample + count * self.stride, self.stride)

    def count(self, worker: int, stream: int, samples: range) -> int:
        """Return how many of some successive samples a worker gets."""
        first_sample = self.next_sample(worker, stream, samples.start)
        if first_sample is None:
            return 0
        return len(range(first_sample, samples.stop, self.stride))


@dataclass(frozen=True)
class StreamKeys:
    """The keys of a fit's streams, which follow from a secret that senders do not get.

    A stream gets the token of the workers' receivers, which opens a connection, and a key of its
    number, which opens its place there. Neither tells the secret, nor the key of another stream.
    """

    secret: str = field(repr=False)

    @property
    def token(self) -> str:
        """The token that the workers' receivers require."""
        return derived_token(self.secret, "receivers")

    def of(self, stream: int) -> str:
        """Return the key of the stream with this number."""
        return derived_token(self.secret, f"stream {stream}")
