"""State outside the state_dict: what objects keep in attributes, read and set by paths.

A path is that of a program: ``network.0.begun``, ``loss.center``, ``training_step.teacher.weight``.
Values become plain ones, which checkpoints hold; a tensor or container with several paths stays
one, and parameters of the network are references to their names. What is neither plain nor an
object that a new copy has at the same path cannot be kept: a ``NotKept`` stands for it.
"""

import hashlib
import pickle
import random
import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterable, Mapping, MutableMapping
from contextlib import suppress
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train._utils.private_names import held_by, hooks_of
from compss_train.model.copies import cells_of, filled_cells, has_state
from compss_train.model.devices import copy_into
from compss_train.model.not_kept import NotKept

NETWORK = "network"
"""The root of the network's paths."""

OPTIMIZER = "optimizer"
"""The root of the optimizer's paths."""

_KIND = "kind"
"""The key that says what a plain value stands for."""

_SCALARS = (type(None), bool, int, float, str, np.generic)

_CONTAINERS: Mapping[type[Any], str] = {
    list: "list",
    tuple: "tuple",
    set: "set",
    frozenset: "frozenset",
    deque: "deque",
    dict: "dict",
    defaultdict: "defaultdict",
    OrderedDict: "OrderedDict",
    Counter: "Counter",
    torch.Size: "Size",
}
_CONTAINER_BASES = tuple(_CONTAINERS)

_CONTAINER_TYPES: Mapping[str, Any] = {name: container for container, name in _CONTAINERS.items()}

_NAMED = (type, FunctionType, BuiltinFunctionType, ModuleType)
"""What copies share, and what its name tells apart."""

_NOT_KEPT = "not kept"
"""The kind of an object that a ``NotKept`` stands for."""

_FOREIGN = frozenset({*sys.stdlib_module_names, "torch", "numpy"}) - {"__main__"}
"""The libraries whose functions keep nothing, and whose objects decide how they are copied."""

_OF_MODULES = frozenset({*vars(nn.Module()), "_compiled_call_impl"})
_OF_OPTIMIZERS = frozenset(vars(torch.optim.SGD([torch.zeros(1)]))) - {"state", "param_groups"}


