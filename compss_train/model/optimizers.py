"""How gradients become steps: ``Gradients``, and optimizers by name, by torch class, or as a
callable.

A network may have several optimizers, for GANs and other steps that take turns; and parts of it may
have options of their own. Parameters that are frozen when an optimizer is made are left out: it
would keep no state for them.
"""

import copy
import inspect
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import lru_cache, partial
from typing import Any, Literal, Self, TypeAlias, get_args

import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler

from compss_train._utils.validation import (
    check_choice,
    check_count,
    check_positive,
    suggestion,
    warn_user,
)

OnNan = Literal["raise", "skip", "ignore"]
OptimizerFactory: TypeAlias = Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]
OptimizerSpec: TypeAlias = Mapping[str, Any] | OptimizerFactory | torch.optim.Optimizer
"""What ``build(optimizer=...)`` takes for a network, or for one of its modules."""

_NAMED: dict[str, type[torch.optim.Optimizer]] = {
    each.__name__.lower(): each
    for each in vars(torch.optim).values()
    if isinstance(each, type)
    and issubclass(each, torch.optim.Optimizer)
    and each is not torch.optim.Optimizer
}
"""Torch's optimizers by their names in lower case, which EDDL has too."""
_EDDLS = {
    "beta_1": "betas",
    "beta_2": "betas",
    "epsilon": "eps",
    "rho": "alpha",
    "schedule_decay": "momentum_decay",
}
"""EDDL's names of parameters that have other names in torch, unless torch's class has EDDL's name,
too.
"""
_BETAS = (0.9, 0.999)


@dataclass(frozen=True, slots=True)
class Gradients:
    """What happens to gradients before the optimizer steps with them; ``build(gradients=...)``.

    Parameters
    ----------
    clip_norm, clip_value, clip_adaptive:
        The maximum norm of all gradients together; the maximum absolute value of each element; or
        the maximum norm of each unit's gradient as a part of the norm of its weights, after Brock
        et al., High-Performance Large-Scale Image Recognition Without Normalization
        (arXiv:2102.06171), who take 0.01. A unit is a row of a matrix, a filter of a convolution,
        or all of a vector. At most one of them; ``None`` (default) does not clip.
    accumulate:
        Batches per optimizer step, 1 by default; their gradients are averaged over the samples. The
        last step of an epoch, and the last one before workers merge, may have fewer.
    on_nan:
        If a loss or parameter is NaN or infinite: ``"raise"`` (default) ends the fit; ``"skip"``
        makes no step for a batch whose loss or gradients are not finite, and counts it;
        ``"ignore"`` continues.

    Raises ``ValueError`` and ``TypeError`` for other values.
    """

    clip_norm: float | None = None
    clip_value: float | None = None
    clip_adaptive: float | None = None
    accumulate: int = 1
    on_nan: OnNan = "raise"

    def __post_init__(self) -> None:
        names = ("clip_norm", "clip_value", "clip_adaptive")
        given = {name: getattr(self, name) for name in names if getattr(self, name) is not None}
        for name, value in given.items():
            check_positive(name, value)
        if len(given) > 1:
            both = " and ".join(f"{name}={value}" for name, value in given.items())
            raise ValueError(
                f"{both}: give at most one of them, the largest norm of all gradients together, "
                "the largest absolute value of each element or the largest norm of each unit's "
                "gradient to that of its weights"
            )
        check_count("accumulate", self.accumulate)
        check_choice("on_nan", self.on_nan, get_args(OnNan))

    def clip(self, parameters: Sequence[nn.Parameter]) -> None:
        """Clip the gradients of these parameters."""
        if self.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self.clip_norm)
        if self.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, self.clip_value)
        if self.clip_adaptive is not None:
            for parameter in parameters:
                if parameter.grad is not None:
                    weights, gradient = (
                        _unit_norms(each.detach()) for each in (parameter, parameter.grad)
                    )
                    limits = self.clip_adaptive * weights.clamp(min=_LEAST_WEIGHTS)
                    parameter.grad.mul_((limits / gradient.clamp(min=_LEAST_GRADIENT)).clamp(max=1))


_LEAST_WEIGHTS = 1e-3
_LEAST_GRADIENT = 1e-6
"""Norms of a unit's weights and gradient in adaptive clipping: weights of 0 could not be trained
otherwise.
"""


