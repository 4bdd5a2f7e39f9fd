"""Checks of networks and of the optimizers of their parameters, and copies of networks."""

import copy
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from compss_train._utils.private_names import state_tensors
from compss_train._utils.validation import check_dense, warn_user
from compss_train.model import compilation, copies, optimizers
from compss_train.model.bound_optimizer import is_over
from compss_train.model.closures import closure_use, may_use_closure
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.net_optimizers import NetOptimizer, make_optimizer
from compss_train.training.pickling import TOO_DEEP, check_picklable


def checked_network(net: object) -> nn.Module:
    """Return the network given to ``build``; of a dict of modules, the ``nn.ModuleDict``.

    Raises ``TypeError`` unless it is a module of dense tensors, ``ValueError`` if nothing in it can
    be trained.
    """
    if isinstance(net, Mapping) and not isinstance(net, nn.Module):
        net = nn.ModuleDict(net)
        net.training = any(module.training for module in net.values())
    if not isinstance(net, nn.Module):
        hint = "; call the class to make one" if isinstance(net, type) else ""
        raise TypeError(f"net must be a torch.nn.Module, not {type(net).__name__}{hint}")
    try:
        tensors = state_tensors(net)
    except RecursionError:
        raise ValueError(f"the network, a {type(net).__name__}, {TOO_DEEP}") from None
    if not list(net.parameters()):
        _warn_of_unregistered(net)
        raise ValueError(f"{type(net).__name__} has no parameters, so there is nothing to train")
    if not any(parameter.requires_grad for parameter in net.parameters()):
        raise ValueError(
            f"all parameters of {type(net).__name__} are frozen; set requires_grad on some"
        )
    compilation.check_not_compiled(net)
    if isinstance(net, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise ValueError(
            f"net is in a {type(net).__name__}, but workers share the samples: give net.module"
        )
    if any(parameter.is_meta for parameter in net.parameters()):
        raise ValueError(
            "net is on the meta device, without numbers: create it on the CPU, or "
            "load its parameters"
        )
    _check_scripted(net)
    buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
    for name, tensor in tensors.items():
        if is_lazy(tensor):
            raise ValueError(
                f"{name!r} is lazy and has no shape yet; run one batch through the network first"
            )
        try:
            check_dense(f"{name!r} of the network", tensor)
        except TypeError as error:
            if name in buffers:
                error.add_note(
                    "A buffer that is not trained can stay as it is: "
                    f"register_buffer({name.rpartition('.')[2]!r}, tensor, persistent=False)."
                )
            raise
    _warn_of_unregistered(net)
    _check_views(net)
    return net


def _check_views(net: nn.Module) -> None:
    """Raise ``ValueError`` for an attribute in the memory of a trained parameter.

    In that of a buffer or of another attribute it is a warning. Copies of the network have them
    apart.
    """
    memories: list[tuple[str, Any, range]] = []
    for name, tensor in (*net.named_parameters(), *net.named_buffers()):
        memory = _memory_of(tensor)
        if memory is not None:
            memories.append((name, tensor, memory))
    known = {id(tensor) for _, tensor, _ in memories}
    for path, value in _held_values(net):
        memory = _memory_of(value)
        if memory is None or id(value) in known:
            continue
        known.add(id(value))
        shared = [
            (name, tensor)
            for name, tensor, other in memories
            if memory.start < other.stop and other.start < memory.stop
        ]
        memories.append((path, value, memory))
        if shared:
            _tell_of_view(path, *shared[0])


def _tell_of_view(path: str, name: str, tensor: Any) -> None:
    """Raise or warn, for an attribute at a path, of the tensor whose memory it shares."""
    told = f"{path!r} of the network shares the memory of {name!r}, and copies do not"
    if isinstance(tensor, nn.Parameter) and tensor.requires_grad:
        raise ValueError(
            f"{told}: it would stay as it is while workers train; make it a property, or compute "
            "it in forward"
        )
    warn_user(f"{told}: if a batch changes one of them, make it a property")


def _held_values(net: nn.Module) -> Iterator[tuple[str, Any]]:
    """Iterate over what the attributes of modules hold besides parameters and buffers."""
    for name, module in net.named_modules():
        for attribute, value in vars(module).items():
            if hasattr(module, f"{attribute}_orig"):  # what torch's spectral_norm computes anew
                continue
            path = f"{name}.{attribute}".lstrip(".")
            for item in value if isinstance(value, list | tuple) else [value]:
                yield path, item


def _memory_of(value: Any) -> range | None:
    """Return the addresses of the memory that a tensor or array lies in; ``None`` for others."""
    if isinstance(value, np.ndarray):
        whole = value
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        start = int(whole.__array_interface__["data"][0])
        return range(start, start + whole.nbytes) if whole.nbytes else None
    if type(value) not in (torch.Tensor, nn.Parameter) or value.layout != torch.strided:
        return None
    if value.is_meta or not value.numel():
        return None
    storage = value.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def _check_scripted(net: nn.Module) -> None:
    """Raise ``ValueError`` for scripted modules that would be trained: copies have no leaves."""
    for name, module in net.named_modules():
        if isinstance(module, torch.jit.ScriptModule) and any(
            parameter.requires_grad for parameter in module.parameters()
        ):
            what = f"{name!r} of the network" if name else "net"
            raise ValueError(
                f"{what} has been scripted or traced by torch.jit, whose copies cannot be trained: "
                "give the module itself, and script trainer.model() after the fit"
            )


def _warn_of_unregistered(net: nn.Module) -> None:
    """Warn of modules and parameters in plain lists and dicts, which torch does not look into."""
    known = {id(parameter) for parameter in net.parameters()}
    for name, module in net.named_modules():
        for attribute, value in vars(module).items():
            if attribute.startswith("_") or not isinstance(value, list | tuple | dict):
                continue
            items = value.values() if isinstance(value, dict) else value
            parameters = [
                parameter
                for item in items
                if isinstance(item, nn.Module | nn.Parameter)
                for parameter in (item.parameters() if isinstance(item, nn.Module) else [item])
            ]
            if any(
                parameter.requires_grad and id(parameter) not in known for parameter in parameters
            ):
                path = f"{name}.{attribute}".lstrip(".")
                kind = type(value).__name__
                warn_user(
                    f"{path!r} of the network is a plain {kind}, in which torch finds no "
                    "parameters, so that they are not trained: make it an nn.ModuleList, "
                    "nn.ModuleDict or nn.ParameterList; if they are not to be trained, set "
                    "requires_grad_(False)"
                )


def check_optimizer(net: nn.Module, factory: NetOptimizer, unsupported: str = "") -> None:
    """Raise unless the factory makes an optimizer of the parameters that it is called with.

    ``net`` is a copy, as every worker trains a copy: an optimizer of the original's parameters
    would train nothing. ``unsupported`` names, for the message, what an optimizer that evaluates
    the loss itself does not support. The optimizer's own errors (a negative learning rate, say) are
    raised unchanged.
    """
    optimizer = make_optimizer(factory, net)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"the optimizer callable returned {type(optimizer).__name__}, not a "
            "torch.optim.Optimizer"
        )
    if unsupported and closure_use(net, factory) != "no":
        parts = [optimizer]
        if isinstance(optimizer, JoinedOptimizer):
            parts = [*optimizer.optimizers.values()]
        kinds = dict.fromkeys(type(part) for part in parts if may_use_closure(type(part).step))
        names = " and ".join(kind.__name__ for kind in kinds)
        raise ValueError(
            f"{unsupported} does not work with {names}, which evaluates the loss several times a "
            "step; choose another optimizer"
        )
    if not is_over(optimizer, net):
        raise ValueError(
            "the optimizer callable uses other parameters than those it is called with, and than "
            "the network's; write lambda parameters: torch.optim.SGD(parameters, lr=0.05)"
        )
    _check_state(optimizer)


