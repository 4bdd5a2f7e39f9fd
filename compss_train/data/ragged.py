"""``Ragged``: sequences of different lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from compss_train.data.values import check_parts, signed, tensor_of


class Ragged:
    """Sequences of different lengths, stored as their items one after another and where each
    begins.

    A batch is padded to its longest sequence, or passed to ``build``'s ``collate`` as a list of
    tensors. Lists of sequences that differ in length are converted automatically.

    Parameters
    ----------
    sequences:
        Arrays, tensors or lists of one dtype, with shapes that differ in the first dimension only.

    ``fit(bucket_by_length=True)`` batches sequences of similar lengths.

    Raises ``ValueError`` if there are no sequences, or if their other dimensions or their dtypes
    differ, and the errors of blocks for masked and sparse arrays and unsuitable dtypes.
    """

    def __init__(self, sequences: Sequence[Any]) -> None:
        check_parts("a sequence", sequences)
        items = [signed(tensor_of(each).detach().cpu()) for each in sequences]
        kinds = {(each.dtype, tuple(each.shape[1:])) for each in items if each.dim() and len(each)}
        if len(kinds) != 1 or not all(each.dim() for each in items):
            raise ValueError(
                f"{len(items)} sequences have items of {len(kinds)} dtypes and shapes; give one "
                "or more sequences that differ in length only"
            )
        self.values = torch.cat([each for each in items if len(each)])
        self.offsets = torch.tensor([0, *(len(each) for each in items)]).cumsum(0)

    @classmethod
    def of(cls, values: torch.Tensor, offsets: torch.Tensor) -> "Ragged":
        """Return sequences of these items; ``offsets`` holds the start of each, then the end of the
        last one.
        """
        made = cls.__new__(cls)
        made.values = values
        made.offsets = offsets
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the items of these sequences."""
        items = self.clone()
        return Ragged.of, (items.values, items.offsets)

    @property
    def lengths(self) -> torch.Tensor:
        """The length of each sequence."""
        return self.offsets.diff()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the items."""
        return self.values.dtype

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of sequences, -1 for their lengths, and the shape of an item."""
        return len(self), -1, *self.values.shape[1:]

    @property
    def ndim(self) -> int:
        """Number of dimensions, including the sample dimension."""
        return 1 + self.values.ndim

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, key: Any) -> Any:
        """Return a sequence as a tensor, or several by a slice, numbers or a mask.

        A sequence, and a slice without a step, share this memory; others are copies.
        """
        if isinstance(key, slice) and key.step in (None, 1):
            start, stop, _ = key.indices(len(self))
            return Ragged.of(self.values, self.offsets[start : max(start, stop) + 1])
        if isinstance(key, slice | list | np.ndarray | torch.Tensor):
            return self.index_select(0, torch.from_numpy(np.arange(len(self))[key].copy()))
        number = range(len(self))[key]
        return self.values[self.offsets[number] : self.offsets[number + 1]]

    def index_select(self, dimension: int, rows: torch.Tensor) -> "Ragged":
        """Return copies of some sequences, by number."""
        # NumPy takes a third of the time for a batch
        bounds = self.offsets.numpy()
        numbers = rows.numpy()
        starts = bounds[numbers]
        lengths = bounds[numbers + 1] - starts
        offsets = np.append(0, lengths.cumsum())
        items = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        values = self.values.index_select(0, torch.from_numpy(items))
        return Ragged.of(values, torch.from_numpy(offsets))

    def clone(self) -> "Ragged":
        """Return a copy with only the items of these sequences."""
        first = int(self.offsets[0])
        last = int(self.offsets[-1])
        return Ragged.of(self.values[first:last].clone(), self.offsets - first)

    def to(self, device: str | torch.dtype, *, non_blocking: bool = False) -> "Ragged":
        """Return the sequences with their items on another device or in another dtype."""
        return Ragged.of(self.values.to(device, non_blocking=non_blocking), self.offsets)

    def pin_memory(self) -> "Ragged":
        """Return the sequences with their items in page-locked memory."""
        return Ragged.of(self.values.pin_memory(), self.offsets)

    def numel(self) -> int:
        """Number of numbers in all sequences."""
        return int(self.offsets[-1] - self.offsets[0]) * self.values[:1].numel()

    def element_size(self) -> int:
        """Bytes of a number."""
        return self.values.element_size()

    def padded(self, value: float) -> torch.Tensor:
        """Return the sequences as one tensor, padded with ``value`` to the length of the
        longest.
        """
        lengths = self.lengths
        shape = len(self), int(lengths.max()), *self.values.shape[1:]
        result = self.values.new_full(shape, value)
        inside = torch.arange(shape[1])[None] < lengths[:, None]
        result[inside.to(result.device)] = self.values[int(self.offsets[0]) : int(self.offsets[-1])]
        return result


def is_ragged(value: Any) -> bool:
    """Return whether a list or tuple has sequences of numbers, arrays or tensors that differ in
    length.
    """
    if not all(isinstance(each, np.ndarray | torch.Tensor | list | tuple) for each in value):
        return False
    if any(
        isinstance(part, list | tuple)
        for each in value
        if isinstance(each, list | tuple)
        for part in each
    ):
        return False
    return (
        all(getattr(each, "ndim", 1) for each in value) and len({len(each) for each in value}) > 1
    )


def join(parts: Sequence[Any]) -> Ragged:
    """Return all sequences, one after another."""
    bounds = [(int(part.offsets[0]), int(part.offsets[-1])) for part in parts]
    values = torch.cat(
        [part.values[first:last] for part, (first, last) in zip(parts, bounds, strict=True)]
    )
    ends = 0
    offsets = [torch.zeros(1, dtype=torch.int64)]
    for part, (first, last) in zip(parts, bounds, strict=True):
        offsets.append(part.offsets[1:] + (ends - first))
        ends += last - first
    return Ragged.of(values, torch.cat(offsets))
