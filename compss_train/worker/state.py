"""What a worker keeps from task to task: ``WorkerState``, the state of its optimizer and its own
buffers.

Its own buffers are the ones outside the network's state_dict (``persistent=False``). They are
neither merged nor part of the global parameters: each worker keeps them from round to round, like
the model in a plain loop; a new worker starts with the buffers of the network given to ``build``.

``optimizer_state="average"`` merges optimizer states as named arrays. Momentum buffers, Adam's
moments and the numbers of steps have the names ``"optimizer state/0.exp_avg"``: the number of the
parameter and torch's name of the value.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import Any, Self, TypeAlias

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from compss_train._utils import PickledByFields
from compss_train._utils.nested import leaves, map_leaves
from compss_train.model.devices import CPU, RandomState, copy_into, is_gpu, to_device, to_host
from compss_train.model.optimizers import NetOptimizer, make_optimizer, needs_closure
from compss_train.model.parameters import Parameters, to_arrays


@dataclass(frozen=True, slots=True)
class WorkerState(PickledByFields):
    """What a worker keeps from task to task: the states of its optimizer and its random number
    generators.
    """

    optimizer: dict[str, Any] | None
    """The optimizer's state_dict; ``None`` makes a new optimizer."""
    random: RandomState | int
    """A state, or the seed of a new worker."""
    sample_buffer: dict[str, Any] | None = None
    """Within an epoch, the state of a buffer that merges by batches do not empty."""
    error: Parameters | None = None
    """The accumulated compression error of the changes, with ``Merge(dtype=...)``."""
    batches: int = 0
    """Number of batches that the worker has trained, for training steps."""
    module_buffers: dict[str, torch.Tensor] | None = None
    """The worker's own buffers that have changed."""
    scaler: dict[str, Any] | None = None
    """The state of the loss scaler in fp16."""
    callbacks: dict[str, Any] | None = None
    """The states of worker callbacks, by their names."""
    skipped: bool = False
    """Whether the last task skipped batches that were not finite, so that the next one reads each
    batch's flag.
    """

    def with_options(self, options: Sequence[dict[str, Any]]) -> Self:
        """Return this state with other options of the optimizer's parameter groups, such as
        ``lr``.
        """
        if self.optimizer is None:
            return self
        saved = self.optimizer["param_groups"]  # callbacks may have added some at the end
        groups = [
            {**group, **changed}
            for group, changed in zip(saved, chain(options, repeat({})), strict=False)
        ]
        return replace(self, optimizer={**self.optimizer, "param_groups": groups})


GroupState: TypeAlias = tuple[WorkerState, ...]
"""The states of the workers of a group."""


@dataclass
class CarriedBuffer:
    """The state of a worker's buffer, which passes from task to task inside an epoch."""

    before: dict[str, Any] | None = None
    """The state before a task, which the task does not change."""
    after: dict[str, Any] | None = None
    """The state after a task; ``None`` for an empty buffer."""


def changed_buffers(net: nn.Module, before: nn.Module) -> dict[str, torch.Tensor] | None:
    """Return CPU copies of the worker's own buffers that differ from those of ``before``, or
    ``None``.

    Constants, such as masks, are therefore not kept; nor are sparse tensors.
    """
    buffers = _own_buffers(net)
    changed = {}
    initial = _own_buffers(before) if buffers else {}
    for name, new in zip(buffers, to_host(buffers.values()), strict=True):
        old = initial.get(name)
        if (
            old is None
            or (old.shape, old.dtype) != (new.shape, new.dtype)
            or not torch.equal(old.cpu(), new)
        ):
            changed[name] = new.clone()
    return changed or None


def restore_buffers(net: nn.Module, saved: Mapping[str, torch.Tensor] | None, device: str) -> None:
    """Set a network's own buffers on ``device`` to copies of saved ones; unknown names are ignored.

    A buffer of the same shape and dtype keeps its memory, so that tensors sharing it continue to do
    so.
    """
    modules = dict(net.named_modules(remove_duplicate=False)) if saved else {}
    for name, value in (saved or {}).items():
        owner, _, own = name.rpartition(".")
        if owner not in modules or not hasattr(modules[owner], own):
            continue
        buffer = getattr(modules[owner], own)
        if buffer is not None and (buffer.shape, buffer.dtype) == (value.shape, value.dtype):
            copy_into(buffer, value)
        else:
            setattr(modules[owner], own, value.to(device, copy=True))


