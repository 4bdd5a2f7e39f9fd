"""``BlockedTensor``: samples in a grid of blocks; shuffling blocked tensors, sample weights, fingerprints."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.data.block import (
    AnyBlock,
    Block,
    DType,
    RemoteBlock,
    as_block,
    as_tensor,
    concatenate,
    copy_block,
    load_block,
    rows_of_bytes,
)
from compss_train.data.dislib_tensors import blocks_of, make_tensor
from compss_train.data.files import read_arrays
from compss_train.data.layout import check_weight_shape
from compss_train.data.locations import FileNames, file_names
from compss_train.data.order import sample_order, split_points
from compss_train.data.ragged import as_ragged


class BlockedTensor:
    """A grid of blocks whose rows are samples, numbered in row-major order of the grid.

    ``tensors[i][j]`` is a block: a numpy array or a torch tensor whose first dimension is that of the samples, or a
    ``RemoteBlock`` that refers to one. All blocks have the same dtype and sample shape, and none is empty.

    Raises ``ValueError`` for a grid that is empty or ragged, and for blocks of different dtypes or sample shapes.
    """

    def __init__(self, tensors: Sequence[Sequence[object]]) -> None:
        self.tensors: list[list[AnyBlock]] = [[_as_cell(block) for block in row] for row in tensors]
        if not self.tensors or not self.tensors[0]:
            raise ValueError("a blocked tensor needs at least one block, but the grid is empty")
        if len({len(row) for row in self.tensors}) > 1:
            raise ValueError(f"the grid is ragged: its rows have {[len(row) for row in self.tensors]} blocks")
        self._check_blocks()

    def _check_blocks(self) -> None:
        first = self.tensors[0][0]
        for number, block in enumerate(self.blocks()):
            if len(block) == 0:
                raise ValueError(f"block {number} has no samples; use fewer blocks or remove it")
            if block.dtype != first.dtype or block.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"block {number} holds samples of {block.dtype} {tuple(block.shape[1:])}, "
                    f"block 0 of {first.dtype} {tuple(first.shape[1:])}; all blocks must agree"
                )

    @classmethod
    def from_array(cls, array: object, blocks: int | tuple[int, int]) -> BlockedTensor:
        """Split an array or tensor along its first dimension into ``blocks[0] * blocks[1]`` blocks.

        A single number ``blocks`` is a grid of so many rows and one column.

        Every sample is kept, and block sizes differ by one at most. The samples are copied once, so that the array
        can be modified or deleted afterwards. A ``numpy.memmap`` is not copied: its blocks stay in the file.

        Raises ``ValueError`` for a grid without rows or columns, and for one with more blocks than samples.
        """
        samples = as_block(array)
        rows, columns = _check_grid(blocks, len(samples))
        cells = iter(split_block(samples, rows * columns))
        return cls([[copy_block(next(cells)) for _ in range(columns)] for _ in range(rows)])

    @classmethod
    def from_files(cls, paths: FileNames, key: str = "x", *, reader: Any = None) -> BlockedTensor:
        """Return a grid with one column whose blocks are the files.

        ``paths`` is a list, or a pattern as in ``FileDataset``. ``.npy`` files are memory-mapped: only their paths
        are sent to the workers, so that the files must be accessible to them under these paths (on a cluster: in a
        shared file system). Of files in other supported formats, or with a ``reader``, the array ``key`` is read
        into memory; for samples that do not fit in memory use a ``FileDataset``. Raises ``ValueError`` for files
        that cannot be read or mapped.
        """
        names = file_names(paths)
        if reader is None and all(Path(name).suffix == ".npy" for name in names):
            return cls([[_memory_map(Path(name))] for name in names])
        return cls([[block] for block in read_arrays(names, key, reader)])

    @classmethod
    def from_dislib(cls, tensor: Any) -> BlockedTensor:
        """Return a dislib ``Tensor`` as a blocked tensor with the same grid, without moving its blocks.

        Blocks that are still being computed, or are on other nodes, are not fetched: tasks return their sizes.
        """
        return cls(blocks_of(tensor))

    def to_dislib(self) -> Any:
        """Return a dislib ``Tensor`` of the same blocks, which this tensor still owns; needs dislib."""
        return make_tensor(self.tensors, self.dtype, self.number_samples, owner=self)

    def blocks(self) -> Iterator[AnyBlock]:
        """Iterate over the blocks in row-major order, the order of block numbers."""
        for row in self.tensors:
            yield from row

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the grid."""
        return len(self.tensors), len(self.tensors[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of samples in each block, in the order of ``blocks``."""
        return tuple(len(block) for block in self.blocks())

    @property
    def number_samples(self) -> int:
        """Number of samples in all blocks."""
        return sum(self.sizes)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.tensors[0][0].shape[1:])

    @property
    def dtype(self) -> DType:
        """The blocks' dtype: a numpy dtype for arrays, a torch dtype for tensors."""
        return self.tensors[0][0].dtype

    def collect(self) -> Block:
        """Return all samples as one array or tensor, in the order of ``blocks``; remote blocks are fetched."""
        return concatenate([load_block(block) for block in self.blocks()])

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"BlockedTensor({rows} x {columns} blocks, {self.number_samples} samples "
            f"of {self.dtype} {self.sample_shape})"
        )


def _as_cell(block: object) -> AnyBlock:
    return block if isinstance(block, RemoteBlock) else as_block(block)


def _memory_map(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if not array.flags.c_contiguous:
        raise ValueError(f"{path} is in Fortran order; save numpy.ascontiguousarray(array) instead")
    return array


def split_block(block: Block, parts: int) -> list[Block]:
    """Split a block along its first dimension into ``parts`` views whose sizes differ by one at most."""
    return [block[start:stop] for start, stop in pairwise(split_points(len(block), parts))]


def _check_grid(blocks: object, samples: int) -> tuple[int, int]:
    grid = blocks if isinstance(blocks, tuple | list) else (blocks, 1)
    if len(grid) != 2 or not all(isinstance(n, Integral) and not isinstance(n, bool) for n in grid):
        raise ValueError(f"blocks={blocks!r} is not a grid; give the number of blocks, or (rows, columns)")
    rows, columns = int(grid[0]), int(grid[1])
    if rows < 1 or columns < 1:
        raise ValueError(f"blocks={blocks!r}: a grid needs at least one row and one column")
    if rows * columns > samples:
        raise ValueError(
            f"blocks={blocks!r} makes {rows * columns} blocks of {samples} samples; use at most {samples} blocks"
        )
    return rows, columns


def fingerprint(tensors: Iterable[BlockedTensor]) -> int | None:
    """Return a checksum of the first and last row of each block, or ``None`` if there are remote blocks."""
    checksum = 0
    for tensor in tensors:
        for block in tensor.blocks():
            if isinstance(block, RemoteBlock):
                return None
            for row in (block[:1], block[-1:]) if as_ragged(block) is None else (block[0], block[-1]):
                checksum = zlib.crc32(rows_of_bytes(row).data, checksum)
    return checksum


@overload
def shuffle(x: BlockedTensor, y: None = None, seed: int = 0) -> BlockedTensor: ...
@overload
def shuffle(x: BlockedTensor, y: BlockedTensor, seed: int = 0) -> tuple[BlockedTensor, BlockedTensor]: ...
def shuffle(
    x: BlockedTensor, y: BlockedTensor | None = None, seed: int = 0
) -> BlockedTensor | tuple[BlockedTensor, BlockedTensor]:
    """Return new blocked tensors whose samples are a uniform permutation of all samples of ``x`` (and ``y``).

    Grid, block sizes and dtypes are kept, and ``x`` and ``y`` stay paired. Needs memory for another copy of the
    data.

    Raises ``ValueError`` if x and y have different grids or block sizes.
    """
    order = sample_order(seed, 0, x.number_samples)
    if y is None:
        return _permute(x, order)
    check_paired(x, y)
    return _permute(x, order), _permute(y, order)


def _permute(tensor: BlockedTensor, order: NDArray[Any]) -> BlockedTensor:
    samples = tensor.collect()
    bounds = np.cumsum([0, *tensor.sizes]).tolist()
    blocks = iter([_take_rows(samples, order[start:stop]) for start, stop in pairwise(bounds)])
    return BlockedTensor([[next(blocks) for _ in row] for row in tensor.tensors])


def _take_rows(block: Block, rows: NDArray[Any]) -> Block:
    if isinstance(block, torch.Tensor):
        return block[torch.from_numpy(rows).long()]
    if (ragged := as_ragged(block)) is not None:
        return ragged.index_select(0, torch.from_numpy(rows))  # type: ignore[return-value]
    return copy_block(block[rows])


def check_paired(x: BlockedTensor, y: BlockedTensor, name: str = "y") -> None:
    """Raise ``ValueError`` unless x and y have the same grid and block sizes; messages call y ``name``."""
    if x.shape != y.shape:
        raise ValueError(
            f"x has a grid of {x.shape} blocks and {name} one of {y.shape}; split both into the same blocks"
        )
    for number, (size, other) in enumerate(zip(x.sizes, y.sizes, strict=True)):
        if size != other:
            raise ValueError(
                f"block {number} has {size} samples in x and {other} in {name} "
                f"({x.number_samples} and {y.number_samples} in all); split both into the same blocks"
            )


def as_weights(value: object, x: BlockedTensor) -> BlockedTensor:
    """Return the weights of the samples ``x`` as a blocked tensor with the blocks of ``x``.

    ``value`` is such a blocked tensor, or an array that is split here: one finite number of at least 0 for each
    sample, and not 0 for all of them. Numbers in remote and memory-mapped blocks are checked when they are used.
    Raises ``ValueError`` for weights that do not match these samples.
    """
    weights = as_blocked_like(value, x, "sample_weight")
    check_paired(x, weights, "sample_weight")
    check_weight_shape("sample_weight", weights.sample_shape)
    for number, block in enumerate(weights.blocks()):
        if not isinstance(block, RemoteBlock | np.memmap):
            _check_weight_values(number, block)
    if not any(isinstance(block, RemoteBlock) or as_tensor(block).any() for block in weights.blocks()):
        raise ValueError("sample_weight is 0 for every sample, so that nothing would be learnt; give some above 0")
    return weights


def as_blocked_like(value: object, x: BlockedTensor, name: str) -> BlockedTensor:
    """Return a blocked tensor as it is, and an array in the blocks of x; messages call it ``name``."""
    if isinstance(value, BlockedTensor):
        return value
    if hasattr(value, "tensors"):
        return BlockedTensor.from_dislib(value)
    rows = as_block(value)
    if len(rows) != x.number_samples:
        raise ValueError(f"{name} has {len(rows)} rows for {x.number_samples} samples; give one for each")
    blocks = iter(rows[start:stop] for start, stop in pairwise(np.cumsum([0, *x.sizes]).tolist()))
    return BlockedTensor([[next(blocks) for _ in row] for row in x.tensors])


def _check_weight_values(number: int, block: Block) -> None:
    weights = as_tensor(block)
    if weights.is_complex() or not bool(((weights >= 0) & weights.isfinite()).all()):
        raise ValueError(
            f"sample_weight holds negative, NaN, infinite or complex numbers in block {number}; weights are finite "
            "and at least 0"
        )
