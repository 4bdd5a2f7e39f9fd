"""``ArrivedSamples``: what has come in one message, and bursts of it, which are put together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from compss_train.net import Header, MessageError, ReceivedArray
from compss_train.online.routing import Routing
from compss_train.online.source_messages import number_in, numbers_in

_BURST_SAMPLES = 64
"""Number of samples up to which those of several messages are put at once."""
_BURST_BYTES = 2**19
"""Size of these up to which they are."""


@dataclass(slots=True, eq=False)
class ArrivedSamples:
    """Samples that have arrived in one message."""

    numbers: range
    """Their numbers in the stream."""
    steps: Sequence[int]
    arrays: list[ReceivedArray]
    """x, and y if there is one, with a first dimension of these samples."""
    is_alone: bool = False
    """Whether it is one sample, which came in a message for one."""
    is_shared: bool = False
    """Whether they lie in memory that their sender uses again."""

    @classmethod
    def of(
        cls, header: Header, arrays: list[ReceivedArray], routing: Routing, *, is_shared: bool
    ) -> ArrivedSamples:
        """Return the samples of a message; raise ``MessageError`` if it is malformed."""
        if len(arrays) not in (1, 2):
            raise MessageError(f"a sample of {len(arrays)} arrays; send x, or x and y")
        number = number_in(header, "sample")
        count = count_in(header)
        numbers = routing.numbers(number, count)
        if "count" not in header:
            has_step = routing.whole or "step" in header
            step = number_in(header, "step") if has_step else number
            rows = [array.as_row() for array in arrays]
            return cls(numbers, [step], rows, is_alone=True, is_shared=is_shared)
        has_steps = routing.whole or "steps" in header
        steps = numbers_in(header, "steps") if has_steps else numbers
        lengths = [len(steps), *(array.shape[0] if array.shape else None for array in arrays)]
        if not count or any(length != count for length in lengths):
            raise MessageError(
                f'"count": {count}, but {len(steps)} steps, and arrays of shapes '
                f"{[array.shape for array in arrays]}: their first dimension is that of the samples"
            )
        return cls(numbers, steps, arrays, is_shared=is_shared)

    def __len__(self) -> int:
        return len(self.numbers)

    @property
    def size(self) -> int:
        """Size in bytes."""
        return sum([array.size for array in self.arrays])

    @property
    def is_handed_over(self) -> bool:
        """Whether the buffer may keep their memory: nothing else shares it."""
        return self.is_alone and not self.is_shared

    def after(self, count: int) -> ArrivedSamples:
        """Return these without the first ``count`` samples."""
        if not count:
            return self
        arrays = [array.rows_from(count) for array in self.arrays]
        return ArrivedSamples(
            self.numbers[count:], self.steps[count:], arrays, is_shared=self.is_shared
        )


def count_in(header: Header) -> int:
    """Return how many samples a message has; raise ``MessageError`` if it is malformed."""
    return number_in(header, "count") if "count" in header else 1


def first_burst(waiting: Iterable[ArrivedSamples]) -> list[ArrivedSamples]:
    """Return the first messages whose samples have the same layout; the buffer refuses others."""
    burst: list[ArrivedSamples] = []
    number = 0
    size = 0
    for samples in waiting:
        layout = [array.row_layout for array in samples.arrays]
        number += len(samples)
        size += samples.size
        if not burst:
            first_layout = layout
        elif layout != first_layout or number > _BURST_SAMPLES or size > _BURST_BYTES:
            break
        burst.append(samples)
    return burst
