"""Between dislib's ``Tensor`` and ``BlockedTensor``."""

from __future__ import annotations

from typing import Any

from compss_train.data import BlockedTensor
from compss_train.data.block import RemoteBlock
from compss_train.data.blocked import AnyBlock
from compss_train.engines.compss.blocks import CompssBlock, described
from compss_train.engines.compss.context import is_future


def from_dislib(tensor: Any) -> BlockedTensor:
    """Return the blocks of ``tensor.tensors``, a grid; those that are futures of PyCOMPSs stay futures.

    Raises ``TypeError`` for an object without such a grid.
    """
    grid = getattr(tensor, "tensors", None)
    if not isinstance(grid, list) or not all(isinstance(row, list) for row in grid):
        raise TypeError(
            f"expected a dislib Tensor, with lists of blocks in .tensors; got a {type(tensor).__name__}"
        )
    futures = [block for row in grid for block in row if is_future(block)]
    known = {id(block.future): block for block in described(futures, tensor)} if futures else {}
    return BlockedTensor([[known.get(id(block), block) for block in row] for row in grid])


def to_dislib(blocked: BlockedTensor) -> Any:
    """Return a dislib ``Tensor`` of the same blocks.

    dislib calls the first block's shape that of all; its own training drops what a block has beyond a whole number
    of batches. Raises ``ImportError`` without dislib.
    """
    try:
        from dislib.data.tensor import Tensor
    except ImportError as error:
        raise ImportError("to_dislib needs dislib and PyCOMPSs; install dislib (pip install dislib)") from error
    tensor = Tensor(
        tensors=[[_for_dislib(block) for block in row] for row in blocked.tensors],
        tensor_shape=tuple(blocked.tensors[0][0].shape),
        dtype=blocked.dtype,
        number_samples=blocked.number_samples,
        shape=blocked.shape,
        delete=False,
    )
    tensor.blocked = blocked  # whose blocks may have an owner that deletes them when it is garbage
    return tensor


def _for_dislib(block: AnyBlock) -> Any:
    if isinstance(block, CompssBlock):
        return block.future
    return block.load() if isinstance(block, RemoteBlock) else block
