"""Reader of files of ``torch.save``."""

import os
import pickle
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from compss_train.data.layout import FileContentError
from compss_train.data.locations import is_remote, openable
from compss_train.data.readers.base import ArraysReader, select_keys

_NAMES = ("x", "y")


class TorchReader(ArraysReader):
    """Reads a dict of tensors, a tensor (x), or a tuple or list of one or two (x, y), saved by ``torch.save``.

    Only tensors are unpickled (``weights_only``). The file is memory-mapped: only the requested rows are read.
    Remote files are read whole.
    """

    stored_name = "torch"

    @contextmanager
    def open(self, path: str, keys: Collection[str] | None) -> Iterator[Mapping[str, Any]]:
        """Map the tensors into memory."""
        by_name = _by_name(_load(path))
        tensors = {key: by_name[key] for key in select_keys(keys, by_name)}
        for key, tensor in tensors.items():
            if not isinstance(key, str) or not isinstance(tensor, torch.Tensor):
                raise FileContentError(
                    f"holds a {type(tensor).__name__} under {key!r}; select the tensors with keys="
                )
            if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_nested or tensor.is_quantized:
                raise FileContentError(f"holds no dense tensor with data under {key!r}; save dense tensors")
        yield {key: tensor.detach() for key, tensor in tensors.items()}


def _load(path: str) -> Any:
    try:
        with openable(path) as file:
            return torch.load(file, map_location="cpu", weights_only=True, mmap=not is_remote(path))
    except pickle.UnpicklingError:
        raise FileContentError(
            "holds other objects than tensors; they are pickled and therefore not read"
        ) from None
    except RuntimeError as error:
        if "mmap can only be used" not in str(error) or (not is_remote(path) and os.path.getsize(path) == 0):
            raise
        raise FileContentError("has torch's old format; load it and save it again with torch.save") from None


def _by_name(value: Any) -> dict[Any, Any]:
    if isinstance(value, dict):
        return value
    items = tuple(value) if isinstance(value, tuple | list) else (value,)
    if len(items) > len(_NAMES):
        raise FileContentError(f"holds {len(items)} tensors without names; save a dict of tensors")
    return dict(zip(_NAMES, items, strict=False))
