"""Conversion between dislib's ``Tensor`` and the grid of a ``BlockedTensor``."""

from collections.abc import Sequence
from typing import Any

from compss_train._utils.imports import converter
from compss_train.data.block import AnyBlock, DType, RemoteBlock


def is_future(value: object) -> bool:
    """Return whether an object is a placeholder of PyCOMPSs for a value that a task computes.

    Placeholders are of PyCOMPSs's classes for results of tasks, and bare ``object()`` instances in a
    COLLECTION_OUT.
    """
    return type(value) is object or type(value).__module__.split(".")[0] == "pycompss"


def blocks_of(tensor: Any) -> list[list[object]]:
    """Return the grid of blocks of a dislib ``Tensor``; futures of PyCOMPSs become remote blocks.

    Raises ``TypeError`` for an object without a grid of blocks.
    """
    grid = getattr(tensor, "tensors", None)
    if not isinstance(grid, list) or not all(isinstance(row, list) for row in grid):
        raise TypeError(
            f"expected a dislib Tensor, with lists of blocks in .tensors; got a {type(tensor).__name__}"
        )
    futures = [block for row in grid for block in row if is_future(block)]
    remote = converter("pycompss")(futures, tensor) if futures else []
    known = {id(future): block for future, block in zip(futures, remote, strict=True)}
    return [[known.get(id(block), block) for block in row] for row in grid]


def make_tensor(grid: Sequence[Sequence[AnyBlock]], dtype: DType, number_samples: int, owner: object) -> Any:
    """Return a dislib ``Tensor`` of these blocks; it keeps ``owner``, which deletes the blocks, alive.

    dislib assumes that all blocks have the first block's shape; its own training drops the samples of a block
    beyond a whole number of batches. Raises ``ImportError`` without dislib.
    """
    try:
        from dislib.data.tensor import Tensor
    except ImportError as error:
        raise ImportError("to_dislib needs dislib and PyCOMPSs; install dislib (pip install dislib)") from error
    tensor = Tensor(
        tensors=[[_for_dislib(block) for block in row] for row in grid],
        tensor_shape=tuple(grid[0][0].shape),
        dtype=dtype,
        number_samples=number_samples,
        shape=(len(grid), len(grid[0])),
        delete=False,
    )
    tensor.blocked = owner
    return tensor


def _for_dislib(block: AnyBlock) -> Any:
    if not isinstance(block, RemoteBlock):
        return block
    return block.load() if block.future is None else block.future
