"""Data sets of Ray Data as blocks: tasks make arrays of them, which stay in the object store."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import ray
from ray.data import Dataset

from compss_train.data.arrow_tables import (
    Kind,
    TableLayout,
    common_kinds,
    kinds_of_columns,
    names_of_parts,
)
from compss_train.data.block import Block
from compss_train.data.blocked import BlockedTensor, fingerprint
from compss_train.data.layout import FileContentError
from compss_train.data.remote_block import RemoteBlock
from compss_train.data.sample_roles import Roles
from compss_train.engines.codec import SerializedValue
from compss_train.engines.ray.value import RayValue, lost_error


class RayBlock(RemoteBlock):
    """A block in Ray's object store, on the node where a task has made it."""

    home: ClassVar[str] = "ray"

    def __init__(self, dtype: Any, shape: tuple[int, ...], value: RayValue, checksum: int) -> None:
        super().__init__(dtype, shape)
        self.checksum = checksum
        self._value = value

    def stored(self) -> RayValue:
        """Return the value for an engine, which drops its references to free it."""
        return RayValue(self._value.ref, self._value.node, self._value.lineage)

    def load(self) -> Block:
        """Load the block into this process's memory; it is read-only."""
        block: Block = self._value.load()
        return block


def columns_of(
    dataset: Dataset, roles: Roles, floats: str | None
) -> tuple[TableLayout, dict[str, BlockedTensor]]:
    """Return the columns of x and y, in the blocks of the data set, and their layout.

    The data set is executed first unless it is materialized, with its rows in order. Tasks make
    the columns where its blocks are; blocks without rows are left out.

    Raises ``ValueError`` for an empty data set, for columns that hold no numbers or lack some, and
    for blocks that differ in dtypes or shapes.
    """
    with _in_order(dataset):
        materialized = dataset.materialize()
    tables = materialized.to_arrow_refs()
    names = names_of_parts(materialized.columns() or [], roles)
    describe = ray.remote(_described)
    described = _answers([describe.remote(table, names) for table in tables])
    filled = [(table, kinds) for table, kinds in zip(tables, described, strict=True) if kinds]
    if not filled:
        raise ValueError("the Ray data set has no rows")
    try:
        layout = TableLayout.of(common_kinds([kinds for _, kinds in filled]), roles, floats)
    except FileContentError as error:
        raise ValueError(f"the Ray data set {error}") from None
    grids = zip(*_blocks([table for table, _ in filled], layout), strict=True)
    columns = {
        name: BlockedTensor([[block] for block in grid])
        for name, grid in zip(layout.columns, grids, strict=True)
    }
    return layout, columns


@contextmanager
def _in_order(dataset: Dataset) -> Iterator[None]:
    """Let Ray keep the order of rows, and so of blocks, which else depends on time."""
    options = dataset.context.execution_options
    before = options.preserve_order
    options.preserve_order = True
    try:
        yield
    finally:
        options.preserve_order = before


def _blocks(tables: Sequence[Any], layout: TableLayout) -> list[list[RayBlock]]:
    """Return the columns of each table, which a task makes of it."""
    convert = ray.remote(_converted).options(num_returns=len(layout.columns) + 1)
    made = [convert.remote(table, layout) for table in tables]
    answers = _answers([refs[-1] for refs in made])
    blocks = []
    for table, (*values, _), (node, shapes, checksums) in zip(tables, made, answers, strict=True):
        parts = zip(layout.columns.values(), values, shapes, checksums, strict=True)
        blocks.append(
            [
                RayBlock(column.dtype, shape, RayValue(value, node, (table,)), checksum)
                for column, value, shape, checksum in parts
            ]
        )
    return blocks


def _answers(refs: Sequence[Any]) -> list[Any]:
    """Return what tasks on blocks have returned; raise the first error, which is a text."""
    try:
        answers: list[Any] = ray.get([*refs])
    except ray.exceptions.RayError as error:
        raise lost_error("a block of a Ray data set", error) from error
    for number, answer in enumerate(answers):
        if isinstance(answer, str):
            raise ValueError(f"block {number} of the Ray data set {answer}")
    return answers


def _described(table: Any, names: Sequence[str]) -> dict[str, Kind] | str:
    """Return what these columns hold, nothing without rows, or what is wrong with one."""
    try:
        return kinds_of_columns(table, names)
    except ValueError as error:
        return str(error)


def _converted(table: Any, layout: TableLayout) -> list[Any]:
    """Return the columns of a table as serialized blocks, and what ``_blocks`` needs of them."""
    blocks = [column.block(table) for column in layout.columns.values()]
    shapes = [tuple(block.shape) for block in blocks]
    checksums = [fingerprint([BlockedTensor([[block]])]) for block in blocks]
    node = ray.get_runtime_context().get_node_id()
    return [*map(SerializedValue.of, blocks), (node, shapes, checksums)]