class AttributeReader:
    """Reads the attributes of objects, and of all that these hold.

    Parameters
    ----------
    net:
        The network, whose parameters and buffers are kept elsewhere.
    roots:
        The objects, by the names with which their paths begin.
    before:
        The attributes of a new copy: objects that it has not are not looked into.
    """

    def __init__(
        self,
        net: nn.Module,
        roots: Mapping[str, Any],
        before: "AttributeReader | None" = None,
    ) -> None:
        self._before = before
        self.values: dict[str, Any] = {}
        """The plain values by paths."""
        self.classes: dict[str, str] = {}
        """The classes of objects that are no plain values, by paths."""
        self.objects: dict[str, Any] = {}
        """The objects, containers and tensors by paths."""
        self.owners: dict[str, tuple[Any, str]] = {}
        """The mapping or object that holds a value, and the name that it has there."""
        self._paths: dict[int, str] = {}
        """The first path of an object, by its ``id``."""
        for name, tensor in (*net.named_parameters(), *net.named_buffers()):
            self._note(tensor, f"{NETWORK}.{name}")
        for name, root in roots.items():
            if name == OPTIMIZER:
                self._note_state(root)
            self._read(root, name)

    def _note(self, value: Any, path: str) -> None:
        self._paths[id(value)] = path
        self.objects[path] = value

    def _note_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what the optimizer's state_dict keeps."""
        self._note(optimizer.state, f"{OPTIMIZER}.state")
        self._note(optimizer.param_groups, f"{OPTIMIZER}.param_groups")
        for number, group in enumerate(optimizer.param_groups):
            path = f"{OPTIMIZER}.param_groups[{number}]"
            self._note(group, path)
            self._note(group["params"], f"{path}['params']")

    def _read(self, value: Any, path: str) -> Any:
        """Return a plain value; the attributes of objects in it are read on the way."""
        if type(value) is NotKept:
            return {_KIND: _NOT_KEPT, "class": value.kind}
        if isinstance(value, Enum):
            self.objects[path] = value
            return {**self._object(path, _class_of(value)), _KIND: "enum", "name": value.name}
        if isinstance(value, _SCALARS):
            return value
        if isinstance(value, _NAMED):
            name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
            self.objects[path] = value
            plain = self._object(path, name)
            if isinstance(value, FunctionType) and id(value) not in self._paths:
                self._note(value, path)
                self._read_function(value, path)
            return plain
        first_path = self._paths.get(id(value))
        if first_path is not None:
            return {_KIND: "reference", "path": first_path}
        if type(value) not in (tuple, frozenset, torch.Size):
            self._note(value, path)
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
            tensor = value.detach()
            return {_KIND: "tensor", "value": tensor, "parameter": isinstance(value, nn.Parameter)}
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return {_KIND: "array", "value": value}
        is_subclass = isinstance(value, _CONTAINER_BASES) and type(value) not in _CONTAINERS
        # Those that decide themselves how they are copied are not looked into.
        if type(value) in _CONTAINERS or (is_subclass and not hasattr(type(value), "__deepcopy__")):
            return self._read_container(value, path)
        if isinstance(value, torch.dtype | torch.device):
            return {_KIND: type(value).__name__, "value": str(value).removeprefix("torch.")}
        if isinstance(value, bytes | complex):
            return {_KIND: type(value).__name__, "value": np.frombuffer(_bytes_of(value), np.uint8)}
        generator = state_of_generator(value)
        if generator is not None:
            return {**self._object(path, _class_of(value)), _KIND: "generator", "value": generator}
        kind = _class_of(value)
        if _is_opaque(value):
            kind += _digest(value)
        plain = self._object(path, kind)
        if self._before is None or self._before.classes.get(path) == plain["class"]:
            self._read_attributes(value, path)
        return plain

    def _object(self, path: str, kind: str) -> dict[str, Any]:
        """Return what stands for an object of this class, which a new copy has at the path."""
        self.classes[path] = kind
        return {_KIND: "object", "class": kind, "path": path}

    def _read_container(self, value: Any, path: str) -> dict[str, Any]:
        kind = _CONTAINERS[next(base for base in type(value).__mro__ if base in _CONTAINERS)]
        if isinstance(value, dict):
            items: list[Any] = [
                [self._read(key, f"{path} key"), self._read(item, f"{path}[{_key(key)}]")]
                for key, item in value.items()
            ]
        elif isinstance(value, set | frozenset):
            items = [self._read(item, f"{path} item") for item in sorted(value, key=repr)]
        else:
            items = [self._read(item, f"{path}[{number}]") for number, item in enumerate(value)]
        plain: dict[str, Any] = {_KIND: kind, "items": items}
        if isinstance(value, deque):
            plain["maxlen"] = value.maxlen
        # What else they have, such as the factory of defaults, is that of a new copy.
        if type(value) not in _CONTAINERS or isinstance(value, defaultdict):
            self.objects[path] = value
            plain = {**self._object(path, _class_of(value)), **plain}
            if type(value) not in _CONTAINERS and hasattr(value, "__dict__"):
                self._read_names(vars(value), vars(value), path)
        return plain

    def _read_function(self, function: FunctionType, path: str) -> None:
        """Read the variables in the cells of a function, its attributes and its defaults."""
        if not has_state(function) or _is_of(function.__module__):
            return
        contents = filled_cells(function)
        for name, cell in cells_of(function).items():
            cell_path = f"{path}.{name}"
            self.owners[cell_path] = (cell, "cell_contents")
            if name in contents:
                self.values[cell_path] = self._read(contents[name], cell_path)
        self._read_names(vars(function), vars(function), path)
        for name in ("__defaults__", "__kwdefaults__"):
            self._read_attribute(function, name, getattr(function, name), path)

    def _read_attributes(self, value: Any, path: str) -> None:
        """Read what an object holds, if it is one that is looked into."""
        if isinstance(value, nn.Module):
            self._read_module(value, path)
        elif isinstance(value, torch.optim.Optimizer):
            self._read_names(vars(value), vars(value).keys() - _OF_OPTIMIZERS, path)
        elif isinstance(value, partial):
            for number, argument in enumerate(value.args):
                self._read(argument, f"{path}.args[{number}]")
            self._read_names(value.keywords, value.keywords, path)
            self._read(value.func, f"{path}.func")
        elif isinstance(value, MethodType):
            self._read(value.__self__, path + ".__self__")
        elif not _is_opaque(value):
            if hasattr(value, "__dict__"):
                self._read_names(vars(value), vars(value), path)
            for name in _slots_of(type(value)):
                if hasattr(value, name):
                    self._read_attribute(value, name, getattr(value, name), path)

    def _read_module(self, module: nn.Module, path: str) -> None:
        attributes = vars(module)
        self._read_names(attributes, attributes.keys() - _OF_MODULES, path)
        for number, hook in enumerate(hooks_of(module)):
            self._read(hook, f"{path} hook {number}")
        parameters, buffers, children = held_by(module)
        if not path.startswith(NETWORK):
            self._read_names(parameters, parameters, path)
            self._read_names(buffers, buffers, path)
        for name, child in children.items():
            if child is not None:
                self._read_attribute(children, name, child, path)
                if self.values[f"{path}.{name}"][_KIND] == "object":
                    self.values[f"{path}.{name}"]["is_module"] = True

    def _read_names(self, mapping: Mapping[str, Any], names: Iterable[str], path: str) -> None:
        for name in [name for name in mapping if name in names]:
            self._read_attribute(mapping, name, mapping[name], path)

    def _read_attribute(self, owner: Any, name: str, value: Any, path: str) -> None:
        attribute_path = f"{path}.{name}"
        self.owners[attribute_path] = (owner, name)
        self.values[attribute_path] = self._read(value, attribute_path)

    def freeze(self) -> None:
        """Keep the values as they are now, whatever happens to the objects."""
        self.values = _copied(self.values)

    def set(self, kept: Mapping[str, Any], device: str) -> None:
        """Set attributes to copies of values that ``changed_attributes`` returned.

        Tensors that were on a worker's device get onto ``device``. Containers, and tensors of the
        same shape and dtype, keep their memory. Paths of objects that are gone are left out:
        whoever restores a checkpoint with other objects is warned of them.
        """
        for path, plain in kept.items():
            owner, name = self._owner_of(path)
            if owner is None or any(part not in self.objects for part in _needed(plain)):
                continue
            is_mapping = isinstance(owner, MutableMapping)
            if plain == {_KIND: "deleted"}:
                if is_mapping:
                    owner.pop(name, None)
                elif hasattr(owner, name):
                    object.__delattr__(owner, name)
                continue
            current = _current(owner, name)
            value = self._restored(plain, current, path, device)
            if is_mapping:
                owner[name] = value
            else:
                object.__setattr__(owner, name, value)

    def _owner_of(self, path: str) -> tuple[Any, str]:
        """Return what holds the attribute of a path, or will hold it, and its name there."""
        if path in self.owners:
            return self.owners[path]
        owner_path, _, name = path.rpartition(".")
        owner = self.objects.get(owner_path)
        return (vars(owner) if hasattr(owner, "__dict__") else owner), name

    def _restored(self, plain: Any, current: Any, path: str, device: str) -> Any:
        """Return the value that a plain one stands for, in the memory of the current one."""
        if not isinstance(plain, dict):
            return plain
        kind = plain[_KIND]
        if kind in ("dtype", "device"):
            name = plain["value"]
            return getattr(torch, name) if kind == "dtype" else torch.device(name)
        if kind in ("bytes", "complex"):
            data = plain["value"].tobytes()
            return data if kind == "bytes" else complex(np.frombuffer(data, complex)[0])
        if kind in _CONTAINER_TYPES:
            value = self._restored_container(plain, current, path, device)
        elif kind == "tensor":
            value = _restored_tensor(plain, current, device)
        elif kind == "array":
            value = np.array(plain["value"])
        elif kind == _NOT_KEPT:
            value = NotKept(path, plain["class"])
        else:
            value = self.objects.get(plain["path"])
            if value is None:
                raise ValueError(
                    f"{path} was kept with a reference to {plain['path']}, which is not there now; "
                    "go on with the network of that fit, or start with a new optimizer by "
                    "Merge(optimizer_state='reset')"
                )
            if kind == "enum":
                return type(value)[plain["name"]]
            if kind == "generator":
                _set_generator(value, plain["value"])
            return value
        self._note(value, path)
        return value

    def _restored_container(
        self, plain: Mapping[str, Any], current: Any, path: str, device: str
    ) -> Any:
        kind = _CONTAINER_TYPES[plain[_KIND]]
        if "path" in plain:  # a subclass, whose object a new copy has
            current = self.objects[plain["path"]]
        is_current = isinstance(current, kind) and (type(current) is kind or "path" in plain)
        if issubclass(kind, dict):
            pairs = []
            for plain_key, plain_item in plain["items"]:
                key = self._restored(plain_key, None, f"{path} key", device)
                item = current.get(key) if is_current else None
                item_path = f"{path}[{_key(key)}]"
                pairs.append((key, self._restored(plain_item, item, item_path, device)))
            mapping = current if is_current else kind()
            mapping.clear()
            mapping.update(pairs)
            return mapping
        is_ordered = kind not in (set, frozenset)
        before = [*current] if is_current and is_ordered else []
        items = []
        for number, plain_item in enumerate(plain["items"]):
            item_path = f"{path}[{number}]" if is_ordered else f"{path} item"
            item = before[number] if number < len(before) else None
            items.append(self._restored(plain_item, item, item_path, device))
        if kind is deque and not is_current:
            return deque(items, plain["maxlen"])
        if "path" in plain and isinstance(current, tuple):
            return current._make(items) if hasattr(current, "_make") else type(current)(items)
        if not is_current or kind in (tuple, frozenset, torch.Size):
            return kind(items)
        current.clear()
        current.update(items) if kind is set else current.extend(items)
        return current


