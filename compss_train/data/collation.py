"""Batches of samples as data sets give them: which parts are x and y, and how samples are stacked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train._utils.nested import map_leaves
from compss_train.data.block import as_tensor
from compss_train.data.ragged import Ragged

Key: TypeAlias = str | int
"""The name of a part of a sample that is a dict, or its place in a tuple."""
Keys: TypeAlias = Key | Sequence[Key]

TARGETS = ("y", "label", "labels", "target", "targets")
"""Names of targets that are recognized."""


@dataclass(frozen=True)
class Roles:
    """Which parts of a sample, or of a batch, are x and y.

    Several keys give a dict of these parts, or a tuple where they are places. Without any, a pair is (x, y); of a
    dict, ``TARGETS`` are targets, and x is ``"x"``, or else all other parts.
    """

    x: Keys | None = None
    y: Keys | None = None

    def split(self, sample: Any) -> tuple[Any, Any]:
        """Return x and y; y is ``None`` if there are no targets.

        Raises ``ValueError`` for keys that a sample does not have, ``TypeError`` for a tuple that is no pair.
        """
        if self.x is None and self.y is None:
            return _split_as_usual(sample)
        y = None if self.y is None else _picked(sample, self.y)
        return (_others(sample, self.y) if self.x is None else _picked(sample, self.x)), y


def _split_as_usual(sample: Any) -> tuple[Any, Any]:
    if isinstance(sample, Mapping):
        target = next((name for name in TARGETS if name in sample), None)
        x = sample["x"] if "x" in sample else _others(sample, target)
        return x, None if target is None else sample[target]
    if isinstance(sample, tuple) or (isinstance(sample, list) and not _holds_numbers(sample)):
        if len(sample) > 2:
            raise TypeError(
                f"a sample is a {type(sample).__name__} of {len(sample)} parts; say which are x and y, as in "
                "Samples(dataset, x=0, y=1)"
            )
        return sample[0], sample[1] if len(sample) == 2 else None
    return sample, None


def _picked(sample: Any, keys: Keys) -> Any:
    if isinstance(keys, str | int):
        try:
            return sample[keys]
        except (KeyError, IndexError, TypeError):
            raise ValueError(f"a sample has no part {keys!r}, it has {_parts_of(sample)}") from None
    picked = {key: _picked(sample, key) for key in keys}
    return tuple(picked.values()) if all(isinstance(key, int) for key in keys) else picked


def _others(sample: Any, targets: Keys | None) -> Any:
    """Return all parts but the targets; a single one by itself."""
    taken = {targets} if isinstance(targets, str | int) else set(targets or ())
    if isinstance(sample, Mapping):
        parts: Any = {name: part for name, part in sample.items() if name not in taken}
        return next(iter(parts.values())) if len(parts) == 1 else parts
    if not isinstance(sample, tuple | list):
        raise ValueError(f"y={targets!r}: a sample has {_parts_of(sample)}")
    parts = tuple(part for place, part in enumerate(sample) if place not in taken)
    return parts[0] if len(parts) == 1 else parts


def _parts_of(sample: Any) -> str:
    if isinstance(sample, Mapping):
        return ", ".join(map(repr, sample))
    if isinstance(sample, tuple | list):
        return f"{len(sample)} parts"
    return f"no parts, but is a {type(sample).__name__}"


def collate_pairs(collate: Callable[[list[Any]], Any], pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return x and y of a batch that the function ``collate`` of ``build`` makes of samples.

    It gets a list of (x, y), or of x where there is no y, and returns a batch of the same kind. Raises
    ``TypeError`` for others.
    """
    if pairs[0][1] is None:
        return collate([x for x, _ in pairs]), None
    made = collate(pairs)
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise TypeError(f"collate returned a {type(made).__name__} for a list of (x, y); return both, as (x, y)")
    return made[0], made[1]


def collate_batch(collate: Callable[[list[Any]], Any], x: Any, y: Any, samples: int) -> tuple[Any, Any]:
    """Return x and y of a batch that ``collate`` of ``build`` makes of so many samples, the rows of these."""

    def sample(part: Any, number: int) -> Any:
        return None if part is None else map_leaves(lambda leaf: leaf[number], part)

    return collate_pairs(collate, [(sample(x, number), sample(y, number)) for number in range(samples)])


def stacked(values: Sequence[Any]) -> Any:
    """Return samples as one tensor with a row for each, or tuples, lists and dicts of such tensors.

    Python's floats, and those in lists, become torch's default dtype. Sequences that differ in length are
    returned as ``Ragged``.

    Raises ``TypeError`` for what is no number, ``ValueError`` for other shapes that differ.
    """
    first = values[0]
    if isinstance(first, Mapping):
        return {name: stacked([value[name] for value in values]) for name in first}
    if isinstance(first, tuple | list) and not _holds_numbers(first):
        columns = [stacked(column) for column in zip(*values, strict=True)]
        return tuple(columns) if isinstance(first, tuple) else columns
    if isinstance(first, Number) and not isinstance(first, np.generic):
        return torch.tensor(values)
    tensors = [_as_tensor(value) for value in values]
    if len({each.shape for each in tensors}) == 1:
        return torch.stack(tensors)
    if len({each.shape[1:] for each in tensors}) == 1:
        return Ragged(tensors)
    shapes = ", ".join(map(str, list(dict.fromkeys(tuple(each.shape) for each in tensors))[:3]))
    raise ValueError(
        f"the samples of a batch have shapes that differ, such as {shapes}: resize or pad them in the data set, or "
        "give Samples(dataset, collate=...), a function that makes a batch of a list of samples"
    )


def _holds_numbers(values: Sequence[Any]) -> bool:
    return all(isinstance(v, Number) or (isinstance(v, list) and _holds_numbers(v)) for v in values)


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    if isinstance(value, list) and _holds_numbers(value):
        return torch.tensor(value)
    array = np.asarray(value)  # of an image, too
    if array.dtype.kind not in "biufc":
        raise TypeError(
            f"a sample holds {_described(value)}, which is no number; convert it in the data set, leave it out "
            "with Samples(dataset, x=..., y=...), or give collate="
        )
    return as_tensor(array)


def _described(value: Any) -> str:
    return f"the {type(value).__name__} {value!r}"[:80] if isinstance(value, str) else f"a {type(value).__name__}"
