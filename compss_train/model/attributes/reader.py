"""``AttributeReader``: the attributes of objects as plain values, by paths."""

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train._utils.private_names import held_by, hooks_of, state_tensors
from compss_train.model.attributes.objects import (
    MODULE_ATTRIBUTES,
    NAMED,
    class_of,
    digest,
    is_foreign,
    is_opaque,
    name_of,
    slots_of,
)
from compss_train.model.attributes.plain_values import (
    CONTAINERS,
    KIND,
    NAMES_OF_TORCH,
    NOT_KEPT,
    SCALARS,
    copied,
    state_of_generator,
)
from compss_train.model.copies import cells_of, filled_cells, has_state
from compss_train.model.not_kept import NotKept

NETWORK = "network"
"""The root of the network's paths."""

OPTIMIZER = "optimizer"
"""The root of the optimizer's paths."""

HOOKS = " hooks"
"""How the path ends of the names of hooks of a module or tensor."""

REQUIRES_GRAD = " requires_grad"
"""How the path ends of whether a parameter of the network is trained."""

_OF_COMPILER = "_dynamo"
"""How the attributes begin that torch's compiler gives tensors."""

_CONTAINER_BASES = tuple(CONTAINERS)


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
        self._net = net
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
            self.note(tensor, f"{NETWORK}.{name}")
        for name, root in roots.items():
            if name == OPTIMIZER:
                self._note_state(root)
            self._read(root, name)

    def note(self, value: Any, path: str) -> None:
        """Note that a path is that of an object: values which have it, too, are references."""
        self._paths[id(value)] = path
        self.objects[path] = value

    def is_elsewhere(self, value: Any, path: str) -> bool:
        """Return whether a value is that of another path, which may only share it with this one."""
        return self._paths.get(id(value), path) != path

    def is_in_merged_memory(self, value: torch.Tensor) -> bool:
        """Return whether a tensor lies in the memory of a parameter or persistent buffer."""
        if value.layout != torch.strided:
            return False
        memory = value.untyped_storage().data_ptr()
        return memory != 0 and any(
            tensor.layout == torch.strided and tensor.untyped_storage().data_ptr() == memory
            for tensor in state_tensors(self._net).values()
        )

    def _note_state(self, optimizer: torch.optim.Optimizer) -> None:
        """Note what the optimizer's state_dict keeps."""
        self.note(optimizer.state, f"{OPTIMIZER}.state")
        self.note(optimizer.param_groups, f"{OPTIMIZER}.param_groups")
        for number, group in enumerate(optimizer.param_groups):
            path = f"{OPTIMIZER}.param_groups[{number}]"
            self.note(group, path)
            self.note(group["params"], f"{path}['params']")

    def _read(self, value: Any, path: str) -> Any:
        """Return a plain value; the attributes of objects in it are read on the way."""
        if type(value) is NotKept:
            return {KIND: NOT_KEPT, "class": value.kind}
        if isinstance(value, Enum):
            self.objects[path] = value
            return {**self._object(path, class_of(value)), KIND: "enum", "name": value.name}
        if isinstance(value, SCALARS):
            return value
        if isinstance(value, NAMED):
            self.objects[path] = value
            plain = self._object(path, name_of(value))
            if isinstance(value, FunctionType) and id(value) not in self._paths:
                self.note(value, path)
                self._read_function(value, path)
            return plain
        if isinstance(value, NAMES_OF_TORCH | torch.device):
            return {KIND: type(value).__name__, "value": str(value).removeprefix("torch.")}
        if isinstance(value, bytes | complex):
            return {KIND: type(value).__name__, "value": np.frombuffer(_bytes_of(value), np.uint8)}
        if isinstance(value, slice | range):
            bounds = [value.start, value.stop, value.step]
            if all(isinstance(bound, SCALARS) for bound in bounds):
                return {KIND: type(value).__name__, "items": bounds}
        first_path = self._paths.get(id(value))
        if first_path is not None:
            return {KIND: "reference", "path": first_path}
        if type(value) not in (tuple, frozenset, torch.Size):
            self.note(value, path)
        if isinstance(value, torch.Tensor) and value.layout == torch.strided and not value.is_meta:
            tensor = value.detach()
            return {KIND: "tensor", "value": tensor, "parameter": isinstance(value, nn.Parameter)}
        if isinstance(value, np.ndarray) and not value.dtype.hasobject:
            return {KIND: "array", "value": value}
        is_subclass = isinstance(value, _CONTAINER_BASES) and type(value) not in CONTAINERS
        # Those that decide themselves how they are copied are not looked into.
        if type(value) in CONTAINERS or (is_subclass and not hasattr(type(value), "__deepcopy__")):
            return self._read_container(value, path)
        generator = state_of_generator(value)
        if generator is not None:
            return {**self._object(path, class_of(value)), KIND: "generator", "value": generator}
        kind = class_of(value)
        if is_opaque(value):
            kind += digest(value)
        plain = self._object(path, kind)
        if self._before is None or self._before.classes.get(path) == plain["class"]:
            self._read_attributes(value, path)
        return plain

    def _object(self, path: str, kind: str) -> dict[str, Any]:
        """Return what stands for an object of this class, which a new copy has at the path."""
        self.classes[path] = kind
        return {KIND: "object", "class": kind, "path": path}

    def _read_container(self, value: Any, path: str) -> dict[str, Any]:
        kind = CONTAINERS[next(base for base in type(value).__mro__ if base in CONTAINERS)]
        if isinstance(value, dict):
            items: list[Any] = [
                [
                    self._read(key, f"{path} key{_place_of(key, number, len(value))}"),
                    self._read(item, f"{path}[{key_in_path(key)}]"),
                ]
                for number, (key, item) in enumerate(value.items())
            ]
        elif isinstance(value, set | frozenset):
            items = [
                self._read(item, f"{path} item{_place_of(item, number, len(value))}")
                for number, item in enumerate(sorted(value, key=repr))
            ]
        else:
            items = [self._read(item, f"{path}[{number}]") for number, item in enumerate(value)]
        plain: dict[str, Any] = {KIND: kind, "items": items}
        if isinstance(value, deque):
            plain["maxlen"] = value.maxlen
        # What else they have, such as the factory of defaults, is that of a new copy.
        if type(value) not in CONTAINERS or isinstance(value, defaultdict):
            self.objects[path] = value
            plain = {**self._object(path, class_of(value)), **plain}
            if type(value) not in CONTAINERS and hasattr(value, "__dict__"):
                self._read_names(vars(value), vars(value), path)
        return plain

    def _read_function(self, function: FunctionType, path: str) -> None:
        """Read the variables in the cells of a function, its attributes and its defaults."""
        if not has_state(function) or is_foreign(function.__module__):
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
            # A new one tells what torch gives all; at import it would load torch's compiler.
            of_torch = vars(torch.optim.SGD([torch.zeros(1)])).keys() - {"state", "param_groups"}
            names = vars(value).keys() - of_torch
            self._read_names(vars(value), names, path)
        elif isinstance(value, partial):
            for number, argument in enumerate(value.args):
                self._read(argument, f"{path}.args[{number}]")
            self._read_names(value.keywords, value.keywords, path)
            self._read(value.func, f"{path}.func")
        elif isinstance(value, MethodType):
            self._read(value.__self__, path + ".__self__")
        elif not is_opaque(value):
            if hasattr(value, "__dict__"):
                self._read_names(vars(value), vars(value), path)
            for name in slots_of(type(value)):
                if hasattr(value, name):
                    self._read_attribute(value, name, getattr(value, name), path)

    def _read_module(self, module: nn.Module, path: str) -> None:
        attributes = vars(module)
        self._read_names(attributes, attributes.keys() - MODULE_ATTRIBUTES, path)
        parameters, buffers, children = held_by(module)
        self._read_hooks(module, path)
        if path.startswith(NETWORK):
            for name, tensor in {**parameters, **buffers}.items():
                if tensor is not None:
                    self._read_tensor(tensor, f"{path}.{name}")
        else:
            self._read_names(parameters, parameters, path)
            self._read_names(buffers, buffers, path)
        for name, child in children.items():
            if child is not None:
                self._read_attribute(children, name, child, path)
                if self.values[f"{path}.{name}"][KIND] == "object":
                    self.values[f"{path}.{name}"]["is_module"] = True

    def _read_tensor(self, tensor: torch.Tensor, path: str) -> None:
        """Read what a parameter or buffer of the network has besides its values."""
        if isinstance(tensor, nn.Parameter):
            flag_path = f"{path}{REQUIRES_GRAD}"
            self.owners[flag_path] = (tensor, "requires_grad")
            self.values[flag_path] = tensor.requires_grad
        if type(tensor) in (torch.Tensor, nn.Parameter):
            names = [name for name in vars(tensor) if not name.startswith(_OF_COMPILER)]
            self._read_names(vars(tensor), names, path)
        self._read_hooks(tensor, path)

    def _read_hooks(self, owner: nn.Module | torch.Tensor, path: str) -> None:
        """Read what hooks hold, and keep their names, which tell whether one came or went."""
        hooks = hooks_of(owner)
        if hooks:
            names = [
                name_of(hook) if hasattr(hook, "__qualname__") else class_of(hook) for hook in hooks
            ]
            self.values[f"{path}{HOOKS}"] = ", ".join(names)
        for number, hook in enumerate(hooks):
            self._read(hook, f"{path} hook {number}")

    def _read_names(self, mapping: Mapping[str, Any], names: Iterable[str], path: str) -> None:
        for name in [name for name in mapping if name in names]:
            self._read_attribute(mapping, name, mapping[name], path)

    def _read_attribute(self, owner: Any, name: str, value: Any, path: str) -> None:
        attribute_path = f"{path}.{name}"
        self.owners[attribute_path] = (owner, name)
        self.values[attribute_path] = self._read(value, attribute_path)

    def freeze(self) -> None:
        """Keep the values as they are now, whatever happens to the objects."""
        self.values = copied(self.values)


def _bytes_of(value: bytes | complex) -> bytes:
    return value if isinstance(value, bytes) else np.array(value).tobytes()


def _place_of(item: Any, number: int, items: int) -> str:
    """Return what tells the path of a dict's key, or of a set's item, from those of the others.

    That of an object is its place, which says nothing where others have come or gone.
    """
    if isinstance(item, Enum):
        return f"[{class_of(item)}.{item.name}]"
    if isinstance(item, NAMED):
        return f"[{name_of(item)}]"
    return f"[{number} of {items}]"


def key_in_path(key: Any) -> str:
    """Return what paths call the key of a dict."""
    return f"{tuple(key.shape)}" if isinstance(key, torch.Tensor) else repr(key)