class ImmutableAttributes:
    """The attributes of objects that hold immutable values only, which are compared quickly.

    ``hold`` is ``False`` if the objects have any others, whose values may change unseen.
    """

    def __init__(self, roots: Mapping[str, Any]) -> None:
        self.hold = True
        self._modules: list[tuple[int, list[tuple[str, Any]]]] = []
        """For each module the number of its attributes, and those that are not torch's."""
        self._objects: dict[str, dict[str, Any]] = {}
        """What each other root holds, if it holds anything."""
        for name, root in roots.items():
            if isinstance(root, nn.Module):
                self._add(root, is_network=name == NETWORK)
                continue
            values = _held_by_root(root)
            if values is None or not all(map(_is_immutable, values.values())):
                self.hold = False
            elif values:
                self._objects[name] = values

    def _add(self, root: nn.Module, *, is_network: bool) -> None:
        for module in root.modules():
            attributes = vars(module)
            names = [name for name in attributes if name not in _OF_MODULES]
            values = [(name, attributes[name]) for name in names]
            self._modules.append((len(attributes), values))
            if not all(_is_immutable(value) for _, value in values):
                self.hold = False
            parameters, buffers, _ = held_by(module)
            if hooks_of(module) or (not is_network and (parameters or buffers)):
                self.hold = False

    def are_in(self, roots: Mapping[str, Any]) -> bool:
        """Return whether a copy of the objects has the same attributes, and no others."""
        for root_name, before in self._objects.items():
            held = _held_by_root(roots[root_name])
            if held is None or held.keys() != before.keys():
                return False
            if any(_differ(held[name], value) for name, value in before.items()):
                return False
        expected = iter(self._modules)
        for root in roots.values():
            if not isinstance(root, nn.Module):
                continue
            for module in root.modules():
                attributes = vars(module)
                count, values = next(expected, (-1, []))
                if len(attributes) != count:
                    return False
                if any(_differ(attributes.get(name), value) for name, value in values):
                    return False
        return next(expected, None) is None