def _own_buffers(net: nn.Module) -> dict[str, torch.Tensor]:
    buffers = dict(net.named_buffers(remove_duplicate=False))
    if not buffers:
        return {}
    stored = {id(tensor) for tensor in net.state_dict(keep_vars=True).values()}
    dense = {name: buffer for name, buffer in buffers.items() if buffer.layout == torch.strided}
    return {name: buffer for name, buffer in dense.items() if id(buffer) not in stored}


_PREFIX = "optimizer state/"


def moments_of(optimizer: torch.optim.Optimizer) -> Parameters:
    """Return the tensors of the optimizer's state by name."""
    states = optimizer.state_dict()["state"]
    tensors = {
        f"{_PREFIX}{number}.{name}": value
        for number, state in states.items()
        for name, value in state.items()
        if value is not None
    }
    return to_arrays(tensors)


def load_moments(optimizer: torch.optim.Optimizer, moments: Parameters) -> None:
    """Set the state of a new optimizer to copies of the arrays."""
    states: dict[int, dict[str, torch.Tensor]] = {}
    for name, array in moments.items():
        number, _, key = name.removeprefix(_PREFIX).partition(".")
        states.setdefault(int(number), {})[key] = torch.from_numpy(np.array(array))
    load_optimizer(
        optimizer, {"state": states, "param_groups": optimizer.state_dict()["param_groups"]}
    )


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load copies of what a state_dict holds: optimizers update loaded tensors in place, tasks no
    arguments.

    Torch's ``load_state_dict`` would wait for the GPU at each tensor, so that they go there before.
    It would also move NAdam's products there, for which each step would wait; like counts of steps
    they belong on the CPU.
    """
    targets: dict[int, str] = {}
    products = []
    # Torch compares them.
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=False):
        scalars = () if saved.get("fused") or saved.get("capturable") else ("step", "mu_product")
        for number, parameter in zip(saved["params"], group["params"], strict=False):
            values = state["state"].get(number, {})
            for leaf in leaves(
                {name: each for name, each in values.items() if name not in scalars}
            ):
                targets[id(leaf)] = str(parameter.device)
            if "mu_product" in scalars and "mu_product" in values:
                products.append((number, parameter))

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        target = targets.get(id(tensor), CPU)
        return to_device([tensor], target)[0] if is_gpu(target) else tensor.clone()

    own = {**state, "state": with_tensors(copied, state["state"])}  # torch copies the groups
    kept = [own["state"][number]["mu_product"] for number, _ in products]
    for number, _ in products:
        own["state"][number]["mu_product"] = 1.0
    optimizer.load_state_dict(own)
    for (_, parameter), product in zip(products, kept, strict=True):
        optimizer.state[parameter]["mu_product"] = product


_AVERAGE = "average/"


class StepAverage:
    """The average of a network's parameters after each step, by the rule of
    ``torch.optim.swa_utils``.

    It continues ``averaged``, or begins with a copy after the first step.
    """

    def __init__(self, net: nn.Module, decay: float, averaged: Parameters | None) -> None:
        entries = net.state_dict(keep_vars=True).items()
        own = {name: each.detach() for name, each in entries if isinstance(each, nn.Parameter)}
        self._parameters = {
            name: each
            for name, each in own.items()
            if each.is_floating_point() or each.is_complex()
        }
        self._update = get_ema_multi_avg_fn(decay)  # type: ignore[no-untyped-call]
        self._average: list[torch.Tensor] | None = None
        if averaged is not None:
            self._average = [torch.empty_like(each) for each in self._parameters.values()]
            for name, each in zip(self._parameters, self._average, strict=True):
                copy_into(each, torch.from_numpy(np.array(averaged[name])))

    @torch.no_grad()
    def update(self) -> None:
        """Average the parameters after a step."""
        now = [*self._parameters.values()]
        if self._average is None:
            self._average = [each.clone() for each in now]
        else:
            self._update(self._average, now, 1)

    def arrays(self) -> Parameters:
        """Return the average by name, or nothing before the first step."""
        if self._average is None:
            return {}
        return to_arrays(
            dict(zip([_AVERAGE + name for name in self._parameters], self._average, strict=True))
        )


def split_moments(merged: Parameters) -> tuple[Parameters, Parameters, Parameters]:
    """Return the parameters, the moments and the averages by steps of arrays that contain all of
    them.
    """
    moments = {name: array for name, array in merged.items() if name.startswith(_PREFIX)}
    averages = {name: array for name, array in merged.items() if name.startswith(_AVERAGE)}
    plain = {
        name: array
        for name, array in merged.items()
        if name not in moments and name not in averages
    }
    return plain, moments, {name.removeprefix(_AVERAGE): array for name, array in averages.items()}


def check_averageable(net: nn.Module, factory: NetOptimizer) -> None:
    """Raise ``ValueError`` if the optimizer keeps anything but tensors, which cannot be averaged.

    A copy of the network makes one step with gradients of zero.
    """
    own = copy.deepcopy(net)
    reason = None
    optimizer = make_optimizer(factory, own)
    try:
        _step_with_zeros(optimizer)
    except RuntimeError as error:  # of sparse gradients
        reason = str(error)
    for state in optimizer.state_dict()["state"].values():
        for name, value in state.items():
            if not isinstance(value, torch.Tensor | None):
                reason = f"it keeps {name!r} as a {type(value).__name__}"
    if reason is not None:
        raise ValueError(
            "optimizer_state='average' averages tensors, of dense gradients, which "
            f"{type(optimizer).__name__} does not keep: {reason}; take optimizer_state='keep' or "
            "'reset', or another optimizer"
        )


def _step_with_zeros(optimizer: torch.optim.Optimizer) -> None:
    """Make a step with gradients of zero."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step(lambda: 0.0) if needs_closure(type(optimizer).step) else optimizer.step()