def _unit_norms(tensor: torch.Tensor) -> torch.Tensor:
    """Return the norm of each unit, with as many dimensions as the tensor."""
    dimensions = tuple(range(1, tensor.dim())) or None
    norms: torch.Tensor = torch.linalg.vector_norm(tensor, dim=dimensions, keepdim=True)
    return norms


def optimizer_factory(spec: OptimizerSpec) -> OptimizerFactory:
    """Return a factory of the optimizer, which takes a network's parameters.

    ``spec`` is a dict with ``"optimizer"`` (a name or a torch optimizer class) and its parameters,
    or any callable that takes parameters and returns an optimizer. For a name, parameters have
    torch's names or EDDL's, ``lr`` is required and the other defaults are torch's; for a class, the
    parameters are the class's own.

    Raises ``ValueError`` for an unknown name or parameter, for both names of one and for a missing
    ``lr``, ``TypeError`` for anything that is neither dict nor callable.
    """
    if not isinstance(spec, Mapping):
        if callable(spec):
            return spec
        name = f"<{type(spec).__name__}>" if hasattr(spec, "step") else repr(spec)
        raise TypeError(
            f"optimizer={name} is neither a dict "
            'nor a callable; give for example {"optimizer": "sgd", "lr": 0.05} or '
            "lambda parameters: torch.optim.SGD(parameters, lr=0.05)"
        )
    arguments = dict(spec)
    name = arguments.pop("optimizer", None)
    if isinstance(name, type) and issubclass(name, torch.optim.Optimizer):
        return partial(name, **arguments)
    if not isinstance(name, str) or name not in _NAMED:
        problem = "no 'optimizer' in the dict" if name is None else f"unknown optimizer {name!r}"
        hint = suggestion(name, _NAMED) if isinstance(name, str) else ""
        raise ValueError(
            f"{problem}; choose one of {', '.join(_NAMED)} or a torch.optim.Optimizer class{hint}"
        )
    return _from_name(name, arguments)


def _from_name(name: str, arguments: dict[str, Any]) -> OptimizerFactory:
    torch_class = _NAMED[name]
    defaults = {
        key: each.default for key, each in inspect.signature(torch_class).parameters.items()
    }
    del defaults["params"]
    accepted = [
        *defaults,
        *(eddl for eddl, own in _EDDLS.items() if own in defaults and eddl not in defaults),
    ]
    if unknown := [key for key in arguments if key not in accepted]:
        hint = suggestion(unknown[0], accepted)
        raise ValueError(
            f"optimizer {name!r} has no parameter {unknown}; it takes {', '.join(accepted)}{hint}"
        )
    if "lr" not in arguments:
        raise ValueError(f"optimizer {name!r} needs a learning rate: add 'lr' to the dict")
    translated = in_torch(name, arguments)
    for key, value in translated.items():
        if isinstance(value, str) and not key.endswith("_fn"):
            raise ValueError(f"optimizer {name!r} takes numbers, and {key}={value!r} is a string")
        pair = defaults[key]
        if isinstance(pair, tuple) and not (
            isinstance(value, list | tuple) and len(value) == len(pair)
        ):
            raise ValueError(
                f"optimizer {name!r} has {key}={value!r}; give {len(pair)} numbers, such as {pair}"
            )
    return partial(torch_class, **translated)


def in_torch(
    name: Any, arguments: Mapping[str, Any], betas: Sequence[float] = _BETAS
) -> dict[str, Any]:
    """Return parameters by torch's names, if ``name`` is one of an optimizer.

    ``betas`` are those of which only one may be given. Raises ``ValueError`` for both names of one
    parameter.
    """
    if not isinstance(name, str) or name not in _NAMED:
        return dict(arguments)
    own = inspect.signature(_NAMED[name]).parameters
    translated = dict[str, Any]()
    for key, value in arguments.items():
        renamed = key if key in own else _EDDLS.get(key, key)
        if renamed != key and renamed in arguments:
            raise ValueError(
                f"optimizer {name!r} has {key} and {renamed}, two names of the "
                "same; give one of them"
            )
        translated[renamed] = tuple(value) if isinstance(value, list) else value
    if "betas" in translated and "betas" not in arguments:
        translated["betas"] = arguments.get("beta_1", betas[0]), arguments.get("beta_2", betas[1])
    return translated


@lru_cache(maxsize=16)  # the inspection takes as long as a small layer
def needs_closure(step: Callable[..., Any]) -> bool:
    """Return whether the ``step`` of a class requires a closure that evaluates the loss, as that of
    LBFGS does.
    """
    _, *parameters = inspect.signature(step).parameters.values()
    return any(
        each.default is each.empty and each.kind is each.POSITIONAL_OR_KEYWORD
        for each in parameters
    )


