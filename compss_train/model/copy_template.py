"""``CopyTemplate``: copies an object again and again, in a fraction of the time of ``copy.deepcopy``."""

from __future__ import annotations

import copy
import io
import pickle
import weakref
from collections.abc import Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import nn

T = TypeVar("T")

_SHARED = (type, FunctionType, BuiltinFunctionType, CodeType, property, bytes, weakref.ref)
"""What deepcopy does not copy, either."""
_ARRAYS = (torch.Tensor, np.ndarray)


class CopyTemplate(Generic[T]):
    """Copies what an object holds now, as ``copy.deepcopy`` does, which walks through all of it in Python.

    The structure is a pickle, which is loaded for each copy. Beside it are kept, and copied by deepcopy, tensors,
    arrays and what has a ``__deepcopy__`` of its own. Where a module has one, where one would copy what is in the
    pickle, too, or something cannot be pickled, deepcopy copies the whole object.
    """

    def __init__(self, value: T) -> None:
        self._value = value
        self._kept: list[Any] = []
        stream = io.BytesIO()
        pickler = _Pickler(stream, self._kept)
        try:
            pickler.dump(value)
            copied: dict[int, Any] = {id(each): each for each in self._kept if isinstance(each, _ARRAYS)}
            for each in self._kept:
                if not isinstance(each, _SHARED):
                    copy.deepcopy(each, copied)
            whole = not pickler.memo.copy().keys().isdisjoint(copied)
        except Exception:
            whole = True
        self._pickle = None if whole else stream.getvalue()

    def copy(self, replaced: Mapping[int, torch.Tensor]) -> T:
        """Return a copy; ``replaced`` has tensors to take instead of copies, by the ``id`` of the original."""
        memo: dict[int, Any] = dict(replaced)
        if self._pickle is None:
            return copy.deepcopy(self._value, memo)
        copied: T = _Unpickler(io.BytesIO(self._pickle), self._kept, memo).load()
        return copied


class _Pickler(pickle.Pickler):
    def __init__(self, stream: io.BytesIO, kept: list[Any]) -> None:
        super().__init__(stream, protocol=pickle.HIGHEST_PROTOCOL)
        self._kept = kept
        self._numbers: dict[int, int] = {}

    def persistent_id(self, obj: Any) -> int | None:
        if not _is_kept(obj):
            return None
        if id(obj) not in self._numbers:
            self._numbers[id(obj)] = len(self._kept)
            self._kept.append(obj)
        return self._numbers[id(obj)]

    def reducer_override(self, obj: Any) -> Any:
        """Pickle a method as its function and object: by default its name is looked up, which may find another."""
        return (MethodType, (obj.__func__, obj.__self__)) if isinstance(obj, MethodType) else NotImplemented


def _is_kept(obj: Any) -> bool:
    if isinstance(obj, (*_SHARED, *_ARRAYS)):
        return True
    if not hasattr(type(obj), "__deepcopy__"):
        return False
    if isinstance(obj, nn.Module):
        raise pickle.PicklingError("the module copies what others may share with it")
    return True


class _Unpickler(pickle.Unpickler):
    def __init__(self, stream: io.BytesIO, kept: list[Any], memo: dict[int, Any]) -> None:
        super().__init__(stream)
        self._kept, self._memo = kept, memo

    def persistent_load(self, number: int) -> Any:
        kept = self._kept[number]
        return kept if isinstance(kept, _SHARED) else copy.deepcopy(kept, self._memo)
