"""Copies of networks that share nothing with the original, and can be pickled; many of one object.

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
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.nn.utils import parametrize

from compss_train._utils.private_names import hook_dicts, parametrized, state_tensors
from compss_train.model.devices import CPU
from compss_train.model.tensor_extras import deep_copied, extras_of, give_extras

_PACKAGE = "compss_train."
"""How the names of this package's modules begin."""

_LARGE = 2**22
"""Bytes from which memory comes from numpy, which asks for large pages: five times as fast."""

_ALIGNMENT = 64
"""Bytes that torch aligns memory to: the results of some operations depend on it."""


_SHARED = (
    type,
    FunctionType,
    BuiltinFunctionType,
    CodeType,
    ModuleType,
    property,
    bytes,
    weakref.ref,
    Enum,
)
"""Types whose objects deepcopy shares."""


_LEFT_TO_DEEPCOPY = (*_SHARED, torch.Tensor, np.ndarray)
"""Types whose objects are not pickled, but shared or copied by deepcopy."""

_Holder: TypeAlias = FunctionType | torch.Tensor
"""What holds something that deepcopy does not copy."""


def cells_of(function: FunctionType) -> dict[str, CellType]:
    """Return the cells in which a function has the variables of the functions around it."""
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


def has_state(function: FunctionType) -> bool:
    """Return whether a function holds anything that it may change: cells, attributes, defaults."""
    defaults = (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    return bool(function.__closure__ or vars(function) or not all(map(_is_immutable, defaults)))


def _is_immutable(value: Any) -> bool:
    return isinstance(value, (type(None), int, float, complex, str, bytes, *_SHARED)) or (
        type(value) is tuple and all(map(_is_immutable, value))
    )


def _without_state(holders: Sequence[_Holder]) -> dict[int, FunctionType]:
    """Return copies of functions by their ``id``, with new cells, which are empty."""
    new_cells: dict[int, CellType] = {}
    copied = {}
    for function in holders:
        if isinstance(function, torch.Tensor):
            continue
        cells = [new_cells.setdefault(id(cell), CellType()) for cell in function.__closure__ or ()]
        copied[id(function)] = new = FunctionType(
            function.__code__, function.__globals__, function.__name__, closure=tuple(cells)
        )
        for name in ("__qualname__", "__module__", "__doc__", "__annotations__"):
            setattr(new, name, getattr(function, name))
    return copied


def _state_of(holder: _Holder) -> tuple[Any, ...]:
    """Return what a function holds and may change, or what a tensor has besides values."""
    if isinstance(holder, torch.Tensor):
        return extras_of(holder)
    defaults = (holder.__defaults__, holder.__kwdefaults__)
    return filled_cells(holder), *defaults, dict(vars(holder))


def _set_state(copied: _Holder, state: tuple[Any, ...]) -> None:
    """Fill the cells of a copied function, which may hold the function itself.

    A tensor gets its attributes and hooks.
    """
    if isinstance(copied, torch.Tensor):
        attributes, hooks = state
        give_extras(copied, (attributes, hooks))
        return
    contents, defaults, keyword_defaults, attributes = state
    for name, cell in cells_of(copied).items():
        if name in contents:
            cell.cell_contents = contents[name]
    copied.__defaults__ = defaults
    copied.__kwdefaults__ = keyword_defaults
    vars(copied).update(attributes)


def filled_cells(function: FunctionType) -> dict[str, Any]:
    """Return the variables in the cells of a function that have a value."""
    contents = {}
    for name, cell in cells_of(function).items():
        with suppress(ValueError):  # of an empty cell
            contents[name] = cell.cell_contents
    return contents


def copy_network(net: nn.Module) -> nn.Module:
    """Return a deep copy that can be pickled."""
    copies_of_computed = {
        id(value): value.detach().clone()
        for module in net.modules()
        for value in vars(module).values()
        if isinstance(value, torch.Tensor) and not value.is_leaf
    }
    copied = deep_copied(net, copies_of_computed)
    for module in copied.modules():
        if parametrize.is_parametrized(module):
            module.__class__ = _picklable(type(module))
    return copied


def own_entries(net: nn.Module) -> list[torch.Tensor]:
    """Return the tensors of the state_dict that own all of their memory."""
    stored = {id(tensor) for tensor in state_tensors(net).values()}
    plain = [
        tensor
        for tensor in (*net.parameters(), *net.buffers())
        if id(tensor) in stored
        and type(tensor) in (torch.Tensor, nn.Parameter)
        and tensor.layout == torch.strided
    ]
    users = Counter(tensor.untyped_storage().data_ptr() for tensor in plain)

    def owns_memory(tensor: torch.Tensor) -> bool:
        storage = tensor.untyped_storage()
        return storage.nbytes() == tensor.nbytes and users[storage.data_ptr()] == 1

    return [
        tensor
        for tensor in plain
        if tensor.is_leaf and not tensor.is_quantized and (tensor.is_meta or owns_memory(tensor))
    ]


def _unset(tensor: torch.Tensor, device: str) -> torch.Tensor:
    """Return a tensor on a device like the one given, whose values are not set."""
    size = tensor.numel() * tensor.element_size()
    if size >= _LARGE and device == CPU:
        memory = torch.from_numpy(np.empty(size + _ALIGNMENT, np.uint8))
        start = -memory.data_ptr() % _ALIGNMENT
        flat = memory[start : start + size].view(tensor.dtype)
        layout = torch.empty_like(tensor, device="meta")
        unset = flat.as_strided(layout.shape, layout.stride(), flat.storage_offset())
    else:
        # Of a tensor without memory, empty_like is computed in Python: 20 times as slow.
        unset = torch.empty_strided(
            tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device
        )
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(unset, tensor.requires_grad)
    return unset.requires_grad_(tensor.requires_grad)


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


def _itself(value: Any) -> Any:
    return value


def _reduce_method(method: MethodType) -> tuple[Any, ...]:
    """Return a method's function and object.

    By default a method is pickled by its name, under which the object may have another one.
    """
    return MethodType, (method.__func__, method.__self__)


class CopyTemplate(pickle.Pickler):
    """Copies what an object holds now, as ``copy.deepcopy`` does, but faster.

    ``deepcopy`` walks through all of it in Python; here it is a pickle, loaded for each copy.
    Functions are copied with the variables in their cells, their attributes and their defaults, so
    that no copy sees what another one changes there. Tensors and arrays are kept beside it and
    copied by deepcopy; those in ``unset`` are not copied: others take their places, whose values
    are not set. Copies of tensors have their attributes and hooks. What functions hold and has its
    own ``__deepcopy__`` is copied by that; if something there cannot be pickled, functions are
    shared. If something else has its own ``__deepcopy__``, which decides what it shares with the
    rest, deepcopy copies the whole object, and these functions with it. What cannot be pickled is
    left to deepcopy, too.
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
        self._holders: list[_Holder] = []
        """Those of it whose state is pickled after the value."""
        self._decides = False
        """Whether an object outside of functions has its own ``__deepcopy__``."""
        for shares_functions in (False, True):
            self._shares_functions = shares_functions
            self._is_in_functions = False
            stream.seek(0)
            stream.truncate()
            self._holders.clear()
            self._kept.clear()
            with suppress(Exception):
                self.dump(value)
                self._is_in_functions = True
                for holder in self._holders:  # which grow meanwhile
                    self.dump(_state_of(holder))
                self._pickle = stream.getvalue()
            self.clear_memo()
            if self._pickle:
                break
        if self._decides:
            self._pickle = b""

    def copy(self, device: str) -> Any:
        """Return a copy with new tensors on a device in place of ``unset``.

        On ``"meta"`` they have no memory.
        """
        memo: dict[int, Any] = {id(tensor): _unset(tensor, device) for tensor in self._unset}
        if not self._pickle:
            return self._deepcopied(memo)
        # deepcopy would fail for subclasses of what it shares.
        copied: dict[int, Any] = {
            key: value if isinstance(value, _SHARED) else copy.deepcopy(value, memo)
            for key, value in self._kept.items()
        }
        if self._holders:
            copied |= _without_state(self._holders)
        unpickler = pickle.Unpickler(io.BytesIO(self._pickle))
        unpickler.persistent_load = copied.__getitem__  # type: ignore[method-assign]
        value = unpickler.load()
        for holder in self._holders:
            _set_state(copied[id(holder)], unpickler.load())
        return value

    def _deepcopied(self, memo: dict[int, Any]) -> Any:
        """Return what deepcopy makes of the value, with copies of functions in ``memo``."""
        memo.update(_without_state(self._holders))
        memo.update(self._copies_of_stand_ins(memo))
        value = copy.deepcopy(self._value, memo)
        for holder in self._holders:
            _set_state(copy.deepcopy(holder, memo), copy.deepcopy(_state_of(holder), memo))
        return value

    def _copies_of_stand_ins(self, memo: dict[int, Any]) -> dict[int, Any]:
        """Return what deepcopy puts in place of objects that have a stand-in, by their ``id``."""
        return {}

    def persistent_id(self, obj: Any) -> int | None:
        """Keep what deepcopy shares or copies, and return its ``id``."""
        if isinstance(obj, _LEFT_TO_DEEPCOPY):
            if id(obj) not in self._kept:
                if isinstance(obj, torch.Tensor):
                    if vars(obj) or any(hook_dicts(obj)):
                        self._holders.append(obj)
                elif isinstance(obj, FunctionType) and not self._shares_functions:
                    # Those of this package keep nothing in attributes and defaults.
                    is_ours = f"{obj.__module__}".startswith(_PACKAGE) and not obj.__closure__
                    if not is_ours and has_state(obj):
                        self._holders.append(obj)
            self._kept[id(obj)] = obj
            return id(obj)
        # Scalars of numpy, which have one too, cannot change.
        if hasattr(type(obj), "__deepcopy__") and not isinstance(obj, np.generic):
            if self._is_in_functions:
                self._kept[id(obj)] = obj
                return id(obj)
            self._decides = True  # pickled only to find functions in it
        return None


class LinkedTemplate(CopyTemplate):
    """Copies an object in which a network's copy stands for the original.

    What holds the original, or a part of it, holds the copy in each copy of the object.
    """

    def __init__(
        self,
        value: Any,
        unset: Sequence[torch.Tensor],
        original: nn.Module,
        net: nn.Module,
    ) -> None:
        self._stand_ins = _parts_by_id(original, net)
        self.holds_original = False
        """Whether the object holds any part of the original."""
        super().__init__(value, unset)

    def reducer_override(self, obj: Any) -> Any:
        """Pickle the stand-in of an object that has one, and all else as usual."""
        stand_in = self._stand_in(obj)
        return NotImplemented if stand_in is obj else (_itself, (stand_in,))

    def persistent_id(self, obj: Any) -> int | None:
        """Keep what deepcopy shares or copies, and return its ``id``."""
        return super().persistent_id(self._stand_in(obj))

    def _stand_in(self, obj: Any) -> Any:
        """Return what stands for an object: itself, if it has no stand-in."""
        if id(obj) not in self._stand_ins:
            return obj
        self.holds_original = True
        return self._stand_ins[id(obj)]

    def _copies_of_stand_ins(self, memo: dict[int, Any]) -> dict[int, Any]:
        return {
            number: copy.deepcopy(stand_in, memo) for number, stand_in in self._stand_ins.items()
        }


def _parts_by_id(net: nn.Module, copied: nn.Module) -> dict[int, Any]:
    """Return the modules and tensors of a copy of a network, by the ``id`` of the original's."""
    parts: dict[int, Any] = {}
    for kind in ("named_modules", "named_parameters", "named_buffers"):
        of_copy = dict(getattr(copied, kind)(remove_duplicate=False))
        for name, part in getattr(net, kind)(remove_duplicate=False):
            parts[id(part)] = of_copy[name]
    return parts