Groups = Mapping[str, Mapping[str, Any]]
"""Options by patterns of dotted names, such as ``"layer4.*"``, or by prefixes, such as
``"layer4"``.
"""


def trainable(net: nn.Module) -> list[tuple[str, nn.Parameter]]:
    """Return the names and values of the parameters that are not frozen."""
    return [
        (name, parameter) for name, parameter in net.named_parameters() if parameter.requires_grad
    ]


def rates(groups: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the learning rate of the first group as ``lr``, and those of others and named ones as
    ``lr/NAME``.
    """
    found: dict[str, float] = {}
    for number, group in enumerate(groups):
        found.setdefault("lr", float(group["lr"]))
        if number or "name" in group:
            found[f"lr/{group.get('name', number)}"] = float(group["lr"])
    return found


@dataclass(frozen=True)
class GroupedOptimizer:
    """Makes an optimizer whose groups of parameters have options of their own."""

    factory: Callable[[Any], torch.optim.Optimizer]
    groups: Groups
    """In torch's names of options. Where patterns overlap, later ones win."""

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer; raise ``ValueError`` for a pattern without a parameter, and unknown
        options.
        """
        members: dict[tuple[str, ...], list[nn.Parameter]] = {(): []}
        for pattern in self.groups:  # so that groups have the order of the patterns
            members.setdefault((pattern,), [])
        for name, parameter in trainable(net):
            patterns = tuple(pattern for pattern in self.groups if matches(name, pattern))
            members.setdefault(patterns, []).append(parameter)
        used = {
            pattern
            for patterns, parameters in members.items()
            if parameters
            for pattern in patterns
        }
        if unused := [pattern for pattern in self.groups if pattern not in used]:
            some = ", ".join(name for name, _ in trainable(net)[:5])
            raise ValueError(
                f"groups has {unused[0]!r}, which matches no trained parameter; the first are "
                f"{some}; give a prefix of dotted names, or a pattern such as 'layer4.*' or "
                "'*.bias'"
            )
        made = [
            {
                "params": own,
                **({"name": "+".join(each.strip("*.") or each for each in key)} if key else {}),
            }
            | {option: value for pattern in key for option, value in self.groups[pattern].items()}
            for key, own in members.items()
            if own
        ]
        optimizer = self.factory(made)
        for option in (option for options in self.groups.values() for option in options):
            if option not in optimizer.defaults:
                known = ", ".join(optimizer.defaults)
                raise ValueError(
                    f"groups has the option {option!r}; {type(optimizer).__name__} has {known}"
                )
        return optimizer


def matches(name: str, pattern: str) -> bool:
    """Return whether a dotted name matches a pattern, or begins with it as with a module's name."""
    return fnmatchcase(name, pattern) or name.startswith(f"{pattern}.")


@dataclass(frozen=True)
class BoundOptimizer:
    """An optimizer over a network's parameters, to be copied for every copy of the network, without
    its state.

    It is pickled and copied together with the network, so that ``parameters`` stay those of the
    network's copy.
    """

    kind: type[torch.optim.Optimizer]
    groups: list[dict[str, Any]]
    """The options of each group."""
    attributes: dict[str, Any] = field(repr=False)
    parameters: list[nn.Parameter] = field(repr=False)
    """The parameters of the network, in its order."""

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, net: nn.Module) -> Self:
        """Return an optimizer over the parameters of ``net``; raise ``ValueError`` for other
        parameters.
        """
        if not is_over(optimizer, net):
            raise ValueError(
                f"the {type(optimizer).__name__} has other parameters than those of the network, "
                "or none; make it from net.parameters(), with the same net as in build"
            )
        if optimizer.state:
            warn_user(
                f"the {type(optimizer).__name__} has already taken steps: its groups and options "
                "are used, but not its momentum and counts"
            )
        groups = [
            {name: each for name, each in group.items() if name != "params"}
            for group in optimizer.param_groups
        ]
        own = {
            name: each
            for name, each in vars(optimizer).items()
            if name != "step" and "hook" not in name
        }
        return cls(
            type(optimizer), groups, own | {"state": defaultdict(dict)}, list(net.parameters())
        )

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer over the parameters of ``net``, a copy of the network."""
        pairs = zip(self.parameters, net.parameters(), strict=True)
        made = self.kind.__new__(self.kind)
        made.__setstate__(copy.deepcopy(self.attributes, {id(own): new for own, new in pairs}))
        return made


def is_over(optimizer: torch.optim.Optimizer, net: nn.Module) -> bool:
    """Return whether an optimizer has parameters, and only of this network."""
    own = {id(parameter) for parameter in net.parameters()}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return bool(given) and all(id(parameter) in own for parameter in given)


class SeveralOptimizers:
    """Makes one optimizer for each of several submodules."""

    def __init__(self, factories: Mapping[str, "NetOptimizer"]) -> None:
        self.factories = dict(factories)

    def of_module(self, net: nn.Module) -> "JoinedOptimizer":
        """Return the optimizers, joined; raise ``ValueError`` for parameters that two of them would
        train.
        """
        modules = dict(net.named_modules())
        owner: dict[int, str] = {}
        for name in self.factories:
            for parameter in modules[name].parameters():
                if (other := owner.setdefault(id(parameter), name)) != name:
                    raise ValueError(
                        f"the optimizers {other!r} and {name!r} would train the same parameters"
                    )
        made = {
            name: make_optimizer(factory, modules[name]) for name, factory in self.factories.items()
        }
        for name, optimizer in made.items():
            for number, group in enumerate(optimizer.param_groups):
                group["name"] = (
                    f"{name}/{group.get('name', number)}" if number or "name" in group else name
                )
        return JoinedOptimizer(made)

    def __repr__(self) -> str:
        return repr(self.factories)


class JoinedOptimizer(torch.optim.Optimizer):
    """Several optimizers as one, which has their parameter groups in turn and the state of all.

    Learning-rate schedules, checkpoints and averages of moments therefore treat them as one
    optimizer. ``step`` steps all of them; a training step updates them one by one.
    """

    def __init__(self, optimizers: Mapping[str, torch.optim.Optimizer]) -> None:
        self.optimizers = dict(optimizers)
        super().__init__(
            [group for each in self.optimizers.values() for group in each.param_groups], {}
        )
        for each in self.optimizers.values():
            self.state.update(each.state)
        self._share()

    def _share(self) -> None:
        """Share this object's parameter groups and state with the single optimizers."""
        groups = iter(self.param_groups)
        for each in self.optimizers.values():
            each.param_groups = [next(groups) for _ in each.param_groups]
            each.state = self.state

    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Step all optimizers."""
        for each in self.optimizers.values():
            each.step(closure)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what ``state_dict`` returned."""
        super().load_state_dict(state_dict)
        self._share()


