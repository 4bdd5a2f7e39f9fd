"""``BlockedTensor``: samples in a grid of blocks, each small enough to hand to a worker."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.data.block import (
    AnyBlock,
    Block,
    DType,
    RemoteBlock,
    as_block,
    concatenate,
    loaded,
    own_copy,
    rows_of_bytes,
)
from compss_train.data.dislib_tensors import blocks_of, make_tensor
from compss_train.data.files import FileNames, file_names, read_whole
from compss_train.data.order import split_points


class BlockedTensor:
    """A grid of blocks; the samples are the blocks' rows, counted row of the grid by row of the grid.

    ``tensors[i][j]`` is a block: a numpy array or a torch tensor whose first dimension counts samples, or a
    ``RemoteBlock`` that stands for one elsewhere. All blocks have one dtype and one sample shape, none is empty.

    Raises ``ValueError`` for a grid that is empty or ragged, and for blocks that do not fit together.
    """

    def __init__(self, tensors: Sequence[Sequence[object]]) -> None:
        self.tensors: list[list[AnyBlock]] = [[_as_cell(block) for block in row] for row in tensors]
        if not self.tensors or not self.tensors[0]:
            raise ValueError("a blocked tensor needs at least one block, the grid given is empty")
        if len({len(row) for row in self.tensors}) > 1:
            raise ValueError(f"the grid is ragged: its rows have {[len(row) for row in self.tensors]} blocks")
        self._check_blocks()

    def _check_blocks(self) -> None:
        first = self.tensors[0][0]
        for number, block in enumerate(self.blocks()):
            if len(block) == 0:
                raise ValueError(f"block {number} has no samples; use fewer blocks or leave it out")
            if block.dtype != first.dtype or block.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"block {number} holds samples of {block.dtype} {tuple(block.shape[1:])}, "
                    f"block 0 of {first.dtype} {tuple(first.shape[1:])}; all blocks must agree"
                )

    @classmethod
    def from_array(cls, array: object, blocks: tuple[int, int]) -> BlockedTensor:
        """Cut an array or tensor along its first dimension into ``blocks[0] * blocks[1]`` blocks.

        Every sample is kept and block sizes differ by one at most. The samples are copied once, so that the
        array may be changed or deleted afterwards; a ``numpy.memmap`` is not copied, its blocks stay on file.

        Raises ``ValueError`` for a grid with fewer than one row or column or with more cells than samples.
        """
        whole = as_block(array)
        rows, columns = _check_grid(blocks, len(whole))
        cells = iter(cut(whole, rows * columns))
        return cls([[own_copy(next(cells)) for _ in range(columns)] for _ in range(rows)])

    @classmethod
    def from_files(cls, paths: FileNames, key: str = "x", *, reader: Any = None) -> BlockedTensor:
        """Make a block of each file, one below the other.

        ``paths`` is a list, or a pattern as ``FileDataset`` takes. ``.npy`` files are mapped, not read: only their
        paths go to the workers, which must find them there (on a cluster: in a shared file system). Of other files
        that it can read, or ``reader``, the array called ``key`` is read into memory; samples that do not fit
        belong in a ``FileDataset``. Raises ``ValueError`` for files that cannot be read or mapped.
        """
        names = file_names(paths)
        if reader is None and all(Path(name).suffix == ".npy" for name in names):
            return cls([[_mapped(Path(name))] for name in names])
        return cls([[block] for block in read_whole(names, key, reader)])

    @classmethod
    def from_dislib(cls, tensor: Any) -> BlockedTensor:
        """Return a dislib ``Tensor`` as a blocked tensor with the same grid, whose blocks stay where they are.

        Blocks that tasks have still to make, or that lie on other nodes, are not collected: tasks tell their sizes.
        """
        return cls(blocks_of(tensor))

    def to_dislib(self) -> Any:
        """Return a dislib ``Tensor`` of the same blocks; needs dislib. Its blocks are this tensor's to delete."""
        return make_tensor(self.tensors, self.dtype, self.number_samples, owner=self)

    def blocks(self) -> Iterator[AnyBlock]:
        """Iterate over the blocks, row by row: the order that block numbers count in."""
        for row in self.tensors:
            yield from row

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of the grid."""
        return len(self.tensors), len(self.tensors[0])

    @property
    def sizes(self) -> tuple[int, ...]:
        """Samples of each block, in the order of ``blocks``."""
        return tuple(len(block) for block in self.blocks())

    @property
    def number_samples(self) -> int:
        """Samples in all blocks."""
        return sum(self.sizes)

    @property
    def sample_shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        return tuple(self.tensors[0][0].shape[1:])

    @property
    def dtype(self) -> DType:
        """The blocks' dtype: numpy's for arrays, torch's for tensors."""
        return self.tensors[0][0].dtype

    def collect(self) -> Block:
        """Return all samples as one array or tensor, in the order of ``blocks``; remote blocks are fetched."""
        return concatenate([loaded(block) for block in self.blocks()])

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"BlockedTensor({rows} x {columns} blocks, {self.number_samples} samples "
            f"of {self.dtype} {self.sample_shape})"
        )


def _as_cell(block: object) -> AnyBlock:
    return block if isinstance(block, RemoteBlock) else as_block(block)


def _mapped(path: Path) -> NDArray[Any]:
    array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    if not array.flags.c_contiguous:
        raise ValueError(f"{path} is in Fortran order; save numpy.ascontiguousarray(array) instead")
    return array


def cut(whole: Block, parts: int) -> list[Block]:
    """Cut a block along its first dimension into ``parts`` views whose sizes differ by one at most."""
    return [whole[start:stop] for start, stop in pairwise(split_points(len(whole), parts))]


def _check_grid(blocks: object, samples: int) -> tuple[int, int]:
    integers = (int, np.integer)
    if not (isinstance(blocks, tuple | list) and len(blocks) == 2 and all(isinstance(n, integers) for n in blocks)):
        raise ValueError(f"blocks={blocks!r} is not a grid; give (rows, columns), for example (8, 1)")
    rows, columns = int(blocks[0]), int(blocks[1])
    if rows < 1 or columns < 1:
        raise ValueError(f"blocks={blocks!r}: a grid needs at least one row and one column")
    if rows * columns > samples:
        raise ValueError(
            f"blocks={blocks!r} makes {rows * columns} blocks of {samples} samples; use {samples} blocks at most"
        )
    return rows, columns


def fingerprint(tensors: Iterable[BlockedTensor]) -> int | None:
    """Return a checksum of the first and last row of each block, ``None`` where some are still to be computed."""
    checksum = 0
    for tensor in tensors:
        for block in tensor.blocks():
            if not isinstance(block, np.ndarray | torch.Tensor):
                return None
            for row in (block[:1], block[-1:]):
                checksum = zlib.crc32(rows_of_bytes(row).data, checksum)
    return checksum
