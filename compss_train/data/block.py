"""Blocks: arrays, tensors or ``Ragged`` sequences whose rows are samples; which values they may
hold.

``check_values`` is the one check for all ways in: arrays, files, data sets, sequences and senders.

Samples have columns, tensors with a row a sample: first the columns of x, then of y and of the
weights. Sources, batches and engines see only columns; a batch gets its structure when it is
assembled from them.
"""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import PackedSequence

from compss_train._utils.nested import leaves, rebuilt
from compss_train._utils.validation import check_dense

_Array = TypeVar("_Array")


def check_values(name: str, value: object) -> None:
    """Raise ``TypeError`` for arrays and tensors that are masked or sparse, and for iterators.

    ``name`` is the subject of the message, such as ``"a block"``. Items of lists are not looked at.
    """
    if type(value) is np.ndarray:  # which may come by the thousand a second
        return
    if isinstance(value, torch.Tensor):
        check_dense(name, value)
    elif hasattr(value, "nnz") and hasattr(value, "toarray"):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which is sparse; give array.toarray()"
        )
    elif np.ma.is_masked(value):
        raise TypeError(
            f"{name} is a masked array, whose masked values would be trained on; give "
            "array.filled(value), or leave these samples out, or give them a sample_weight of 0"
        )
    elif is_grouped(value):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which holds groups of rows: give the frame "
            "itself, a row for each group, as of groups.mean(), or sequences, [group[columns] "
            "for _, group in groups]"
        )
    elif hasattr(value, "lazy") and callable(getattr(value, "collect", None)):
        raise TypeError(
            f"{name} is a {type(value).__name__}, whose rows are not read yet: give "
            "frame.collect(), or files larger than memory as FileDataset('data.parquet', x=..., "
            "y=...)"
        )
    elif isinstance(value, PackedSequence):
        raise TypeError(
            f"{name} is a PackedSequence, whose rows are steps of several samples: give "
            "Ragged(torch.nn.utils.rnn.unpack_sequence(packed)), or the list of sequences "
            "itself, and pack batches in build(collate=) or in the network"
        )
    elif isinstance(value, Iterator):
        raise TypeError(
            f"{name} is a {type(value).__name__}, which can be read only once; give a list or an "
            "array of its items, or a torch.utils.data.IterableDataset"
        )


def is_grouped(value: object) -> bool:
    """Return whether a value is what ``groupby`` of pandas or polars returns, without importing
    these.
    """
    return type(value).__name__.endswith("GroupBy") and hasattr(value, "agg")


@cache
def check_dtype(dtype: np.dtype[Any]) -> None:
    """Raise ``TypeError`` for a dtype that torch does not support."""
    try:
        torch.from_numpy(np.empty(0, dtype))
    except (TypeError, ValueError) as error:
        text = (
            "; a tokenizer makes integers of text, FileDataset(names) reads files, and "
            "np.unique(labels, return_inverse=True)[1] of labels"
        )
        hint = text if dtype.kind in "USO" else ""
        raise TypeError(
            f"torch cannot hold dtype {dtype}; make it numbers in native byte order{hint}"
        ) from error


_SIGNED: dict[Any, Any] = {
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.uint64: torch.int64,
}
_SIGNED |= {
    np.dtype(np.uint16): np.int32,
    np.dtype(np.uint32): np.int64,
    np.dtype(np.uint64): np.int64,
}
"""Dtypes whose rows torch cannot select, and those that hold their values."""


def signed(array: _Array) -> _Array:
    """Return arrays and tensors of unsigned integers of 16 and more bits as signed ones, and others
    unchanged.

    Raises ``ValueError`` for integers of 2**63 and more, which would become negative.
    """
    own: Any = array
    if own.dtype not in _SIGNED:
        return array
    wider: Any = (
        own.astype(_SIGNED[own.dtype])
        if isinstance(own, np.ndarray)
        else own.to(_SIGNED[own.dtype])
    )
    if own.dtype in (np.uint64, torch.uint64) and (wider < 0).any():
        largest = int(wider[wider < 0].max()) + 2**64
        raise ValueError(
            f"holds {largest}, and the largest integer of a tensor is 2**63 - 1: make them floats"
        )
    return wider  # type: ignore[no-any-return]


