"""Blocks as the engine holds them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from compss_train.data import BlockedTensor
from compss_train.data.block import as_block
from compss_train.data.remote import RemoteBlock, loaded
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file


def as_blocked(value: object, num_workers: int) -> BlockedTensor:
    """Return ``value`` as a blocked tensor.

    Accepts a ``BlockedTensor``, anything with a grid of blocks in ``.tensors`` as dislib's Tensor has, and an
    array or tensor, which is cut into a block a worker.
    """
    if isinstance(value, BlockedTensor):
        return value
    if hasattr(value, "tensors"):
        return BlockedTensor.from_dislib(value)
    block = as_block(value)
    if len(block) == 0:
        raise ValueError("the array has no samples")
    return BlockedTensor.from_array(block, (min(num_workers, len(block)), 1))


class PublishedBlocks:
    """A blocked tensor's blocks, published once.

    Where the engine keeps values in shared memory, the tensor's own blocks become views of them, so that each
    block exists once on the machine and not a second time in the coordinator.
    """

    def __init__(self, engine: Engine, tensor: BlockedTensor) -> None:
        self._engine = engine
        self.sizes = tensor.sizes
        self.on_file = all(is_on_file(block) for block in tensor.blocks())
        self.starts = tuple(accumulate(self.sizes[:-1], initial=0))
        self.refs: list[Ref] = []
        for row in tensor.tensors:
            for column, block in enumerate(row):
                foreign = isinstance(block, RemoteBlock) and block.home != engine.name
                ref = engine.publish(loaded(block) if foreign else block)
                self.refs.append(ref)
                adoptable = engine.shared_memory and not isinstance(block, np.memmap | RemoteBlock)
                held = engine.peek(ref) if adoptable else None
                row[column] = block if held is None else held

    def select(self, numbers: Sequence[int]) -> list[Ref]:
        """Return the references of these blocks."""
        return [self.refs[number] for number in numbers]

    def delete(self) -> None:
        """Free the published blocks."""
        self._engine.delete(self.refs)


class PublishedData:
    """The published blocks of x, and of y where there is one."""

    def __init__(self, engine: Engine, x: BlockedTensor, y: BlockedTensor | None) -> None:
        self._x = PublishedBlocks(engine, x)
        self._y = None if y is None else PublishedBlocks(engine, y)
        self.sizes = self._x.sizes
        self.starts = self._x.starts
        self.mapped = engine.shared_memory or (self._x.on_file and (self._y is None or self._y.on_file))
        """Whether a task that takes a block reads only the rows that it uses."""

    def select(self, numbers: Sequence[int]) -> tuple[list[Ref], list[Ref] | None]:
        """Return the references of these blocks of x and of y."""
        return self._x.select(numbers), None if self._y is None else self._y.select(numbers)

    def delete(self) -> None:
        """Free the published blocks."""
        self._x.delete()
        if self._y is not None:
            self._y.delete()
