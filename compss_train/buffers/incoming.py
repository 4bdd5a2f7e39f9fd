"""Incoming: the samples of one put, brought into one form before the buffer's lock is taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.structure import Leaf, as_dense, leaves, map_leaves, same
from compss_train.data.block import Block, as_tensor, concatenate


class Incoming:
    """Some samples: rows of numbers for each leaf of their structure, or a list of any objects."""

    def __init__(self, template: Any, rows: list[Block], objects: list[Any] | None = None) -> None:
        self.template = template
        """The samples' structure with a ``Leaf`` at each leaf, ``None`` for objects."""
        self.rows = rows
        self.objects = objects
        self.keys: NDArray[np.int64] | None = None
        """Simulation and time step of each sample, where the buffer pairs them."""

    def __len__(self) -> int:
        return len(self.rows[0]) if self.objects is None else len(self.objects)

    @classmethod
    def one(cls, sample: Any) -> Incoming:
        """Take one sample as it is."""
        dense = as_dense(sample)
        if dense is None:
            return cls(None, [], [sample])
        rows = [_plain(leaf)[None] for leaf in leaves(dense)]
        return cls(_template(dense, rows), rows)

    @classmethod
    def many(cls, samples: Any) -> Incoming:
        """Take a list of samples, or stacked ones: the form in which a buffer gives batches."""
        if isinstance(samples, list):
            return cls._listed(samples)
        dense = as_dense(samples)
        if dense is None:
            raise TypeError(
                f"samples={type(samples).__name__}: give a list of samples, or tensors and arrays (also in tuples "
                "and dicts) whose first dimension counts the samples"
            )
        rows = [_plain(leaf) for leaf in leaves(dense)]
        if any(row.ndim == 0 for row in rows) or len({len(row) for row in rows}) != 1:
            shapes = ", ".join(str(tuple(row.shape)) for row in rows)
            raise ValueError(f"stacked samples need the same first dimension in every part, not {shapes}")
        return cls(_template(dense, rows), rows)

    @classmethod
    def _listed(cls, samples: list[Any]) -> Incoming:
        parts = [cls.one(sample) for sample in samples]
        templates = [part.template for part in parts]
        if all(template is None for template in templates):
            return cls(None, [], list(samples))
        for template in templates:
            check_same(template, templates[0])
        return cls(templates[0], [concatenate(list(rows)) for rows in zip(*(p.rows for p in parts), strict=True)])


def check_same(template: Any, expected: Any) -> None:
    """Raise ``ValueError`` unless samples of one buffer are alike: all objects, or of one structure and shape."""
    if not same(template, expected):
        raise ValueError(
            f"a sample of {_described(template)} among samples of {_described(expected)}: a buffer stacks samples "
            "of one structure, shape and dtype; samples that differ can be put as they are, each in a list"
        )


def _described(template: Any) -> str:
    return "other objects" if template is None else str(template)


def _template(value: Any, rows: list[Block]) -> Any:
    remaining = iter(rows)

    def leaf(_: Any) -> Leaf:
        row = next(remaining)
        is_array = isinstance(row, np.ndarray)
        return Leaf(is_array, as_tensor(row[:0]).dtype, tuple(row.shape[1:]))

    return map_leaves(leaf, value)


def _plain(leaf: Any) -> Block:
    """Return a leaf as it is stored: detached on the CPU, without lazy conjugation and negation."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().cpu().resolve_conj().resolve_neg()
    array: NDArray[Any] = np.asarray(leaf)
    return array