class ConfiguredOptimizer:
    """The optimizer that ``configure_optimizers`` of a module in Lightning's style returns, and its
    schedule.
    """

    def of_module(self, net: nn.Module) -> torch.optim.Optimizer:
        """Return the optimizer; its ``configured_scheduler`` is the scheduler, if there is one.

        Raises ``TypeError`` for several optimizers or schedulers, and for options of schedulers
        that are not known.
        """
        return self.configured(net)[0]

    def configured(self, net: nn.Module) -> tuple[torch.optim.Optimizer, LRScheduler | None, str]:
        """Return the optimizer, its scheduler, and whether this counts each ``"epoch"`` or
        ``"step"``.
        """
        returned: Any = net.configure_optimizers()  # type: ignore[operator]
        optimizer = returned
        scheduler = None
        if isinstance(returned, dict) and {"optimizer"} <= {*returned} <= {
            "optimizer",
            "lr_scheduler",
        }:
            optimizer = returned["optimizer"]
            scheduler = returned.get("lr_scheduler")
        elif (
            isinstance(returned, tuple)
            and len(returned) == 2
            and isinstance(returned[1], list | tuple)
        ):
            optimizer = returned[0]
            scheduler = returned[1][0] if len(returned[1]) == 1 else returned[1]
        if isinstance(optimizer, tuple | list) and len(optimizer) == 1:
            optimizer = optimizer[0]
        options = {
            "interval": "epoch",
            **(scheduler if isinstance(scheduler, dict) else {"scheduler": scheduler}),
        }
        scheduler = options.pop("scheduler", ())
        interval = options.pop("interval")
        fits = isinstance(optimizer, torch.optim.Optimizer) and isinstance(
            scheduler, LRScheduler | None
        )
        if (
            not fits
            or interval not in ("epoch", "step")
            or options.get("monitor", "val_loss") != "val_loss"
        ):
            raise TypeError(
                f"configure_optimizers returned a {type(returned).__name__}; return one "
                "optimizer, and at most one scheduler, with interval epoch or step and monitor "
                "val_loss; or give the latter as build(schedule=...), several optimizers as "
                "build(optimizer={module: ...}, training_step=...)"
            )
        optimizer.configured_scheduler = scheduler  # where the schedule finds it
        return optimizer, scheduler, interval

    def __repr__(self) -> str:
        return "configure_optimizers"