class _Writable:
    """Lets torch, which knows no read-only tensors, share the memory of a read-only array."""

    def __init__(self, array: NDArray[Any]) -> None:
        interface = array.__array_interface__
        self.__array_interface__ = {**interface, "data": (interface["data"][0], False)}
        self.array = array


def shared_tensor(array: NDArray[Any]) -> torch.Tensor:
    """Return a tensor that shares the memory of an array; nobody may write to it if the array is
    read-only.
    """
    return torch.from_numpy(array if array.flags.writeable else np.asarray(_Writable(array)))


def tensor_of(value: Any) -> torch.Tensor:
    """Return an array, a tensor or a list of numbers as a tensor; raise ``ValueError`` for what
    none can hold.

    It shares memory that it must not be written through.
    """
    try:
        is_read_only = isinstance(value, np.ndarray) and not value.flags.writeable
        return torch.as_tensor(np.asarray(_Writable(value)) if is_read_only else value)
    except (TypeError, ValueError, RuntimeError) as error:  # of text, for example
        raise ValueError(
            f"no tensor can hold this {type(value).__name__}: {error}; give numbers, and "
            "integers below 2**63"
        ) from error


def check_parts(name: str, values: Collection[Any]) -> None:
    """Check each item of a list as ``check_values`` does, and its dtype."""
    for value in values:
        check_values(name, value)
        if isinstance(value, np.ndarray | np.generic):
            check_dtype(value.dtype)


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


Block: TypeAlias = NDArray[Any] | torch.Tensor | Ragged
DType: TypeAlias = np.dtype[Any] | torch.dtype


def as_block(value: object) -> Block:
    """Return ``value`` as a block: a detached tensor on the CPU, or a numpy array for anything
    else.

    Raises ``TypeError`` for a dtype that torch does not support, for masked arrays, for iterators,
    and for tensors that are sparse, nested, quantized or on the meta device; ``ValueError`` for a
    scalar, for samples of several shapes and for integers of 2**63 and more.
    """
    if isinstance(value, Ragged):
        return value
    check_values("a block", value)
    block: Block = value.detach().cpu() if isinstance(value, torch.Tensor) else _as_array(value)
    if block.ndim == 0:
        raise ValueError(
            f"a block needs a first dimension of samples, but this value is a scalar: {value!r}; "
            "give an array, a column as frame['label'], a list of samples as Samples(samples), "
            "or files as FileDataset('data.parquet', x=..., y=...)"
        )
    if isinstance(block, np.ndarray):
        check_dtype(block.dtype)
    return signed(block)


def _as_array(value: Any) -> NDArray[Any]:
    if isinstance(value, list | tuple):
        check_parts("a part of a block", value)
    try:
        array: NDArray[Any] = (
            np.asarray(value) if isinstance(value, np.ma.MaskedArray) else np.asanyarray(value)
        )
        if (
            isinstance(value, list | tuple)
            and array.dtype.kind == "f"
            and (np.abs(array) >= 2.0**63).any()
        ):
            # Numpy makes floats of integers of both signs.
            for item in np.asarray(value, object).flat:
                if isinstance(item, int) and not -(2**63) <= item < 2**63:
                    raise ValueError(
                        f"it holds {item}, and the largest integer of a tensor is 2**63 - 1"
                    )
        return array
    except (ValueError, RuntimeError) as error:
        if isinstance(value, list) and all(
            isinstance(item, tuple) and len(item) == 2 for item in value
        ):
            raise ValueError(
                "this is a list of pairs (x, y): give Samples(pairs), or x and y apart"
            ) from error
        raise ValueError(
            f"cannot make an array of this {type(value).__name__}: {error}; all samples must "
            "have the same shape: pad or cut them, and give an array or a tensor"
        ) from error


