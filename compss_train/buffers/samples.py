"""``SampleBatch``: the samples of a put, nested tuples and dicts of tensors and arrays."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import rebuilt, template_of
from compss_train._utils.validation import check_dense
from compss_train.data.block import Block, as_tensor, concatenate
from compss_train.data.values import check_dtype

NO_KEYS = np.empty((0, 2), np.int64)

Path: TypeAlias = tuple[tuple[Any, int, Any], ...]
"""Where a leaf is in nested tuples and dicts: for each its type, its length, and the key in it."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The dtype and shape of one leaf of a sample, which all samples share."""

    is_array: bool
    """Whether the leaf is a numpy array, and is returned as one, rather than a tensor."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    array_dtype: np.dtype[Any] | None
    """The dtype in numpy, or ``None`` for a dtype that numpy lacks."""

    @property
    def nbytes(self) -> int:
        """The size of a row in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __repr__(self) -> str:
        return (
            f"{'array' if self.is_array else 'tensor'} of "
            f"{str(self.dtype).removeprefix('torch.')} {self.shape}"
        )

    @classmethod
    def of(cls, rows: Block) -> Self:
        """Return the leaf that describes each of these rows."""
        no_rows = as_tensor(rows[:0])
        array_dtype = None
        with suppress(TypeError):
            array_dtype = no_rows.numpy().dtype
        return cls(isinstance(rows, np.ndarray), no_rows.dtype, tuple(rows.shape[1:]), array_dtype)

    def rows_of(self, value: Any, *, stacked: bool) -> NDArray[Any] | None:
        """Return a value like this leaf, or ``stacked`` ones, as rows that share its memory.

        Returns ``None`` for other values.
        """
        kind = np.ndarray if self.is_array else torch.Tensor
        if type(value) is not kind or self.array_dtype is None:
            return None
        try:
            array: NDArray[Any] = value.numpy() if isinstance(value, torch.Tensor) else value
        except (RuntimeError, TypeError):
            # It is on another device, not dense, lazily conjugated, or requires gradients.
            return None
        rows = array if stacked else array[None]
        is_like = (
            rows.dtype == self.array_dtype
            and rows.shape[1:] == self.shape
            and rows.ndim > len(self.shape)
        )
        return rows if is_like else None


