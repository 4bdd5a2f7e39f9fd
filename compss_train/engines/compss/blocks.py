"""Blocks that tasks of a COMPSs application have made, such as dislib's: this process has futures of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from compss_train.data.block import Block, Description, RemoteBlock, describe
from compss_train.engines.compss.engine import CompssEngine


class CompssBlock(RemoteBlock):
    """A future of PyCOMPSs whose value is a block."""

    home: ClassVar[str] = CompssEngine.name

    def __init__(self, future: object, description: Description, source: object = None) -> None:
        super().__init__(*description)
        self.future = future
        self.source = source
        """What deletes the future when it is garbage, and must live as long as this block."""

    def load(self) -> Block:
        """Wait for the value and return a copy; the future stays its owner's."""
        engine = CompssEngine()
        block: Block = engine.fetch([engine.publish(self)])[0]
        return block


def future_blocks(futures: Sequence[object], source: object = None) -> list[CompssBlock]:
    """Return the futures as blocks; a task each tells their dtypes and shapes, so that none comes here.

    ``source`` is kept alive with each of them.
    """
    engine = CompssEngine()
    refs = [engine.submit(describe, engine.adopt(future)) for future in futures]
    try:
        descriptions = engine.fetch(refs, small=True)
    finally:
        engine.delete(refs)
    pairs = zip(futures, descriptions, strict=True)
    return [CompssBlock(future, description, source) for future, description in pairs]
