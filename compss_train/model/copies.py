"""Copies of networks that share nothing with the original, and that can be pickled; many copies of
one object.

torch refuses to pickle parametrized modules (``weight_norm``, ``spectral_norm``, ``orthogonal`` and
others of ``torch.nn.utils.parametrizations``), because it creates their class when the first
parametrization is registered. The copies have classes that are recreated on unpickling. Tensors
that a module has computed and keeps as an attribute, as the older ``torch.nn.utils.weight_norm``
does, are copied without their graph.
"""

import copy
import copyreg
import io
import pickle
import weakref
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from itertools import chain
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from compss_train._utils.private_names import parametrized, spectral_vectors
from compss_train.model.devices import CPU


def copy_network(net: nn.Module) -> nn.Module:
    """Return a deep copy."""
    attributes = (value for module in net.modules() for value in vars(module).values())
    computed = (
        value for value in attributes if isinstance(value, torch.Tensor) and not value.is_leaf
    )
    own = copy.deepcopy(net, {id(tensor): tensor.detach().clone() for tensor in computed})
    for module in own.modules():
        if parametrize.is_parametrized(module):
            module.__class__ = _picklable(type(module))
    return own


def own_entries(net: nn.Module) -> list[torch.Tensor]:
    """Return the tensors of the state_dict that share no memory with other tensors and have no
    attributes.
    """
    stored = {id(tensor) for tensor in net.state_dict(keep_vars=True).values()}
    plain = [
        tensor
        for tensor in (*net.parameters(), *net.buffers())
        if id(tensor) in stored
        and type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout == torch.strided
    ]
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in plain)
    return [
        tensor
        for tensor in plain
        if tensor.is_leaf
        and not (vars(tensor) or tensor.is_quantized)
        and (
            tensor.is_meta
            or (tensor.untyped_storage().nbytes(), users[tensor.untyped_storage().data_ptr()])
            == (tensor.nbytes, 1)
        )
    ]


_LARGE = 2**22
"""From this size in bytes, memory comes from numpy, which asks the system for large pages: 5 times
as fast.
"""

_ALIGNMENT = 64
"""Bytes that torch aligns memory to: the results of some operations depend on it."""


def _unset(tensor: torch.Tensor, device: str) -> torch.Tensor:
    size = tensor.numel() * tensor.element_size()
    if size >= _LARGE and device == CPU:
        memory = torch.from_numpy(np.empty(size + _ALIGNMENT, np.uint8))
        start = -memory.data_ptr() % _ALIGNMENT
        flat = memory[start : start + size].view(tensor.dtype)
        like = torch.empty_like(tensor, device="meta")
        new = flat.as_strided(like.shape, like.stride(), flat.storage_offset())
    else:
        # Not empty_like: of a tensor without memory it is computed in Python, which takes 20 times
        # as long.
        new = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
    return nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new


def _picklable(kind: type) -> type:
    """Return a class like that of a parametrized module, but with picklable objects."""
    members = {name: value for name, value in vars(kind).items() if name != "__getstate__"}
    return type(kind.__name__, kind.__bases__, {**members, "__reduce_ex__": _reduce})


def _reduce(module: nn.Module, protocol: int) -> tuple[Any, ...]:
    plain: Any = parametrize.type_before_parametrizations(module)
    names: Any = module.parametrizations
    return _new_parametrized, (plain, [*names]), plain.__getstate__(module)


def _new_parametrized(plain: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Return an object of a parametrized module's class without attributes, for unpickling."""
    module = parametrized(plain, names)
    module.__class__ = _picklable(type(module))
    return module


_SAME_LENGTH = 1e-3
"""By how much the length of a vector may differ from 1, as in a network that was converted to
another dtype.
"""


@torch.no_grad()
def normalize_spectral_vectors(net: nn.Module) -> None:
    """Rescale the singular vectors of ``spectral_norm`` to length 1, which averaging workers'
    vectors shortens.

    In training, the power iteration normalizes them; evaluation uses them unchanged, and would
    divide weights by a norm that is too small by both lengths. Vectors whose length is already
    about 1 keep their bits.
    """
    for vector in chain.from_iterable(map(spectral_vectors, net.modules())):
        length = torch.linalg.vector_norm(vector)
        if length > 0 and abs(length - 1) > max(_SAME_LENGTH, torch.finfo(vector.dtype).eps):
            vector.div_(length)


_SHARED = type, FunctionType, BuiltinFunctionType, CodeType, property, bytes, weakref.ref, Enum
_LEFT_TO_DEEPCOPY = *_SHARED, torch.Tensor, np.ndarray
"""Types that deepcopy does not copy, and those of arrays."""


def _reduce_method(method: MethodType) -> tuple[Any, ...]:
    """Return a method's function and object: by default its name is looked up, which may find
    another.
    """
    return MethodType, (method.__func__, method.__self__)


class CopyTemplate(pickle.Pickler):
    """Copies what an object holds now, as ``copy.deepcopy`` does, which walks through all of it in
    Python.

    The structure is a pickle, loaded once for each copy. Tensors and arrays are kept beside it and
    copied by deepcopy; those in ``unset`` are not copied: others take their places, whose values
    are not set. If something cannot be pickled or has its own ``__deepcopy__``, deepcopy copies the
    whole object.
    """

    def __init__(self, value: Any, unset: Sequence[torch.Tensor]) -> None:
        stream = io.BytesIO()
        self.dispatch_table = {**copyreg.dispatch_table, MethodType: _reduce_method}
        super().__init__(stream, pickle.HIGHEST_PROTOCOL)
        self._value = value
        self._unset = unset
        self._pickle = b""
        self._kept: dict[int, Any] = {}
        """What is not pickled, by its ``id``."""
        with suppress(Exception):
            self.dump(value)
            self._pickle = stream.getvalue()
        self.clear_memo()

    def copy(self, device: str) -> Any:
        """Return a copy with new tensors on a device in place of ``unset``; on ``"meta"`` they have
        no memory.
        """
        memo: dict[int, Any] = {id(tensor): _unset(tensor, device) for tensor in self._unset}
        if not self._pickle:
            return copy.deepcopy(self._value, memo)
        kept = self._kept.items()  # deepcopy fails for subclasses of what it shares
        copied = {
            key: each if isinstance(each, _SHARED) else copy.deepcopy(each, memo)
            for key, each in kept
        }
        unpickler = pickle.Unpickler(io.BytesIO(self._pickle))
        unpickler.persistent_load = copied.__getitem__  # type: ignore[method-assign]
        return unpickler.load()

    def persistent_id(self, obj: Any) -> int | None:
        """Keep what deepcopy shares or copies."""
        if isinstance(obj, _LEFT_TO_DEEPCOPY):
            self._kept[id(obj)] = obj
            return id(obj)
        if hasattr(type(obj), "__deepcopy__"):
            raise pickle.PicklingError("it decides itself what a copy shares with it")
        return None
