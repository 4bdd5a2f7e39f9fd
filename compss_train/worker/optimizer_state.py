"""The states of optimizers: their tensors by name for merges, copies, and their size."""

import copy
from collections.abc import Callable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train._utils.nested import leaves, map_leaves
from compss_train.model.closures import step_with_zeros
from compss_train.model.devices import CPU, is_gpu, to_device, to_host
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.net_optimizers import make_optimizer
from compss_train.model.parameters import to_arrays
from compss_train.model.parts import Moments
from compss_train.model.tensor_extras import deep_copied
from compss_train.model.training_spec import TrainingSpec

_NUMBERS = (bool, int, float, str)


def moments_of(optimizer: torch.optim.Optimizer, net: nn.Module) -> Moments:
    """Return the tensors of the optimizer's state by the names of parameters and of torch."""
    names = optimized_names(optimizer, net)
    tensors = {
        (names[number], key): value
        for number, state in optimizer.state_dict()["state"].items()
        for key, value in state.items()
        if value is not None
    }
    return to_arrays(tensors)


def load_moments(optimizer: torch.optim.Optimizer, net: nn.Module, moments: Moments) -> None:
    """Set the state of a new optimizer to copies of the arrays."""
    numbers = {name: number for number, name in enumerate(optimized_names(optimizer, net))}
    states: dict[int, dict[str, torch.Tensor]] = {}
    for (name, key), array in moments.items():
        states.setdefault(numbers[name], {})[key] = torch.from_numpy(np.array(array))
    groups = optimizer.state_dict()["param_groups"]
    load_optimizer(optimizer, {"state": states, "param_groups": groups})


def optimized_names(optimizer: torch.optim.Optimizer, net: nn.Module) -> list[str]:
    """Return the names of the optimizer's parameters, by their numbers in its state_dict.

    Those that the network does not have any more have none: numbers in brackets stand for them.
    """
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    ordered = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [names.get(id(parameter), f"<{number}>") for number, parameter in enumerate(ordered)]


def named_state(optimizer: torch.optim.Optimizer, net: nn.Module) -> dict[str, Any]:
    """Return a copy of the state_dict on the CPU, with names of parameters for their numbers."""
    names = dict(enumerate(optimized_names(optimizer, net)))
    saved = on_host(optimizer.state_dict())
    groups = [
        {**group, "params": [names[number] for number in group["params"]]}
        for group in saved["param_groups"]
    ]
    states = {names.get(key, key): state for key, state in saved["state"].items()}
    return {**saved, "state": states, "param_groups": groups}


def numbered_state(
    saved: dict[str, Any], optimizer: torch.optim.Optimizer, net: nn.Module
) -> dict[str, Any]:
    """Return what ``named_state`` returned, as a state_dict for an optimizer of these parameters.

    Groups that callbacks have added since have new states. Older checkpoints have numbers, which
    stay. Raises ``ValueError`` for other parameters, and if the order counts and is another one.
    """
    groups = optimizer.state_dict()["param_groups"]
    saved_groups = saved["param_groups"]
    if len(saved_groups) > len(groups):
        raise ValueError(
            f"the optimizer's state has {len(saved_groups)} groups of parameters instead of "
            f"{len(groups)}, as an Unfreeze has added some: give later fits the same "
            "callback, or build again"
        )
    added = groups[len(saved_groups) :]
    saved_names = [name for group in saved_groups for name in group["params"]]
    if all(isinstance(name, int) for name in saved_names):
        _check_shapes(saved, optimizer)
        return {**saved, "param_groups": [*saved_groups, *added]}
    names = optimized_names(optimizer, net)
    count = sum(len(group["params"]) for group in groups[: len(saved_groups)])
    _check_names(saved_names, names[:count])
    if isinstance(optimizer, torch.optim.LBFGS) and saved_names != names[:count]:
        raise ValueError(
            f"the state of {type(optimizer).__name__} is for parameters in the order "
            f"{', '.join(saved_names)}, which is {', '.join(names[:count])} now; define them in "
            "the same order, or restore and begin a fit with Merge(optimizer_state='reset')"
        )
    numbers = {name: number for number, name in enumerate(names)}
    places = [
        {name: group[name] for name in ("params", "param_names") if name in group}
        for group in groups
    ]
    numbered = [{**group, **place} for group, place in zip(saved_groups, places, strict=False)]
    states = {numbers.get(key, key): state for key, state in saved["state"].items()}
    return {**saved, "state": states, "param_groups": [*numbered, *added]}


