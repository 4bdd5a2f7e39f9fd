"""Futures of PyCOMPSs, such as those of dislib's arrays, as blocks of data."""

from collections.abc import Sequence
from typing import ClassVar

from compss_train.data.block import Block
from compss_train.data.remote_block import BlockDescription, RemoteBlock, describe
from compss_train.engines.compss.engine import CompssEngine


class CompssBlock(RemoteBlock):
    """A block that is a future of PyCOMPSs."""

    home: ClassVar[str] = CompssEngine.name

    def __init__(self, future: object, description: BlockDescription, owner: object = None) -> None:
        super().__init__(*description)
        self.future = future
        self.owner = owner
        """The object that deletes the future when it is collected; this block keeps it alive."""

    def load(self) -> Block:
        """Wait for the value and return a copy; the future still belongs to its owner."""
        engine = CompssEngine()
        block: Block = engine.fetch([engine.publish(self)])[0]
        return block


def future_blocks(futures: Sequence[object], owner: object = None) -> list[CompssBlock]:
    """Return futures as blocks.

    Tasks determine the dtypes and shapes; the values stay where they are. ``owner`` is kept alive
    with each block.
    """
    engine = CompssEngine()
    refs = [engine.submit(describe, engine.reference(future)) for future in futures]
    pairs = zip(futures, engine.fetch(refs, small=True), strict=True)
    return [CompssBlock(future, description, owner) for future, description in pairs]
