"""Incoming: the samples of one put, brought into one form before the buffer's lock is taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.structure import Leaf, is_dense, leaves, map_leaves, same
from compss_train.data.block import as_tensor


class Incoming:
    """Some samples: rows of numbers for each leaf of their structure, or a list of any objects."""

    def __init__(self, template: Any, rows: list[torch.Tensor], objects: list[Any] | None = None) -> None:
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
        if not is_dense(sample):
            return cls(None, [], [sample])
        rows = [_tensor(leaf)[None] for leaf in leaves(sample)]
        return cls(_template(sample, rows), rows)

    @classmethod
    def many(cls, samples: Any) -> Incoming:
        """Take a list of samples, or stacked ones: the form in which a buffer gives batches."""
        if isinstance(samples, list):
            return cls._listed(samples)
        if not is_dense(samples):
            raise TypeError(
                f"samples={type(samples).__name__}: give a list of samples, or tensors and arrays (also in tuples "
                "and dicts) whose first dimension counts the samples"
            )
        rows = [_tensor(leaf) for leaf in leaves(samples)]
        if any(row.dim() == 0 for row in rows) or len({len(row) for row in rows}) != 1:
            shapes = ", ".join(str(tuple(row.shape)) for row in rows)
            raise ValueError(f"stacked samples need the same first dimension in every part, not {shapes}")
        return cls(_template(samples, rows), rows)

    @classmethod
    def _listed(cls, samples: Sequence[Any]) -> Incoming:
        parts = [cls.one(sample) for sample in samples]
        templates = [part.template for part in parts]
        if not parts or all(template is None for template in templates):
            return cls(None, [], list(samples))
        for template in templates:
            check_same(template, templates[0])
        rows = [torch.cat(columns) for columns in zip(*(part.rows for part in parts), strict=True)]
        return cls(templates[0], rows)


def check_same(template: Any, expected: Any) -> None:
    """Raise ``ValueError`` unless samples of one buffer are alike: all objects, or of one structure and shape."""
    if not same(template, expected):
        raise ValueError(
            f"a sample of {_described(template)} among samples of {_described(expected)}: a buffer holds samples "
            "of one structure, shape and dtype, or objects that are no tensors"
        )


def _described(template: Any) -> str:
    return "other objects" if template is None else str(template)


def _template(value: Any, rows: list[torch.Tensor]) -> Any:
    remaining = iter(rows)

    def leaf(part: Any) -> Leaf:
        row = next(remaining)
        return Leaf(isinstance(part, np.ndarray), row.dtype, tuple(row.shape[1:]))

    return map_leaves(leaf, value)


def _tensor(leaf: Any) -> torch.Tensor:
    tensor = as_tensor(leaf) if isinstance(leaf, np.ndarray) else leaf.detach().cpu()
    return tensor.resolve_conj().resolve_neg()