def _check_state(optimizer: torch.optim.Optimizer) -> None:
    """Raise ``TypeError`` for an optimizer whose state_dict is not as that of torch's."""
    name = type(optimizer).__name__
    try:
        keys = optimizer.state_dict().keys()
    except (AttributeError, TypeError) as error:
        raise TypeError(
            f"{name} has no state_dict, by which workers keep its state from round to round "
            f"({error}); call super().__init__(parameters, defaults) in its __init__"
        ) from error
    missing = [key for key in ("state", "param_groups") if key not in keys]
    if missing:
        raise TypeError(
            f"the state_dict of {name} has {', '.join(map(repr, keys))}, but no "
            f"{' and no '.join(map(repr, missing))}: workers keep from round to round what is "
            "there by parameter; return super().state_dict(), with what else it keeps in "
            "self.state, and load it in load_state_dict"
        )


def check_outer_optimizer(spec: optimizers.OptimizerSpec, net: nn.Module | None = None) -> None:
    """Raise ``TypeError`` or ``ValueError`` for a wrong ``outer_optimizer``, also of ``net``."""
    try:
        factory = optimizers.optimizer_factory(spec)
        if net is not None:
            check_optimizer(net, factory, "an outer step, which has one gradient,")
    except (TypeError, ValueError) as error:
        raise type(error)(f"outer_optimizer={spec!r}: {error}") from error
    if net is not None:
        check_picklable(outer_optimizer=factory)


def copied_network(net: nn.Module) -> nn.Module:
    """Return a copy of a network, on the CPU; raise ``TypeError`` that says why it has none."""
    try:
        return copies.copy_network(net).cpu()
    except Exception as error:
        check_picklable(net=net)
        if isinstance(error, RecursionError):  # Python 3.13 pickles deeper networks than it copies
            raise TypeError(f"net {TOO_DEEP}, and cannot be sent to other processes") from error
        name = _innermost_without_copy(net)
        what = f"{name!r} of the network" if name else "net"
        raise TypeError(
            f"{what} cannot be copied ({error}), and each worker trains a "
            "copy: let copy.deepcopy work with it, such as by __getnewargs__ or __deepcopy__"
        ) from error


def _innermost_without_copy(net: nn.Module) -> str:
    """Return the name of the last module that deepcopy does not copy; inner ones come later."""
    failed = ""
    for name, module in net.named_modules():
        try:
            copy.deepcopy(module)
        except Exception:
            failed = name
    return failed