class MappedMemory(np.ndarray[Any, Any]):
    """Bytes of memory that processes share, on which an engine makes read-only arrays."""


def as_tensor(block: Block) -> torch.Tensor:
    """Return the block as a tensor that shares its memory; read-only memory is copied, unless
    engines mapped it.
    """
    if not isinstance(block, np.ndarray):
        return block  # type: ignore[return-value]  # Ragged has what is asked of tensors that are only cut
    # torch shares memory with writable arrays only. A tensor on read-only memory would make it
    # writable.
    plain = np.asarray(block)
    is_shared = (plain.flags.writeable or _is_mapped(plain)) and min(plain.strides, default=0) >= 0
    return shared_tensor(plain if is_shared else np.array(plain))


def _is_mapped(array: Any) -> bool:
    while isinstance(array, np.ndarray) and not isinstance(array, MappedMemory):
        array = array.base
    return isinstance(getattr(array, "obj", array), MappedMemory)  # a memoryview of it


def flat_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a contiguous tensor as a flat tensor that shares its memory."""
    # A dimension of one element may have any stride and still count as contiguous.
    return tensor.as_strided((tensor.numel(),), (1,)).view(torch.uint8)


def rows_of_bytes(block: Block) -> NDArray[np.uint8]:
    """Return the rows as bytes, with shape (rows, bytes per row); a contiguous block shares its
    memory.

    Copying rows of bytes is faster than copying rows of other dtypes with torch or numpy.
    """
    if isinstance(block, Ragged):
        raise TypeError(
            "sequences of different lengths have no rows of one size; pad them for this"
        )
    width = math.prod(block.shape[1:])
    if isinstance(block, torch.Tensor):
        rows = block.reshape(len(block), width).contiguous()
        if rows.stride(1) != 1:  # a single element counts as contiguous with any strides
            rows = rows.clone(memory_format=torch.contiguous_format)
        plain: NDArray[np.uint8] = rows.view(torch.uint8).numpy()
        return plain
    return np.ascontiguousarray(block).reshape(len(block), width).view(np.uint8)


def rows_as_items(block: Block) -> NDArray[np.void]:
    """Return a flat array with one item per row that shares the block's memory: the fastest for
    indexed copies.
    """
    rows = (
        block
        if isinstance(block, np.ndarray) and block.flags.c_contiguous
        else rows_of_bytes(block)
    )
    width = rows.nbytes // (len(rows) or 1)
    return rows.reshape(-1).view(_item_dtype(width)) if width else np.empty(len(rows), "V1")


@cache  # making it takes a tenth of the time of a put
def _item_dtype(width: int) -> np.dtype[np.void]:
    return np.dtype((np.void, width))


def copy_block(block: Block) -> Block:
    """Return a contiguous copy; a memory-mapped array is returned unchanged, as its data stay in
    the file.
    """
    if isinstance(block, np.memmap):
        return block
    if isinstance(block, Ragged):
        return block.clone()
    if isinstance(block, torch.Tensor):
        return block.clone(memory_format=torch.contiguous_format)
    copy: NDArray[Any] = torch.empty(block.shape, dtype=as_tensor(block[:0]).dtype).numpy()
    np.copyto(copy, block)
    return copy


def concatenate(blocks: Sequence[Block]) -> Block:
    """Return the blocks concatenated along the first dimension; the first block determines its
    kind.
    """
    if isinstance(blocks[0], Ragged):
        return join(blocks)
    if isinstance(blocks[0], torch.Tensor):
        return torch.cat([as_tensor(block) for block in blocks])
    return np.concatenate([np.asarray(block) for block in blocks])


def gather(samples: NDArray[Any], starts: Sequence[int], blocks: Sequence[Block]) -> torch.Tensor:
    """Return samples by number from consecutive blocks that begin at ``starts``.

    Rows are copied as bytes, block by block in ascending order, and permuted at the end: many small
    indexing operations of torch cost far more.
    """
    order = np.argsort(samples, kind="stable")
    ordered = samples[order]
    cuts = pairwise(np.searchsorted(ordered, [*starts, starts[-1] + len(blocks[-1])]).tolist())
    used = [
        (*each, low, high)
        for *each, (low, high) in zip(blocks, starts, cuts, strict=True)
        if low < high
    ]
    places = np.empty_like(order)
    places[order] = np.arange(len(order))
    if isinstance(blocks[0], Ragged):
        parts = [
            block.index_select(0, torch.from_numpy(ordered[low:high] - start))
            for block, start, low, high in used
        ]
        return join(parts).index_select(0, torch.from_numpy(places))  # type: ignore[return-value]
    collected = np.empty((len(samples), rows_of_bytes(blocks[0]).shape[1]), np.uint8)
    for block, start, low, high in used:
        np.take(
            rows_of_bytes(block),
            ordered[low:high] - start,
            axis=0,
            out=collected[low:high],
            mode="clip",
        )
    raw = torch.from_numpy(collected).index_select(0, torch.from_numpy(places))
    first = as_tensor(blocks[0][:1])
    return raw.view(first.dtype).view(len(samples), *first.shape[1:])


def checksum(blocks: Iterable[Block]) -> int:
    """Return a checksum of all bytes of these blocks."""
    value = 0
    for block in blocks:
        value = zlib.crc32(rows_of_bytes(block).data, value)
    return value


BlockDescription = tuple[DType, tuple[int, ...]]
"""A block's dtype and shape."""