def optimizer_bytes(net: nn.Module, factory: NetOptimizer) -> int:
    """Return the bytes of the optimizer's state after a step; 0 if that follows from gradients, as
    LBFGS's does.

    A copy of the network without memory, on torch's device ``"meta"``, makes a step with gradients
    of zero.
    """
    memo: dict[int, Any] = {
        id(each): nn.Parameter(torch.empty_like(each, device="meta"), each.requires_grad)
        for each in net.parameters()
    }
    with suppress(Exception):  # of optimizers that look at values
        optimizer = make_optimizer(factory, copy.deepcopy(net, memo))
        for group in optimizer.param_groups:
            group["fused"] = None  # it does not know the device
        _step_with_zeros(optimizer)
        return sum(
            leaf.nbytes
            for leaf in leaves(optimizer.state_dict()["state"])
            if isinstance(leaf, torch.Tensor)
        )
    return 0


def on_host(state: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of a state_dict with its tensors on the CPU."""
    tensors = {id(leaf): leaf for leaf in leaves(state) if isinstance(leaf, torch.Tensor)}
    copies = dict(zip(tensors, to_host(tensors.values()), strict=True))
    return with_tensors(lambda tensor: copies[id(tensor)], state)


_NUMBERS = (bool, int, float, str)


def with_tensors(
    function: Callable[[torch.Tensor], torch.Tensor], state: dict[str, Any]
) -> dict[str, Any]:
    """Return a copy of a state_dict with the function applied to each tensor, once if a tensor
    occurs twice.

    Deepcopy would take several times as long for dicts, lists and numbers.
    """
    memo: dict[int, Any] = {}

    def copied(value: Any) -> Any:
        if value is None or isinstance(value, _NUMBERS):
            return value
        if not isinstance(value, torch.Tensor):
            return copy.deepcopy(value, memo)
        if id(value) not in memo:
            memo[id(value)] = function(value)
        return memo[id(value)]

    copy_of_all: dict[str, Any] = map_leaves(copied, state)
    return copy_of_all
