"""Samples: nested tuples and dicts of tensors and arrays, and the ``SampleBatch`` that a put stores in a buffer."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.validation import check_dense
from compss_train.data.block import Block, as_tensor, check_dtype, concatenate


@dataclass(frozen=True, slots=True)
class Leaf:
    """The dtype and shape of one leaf of a sample, which all samples share."""

    is_array: bool
    """Whether the leaf is a numpy array, and is returned as one, rather than a tensor."""
    dtype: torch.dtype
    shape: tuple[int, ...]
    array_dtype: np.dtype[Any] | None = field(compare=False)
    """The dtype of arrays; ``None`` for a dtype that numpy lacks."""

    def __repr__(self) -> str:
        kind = "array" if self.is_array else "tensor"
        return f"{kind} of {str(self.dtype).removeprefix('torch.')} {self.shape}"

    @classmethod
    def of(cls, rows: Block) -> Self:
        """Return the leaf that describes each of these rows."""
        tensor = as_tensor(rows[:0])
        try:
            array_dtype = tensor.numpy().dtype
        except TypeError:
            array_dtype = None
        return cls(isinstance(rows, np.ndarray), tensor.dtype, tuple(rows.shape[1:]), array_dtype)

    def plain(self, value: Any, first: int) -> NDArray[Any] | None:
        """Return the memory of a leaf as an array if it is like this one and on the CPU; else ``None``.

        ``first`` is the number of dimensions before those of a sample: 0 for a sample, 1 for stacked ones.
        """
        if type(value) is not (np.ndarray if self.is_array else torch.Tensor) or self.array_dtype is None:
            return None
        try:
            array: NDArray[Any] = value.numpy() if isinstance(value, torch.Tensor) else value
        except (RuntimeError, TypeError):  # on another device, not dense, lazily conjugated, or requires gradients
            return None
        alike = array.dtype == self.array_dtype and array.shape[first:] == self.shape
        return array if alike and array.ndim == first + len(self.shape) else None


_CONTAINERS = (tuple, dict)


def leaves(value: Any) -> Iterator[Any]:
    """Iterate over the leaves of nested tuples and dicts; the order of a dict's items has no effect."""
    if isinstance(value, _CONTAINERS):
        for name in _names(value):
            yield from leaves(value[name])
    else:
        yield value


def _names(container: Any) -> Sequence[Any]:
    return sorted(container, key=repr) if isinstance(container, dict) else range(len(container))


def map_leaves(function: Callable[[Any], Any], value: Any) -> Any:
    """Return ``value`` with ``function`` applied to every leaf, in the order of ``leaves``."""
    if not isinstance(value, _CONTAINERS):
        return function(value)
    mapped = {name: map_leaves(function, value[name]) for name in _names(value)}
    if isinstance(value, dict):
        return {name: mapped[name] for name in value}
    return type(value)(*mapped.values()) if hasattr(value, "_fields") else tuple(mapped.values())


def same_structure(value: Any, other: Any) -> bool:
    """Return whether two structures have the same types and equal leaves."""
    if type(value) is not type(other):
        return False
    if not isinstance(value, tuple | dict):
        return bool(value == other)
    names = list(_names(value))
    return names == list(_names(other)) and all(same_structure(value[name], other[name]) for name in names)


_NUMBERS = (bool, int, float, complex, np.number, np.bool_)


def as_dense(value: Any) -> Any:
    """Return ``value`` if its leaves are tensors, arrays, or numbers alongside them; otherwise return ``None``.

    Numbers are converted to tensors, and numpy's numbers to arrays.
    """
    parts = list(leaves(value))
    others = [part for part in parts if not _is_dense(part)]
    if len(others) == len(parts) or not all(isinstance(part, _NUMBERS) for part in others):
        return None
    return map_leaves(_without_numbers, value) if others else value


def _without_numbers(leaf: Any) -> Any:
    if isinstance(leaf, np.generic):
        return np.asarray(leaf)
    return torch.tensor(leaf) if isinstance(leaf, bool | int | float | complex) else leaf


def _is_dense(leaf: Any) -> bool:
    with suppress(TypeError):
        if isinstance(leaf, torch.Tensor):
            check_dense("a sample", leaf)
            return True
        if type(leaf) in (np.ndarray, np.memmap):  # other subclasses have more than values: masks, units
            check_dtype(leaf.dtype)
            return True
    return False


