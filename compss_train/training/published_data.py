"""``PublishedData``: what an engine holds of a data source."""

import os
from collections.abc import Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import numpy as np

from compss_train._utils.validation import warn_user
from compss_train.data import BlockedTensor, locations
from compss_train.data.remote_block import RemoteBlock, load_block
from compss_train.engines import Engine, Ref
from compss_train.engines.codec import is_on_file
from compss_train.training.data_source import DataSource


class PublishedData:
    """The blocks of a data source, which an engine holds; tasks get them by number.

    Of files it has the names.
    """

    def __init__(self, engine: Engine, source: DataSource) -> None:
        self.engine = engine
        self.source = source
        columns = source.columns.values()
        blocks = [block for tensor in columns for block in tensor.blocks()]
        self.mapped = engine.traits.shared_memory or all(map(is_on_file, blocks))
        """Whether a task reads only the rows that it uses from a block."""
        rows_are_values = (
            engine.traits.pays_by_value
            and len(columns) > 1
            and not any(isinstance(block, RemoteBlock) for block in blocks)
        )
        if rows_are_values:
            rows = zip(*(tensor.blocks() for tensor in columns), strict=True)
            self._columns = [[engine.publish(row) for row in rows]]
        else:
            self._columns = [_publish_blocks(engine, tensor) for tensor in columns]
        """References to the blocks of each column, or to those of all columns where every value is
        costly.
        """
        paths = {
            os.path.abspath(str(block.filename))
            for block in blocks
            if isinstance(block, np.memmap) and is_on_file(block)
        }
        self._stamps = {path: locations.file_stamp(path) for path in paths}
        """The size and time of each memory-mapped file, to notice changes."""

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The number of the first sample of each block or file."""
        return tuple(accumulate(self.source.sizes[:-1], initial=0))

    def values(self, numbers: Sequence[int]) -> list[Ref]:
        """Return the values for a task on these blocks; none for files."""
        return [column[number] for column in self._columns for number in numbers]

    def holding(self, samples: np.ndarray[Any, Any]) -> tuple[int, ...]:
        """Return the numbers of the blocks that hold these samples, ascending.

        With as many samples as blocks these are all blocks, as few would be left out.
        """
        if len(samples) >= len(self.starts):
            return tuple(range(len(self.starts)))
        numbers = np.searchsorted(self.starts, samples, side="right") - 1
        return tuple(np.unique(numbers).tolist())

    def warn_of_changes(self) -> None:
        """Warn of memory-mapped files that have changed since they were published."""
        for path, stamp in self._stamps.items():
            if os.path.exists(path) and locations.file_stamp(path) != stamp:
                warn_user(
                    f"{path} changed while it was in use: results are those of old and of "
                    "new values"
                )


def _publish_blocks(engine: Engine, tensor: BlockedTensor) -> list[Ref]:
    """Publish the blocks of a tensor.

    If the engine keeps values in shared memory, the blocks become views of them in this tensor,
    which is a data source's own: no second copy is held of what was converted for the fit.
    """
    refs: list[Ref] = []
    for row in tensor.tensors:
        for column, block in enumerate(row):
            is_elsewhere = isinstance(block, RemoteBlock) and block.home != engine.name
            ref = engine.publish(load_block(block) if is_elsewhere else block)
            refs.append(ref)
            if engine.traits.shared_memory and not isinstance(block, np.memmap | RemoteBlock):
                held = engine.peek(ref)
                if held is not None:
                    row[column] = held
    return refs
