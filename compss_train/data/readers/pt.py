"""Files of ``torch.save``."""

from __future__ import annotations

import pickle
from collections.abc import Collection
from typing import Any

import torch

from compss_train.data.layout import Description, UnfitFileError
from compss_train.data.readers.base import Arrays, Reader, described, select

_NAMES = ("x", "y")


class TorchReader(Reader):
    """Reads a dict of tensors, a tensor (x), or a tuple or list of one or two (x, y), saved by ``torch.save``.

    Nothing but tensors is unpickled (``weights_only``), and the file is mapped: only the rows asked for are read.
    """

    def describe(self, path: str, keys: Collection[str] | None = None) -> Description:
        """Return the tensors' shapes and dtypes, reading none of their data."""
        tensors = _tensors(path)
        return described({key: tensors[key] for key in select(keys, tensors)})

    def read(self, path: str, start: int, stop: int, keys: Collection[str] | None = None) -> tuple[Arrays, int]:
        """Return a copy of the rows."""
        tensors = _tensors(path)
        chosen = {key: tensors[key] for key in select(keys, tensors)}
        rows = described(chosen).rows
        return {key: _copy(tensor[start:stop]) for key, tensor in chosen.items()}, rows


def _copy(rows: torch.Tensor) -> torch.Tensor:
    return rows.clone(memory_format=torch.contiguous_format)


def _tensors(path: str) -> dict[str, torch.Tensor]:
    try:
        value = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError as error:
        raise UnfitFileError(
            f"is no file of tensors alone; other pickles are not read ({_first_line(error)})"
        ) from None
    named = _named(value)
    for key, tensor in named.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise UnfitFileError(
                f"holds a {type(tensor).__name__} under {key!r}; save a dict of tensors, a tensor, or a pair"
            )
    return {key: tensor.detach() for key, tensor in named.items()}


def _named(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    items = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(items) > len(_NAMES):
        raise UnfitFileError(f"holds {len(items)} tensors without names; save a dict of tensors")
    return dict(zip(_NAMES, items, strict=False))


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]
