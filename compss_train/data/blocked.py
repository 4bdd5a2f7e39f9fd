"""``BlockedTensor``: samples in a grid of blocks; how it is made of data, shuffled and compared."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, starmap
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Self, overload

import numpy as np
import torch

from compss_train._utils.numpy_files import load_numpy
from compss_train._utils.validation import check_count
from compss_train.data import layout, reading
from compss_train.data.block import Block, DType, as_block, as_tensor, concatenate, copy_block
from compss_train.data.block_bytes import checksum
from compss_train.data.locations import FileNames, file_names
from compss_train.data.order import even_parts, sample_order
from compss_train.data.ragged import Ragged
from compss_train.data.remote_block import AnyBlock, RemoteBlock, is_future, load_block

_FUTURE_BLOCKS = "compss_train.engines.compss.blocks:future_blocks"
"""Makes blocks of PyCOMPSs futures, whose shapes tasks find out.

It is imported by name, because engines are above data.
"""


class BlockedTensor:
    """A grid of blocks whose rows are samples, numbered in row-major order of the grid.

    ``tensors[i][j]`` is a block: a numpy array or torch tensor whose first dimension is the
    samples, or a ``RemoteBlock`` that refers to one. All blocks have the same dtype and sample
    shape, and none is empty.

    Raises ``ValueError`` for a grid that is empty or ragged, and for blocks with different dtypes
    or sample shapes.
    """

    def __init__(self, tensors: Sequence[Sequence[object]]) -> None:
        self.tensors: list[list[AnyBlock]] = [
            [block if isinstance(block, RemoteBlock) else as_block(block) for block in row]
            for row in tensors
        ]
        if not self.tensors or not self.tensors[0]:
            raise ValueError("a blocked tensor needs at least one block, but the grid is empty")
        if len({len(row) for row in self.tensors}) > 1:
            raise ValueError(
                f"the grid is ragged: its rows have {[len(row) for row in self.tensors]} blocks"
            )
        first = self.tensors[0][0]
        for number, block in enumerate(self.blocks()):
            if not len(block):
                raise ValueError(f"block {number} has no samples; use fewer blocks or remove it")
            if block.dtype != first.dtype or block.shape[1:] != first.shape[1:]:
                raise ValueError(
                    f"block {number} holds samples of {block.dtype} {tuple(block.shape[1:])}, "
                    f"block 0 of {first.dtype} {tuple(first.shape[1:])}; all blocks must agree"
                )

    @classmethod
    def from_array(cls, array: object, blocks: int | tuple[int, int]) -> Self:
        """Split an array or tensor along its first dimension into ``blocks[0] * blocks[1]`` blocks.

        A single number gives a grid with ``blocks`` rows and one column.

        Every sample is kept, and block sizes differ by at most one. The samples are copied once, so
        you may modify or delete the array afterwards. A ``numpy.memmap`` is not copied: its blocks
        stay in the file.

        Raises ``ValueError`` for a grid without rows or columns, and for one with more blocks than
        samples.
        """
        samples = as_block(array)
        grid = blocks if isinstance(blocks, tuple | list) else (blocks, 1)
        if len(grid) != 2:
            raise ValueError(
                f"blocks={blocks!r} is not a grid; give the number of blocks, or (rows, columns)"
            )
        rows, columns = [check_count("blocks", number) for number in grid]
        if rows * columns > len(samples):
            raise ValueError(
                f"blocks={blocks!r} makes {rows * columns} blocks of {len(samples)} samples; use "
                f"at most {len(samples)} blocks"
            )
        cells = starmap(slice, even_parts(len(samples), rows * columns))
        return cls(
            [[copy_block(samples[next(cells)]) for _ in range(columns)] for _ in range(rows)]
        )

    @classmethod
    def from_files(cls, paths: FileNames, key: str = "x", *, reader: Any = None) -> Self:
        """Return a grid with one column whose blocks are the files.

        ``paths`` is a list, or a pattern as in ``FileDataset``. ``.npy`` files are memory-mapped:
        only their paths are sent to the workers, which must be able to open them (on a cluster: on
        a shared file system). For other supported formats, or with a ``reader``, the array ``key``
        is read into memory; for samples that do not fit in memory use a ``FileDataset``. Raises
        ``ValueError`` for files that cannot be read or mapped.
        """
        names = file_names(paths)
        if reader is None and all(Path(name).suffix == ".npy" for name in names):
            arrays = [load_numpy(name, mmap_mode="r") for name in names]
            for name, array in zip(names, arrays, strict=True):
                if not array.flags.c_contiguous:
                    raise ValueError(
                        f"{name} is in Fortran order; save numpy.ascontiguousarray(array) instead"
                    )
            return cls([[array] for array in arrays])
        return cls([[block] for block in reading.read_arrays(names, key, reader)])

    @classmethod
    def from_dislib(cls, tensor: Any) -> Self:
        """Return a dislib ``Tensor`` as a blocked tensor with the same grid and blocks.

        Blocks that are still being computed, or are on other nodes, are not fetched: tasks return
        their sizes.

        Raises ``TypeError`` for an object without a grid of blocks.
        """
        grid = getattr(tensor, "tensors", None)
        if not isinstance(grid, list) or not all(isinstance(row, list) for row in grid):
            raise TypeError(
                "expected a dislib Tensor, with lists of blocks in .tensors; got a "
                f"{type(tensor).__name__}"
            )
        futures = [block for row in grid for block in row if is_future(block)]
        remote = resolve_name(_FUTURE_BLOCKS)(futures, tensor) if futures else []
        block_of_future = {id(future): block for future, block in zip(futures, remote, strict=True)}
        return cls([[block_of_future.get(id(block), block) for block in row] for row in grid])

    def to_dislib(self) -> Any:
        """Return a dislib ``Tensor`` of the same blocks, which this tensor still owns.

        dislib assumes that all blocks have the first block's shape; its own training drops the
        samples of a block beyond a whole number of batches. Raises ``ImportError`` without dislib.
        """
        try:
            from dislib.data.tensor import Tensor
        except ImportError as error:
            raise ImportError(
                "to_dislib needs dislib and PyCOMPSs; install dislib (pip install dislib)"
            ) from error
        tensor = Tensor(
            tensors=[[_block_for_dislib(block) for block in row] for row in self.tensors],
            tensor_shape=tuple(self.tensors[0][0].shape),
            dtype=self.dtype,
            number_samples=self.number_samples,
            shape=self.shape,
            delete=False,
        )
        tensor.blocked = self  # which deletes the blocks
        return tensor

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
        return tuple(map(len, self.blocks()))

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
        """Return all samples as one array or tensor, in the order of ``blocks``.

        Remote blocks are fetched.
        """
        return concatenate([load_block(block) for block in self.blocks()])

    def __repr__(self) -> str:
        rows, columns = self.shape
        return (
            f"BlockedTensor({rows} x {columns} blocks, {self.number_samples} samples "
            f"of {self.dtype} {self.sample_shape})"
        )


def _block_for_dislib(block: AnyBlock) -> Any:
    future = block.future if isinstance(block, RemoteBlock) else None
    return load_block(block) if future is None else future


def fingerprint(tensors: Iterable[BlockedTensor]) -> int | None:
    """Return a checksum of the first and last row of each block.

    It is ``None`` if those of remote blocks are unknown.
    """
    blocks = [block for tensor in tensors for block in tensor.blocks()]
    if any(isinstance(block, RemoteBlock) and block.checksum is None for block in blocks):
        return None
    return checksum(row for block in blocks for row in _ends(block))


def _ends(block: AnyBlock) -> Sequence[Block]:
    """Return the first and the last row, each as a block; of a remote block, their checksum."""
    if isinstance(block, RemoteBlock):
        return [np.array([block.checksum])]
    if isinstance(block, Ragged):
        return block[0], block[-1]
    return block[:1], block[-1:]


@overload
def shuffle(x: BlockedTensor, y: None = None, seed: int = 0) -> BlockedTensor: ...
@overload
def shuffle(
    x: BlockedTensor, y: BlockedTensor, seed: int = 0
) -> tuple[BlockedTensor, BlockedTensor]: ...
def shuffle(
    x: BlockedTensor, y: BlockedTensor | None = None, seed: int = 0
) -> BlockedTensor | tuple[BlockedTensor, BlockedTensor]:
    """Return blocked tensors of all samples of ``x`` and ``y``, in uniformly random order.

    Grid, block sizes and dtypes are kept, and ``x`` and ``y`` stay paired. Needs memory for a
    second copy of the data.

    Raises ``ValueError`` if x and y have different grids or block sizes.
    """
    order = sample_order(seed, 0, x.number_samples)
    if y is None:
        return _permute(x, order)
    check_paired(x, y)
    return _permute(x, order), _permute(y, order)


def _permute(tensor: BlockedTensor, order: np.ndarray[Any, Any]) -> BlockedTensor:
    samples = tensor.collect()
    rows: Any = torch.from_numpy(order).long() if isinstance(samples, torch.Tensor) else order
    return _in_blocks_of(tensor, samples[rows])


def _in_blocks_of(tensor: BlockedTensor, rows: Block) -> BlockedTensor:
    """Return rows in the grid and block sizes of ``tensor``."""
    bounds = starmap(slice, pairwise(np.cumsum([0, *tensor.sizes]).tolist()))
    return BlockedTensor([[rows[next(bounds)] for _ in row] for row in tensor.tensors])


def check_paired(x: BlockedTensor, y: BlockedTensor, name: str = "y") -> None:
    """Raise ``ValueError`` unless x and y have the same grid and block sizes.

    Messages call y ``name``.
    """
    if x.shape != y.shape:
        raise ValueError(
            f"x has a grid of {x.shape} blocks and {name} one of {y.shape}; split both into the "
            "same blocks"
        )
    for number, (x_size, y_size) in enumerate(zip(x.sizes, y.sizes, strict=True)):
        if x_size != y_size:
            raise ValueError(
                f"block {number} has {x_size} samples in x and {y_size} in {name} "
                f"({x.number_samples} and {y.number_samples} in all); split both into the same "
                "blocks"
            )


def as_weights(value: object, x: BlockedTensor) -> BlockedTensor:
    """Return the weights of the samples ``x`` as a blocked tensor with the blocks of ``x``.

    ``value`` is such a blocked tensor, or an array that is split here: one finite number of at
    least 0 for each sample, and not 0 for all of them. Numbers in remote and memory-mapped blocks
    are checked when they are used. Raises ``ValueError`` for weights that do not match these
    samples.
    """
    weights = as_blocked(value, x, "sample_weight")
    check_paired(x, weights, "sample_weight")
    layout.check_weight_shape("sample_weight", weights.sample_shape)
    for number, block in enumerate(weights.blocks()):
        if not isinstance(block, RemoteBlock | np.memmap):
            numbers = as_tensor(block)
            if numbers.is_complex() or not bool(((numbers >= 0) & numbers.isfinite()).all()):
                raise ValueError(
                    "sample_weight has negative, NaN, infinite or complex numbers "
                    f"in block {number}"
                )
    if not any(
        isinstance(block, RemoteBlock) or as_tensor(block).any() for block in weights.blocks()
    ):
        raise ValueError(
            "sample_weight is 0 for every sample, so nothing would be trained; give some above 0"
        )
    return weights


def as_blocked(value: object, blocks: int | BlockedTensor, name: str = "x") -> BlockedTensor:
    """Return ``value``, which messages call ``name``, as a blocked tensor.

    Accepts a ``BlockedTensor``, anything with a grid of blocks in ``.tensors``, such as dislib's
    Tensor, and an array or tensor, which is cut into the blocks of another blocked tensor, or into
    a number of blocks (at most one for each sample). The blocks of a contiguous array share its
    memory, unless it is read-only.
    """
    if hasattr(value, "tensors"):
        # A grid of its own, where engines replace blocks by views.
        return BlockedTensor.from_dislib(value)
    if hasattr(value, "_blocks") and hasattr(value, "_reg_shape"):
        raise TypeError(
            f"{name} is a ds.array of dislib, whose samples have no shape; give dislib's tensor "
            "of it, dislib.data.tensor.from_ds_array(array, shape), or array.collect()"
        )
    rows = as_block(value)
    if isinstance(rows, np.ndarray):
        if not (rows.flags.c_contiguous and rows.flags.writeable):
            rows = copy_block(rows)
    elif not isinstance(rows, Ragged):
        rows = rows.resolve_conj().resolve_neg().contiguous()
    if isinstance(blocks, int):
        if len(rows) == 0:
            raise ValueError("the array has no samples")
        bounds = even_parts(len(rows), min(blocks, len(rows)))
        return BlockedTensor([[rows[start:stop]] for start, stop in bounds])
    if len(rows) != blocks.number_samples:
        raise ValueError(
            f"{name} has {len(rows)} rows for {blocks.number_samples} samples; give one for each"
        )
    return _in_blocks_of(blocks, rows)