def leaves_by_path(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return the leaves of nested tuples and dicts by their paths.

    Anything else is a leaf, such as a list.
    """
    if not isinstance(value, tuple | dict):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    leaves: dict[Path, Any] = {}
    for key, item in items:
        leaves |= leaves_by_path(item, (*path, (type(value), len(value), key)))
    return leaves


def _stored(leaf: Any) -> Block | None:
    """Return an array or number as it is stored, on the CPU; ``None`` for anything else."""
    with suppress(TypeError):
        if isinstance(leaf, torch.Tensor):
            check_dense("a sample", leaf)
            return leaf.detach().cpu().resolve_conj().resolve_neg()
        # Other subclasses of arrays have more than values: masks, units.
        if type(leaf) in (np.ndarray, np.memmap) or isinstance(leaf, np.generic):
            check_dtype(leaf.dtype)
            return np.asarray(leaf)
        if isinstance(leaf, bool | int | float | complex):
            return torch.tensor(leaf)
    return None


def _dense(value: Any) -> dict[Path, Block]:
    """Return the leaves in their stored form; none if one is no array, or if all are numbers."""
    parts = leaves_by_path(value)
    if not any(isinstance(part, torch.Tensor | np.ndarray) for part in parts.values()):
        return {}
    rows: dict[Path, Block] = {}
    for path, part in parts.items():
        stored = _stored(part)
        if stored is None:
            return {}
        rows[path] = stored
    return rows


class DifferentSampleError(ValueError):
    """A sample has another structure, shape or dtype than earlier ones."""

    def __init__(self, leaves: Any, expected: Any) -> None:
        super().__init__(leaves, expected)
        self.leaves = leaves
        """The leaves of the sample, in its tuples and dicts."""
        self.expected = expected
        """Those of earlier samples."""

    def __str__(self) -> str:
        return (
            f"a sample of {self.leaves} among samples of {self.expected}: a buffer stacks samples "
            "of one structure, shape and dtype; to store samples that differ, put each of them "
            "in a list"
        )


@dataclass
class SampleBatch:
    """The samples of one put: rows for each leaf of their structure, or a list of any objects."""

    template: Any
    """The tuples and dicts of a sample, with ``None`` for each leaf."""
    rows: Mapping[Path, Block]
    """The rows of each leaf; empty for objects."""
    objects: Sequence[Any] = ()
    keys: NDArray[np.int64] = field(default_factory=lambda: NO_KEYS)
    """Simulation and time step of each sample, for buffers that pair samples."""
    leaves: Mapping[Path, Leaf] = field(default_factory=dict)
    """What all samples share; found in the rows unless it is given."""
    is_handed_over: bool = False
    """Whether the buffer may keep the rows' memory, which nobody changes any more."""

    def __post_init__(self) -> None:
        self.leaves = self.leaves or {path: Leaf.of(rows) for path, rows in self.rows.items()}
        self._length = len(next(iter(self.rows.values()), self.objects))

    def __len__(self) -> int:
        return self._length

    @property
    def sample_bytes(self) -> int:
        """The size of a sample in bytes; 0 for objects."""
        return sum([leaf.nbytes for leaf in self.leaves.values()])

    @classmethod
    def from_sample(cls, sample: Any, like: "SampleBatch | None" = None) -> Self:
        """Return a batch of one sample, in a third of the time if it is ``like`` earlier ones."""
        if like is not None:
            rows = like.rows_like(sample, stacked=False)
            if rows:
                return cls(like.template, rows, leaves=like.leaves)
        rows = {path: row[None] for path, row in _dense(sample).items()}
        return cls(template_of(sample), rows) if rows else cls(None, {}, [sample])

    @classmethod
    def from_batch(cls, samples: Any, like: "SampleBatch | None" = None) -> Self:
        """Return a batch of a list of samples, or of stacked samples as a buffer's batches are.

        Stacked samples ``like`` earlier ones take half of the time.
        """
        if like is not None:
            rows = like.rows_like(samples, stacked=True)
            if rows:
                return cls(like.template, rows, leaves=like.leaves)
        if isinstance(samples, list):
            return cls._from_list(samples, like)
        rows = _dense(samples)
        if not rows:
            raise TypeError(
                f"samples={type(samples).__name__}: give a list of samples, or tensors and "
                "arrays (also in tuples and dicts) whose first dimension is that of the samples"
            )
        lengths = {column.shape[:1] for column in rows.values()}
        if len(lengths) > 1 or () in lengths:  # that of a single number
            shapes = ", ".join(str(tuple(column.shape)) for column in rows.values())
            raise ValueError(
                f"stacked samples need the same first dimension in every part, not {shapes}"
            )
        return cls(template_of(samples), rows)

    @classmethod
    def _from_list(cls, samples: list[Any], like: "SampleBatch | None") -> Self:
        batches = [cls.from_sample(sample, like) for sample in samples]
        first = batches[0] if batches else cls(None, {})
        for batch in batches:
            batch.check_like(first)
        if not first.rows:
            return cls(None, {}, samples.copy())
        rows = {path: concatenate([batch.rows[path] for batch in batches]) for path in first.rows}
        return cls(first.template, rows, leaves=first.leaves)

    def rows_like(self, sample: Any, *, stacked: bool) -> dict[Path, Block]:
        """Return the rows of each leaf of a sample, or of ``stacked`` ones.

        Returns nothing for another structure, shape or dtype, or different numbers of rows.
        """
        rows: dict[Path, Block] = {}
        for path, leaf in self.leaves.items():
            value: Any = sample
            for kind, length, key in path:
                if type(value) is not kind or len(value) != length:
                    return {}
                if issubclass(kind, dict) and key not in value:
                    return {}
                value = value[key]
            leaf_rows = leaf.rows_of(value, stacked=stacked)
            if leaf_rows is None:
                return {}
            rows[path] = leaf_rows
        lengths = {len(leaf_rows) for leaf_rows in rows.values()}
        return rows if len(lengths) == 1 else {}

    def check_like(self, other: "SampleBatch") -> None:
        """Raise ``ValueError`` unless samples of both are objects, or have the same leaves."""
        if self.leaves != other.leaves:
            raise DifferentSampleError(self.described(), other.described())

    def described(self) -> Any:
        """Return the leaves that all samples have, in their tuples and dicts."""
        return rebuilt(self.template, self.leaves.values()) if self.leaves else "other objects"