_OfModule: TypeAlias = SeveralOptimizers | ConfiguredOptimizer | GroupedOptimizer | BoundOptimizer
NetOptimizer: TypeAlias = OptimizerFactory | _OfModule


def make_optimizer(factory: NetOptimizer, net: nn.Module) -> torch.optim.Optimizer:
    """Return a new optimizer of a network or of one of its modules; frozen parameters are left
    out.
    """
    if isinstance(factory, _OfModule):
        return factory.of_module(net)
    named: Any = trainable(net)
    made = factory.func if isinstance(factory, partial) else factory
    takes_names = False
    # To inspect the signature of torch's own optimizers would take a tenth of the time of a small
    # task.
    if not (isinstance(made, type) and made.__module__.startswith("torch.optim.")):
        with suppress(TypeError, ValueError):  # of a callable that is not written in Python
            takes_names = "named_parameters" in inspect.signature(factory).parameters
    return factory(named if takes_names else [parameter for _, parameter in named])


def net_optimizer(
    spec: OptimizerSpec | Mapping[str, OptimizerSpec], net: nn.Module
) -> NetOptimizer:
    """Return the factory of one optimizer, or of several by the names of submodules.

    Raises the errors of ``optimizer_factory``, and ``ValueError`` for names that are not submodules
    of ``net``.
    """
    if isinstance(spec, torch.optim.Optimizer):
        return BoundOptimizer.of(spec, net)
    if isinstance(spec, Mapping) and "optimizer" in spec:
        return _from_dict(spec, net)
    given: Mapping[str, Any] = spec if isinstance(spec, Mapping) else {}
    several = (
        isinstance(each, Mapping | torch.optim.Optimizer) or callable(each)
        for each in given.values()
    )
    if not given or not all(several):
        return optimizer_factory(spec)
    modules = dict(net.named_modules())
    if unknown := [name for name in given if name not in modules or not name]:
        children = ", ".join(name for name, _ in net.named_children())
        raise ValueError(
            f"optimizer= has {unknown[0]!r}, which is not a module of the network; its modules "
            f"are {children}"
        )
    return SeveralOptimizers(
        {name: net_optimizer(each, modules[name]) for name, each in given.items()}
    )


def _from_dict(spec: Mapping[str, Any], net: nn.Module) -> NetOptimizer:
    """Return the factory of a dict with ``"optimizer"``, which may have ``"groups"`` or torch's
    ``"params"``.
    """
    plain = {key: value for key, value in spec.items() if key not in ("groups", "params")}
    factory = optimizer_factory(plain)
    groups = spec.get("groups")
    if "params" in spec:
        return BoundOptimizer.of(factory(spec["params"]), net)
    if groups is None:
        return factory
    if not isinstance(groups, Mapping) or not all(
        isinstance(each, Mapping) for each in groups.values()
    ):
        raise TypeError(
            f'groups={groups!r}: give options by pattern, such as {{"layer4.*": {{"lr": 0.01}}}}'
        )
    betas = getattr(factory, "keywords", {}).get("betas", _BETAS)
    options = {
        pattern: in_torch(spec["optimizer"], given, betas) for pattern, given in groups.items()
    }
    return GroupedOptimizer(factory, options)


def bound_to_copy(factory: NetOptimizer, net: nn.Module, own: nn.Module) -> NetOptimizer:
    """Return the factory for ``own``, a copy of ``net``, where it makes optimizers over ``net``
    itself.
    """
    if isinstance(factory, SeveralOptimizers):
        modules = dict(net.named_modules())
        copies = dict(own.named_modules())
        parts = {
            name: bound_to_copy(each, modules[name], copies[name])
            for name, each in factory.factories.items()
        }
        return SeveralOptimizers(parts)
    if isinstance(factory, ConfiguredOptimizer | GroupedOptimizer):
        return factory
    made = make_optimizer(factory, own)
    if isinstance(factory, BoundOptimizer):
        return BoundOptimizer.of(made, own)
    # A function that closes over the network.
    if isinstance(made, torch.optim.Optimizer) and is_over(made, net):
        return BoundOptimizer.of(BoundOptimizer.of(made, net).of_module(own), own)
    return factory