class RemoteBlock(ABC):
    """A block in an engine's storage; this process knows only its dtype and shape."""

    home: ClassVar[str]
    """Name of the engine whose tasks read the block directly; other engines get the result of
    ``load``.
    """
    future: object = None
    """The PyCOMPSs future of the block; ``None`` for blocks of other engines."""

    def __init__(self, dtype: DType, shape: tuple[int, ...]) -> None:
        self.dtype = dtype
        self.shape = shape

    @abstractmethod
    def load(self) -> Block:
        """Load the block into this process's memory and return it."""

    def __len__(self) -> int:
        return self.shape[0]


def is_future(value: object) -> bool:
    """Return whether an object is a placeholder of PyCOMPSs for a value that a task computes.

    Placeholders are objects of PyCOMPSs's classes for task results, and bare ``object()`` instances
    in a COLLECTION_OUT.
    """
    return type(value) is object or type(value).__module__.split(".")[0] == "pycompss"


AnyBlock: TypeAlias = Block | RemoteBlock


def describe(block: object) -> BlockDescription:
    """Return the dtype and shape of a block; runs as a task where the block is stored."""
    array = as_block(block)
    return array.dtype, tuple(array.shape)


def load_block(block: Block | RemoteBlock) -> Block:
    """Return the block, loaded into this process's memory if it is remote."""
    return block.load() if isinstance(block, RemoteBlock) else block


@dataclass(frozen=True, slots=True)
class ColumnStructure:
    """The tuples, lists and dicts of x and y, with ``None`` for each column: a single column is
    ``None`` itself.
    """

    x: Any = None
    y: Any = None
    """The structure of y; without columns for y, x is its own target."""
    ragged: bool = False
    """Whether some columns have sequences of different lengths."""
    weighted: bool = False
    """Whether the last column holds the samples' weights."""

    def parts(self, columns: Iterable[torch.Tensor]) -> tuple[Any, Any, torch.Tensor | None]:
        """Return x, y and weights of these columns, as the network and the loss receive them."""
        own = list(columns)
        weight = own.pop() if self.weighted else None
        if self.x is None and self.y is None:  # as in most fits
            return own[0], own[1] if len(own) > 1 else None, weight
        each = iter(own)
        x = rebuilt(self.x, each)
        return x, rebuilt(self.y, each) if len(own) > len(leaves(x)) else None, weight


SINGLE = ColumnStructure()
"""One column for x, and perhaps one for y."""