_NO_KEYS = np.empty((0, 2), np.int64)


class SampleBatch:
    """The samples of one put: rows for each leaf of their structure, or a list of any objects.

    ``like`` is the template of earlier samples. Samples of the same structure, dtypes and shapes share it:
    recognizing them takes a fraction of the time of building a template.
    """

    def __init__(self, template: Any, rows: Sequence[Block], objects: Sequence[Any] = ()) -> None:
        self.template = template
        """The samples' structure with a ``Leaf`` at each leaf; ``None`` for objects."""
        self.rows = rows
        self.objects = objects
        self.keys = _NO_KEYS
        """Simulation and time step of each sample, for buffers that pair samples."""
        self._length = len(objects) if template is None else len(rows[0])

    def __len__(self) -> int:
        return self._length

    @classmethod
    def from_sample(cls, sample: Any, like: Any = None) -> Self:
        """Return a batch of one sample."""
        if (known := _plain_like(sample, like, 0)) is not None:
            return cls(like, [leaf[None] for leaf in known])
        dense = as_dense(sample)
        if dense is None:
            return cls(None, [], [sample])
        rows = [_plain(leaf)[None] for leaf in leaves(dense)]
        return cls(_template(dense, rows), rows)

    @classmethod
    def from_batch(cls, samples: Any, like: Any = None) -> Self:
        """Return a batch of a list of samples, or of stacked samples as a buffer's batches are."""
        if isinstance(samples, list):
            parts = [cls.from_sample(sample, like) for sample in samples]
            template = parts[0].template if parts else None
            for part in parts:
                check_same_structure(part.template, template)
            if template is None:
                return cls(None, [], list(samples))
            return cls(template, [concatenate(list(rows)) for rows in zip(*(p.rows for p in parts), strict=True)])
        if (known := _plain_like(samples, like, 1)) is not None and len({len(rows) for rows in known}) == 1:
            return cls(like, known)
        dense = as_dense(samples)
        if dense is None:
            raise TypeError(
                f"samples={type(samples).__name__}: give a list of samples, or tensors and arrays (also in tuples "
                "and dicts) whose first dimension is that of the samples"
            )
        rows = [_plain(leaf) for leaf in leaves(dense)]
        if any(row.ndim == 0 for row in rows) or len({len(row) for row in rows}) != 1:
            shapes = ", ".join(str(tuple(row.shape)) for row in rows)
            raise ValueError(f"stacked samples need the same first dimension in every part, not {shapes}")
        return cls(_template(dense, rows), rows)


def check_same_structure(template: Any, expected: Any) -> None:
    """Raise ``ValueError`` unless two templates are equal: of objects, or of one structure, shape and dtype."""
    if template is not expected and not same_structure(template, expected):
        given, others = (each or "other objects" for each in (template, expected))
        raise ValueError(
            f"a sample of {given} among samples of {others}: a buffer stacks samples "
            "of one structure, shape and dtype; to store samples that differ, put each of them in a list"
        )


def _template(value: Any, rows: list[Block]) -> Any:
    remaining = iter(rows)
    return map_leaves(lambda _: Leaf.of(next(remaining)), value)


def _plain_like(value: Any, template: Any, first: int) -> list[NDArray[Any]] | None:
    """Return the leaves of a value that is like the template, as ``Leaf.plain`` does; else ``None``."""
    if isinstance(template, Leaf):
        leaf = template.plain(value, first)
        return None if leaf is None else [leaf]
    if type(value) is not type(template) or not isinstance(template, tuple | dict):
        return None
    names = _names(template)
    if len(value) != len(template) or not all(name in value for name in names if isinstance(value, dict)):
        return None
    parts = [_plain_like(value[name], template[name], first) for name in names]
    known = [part for part in parts if part is not None]
    return list(chain.from_iterable(known)) if len(known) == len(parts) else None


def _plain(leaf: Any) -> Block:
    """Return a leaf in its stored form: detached on the CPU, without lazy conjugation and negation."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().resolve_conj().resolve_neg()
    array: NDArray[Any] = np.asarray(leaf)
    return array
