"""How a visit's samples are cut into batches."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from compss_train.data.order import split_points


@dataclass(frozen=True)
class Batching:
    """A visit is cut into batches whose sizes differ by one at most, so that every sample is used.

    Exactly one of ``number`` (batches a block) and ``size`` (the most samples a batch may have) is set.
    """

    number: int | None = None
    size: int | None = None

    def bounds(self, rows: int) -> list[tuple[int, int]]:
        """Return (start, stop) of each batch of a visit with ``rows`` samples."""
        number = self.number or -(-rows // (self.size or rows))
        return list(pairwise(split_points(rows, min(number, rows))))