def _held_by_root(root: Any) -> dict[str, Any] | None:
    """Return what a function, or an object of a plain class, holds; ``None`` for others."""
    if isinstance(root, FunctionType):
        if not has_state(root):
            return {}
        return {
            **filled_cells(root),
            **vars(root),
            "__defaults__": root.__defaults__,
            "__kwdefaults__": root.__kwdefaults__,
        }
    if isinstance(root, _NAMED):
        return {}
    if isinstance(root, MethodType | partial) or _slots_of(type(root)):
        return None
    return (
        dict(vars(root))
        if type(root).__dictoffset__ and not _is_of(type(root).__module__)
        else None
    )


def _differ(new: Any, value: Any) -> bool:
    return new is not value and (type(new) is not type(value) or new != value)


def _is_immutable(value: Any) -> bool:
    if isinstance(value, FunctionType):
        return not has_state(value) or _is_of(value.__module__)
    if type(value) in (tuple, torch.Size):
        return all(map(_is_immutable, value))
    return isinstance(value, (*_SCALARS, *_NAMED, torch.dtype, torch.device, bytes))


def changed_attributes(
    before: AttributeReader, after: AttributeReader, worker: int
) -> dict[str, Any]:
    """Return copies on the CPU of what differs from a new copy, and of what refers to it.

    Raises ``TypeError`` for what changed and cannot be kept.
    """
    values = {path: _keepable(value, before, path, worker) for path, value in after.values.items()}
    changed = {
        path: value
        for path, value in values.items()
        if path not in before.values or not _is_same(value, before.values[path])
    }
    deleted = [path for path in before.values if path not in values]
    if not changed and not deleted:
        return {}
    kept: dict[str, Any] = {
        path: {_KIND: "deleted"} for path in deleted if path.rpartition(".")[0] in after.objects
    }
    for path, value in values.items():
        if path in changed or any(_is_in(part, changed) for part in _references(value)):
            kept[path] = _copied(value)
    return kept


