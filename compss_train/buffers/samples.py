"""Samples: nested tuples and dicts of tensors and arrays, and the ``SampleBatch`` that a put stores in a buffer."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import rebuilt, template_of
from compss_train._utils.validation import check_dense
from compss_train.data.block import Block, as_tensor, check_dtype, concatenate

Path: TypeAlias = tuple[Any, ...]
"""Where a leaf is in nested tuples and dicts: the type of each of them, and the index or key in it."""


@dataclass(frozen=True, slots=True)
class Leaf:
    """The dtype and shape of one leaf of a sample, which all samples share."""

    is_array: bool
    """Whether the leaf is a numpy array, and is returned as one, rather than a tensor."""
    dtype: torch.dtype
    shape: tuple[int, ...]

    def __repr__(self) -> str:
        kind = "array" if self.is_array else "tensor"
        return f"{kind} of {str(self.dtype).removeprefix('torch.')} {self.shape}"

    @classmethod
    def of(cls, rows: Block) -> Self:
        """Return the leaf that describes each of these rows."""
        dtype = rows.dtype if isinstance(rows, torch.Tensor) else as_tensor(rows[:0]).dtype
        return cls(isinstance(rows, np.ndarray), dtype, tuple(rows.shape[1:]))


def leaves(value: Any, path: Path = ()) -> dict[Path, Any]:
    """Return the leaves of nested tuples and dicts by their paths; anything else, such as a list, is a leaf."""
    if not isinstance(value, tuple | dict):
        return {path: value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    inner = (leaves(item, (*path, type(value), name)) for name, item in items)
    return {place: leaf for each in inner for place, leaf in each.items()}


def _stored(leaf: Any) -> Block | None:
    """Return a leaf in its stored form, on the CPU and detached, or ``None`` for what is no array or number."""
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
    parts = leaves(value)
    if not any(isinstance(part, torch.Tensor | np.ndarray) for part in parts.values()):
        return {}
    rows = {path: _stored(part) for path, part in parts.items()}
    known = {path: row for path, row in rows.items() if row is not None}
    return known if len(known) == len(rows) else {}


@dataclass
class SampleBatch:
    """The samples of one put: rows for each leaf of their structure, or a list of any objects."""

    template: Any
    """The tuples and dicts of a sample, with ``None`` for each leaf."""
    rows: Mapping[Path, Block]
    """The rows of each leaf; empty for objects."""
    objects: Sequence[Any] = ()
    keys: NDArray[np.int64] = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """Simulation and time step of each sample, for buffers that pair samples."""

    def __post_init__(self) -> None:
        self.leaves = {path: Leaf.of(rows) for path, rows in self.rows.items()}
        self._length = len(next(iter(self.rows.values()), self.objects))

    def __len__(self) -> int:
        return self._length

    @classmethod
    def from_sample(cls, sample: Any) -> Self:
        """Return a batch of one sample."""
        rows = {path: row[None] for path, row in _dense(sample).items()}
        return cls(template_of(sample), rows) if rows else cls(None, {}, [sample])

    @classmethod
    def from_batch(cls, samples: Any) -> Self:
        """Return a batch of a list of samples, or of stacked samples as a buffer's batches are."""
        if isinstance(samples, list):
            parts = [cls.from_sample(sample) for sample in samples]
            for part in parts:
                part.check_like(parts[0])
            first = parts[0].rows if parts else {}
            rows = {path: concatenate([part.rows[path] for part in parts]) for path in first}
            return cls(parts[0].template, rows) if rows else cls(None, {}, samples.copy())
        rows = _dense(samples)
        if not rows:
            raise TypeError(
                f"samples={type(samples).__name__}: give a list of samples, or tensors and arrays (also in tuples "
                "and dicts) whose first dimension is that of the samples"
            )
        if len({row.shape[:1] for row in rows.values()}) > 1 or not all(row.ndim for row in rows.values()):
            shapes = ", ".join(str(tuple(row.shape)) for row in rows.values())
            raise ValueError(f"stacked samples need the same first dimension in every part, not {shapes}")
        return cls(template_of(samples), rows)

    def check_like(self, other: "SampleBatch") -> None:
        """Raise ``ValueError`` unless samples of both are objects, or of one structure, shape and dtype."""
        if self.leaves != other.leaves:
            given, others = (
                rebuilt(each.template, each.leaves.values()) if each.leaves else "other objects"
                for each in (self, other)
            )
            raise ValueError(
                f"a sample of {given} among samples of {others}: a buffer stacks samples "
                "of one structure, shape and dtype; to store samples that differ, put each of them in a list"
            )
