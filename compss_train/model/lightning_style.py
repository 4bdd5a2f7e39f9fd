"""Modules in the style of Lightning: ``training_step``, ``validation_step`` and ``configure_optimizers``.

They are taken as they are, without Lightning, where they ask for nothing of its Trainer.
"""

import dis
import inspect
from collections.abc import Iterator
from types import FunctionType
from typing import Any

import torch
from torch import nn

from compss_train.model.several_optimizers import ModuleOptimizer
from compss_train.model.training_step import StepContext

_OF_A_TRAINER = {
    *("trainer", "fabric", "optimizers", "lr_schedulers", "manual_backward", "clip_gradients", "all_gather"),
    *("toggle_optimizer", "untoggle_optimizer", "toggled_optimizer", "current_epoch", "global_step"),
    *("global_rank", "local_rank", "logger", "loggers", "print", "example_input_array"),
}
"""Attributes of a LightningModule that only a Trainer gives it."""
_HOOKS = {
    *("backward", "optimizer_step", "optimizer_zero_grad", "lr_scheduler_step", "configure_gradient_clipping"),
    *("configure_model", "configure_sharded_model", "configure_callbacks", "setup", "teardown"),
    *("transfer_batch_to_device", "training_epoch_end", "validation_epoch_end", "training_step_end"),
}
"""Methods, beside those that begin with ``on_``, that a Trainer would call."""
_LIBRARIES = ("torch", "lightning", "pytorch_lightning", "lightning_fabric")


def is_lightning_style(net: object) -> bool:
    """Return whether a module has the methods that make it train itself."""
    return all(callable(getattr(net, name, None)) for name in ("training_step", "configure_optimizers"))


class ModuleStep:
    """A step that is a method of the module, of a batch and its number."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, net: nn.Module, batch: Any, context: StepContext) -> Any:
        """Call the method; what it gives to ``self.log`` is measured."""

        def log(name: str, value: Any, *_: Any, **__: Any) -> None:
            context.log(name, value)

        def log_dict(values: dict[str, Any], *_: Any, **__: Any) -> None:
            context.logged.update(values)

        vars(net).update(log=log, log_dict=log_dict)
        method = getattr(net, self.__name__)
        return method(batch, context.number) if len(inspect.signature(method).parameters) > 1 else method(batch)

    def __repr__(self) -> str:
        return self.__name__


class ConfiguredOptimizer(ModuleOptimizer):
    """The optimizer that ``configure_optimizers`` returns."""

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return it; raise ``TypeError`` for several, and for learning-rate schedules."""
        returned: Any = net.configure_optimizers()  # type: ignore[operator]
        configured = returned
        if isinstance(configured, dict) and set(configured) == {"optimizer"}:
            configured = configured["optimizer"]
        if isinstance(configured, tuple | list) and len(configured) == 1:
            configured = configured[0]
        if not isinstance(configured, torch.optim.Optimizer):
            raise TypeError(
                f"configure_optimizers returned {_described(returned)}; return one optimizer, and give a "
                "learning-rate schedule as build(schedule=...), several optimizers as "
                "build(optimizer={module: ...}, training_step=...)"
            )
        return configured

    def __repr__(self) -> str:
        return "configure_optimizers"


def _described(returned: Any) -> str:
    if isinstance(returned, dict):
        return f"a dict of {', '.join(map(repr, returned))}"
    return f"{len(returned)} values" if isinstance(returned, tuple | list) else f"a {type(returned).__name__}"


def check_lightning_style(net: nn.Module) -> None:
    """Raise ``TypeError`` with everything that a module asks of a Trainer."""
    asked = [*dict.fromkeys([*_asked_in_steps(net), *_hooks(net)])]
    if getattr(net, "automatic_optimization", True) is False:
        asked.append("automatic_optimization=False")
    if asked:
        raise TypeError(
            f"{type(net).__name__} asks for what only Lightning's Trainer has: {', '.join(asked)}; leave it out, "
            "or write build(training_step=...), whose step context has the epoch, the number of the batch and the "
            "optimizers"
        )


def _own_functions(net: nn.Module) -> dict[str, FunctionType]:
    """Return the methods that are not of a library, those of subclasses first."""
    classes = [
        each for each in type(net).__mro__ if each.__module__.partition(".")[0] not in (*_LIBRARIES, "builtins")
    ]
    found: dict[str, FunctionType] = {}
    for each in classes:
        for name, value in vars(each).items():
            if isinstance(value, FunctionType):
                found.setdefault(name, value)
    return found


def _hooks(net: nn.Module) -> Iterator[str]:
    for name in _own_functions(net):
        if name in _HOOKS or name.startswith("on_"):
            yield f"the hook {name}()"


def _asked_in_steps(net: nn.Module) -> Iterator[str]:
    """Iterate over what the steps, and the methods that they call, take of a Trainer."""
    functions = _own_functions(net)
    waiting, seen = ["training_step", "validation_step", "configure_optimizers", "forward"], set()
    while waiting:
        name = waiting.pop(0)
        if name in seen or name not in functions:
            continue
        seen.add(name)
        for attribute in _attributes_of_self(functions[name]):
            if attribute in _OF_A_TRAINER and attribute not in functions:
                yield f"self.{attribute} in {name}()"
            waiting.append(attribute)


def _attributes_of_self(function: FunctionType) -> Iterator[str]:
    """Iterate over the attributes of the first argument that a function uses."""
    own = function.__code__.co_varnames[:1]
    before: Any = None
    for instruction in dis.get_instructions(function):
        if instruction.opname in ("LOAD_ATTR", "LOAD_METHOD") and before in own:
            yield instruction.argval
        loaded = instruction.argval if instruction.opname.startswith(("LOAD_FAST", "LOAD_DEREF")) else None
        before = loaded[-1] if isinstance(loaded, tuple) else loaded