def _keepable(value: Any, before: AttributeReader, path: str, worker: int) -> Any:
    """Return a plain value in which objects that a new copy does not have are not kept.

    Raises ``TypeError`` for modules, which cannot be left out of a network.
    """
    if isinstance(value, list):
        return [_keepable(item, before, path, worker) for item in value]
    if not isinstance(value, dict):
        return value
    if "path" in value and "class" in value and before.classes.get(value["path"]) != value["class"]:
        if value.get("is_module"):
            raise TypeError(
                f"{path} changed while worker {worker} trained, and a {value['class']} is a module "
                "that no optimizer trains and no state_dict is known to have: make it in __init__, "
                "or before the fit"
            )
        return {_KIND: _NOT_KEPT, "class": value["class"].partition(" ")[0]}
    if "items" not in value:
        return value
    return {**value, "items": _keepable(value["items"], before, path, worker)}


def _parts(plain: Any) -> list[dict[str, Any]]:
    """Return all dicts in a plain value that stand for something."""
    if isinstance(plain, list):
        return [part for item in plain for part in _parts(item)]
    if not isinstance(plain, dict):
        return []
    return [plain, *_parts(plain.get("items"))]


def _needed(plain: Any) -> list[str]:
    """Return the paths of objects outside of a plain value that it needs, as new copies have."""
    return [part["path"] for part in _parts(plain) if "path" in part and part[_KIND] != "reference"]


def is_kept_whole(plain: Any) -> bool:
    """Return whether a plain value has no part that was not kept."""
    return not any(part.get(_KIND) == _NOT_KEPT for part in _parts(plain))


def references(values: Mapping[str, Any]) -> list[str]:
    """Return the paths of all objects that plain values refer to."""
    return [part["path"] for value in values.values() for part in _parts(value) if "path" in part]


def _references(plain: Any) -> list[str]:
    return [part["path"] for part in _parts(plain) if part[_KIND] == "reference"]


def _is_in(path: str, changed: Mapping[str, Any]) -> bool:
    """Return whether a path is that of a changed value, or inside of one."""
    return any(path == other or path.startswith((f"{other}[", f"{other}.")) for other in changed)


def _is_same(first: Any, second: Any) -> bool:
    """Return whether two plain values are the same, in type and bits."""
    if type(first) is not type(second):
        return False
    if isinstance(first, dict):
        names = first.keys() - {"on_device"}  # new copies are on the CPU
        return names == second.keys() - {"on_device"} and all(
            _is_same(first[name], second[name]) for name in names
        )
    if isinstance(first, list | tuple):
        return len(first) == len(second) and all(map(_is_same, first, second))
    if isinstance(first, torch.Tensor):
        alike = (first.shape, first.dtype) == (second.shape, second.dtype)
        return alike and torch.equal(first.to(second.device), second)
    if isinstance(first, np.ndarray):
        return first.dtype == second.dtype and np.array_equal(first, second)
    return bool(first == second)


