"""``BlockedTensor``: samples in a grid of blocks, each small enough to hand to a worker."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise

import numpy as np

from compss_train.data.block import Block, DType, as_block, concatenate, own_copy
from compss_train.data.order import split_points


class BlockedTensor:
    """A grid of blocks; the samples are the blocks' rows, counted row of the grid by row of the grid.

    ``tensors[i][j]`` is a block: a numpy array or a torch tensor whose first dimension counts samples. All
    blocks have one dtype and one sample shape, and no block is empty.

    Raises ``ValueError`` for a grid that is empty or ragged, and for blocks that do not fit together.
    """

    def __init__(self, tensors: Sequence[Sequence[object]]) -> None:
        self.tensors: list[list[Block]] = [[as_block(block) for block in row] for row in tensors]
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

    def blocks(self) -> Iterator[Block]:
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
        """Return all samples as one array or tensor, in the order of ``blocks``."""
        return concatenate(list(self.blocks()))

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"BlockedTensor({rows} x {columns} blocks, {self.number_samples} samples "
            f"of {self.dtype} {self.sample_shape})"
        )


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
