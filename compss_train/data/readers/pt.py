"""Files of ``torch.save``."""

from __future__ import annotations

import os
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
        return described(_tensors(path, keys))

    def read(self, path: str, start: int, stop: int, keys: Collection[str] | None = None) -> tuple[Arrays, int]:
        """Return a copy of the rows."""
        tensors = _tensors(path, keys)
        rows = described(tensors).rows
        return {key: _copy(tensor[start:stop]) for key, tensor in tensors.items()}, rows


def _copy(rows: torch.Tensor) -> torch.Tensor:
    return rows.clone(memory_format=torch.contiguous_format)


def _tensors(path: str, keys: Collection[str] | None) -> dict[str, torch.Tensor]:
    named = _named(_loaded(path))
    chosen = {key: named[key] for key in select(keys, named)}
    for key, tensor in chosen.items():
        if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
            raise UnfitFileError(f"holds a {type(tensor).__name__} under {key!r}; name the tensors in keys=")
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
            raise UnfitFileError(f"holds no plain tensor under {key!r}; save dense ones that have data")
    return {key: tensor.detach() for key, tensor in chosen.items()}


def _loaded(path: str) -> Any:
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except pickle.UnpicklingError:
        raise UnfitFileError("does not hold tensors alone; other objects (pickles) are not read") from None
    except RuntimeError as error:
        if "mmap can only be used" not in str(error) or os.path.getsize(path) == 0:
            raise
        raise UnfitFileError("is of torch's old format; load it, and save it again with torch.save") from None


def _named(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    items = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(items) > len(_NAMES):
        raise UnfitFileError(f"holds {len(items)} tensors without names; save a dict of tensors")
    return dict(zip(_NAMES, items, strict=False))
