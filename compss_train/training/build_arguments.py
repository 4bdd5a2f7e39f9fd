"""``BuildArguments``: the arguments of ``build``, and the checks of networks, optimizers and
pickles.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, get_args

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from compss_train._utils.validation import check_choice, check_count, check_dense, warn_user
from compss_train.engines.codec import pickling_error
from compss_train.model import compilation, copies, losses, optimizers, training_spec
from compss_train.model.devices import gpu
from compss_train.model.optimizers import rates
from compss_train.model.schedule import LrSchedule, Schedule, make_schedule
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.training_step import no_loss
from compss_train.training.description import Details, details
from compss_train.worker.optimizer_state import optimizer_bytes

PICKLED = (
    "net",
    "optimizer",
    "loss",
    "transform",
    "collate",
    "compile",
    "training_step",
    "validation_step",
)
"""Arguments that are sent to workers, and that may be impossible to pickle."""


@dataclass(frozen=True)
class BuildArguments:
    """The arguments of ``build``, which check themselves and each other.

    Raises ``ValueError`` and ``TypeError`` as ``DistributedTrainer.build`` says.
    """

    training_spec: TrainingSpec
    num_gpu: int = 0
    schedule: Schedule | None = None
    lr_schedule: LrSchedule | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        spec = self.training_spec
        check_count("num_gpu", self.num_gpu, least=0)
        check_choice("precision", spec.precision, get_args(training_spec.Precision))
        check_choice("memory_format", spec.memory_format, tuple(training_spec.MEMORY_FORMATS))
        given: object = spec.gradients
        if not isinstance(given, optimizers.Gradients):
            raise TypeError(
                f"gradients={given!r}: give Gradients(...), such as Gradients(clip_norm=1.0)"
            )
        if spec.class_weight is not None and spec.loss is no_loss:
            raise ValueError(
                "class_weight= belongs to loss=, which was not given; weight classes in your step"
            )
        if spec.class_weight is not None:
            losses.check_weightable(spec.loss)
        if spec.transform is not None and not callable(spec.transform):
            raise TypeError(
                f"transform={spec.transform!r}: give a function of a batch of x, or None"
            )
        if spec.collate is not None and not callable(spec.collate):
            raise TypeError(
                f"collate={spec.collate!r}: give a function of a list of samples, "
                "(x, y) or x, or None"
            )
        augment = spec.train_transform and spec.train_transform.function
        pickled = {name: getattr(spec, name) for name in PICKLED}
        check_picklable(**pickled, metric=spec.measures.metrics, train_transform=augment)
        self._check_optimizer()
        self._check_dtypes()
        if isinstance(spec.loss, nn.Module) and any(
            each.requires_grad for each in spec.loss.parameters()
        ):
            warn_user(
                "the loss has parameters, which are not trained: docs/models.md makes it a part "
                "of the network"
            )
        if self.schedule is not None:
            object.__setattr__(
                self, "lr_schedule", make_schedule(self.schedule, spec.net, spec.optimizer)
            )

    @cached_property
    def state_bytes(self) -> int:
        """About how many bytes the state of a worker has."""
        return optimizer_bytes(self.training_spec.net, self.training_spec.optimizer)

    def _check_optimizer(self) -> None:
        """Raise unless the optimizer suits the network and the other options."""
        spec = self.training_spec
        several = isinstance(spec.optimizer, optimizers.SeveralOptimizers)
        given = [f"accumulate={spec.gradients.accumulate}"] if spec.gradients.accumulate > 1 else []
        given += ["on_nan='skip'"] if spec.gradients.on_nan == "skip" else []
        if several and spec.training_step is None:
            raise ValueError(
                "several optimizers need training_step=, a function that updates them: "
                "docs/models.md has an example"
            )
        if several and given:
            raise ValueError(
                f"{given[0]} belongs to one optimizer; with several, the training step decides "
                "when each is updated"
            )
        given += ["precision='fp16'"] if spec.precision == "fp16" else []
        unsupported = ["one of several optimizers"] if several else given
        check_optimizer(spec.net, spec.optimizer, next(iter(unsupported), ""))

    def _check_dtypes(self) -> None:
        """Raise ``ValueError`` for a network in half or double precision where it is not
        supported.
        """
        dtypes = {parameter.dtype for parameter in self.training_spec.net.parameters()}
        if self.training_spec.precision == "fp16" and torch.float16 in dtypes:
            raise ValueError(
                "precision='fp16' keeps the parameters in float32, and the network has float16 ones"
            )
        if self.num_gpu and gpu() == "mps" and torch.float64 in dtypes:
            raise ValueError(
                "num_gpu: the network is in float64, which Apple's MPS lacks; give net.float()"
            )

    @cached_property
    def rates(self) -> dict[str, float]:
        """The learning rates that the optimizer begins with: ``lr``, and ``lr/NAME`` for each other
        group.
        """
        return rates(
            optimizers.make_optimizer(
                self.training_spec.optimizer, self.training_spec.net
            ).param_groups
        )

    @cached_property
    def objective(self) -> Details:
        """The details of the network and the loss."""
        spec = self.training_spec
        modules = dict(self.training_spec.net.named_modules())
        evaluated = [
            name
            for name, module in modules.items()
            if modules[name.rpartition(".")[0]].training and not module.training
        ]
        found = details("net", spec.net, tensors=False) | details("loss", spec.loss)
        return {**found, "modules in evaluation mode": ", ".join(evaluated)}

    @cached_property
    def surroundings(self) -> Details:
        """The details of the other objects of ``build`` that change what a fit computes or
        measures.
        """
        spec = self.training_spec
        found = details("schedule", self.schedule)
        for name in ("transform", "train_transform", "collate", "training_step", "validation_step"):
            found |= details(name, getattr(spec, name))
        return found | details("metric", spec.measures.metrics)


_TOO_DEEP = "contains itself, or is nested too deeply for Python"


def checked_network(net: object) -> nn.Module:
    """Return the network given to ``build``; of a dict of modules, the ``nn.ModuleDict``.

    Raises ``TypeError`` unless it is a module of dense tensors, ``ValueError`` if none is
    trainable.
    """
    if isinstance(net, Mapping) and not isinstance(net, nn.Module):
        net = nn.ModuleDict(net)
        net.training = any(module.training for module in net.values())
    if not isinstance(net, nn.Module):
        hint = "; call the class to make one" if isinstance(net, type) else ""
        raise TypeError(f"net must be a torch.nn.Module, not {type(net).__name__}{hint}")
    try:
        tensors = net.state_dict(keep_vars=True)
    except RecursionError:
        raise ValueError(f"the network, a {type(net).__name__}, {_TOO_DEEP}") from None
    if not any(True for _ in net.parameters()):
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
    for name, tensor in tensors.items():
        if isinstance(tensor, torch.Tensor) and not is_lazy(tensor):
            check_dense(f"{name!r} of the network", tensor)
    return net


def check_optimizer(
    net: nn.Module, factory: optimizers.NetOptimizer, unsupported: str = ""
) -> None:
    """Raise unless the factory makes an optimizer of the parameters that it is called with.

    ``net`` is a copy, as every worker trains a copy: an optimizer of the original's parameters
    would train nothing. ``unsupported`` names, for the message, what an optimizer that evaluates
    the loss itself does not support. The optimizer's own errors (a negative learning rate, say) are
    raised unchanged.
    """
    optimizer = optimizers.make_optimizer(factory, net)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise TypeError(
            f"the optimizer callable returned {type(optimizer).__name__}, not a "
            "torch.optim.Optimizer"
        )
    parts = (
        optimizer.optimizers.values()
        if isinstance(optimizer, optimizers.JoinedOptimizer)
        else [optimizer]
    )
    needing = [type(part).__name__ for part in parts if optimizers.needs_closure(type(part).step)]
    if needing and unsupported:
        raise ValueError(
            f"{unsupported} does not work with {needing[0]}, which evaluates the loss several "
            "times a step; choose another optimizer"
        )
    if not optimizers.is_over(optimizer, net):
        raise ValueError(
            "the optimizer callable uses other parameters than those it is called with, and than "
            "the network's; write lambda parameters: torch.optim.SGD(parameters, lr=0.05)"
        )


def check_outer_optimizer(spec: optimizers.OptimizerSpec, net: nn.Module | None = None) -> None:
    """Raise ``TypeError`` or ``ValueError`` unless this is a valid ``outer_optimizer``, of ``net``
    if given.
    """
    try:
        factory = optimizers.optimizer_factory(spec)
        if net is not None:
            check_optimizer(net, factory, "an outer step, which has one gradient,")
    except (TypeError, ValueError) as error:
        raise type(error)(f"outer_optimizer={spec!r}: {error}") from error
    if net is not None:
        check_picklable(outer_optimizer=factory)


def copied_network(net: nn.Module) -> nn.Module:
    """Return a copy of a network, on the CPU; raise ``TypeError`` if it is known why it cannot be
    copied.
    """
    try:
        return copies.copy_network(net).cpu()
    except Exception as error:
        check_picklable(net=net)
        if isinstance(error, RecursionError):  # Python 3.13 pickles deeper networks than it copies
            raise TypeError(f"net {_TOO_DEEP}, and cannot be sent to other processes") from error
        raise


def check_picklable(**values: object) -> None:
    """Raise ``TypeError`` for the first value that cannot be pickled, naming the attribute."""
    for name, value in values.items():
        if (error := pickling_error(value)) is not None:
            if isinstance(error, RecursionError) or "recursion" in str(error):
                raise TypeError(f"{name} {_TOO_DEEP}, and cannot be sent to other processes")
            where = _culprit(name, value) or name
            raise TypeError(
                f"{where} cannot be pickled, so it cannot be sent to other processes ({error}); "
                "create it on first use, as in forward or __getitem__, or exclude it in "
                "__getstate__"
            )


def _culprit(name: str, value: object, seen: frozenset[int] = frozenset()) -> str | None:
    """Return the path and type of the innermost part that cannot be pickled.

    Returns ``None`` if the only such parts refer back to a value in ``seen``.
    """
    failing = [(part, inner) for part, inner in _parts(value) if pickling_error(inner) is not None]
    if not failing:
        return f"{name} ({type(value).__module__}.{type(value).__qualname__})"
    seen |= {id(value)}
    found = (_culprit(name + part, inner, seen) for part, inner in failing if id(inner) not in seen)
    return next(filter(None, found), None)


def _parts(value: object) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"[{key!r}]", item) for key, item in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif not isinstance(value, type):
        if isinstance(value, nn.Module):
            yield from ((f".{key}", child) for key, child in value.named_children())
        yield from (
            (f".{key}", item)
            for key, item in getattr(value, "__dict__", {}).items()
            if key != "_modules"
        )
