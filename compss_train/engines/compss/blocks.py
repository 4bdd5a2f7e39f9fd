"""Blocks that are futures of PyCOMPSs, as in dislib's tensors."""

from collections.abc import Sequence
from typing import ClassVar

from compss_train.data.block import Block, BlockDescription, RemoteBlock, describe
from compss_train.engines.compss.engine import CompssEngine


class CompssBlock(RemoteBlock):
    """A block that is a future of PyCOMPSs."""

    home: ClassVar[str] = CompssEngine.name

    def __init__(self, future: object, description: BlockDescription, owner: object = None) -> None:
        super().__init__(*description)
        self.future = future
        self.owner = owner
        """The object that deletes the future when it is garbage collected; kept alive as long as this block."""

    def load(self) -> Block:
        """Wait for the value and return a copy; the future remains its owner's."""
        engine = CompssEngine()
        block: Block = engine.fetch([engine.publish(self)])[0]
        return block


def future_blocks(futures: Sequence[object], owner: object = None) -> list[CompssBlock]:
    """Return futures as blocks. Tasks determine the dtypes and shapes; the values stay where they are.

    ``owner`` is kept alive with each block.
    """
    engine = CompssEngine()
    refs = [engine.submit(describe, engine.reference(future)) for future in futures]
    try:
        descriptions = engine.fetch(refs, small=True)
    finally:
        engine.delete(refs)
    pairs = zip(futures, descriptions, strict=True)
    return [CompssBlock(future, description, owner) for future, description in pairs]
