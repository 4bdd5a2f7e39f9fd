"""``BuildArguments``: the arguments of ``build``, which check themselves and each other."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, get_args

import torch
from torch import nn

from compss_train._utils.validation import check_choice, check_count, warn_user
from compss_train.model import training_spec
from compss_train.model.closures import closure_use
from compss_train.model.devices import CPU, gpu
from compss_train.model.gradients import Gradients
from compss_train.model.lr_schedule import Hyperparameters, LrSchedule, make_schedule, rates
from compss_train.model.net_optimizers import SeveralOptimizers, make_optimizer
from compss_train.model.schedule import Schedule
from compss_train.model.training_loss import check_weightable
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.training_step import clips_nothing, no_loss
from compss_train.training.description import Details, details
from compss_train.training.network_checks import check_optimizer
from compss_train.training.pickling import check_copyable, check_picklable
from compss_train.worker.optimizer_state import optimizer_bytes

PICKLED = (
    "net",
    "optimizer",
    "loss",
    "loss_count",
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
        check_count("num_gpu", self.num_gpu, least=0)
        self._check_choices()
        self._check_loss()
        self._check_functions()
        self._check_optimizer()
        self._check_dtypes()
        if self.schedule is not None:
            spec = self.training_spec
            schedule = make_schedule(self.schedule, spec.net, spec.optimizer)
            object.__setattr__(self, "lr_schedule", schedule)

    def _check_choices(self) -> None:
        spec = self.training_spec
        check_choice("precision", spec.precision, get_args(training_spec.Precision))
        check_choice("memory_format", spec.memory_format, tuple(training_spec.MEMORY_FORMATS))
        gradients: object = spec.gradients
        if not isinstance(gradients, Gradients):
            raise TypeError(
                f"gradients={gradients!r}: give Gradients(...), such as Gradients(clip_norm=1.0)"
            )

    def _check_loss(self) -> None:
        spec = self.training_spec
        if spec.class_weight is not None:
            if spec.loss is no_loss:
                raise ValueError(
                    "class_weight= belongs to loss=, which was not given; weight classes in your "
                    "step"
                )
            check_weightable(spec.loss)
        parameters = spec.loss.parameters() if isinstance(spec.loss, nn.Module) else ()
        if any(parameter.requires_grad for parameter in parameters):
            warn_user(
                "the loss has parameters, which are not trained: docs/models.md makes it a part "
                "of the network"
            )

    def _check_functions(self) -> None:
        """Raise ``TypeError`` for what is no function, or cannot be sent to workers."""
        spec = self.training_spec
        clipping = "" if spec.training_step is None else clips_nothing(spec.training_step)
        if clipping:
            warn_user(
                f"training_step calls {clipping}, but the trainer computes the gradients after it, "
                "so that nothing is clipped: give gradients=Gradients(clip_norm=...) or clip_value="
            )
        if spec.transform is not None and not callable(spec.transform):
            raise TypeError(
                f"transform={spec.transform!r}: give a function of a batch of x, or None"
            )
        if spec.collate is not None and not callable(spec.collate):
            raise TypeError(
                f"collate={spec.collate!r}: give a function of a list of samples, "
                "(x, y) or x, or None"
            )
        try:
            for_tasks = spec.for_tasks
        except Exception:
            _check_sent(spec)  # names what has no copy
            check_copyable(**_sent(spec))
            raise
        _check_sent(for_tasks)
        try:
            for_tasks.weightless(CPU)
        except Exception:
            check_copyable(**_sent(for_tasks))

    def _check_optimizer(self) -> None:
        """Raise unless the optimizer suits the network and the other options."""
        spec = self.training_spec
        several = isinstance(spec.optimizer, SeveralOptimizers)
        if several and spec.training_step is None:
            raise ValueError(
                "several optimizers need training_step=, a function that updates them: "
                "docs/models.md has an example"
            )
        options = []
        if spec.gradients.accumulate > 1:
            options.append(f"accumulate={spec.gradients.accumulate}")
        if spec.gradients.on_nan == "skip":
            options.append("on_nan='skip'")
        if several and options:
            raise ValueError(
                f"{options[0]} belongs to one optimizer; with several, the training step decides "
                "when each is updated"
            )
        if spec.precision == "fp16":
            options.append("precision='fp16'")
        if several:
            options = ["one of several optimizers"]
        check_optimizer(spec.net, spec.optimizer, options[0] if options else "")
        spec = replace(spec, closure_use=closure_use(spec.net, spec.optimizer))
        object.__setattr__(self, "training_spec", spec)

    def _check_dtypes(self) -> None:
        """Raise ``ValueError`` for a network in a precision that is not supported."""
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
        """The first learning rates: ``lr``, and ``lr/NAME`` for each other group."""
        spec = self.training_spec
        return rates(make_optimizer(spec.optimizer, spec.net).param_groups)

    def changed_rates(
        self, change: Callable[[Hyperparameters], Hyperparameters]
    ) -> dict[str, float]:
        """Return the learning rates after a change of those that the optimizer was made with."""
        spec = self.training_spec
        groups = make_optimizer(spec.optimizer, spec.net).param_groups
        changed = change(tuple({"lr": group["lr"]} for group in groups))
        return rates({**group, **values} for group, values in zip(groups, changed, strict=True))

    @cached_property
    def state_bytes(self) -> int:
        """About how many bytes the state of a worker has."""
        return optimizer_bytes(self.training_spec)

    @cached_property
    def objective(self) -> Details:
        """The details of the network and the loss."""
        spec = self.training_spec.for_tasks
        modules = dict(spec.net.named_modules())
        evaluated = [
            name
            for name, module in modules.items()
            if modules[name.rpartition(".")[0]].training and not module.training
        ]
        return {
            **details("net", spec.net, tensors=False),
            **details("loss", spec.loss),
            **({} if spec.loss_count is None else details("loss_count", spec.loss_count)),
            "modules in evaluation mode": ", ".join(evaluated),
        }

    @cached_property
    def surroundings(self) -> Details:
        """The details of the other objects of ``build`` that change results or measures."""
        spec = self.training_spec.for_tasks
        surroundings = details("schedule", self.schedule)
        for name in ("transform", "train_transform", "collate", "training_step", "validation_step"):
            surroundings |= details(name, getattr(spec, name))
        return surroundings | details("metric", spec.measures.metrics)


def _check_sent(spec: TrainingSpec) -> None:
    """Raise ``TypeError`` for what cannot be sent to workers."""
    check_picklable(**_sent(spec))


def _sent(spec: TrainingSpec) -> dict[str, Any]:
    """Return what is sent to workers, by the names of arguments."""
    augment = spec.train_transform and spec.train_transform.function
    arguments = {name: getattr(spec, name) for name in PICKLED}
    arguments["metric"] = {**spec.measures.metrics, **spec.measures.whole}
    return {**arguments, "train_transform": augment}