def _copied(plain: Any) -> Any:
    """Return a copy of a plain value with its tensors on the CPU."""
    if isinstance(plain, dict):
        if plain.get(_KIND) == "tensor":
            tensor = plain["value"]
            on_device = tensor.device.type != "cpu"
            return {**plain, "value": tensor.to("cpu", copy=True), "on_device": on_device}
        return {name: _copied(value) for name, value in plain.items()}
    if isinstance(plain, list | tuple):
        return type(plain)(_copied(item) for item in plain)
    return plain.copy() if isinstance(plain, np.ndarray) else plain


@torch.no_grad()
def _restored_tensor(plain: Mapping[str, Any], current: Any, device: str) -> torch.Tensor:
    value: torch.Tensor = plain["value"]
    is_alike = (
        isinstance(current, torch.Tensor)
        and (current.shape, current.dtype) == (value.shape, value.dtype)
        and isinstance(current, nn.Parameter) == plain["parameter"]
    )
    if is_alike:
        copy_into(current, value)
        kept: torch.Tensor = current
        return kept
    moved = value.to(device if plain["on_device"] else "cpu", copy=True)
    return nn.Parameter(moved) if plain["parameter"] else moved


def state_of_generator(value: Any) -> Any:
    """Return the state of a random number generator as a plain value, or ``None`` for others."""
    if isinstance(value, torch.Generator):
        return {"torch": value.get_state()}
    if isinstance(value, random.Random) and type(value) is random.Random:
        version, numbers, gauss = value.getstate()
        return {"version": version, "numbers": np.array(numbers, np.int64), "gauss": gauss}
    if isinstance(value, np.random.Generator):
        return {"numpy": value.bit_generator.state}
    if isinstance(value, np.random.RandomState):
        return {"numpy": value.get_state(legacy=False)}
    return None


def _set_generator(value: Any, state: Mapping[str, Any]) -> None:
    if isinstance(value, torch.Generator):
        value.set_state(state["torch"])
    elif isinstance(value, random.Random):
        numbers = tuple(state["numbers"].tolist())
        value.setstate((state["version"], numbers, state["gauss"]))
    elif isinstance(value, np.random.Generator):
        value.bit_generator.state = state["numpy"]
    else:
        value.set_state(state["numpy"])


def _current(owner: Any, name: str) -> Any:
    """Return the value that a mapping, cell or object has now, or ``None``."""
    if isinstance(owner, MutableMapping):
        return owner.get(name)
    with suppress(ValueError):  # of an empty cell
        return getattr(owner, name, None)
    return None


def _bytes_of(value: bytes | complex) -> bytes:
    return value if isinstance(value, bytes) else np.array(value).tobytes()


def _class_of(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"


def _key(key: Any) -> str:
    """Return what paths call the key of a dict."""
    return f"{tuple(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)


def _is_of(module: str | None) -> bool:
    """Return whether a module is one of ``_FOREIGN``."""
    return (module or "").partition(".")[0] in _FOREIGN


def _is_opaque(value: Any) -> bool:
    """Return whether what an object holds is known to its class only.

    Classes of Python and numpy that pickle their objects in ways of their own are so.
    """
    kind: Any = type(value)
    if not _is_of(kind.__module__) or kind.__module__.startswith("torch"):
        return False
    if isinstance(value, partial | MethodType):
        return False
    has_own_way = kind.__reduce_ex__ is not object.__reduce_ex__ or (
        kind.__reduce__ is not object.__reduce__
    )
    return has_own_way or not kind.__dictoffset__


def _digest(value: Any) -> str:
    """Return what tells apart the values of an opaque object; nothing if it cannot be pickled."""
    with suppress(Exception):
        return f" {hashlib.sha256(pickle.dumps(value)).hexdigest()}"
    return ""


def _slots_of(kind: type) -> tuple[str, ...]:
    slots = [vars(base).get("__slots__", ()) for base in kind.__mro__]
    names = [name for entry in slots for name in ((entry,) if isinstance(entry, str) else entry)]
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))