def _check_names(saved: Sequence[str], names: Sequence[str]) -> None:
    """Raise ``ValueError`` unless both are the same, in any order."""
    missing = [name for name in names if name not in {*saved}]
    left_over = [name for name in saved if name not in {*names}]
    if missing and any(name.startswith("<") for name in left_over):
        raise ValueError(
            f"batches have replaced {', '.join(missing)} of the network, and the optimizer goes on "
            "with those of before: copy values into parameters, in torch.no_grad(), or make new "
            "ones before the fit"
        )
    problems = []
    if missing:
        problems.append(f"it has none for {', '.join(missing)}")
    if left_over:
        problems.append(f"{', '.join(left_over)} are not trained now")
    if problems:
        raise ValueError(
            f"the optimizer's state is for other parameters: {', and '.join(problems)}; train the "
            "same parameters, or restore and begin a fit with Merge(optimizer_state='reset')"
        )


def _check_shapes(saved: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """Raise ``ValueError`` for moments of torch's optimizers in other shapes than parameters."""
    parameters = [each for group in optimizer.param_groups for each in group["params"]]
    for number, parameter in enumerate(parameters):
        for name in ("exp_avg", "momentum_buffer"):
            moment = saved["state"].get(number, {}).get(name)
            if isinstance(moment, torch.Tensor) and moment.shape != parameter.shape:
                raise ValueError(
                    f"the optimizer's state has {name} of shape {tuple(moment.shape)} for "
                    f"parameter {number}, whose shape is {tuple(parameter.shape)}; define the "
                    "parameters in the same order, or restore and begin a fit with "
                    "Merge(optimizer_state='reset')"
                )


def load_optimizer(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load copies of what a state_dict holds.

    Optimizers update loaded tensors in place, and tasks must not change their arguments. Torch's
    ``load_state_dict`` would wait for the GPU at each tensor, so that they go there before. It
    would also move NAdam's products there, for which each step would wait; like counts of steps
    they belong on the CPU.
    """
    devices: dict[int, str] = {}  # of tensors that do not belong on the CPU
    with_product: list[tuple[int, torch.Tensor]] = []
    # Torch compares the groups and their parameters.
    for saved, group in zip(state["param_groups"], optimizer.param_groups, strict=False):
        on_gpu = saved.get("fused") or saved.get("capturable")
        scalars = () if on_gpu else ("step", "mu_product")
        for number, parameter in zip(saved["params"], group["params"], strict=False):
            values = state["state"].get(number, {})
            tensors = {name: value for name, value in values.items() if name not in scalars}
            devices |= {id(leaf): str(parameter.device) for leaf in leaves(tensors)}
            if "mu_product" in scalars and "mu_product" in values:
                with_product.append((number, parameter))

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        device = devices.get(id(tensor), CPU)
        return to_device([tensor], device)[0] if is_gpu(device) else tensor.clone()

    states = with_tensors(copied, state["state"])
    products = [states[number]["mu_product"] for number, _ in with_product]
    for number, _ in with_product:
        states[number]["mu_product"] = 1.0
    groups = optimizer.param_groups
    before = optimizer.state
    optimizer.load_state_dict({**state, "state": states})  # torch copies the groups
    # Those of JoinedOptimizer are shared by it.
    if not type(optimizer).__module__.startswith(("torch.optim.", JoinedOptimizer.__module__)):
        _keep_containers(optimizer, groups, before)
        _keep_kinds(optimizer, states)
    for (_, parameter), product in zip(with_product, products, strict=True):
        optimizer.state[parameter]["mu_product"] = product


def _keep_containers(
    optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]], state: Any
) -> None:
    """Put what was loaded into the containers of before, which inner optimizers may share.

    Where they are properties, the inner optimizer has loaded its own.
    """
    if isinstance(getattr(type(optimizer), "param_groups", None), property):
        return
    for group, loaded in zip(groups, optimizer.param_groups, strict=True):
        if group is not loaded:
            group.clear()
            group.update(loaded)
    if state is not optimizer.state:
        state.clear()
        state.update(optimizer.state)
    optimizer.param_groups = groups
    optimizer.state = state


def _keep_kinds(optimizer: torch.optim.Optimizer, states: Mapping[Any, Any]) -> None:
    """Put back numbers and tensors of which ``load_state_dict`` has made others.

    Torch's casts tensors to the dtype of their parameter, and that of Adam, which others inherit,
    makes tensors of counts of steps: a loop that loads nothing goes on without either.
    """
    parameters = (parameter for group in optimizer.param_groups for parameter in group["params"])
    for number, parameter in enumerate(parameters):
        saved = states.get(number)
        loaded = optimizer.state.get(parameter)
        if not isinstance(saved, Mapping) or not isinstance(loaded, MutableMapping):
            continue
        for name, value in saved.items():
            if name in loaded and _has_other_kinds(loaded[name], value):
                loaded[name] = value


def _has_other_kinds(loaded: Any, saved: Any) -> bool:
    """Return whether a tensor in what was loaded was a number or of another dtype when saved."""
    pairs = zip(leaves(loaded), leaves(saved), strict=False)
    return any(
        isinstance(new, torch.Tensor)
        and (isinstance(old, _NUMBERS) or (torch.is_tensor(old) and old.dtype != new.dtype))
        for new, old in pairs
    )


def check_averageable(spec: TrainingSpec) -> None:
    """Raise ``ValueError`` if the optimizer's state cannot be averaged, with the reason."""
    reason = why_not_averaged(spec)
    if reason is not None:
        name = type(make_optimizer(spec.optimizer, spec.net)).__name__
        raise ValueError(
            "optimizer_state='average' averages tensors, of dense gradients, which "
            f"{name} does not keep: {reason}; take optimizer_state='keep' or 'reset', or another "
            "optimizer"
        )


def why_not_averaged(spec: TrainingSpec) -> str | None:
    """Return why the states of the workers' optimizers cannot be averaged; ``None`` if they can.

    Only tensors of dense gradients can. A copy of the network makes one step with gradients of
    zero, which shows what else changes.
    """
    optimizer = make_optimizer(spec.optimizer, deep_copied(spec.net))
    before = _numbers_of_groups(optimizer)
    try:
        _step_with_zeros(optimizer, spec)
    except RuntimeError as error:  # of sparse gradients
        return str(error)
    for key, state in optimizer.state_dict()["state"].items():
        if not isinstance(state, Mapping):
            return f"it keeps {key!r} for all parameters together"
        for name, value in state.items():
            if not isinstance(value, torch.Tensor | None):
                return f"it keeps {name!r} as a {type(value).__name__}"
    changed = dict(_numbers_of_groups(optimizer).items() - before.items())
    for _, name in changed:
        return f"it keeps {name!r} in its groups of parameters"
    return None


def _numbers_of_groups(optimizer: torch.optim.Optimizer) -> dict[tuple[int, str], Any]:
    """Return the numbers in the groups of parameters, by the group's number and their names."""
    return {
        (number, name): value
        for number, group in enumerate(optimizer.param_groups)
        for name, value in group.items()
        if isinstance(value, _NUMBERS)
    }


def _step_with_zeros(optimizer: torch.optim.Optimizer, spec: TrainingSpec) -> None:
    """Make a step with gradients of zero."""
    if spec.closure_use != "no":
        step_with_zeros(optimizer)
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter) if parameter.requires_grad else None
    optimizer.step()


def optimizer_bytes(spec: TrainingSpec) -> int:
    """Return the bytes of the optimizer's state after a step.

    Returns 0 if they depend on gradients, as LBFGS's do. A copy of the network without memory, on
    torch's device ``"meta"``, makes a step with gradients of zero.
    """
    memo: dict[int, Any] = {
        id(parameter): nn.Parameter(
            torch.empty_like(parameter, device="meta"), parameter.requires_grad
        )
        for parameter in spec.net.parameters()
    }
    with suppress(Exception):  # of optimizers that look at values
        optimizer = make_optimizer(spec.optimizer, copy.deepcopy(spec.net, memo))
        for group in optimizer.param_groups:
            group["fused"] = None  # it does not know the device
        _step_with_zeros(optimizer, spec)
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


def with_tensors(
    function: Callable[[torch.Tensor], torch.Tensor], state: dict[Any, Any]
) -> dict[Any, Any]:
    """Return a copy of a state_dict with a function applied to each tensor, once if it recurs.

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

    copied_state: dict[Any, Any] = map_leaves(copied, state)
    return copied_state
