"""``Ragged``: sequences of different lengths."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from compss_train.data.values import check_parts, signed, tensor_of


class Ragged:
    """Sequences of different lengths, stored as all their items and where each sequence begins.

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
        tensors = [signed(tensor_of(sequence).detach().cpu()) for sequence in sequences]
        filled = [tensor for tensor in tensors if tensor.dim() and len(tensor)]
        kinds = {(tensor.dtype, tuple(tensor.shape[1:])) for tensor in filled}
        if len(kinds) != 1 or not all(tensor.dim() for tensor in tensors):
            raise ValueError(
                f"{len(tensors)} sequences have items of {len(kinds)} dtypes and shapes; give one "
                "or more sequences that differ in length only"
            )
        self.values = torch.cat(filled)
        self.offsets = torch.tensor([0, *map(len, tensors)]).cumsum(0)

    @classmethod
    def of(cls, values: torch.Tensor, offsets: torch.Tensor) -> "Ragged":
        """Return sequences of these items.

        ``offsets`` holds the start of each sequence, and then the end of the last one.
        """
        sequences = cls.__new__(cls)
        sequences.values = values
        sequences.offsets = offsets
        return sequences

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only the items of these sequences."""
        sequences = self.clone()
        return Ragged.of, (sequences.values, sequences.offsets)

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
        """Return the sequences as one tensor, padded with ``value`` to the longest length."""
        lengths = self.lengths
        longest = int(lengths.max())
        padded = self.values.new_full((len(self), longest, *self.values.shape[1:]), value)
        is_item = torch.arange(longest)[None] < lengths[:, None]
        padded[is_item.to(padded.device)] = self.values[
            int(self.offsets[0]) : int(self.offsets[-1])
        ]
        return padded


def is_ragged(value: Any) -> bool:
    """Return whether a list or tuple has sequences of numbers that differ in length.

    These are arrays, tensors, lists or tuples.
    """
    for sequence in value:
        if isinstance(sequence, list | tuple):
            if any(isinstance(item, list | tuple) for item in sequence):
                return False
        elif not isinstance(sequence, np.ndarray | torch.Tensor) or not sequence.ndim:
            return False
    return len({len(sequence) for sequence in value}) > 1


def join(parts: Sequence[Any]) -> Ragged:
    """Return all sequences, one after another."""
    values = []
    offsets = [torch.zeros(1, dtype=torch.int64)]
    end = 0
    for part in parts:
        first = int(part.offsets[0])
        last = int(part.offsets[-1])
        values.append(part.values[first:last])
        offsets.append(part.offsets[1:] + (end - first))
        end += last - first
    return Ragged.of(torch.cat(values), torch.cat(offsets))
