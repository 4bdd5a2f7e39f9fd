"""Small samples that follow each other soon are gathered, and travel in one message."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from compss_train.net import ArrayDescriptions, Header, pack_arrays, pack_header

if TYPE_CHECKING:
    from compss_train.data.block import Block

_MOST_SAMPLES = 64
"""Maximum number of samples in a message."""
_MOST_BYTES = 2**18
"""Maximum size of these, unless the last one exceeds it."""
_SMALL_BYTES = 2**15
"""Size of a sample up to which it is copied, to be gathered with others."""


@dataclass(frozen=True, slots=True)
class SampleMessage:
    """A message with one sample or several."""

    header: Header
    descriptions: ArrayDescriptions
    """The dtypes and shapes of its arrays."""
    columns: Sequence[Sequence[bytes | memoryview]]
    """Their bytes, those of an array in one or more pieces."""
    count: int
    """How many samples it has."""
    sample_bytes: int
    """Size of one of them."""

    @property
    def size(self) -> int:
        """Size of the samples in bytes."""
        return self.count * self.sample_bytes

    @property
    def most_bytes(self) -> int:
        """Size of the largest message that samples of this size travel in."""
        if self.sample_bytes <= _SMALL_BYTES:
            return _MOST_BYTES + _SMALL_BYTES
        return self.sample_bytes

    def frames(self) -> list[bytes | memoryview]:
        """Return the frames of the message."""
        first = pack_header(self.header, self.descriptions)
        return [
            first,
            *(pieces[0] if len(pieces) == 1 else b"".join(pieces) for pieces in self.columns),
        ]


@dataclass(slots=True)
class PackedSample:
    """A sample as it is sent."""

    number: int
    """Its number in the stream."""
    step: int | None
    descriptions: ArrayDescriptions
    """The dtypes and shapes of x, and y if there is one."""
    frames: Sequence[bytes | memoryview]
    """Their bytes, which share the arrays' memory until the sample is gathered."""
    size: int
    """Size in bytes."""

    @classmethod
    def of(cls, number: int, step: int | None, arrays: Sequence[Block]) -> Self:
        """Pack a sample; raise ``TypeError`` for a dtype that cannot be sent."""
        descriptions, frames = pack_arrays(arrays)
        size = sum([len(frame) for frame in frames])
        return cls(number, step, descriptions, frames=frames, size=size)

    @property
    def is_small(self) -> bool:
        """Whether it may be gathered with others."""
        return self.size <= _SMALL_BYTES

    def message(self) -> SampleMessage:
        """Return a message with this sample."""
        header: Header = {"sample": self.number}
        if self.step is not None:
            header["step"] = self.step
        columns = [[frame] for frame in self.frames]
        return SampleMessage(header, self.descriptions, columns, count=1, sample_bytes=self.size)


@dataclass(eq=False)
class GatheredSamples:
    """Copies of successive samples of a stream for one worker, which are alike."""

    stride: int
    """How far their numbers are apart."""
    _samples: list[PackedSample] = field(default_factory=list)
    _size: int = 0

    def __len__(self) -> int:
        return len(self._samples)

    @property
    def first(self) -> int:
        """The number of the first one."""
        return self._samples[0].number

    @property
    def is_full(self) -> bool:
        """Whether they are as many as a message should have."""
        return len(self._samples) >= _MOST_SAMPLES or self._size >= _MOST_BYTES

    def suits(self, sample: PackedSample) -> bool:
        """Return whether a sample may travel in one message with them."""
        if not self._samples:
            return True
        last = self._samples[-1]
        return (
            sample.number == last.number + self.stride
            and sample.descriptions == last.descriptions
            and (sample.step is None) == (last.step is None)
            and not self.is_full
        )

    def add(self, sample: PackedSample) -> None:
        """Add a sample that suits, with a copy of its arrays, which may change afterwards."""
        sample.frames = [bytes(frame) for frame in sample.frames]
        self._samples.append(sample)
        self._size += sample.size

    def message(self, count: int) -> SampleMessage:
        """Return a message with the first ``count`` samples."""
        if count == 1:
            return self._samples[0].message()
        samples = self._samples[:count]
        first = samples[0]
        header: Header = {"sample": first.number, "count": count}
        if first.step is not None:
            header["steps"] = [sample.step for sample in samples]
        descriptions = [(dtype, [count, *shape]) for dtype, shape in first.descriptions]
        columns = list(zip(*(sample.frames for sample in samples), strict=True))
        return SampleMessage(header, descriptions, columns, count=count, sample_bytes=first.size)

    def drop(self, count: int) -> None:
        """Forget the first ``count`` samples, which were sent."""
        for sample in self._samples[:count]:
            self._size -= sample.size
        del self._samples[:count]
