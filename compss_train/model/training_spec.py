"""``TrainingSpec``: a network and how it is trained and evaluated."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn

from compss_train._utils.private_names import register_captured, state_tensors
from compss_train.model import compilation, copies
from compss_train.model import parameters as params
from compss_train.model.attributes.immutable import ImmutableAttributes
from compss_train.model.attributes.reader import NETWORK, AttributeReader
from compss_train.model.class_weights import CheckedWeight
from compss_train.model.closures import ClosureUse
from compss_train.model.devices import is_gpu
from compss_train.model.gradients import Gradients
from compss_train.model.losses import BatchFunction
from compss_train.model.measurements import Measures
from compss_train.model.net_optimizers import NetOptimizer
from compss_train.model.task_globals import GlobalUsers, global_users
from compss_train.model.tensor_extras import extras_by_name, give_by_name
from compss_train.model.torch_metric import TorchMetric
from compss_train.model.train_transform import TrainTransform
from compss_train.model.training_step import Step, no_loss
from compss_train.reports.formatting import Table

Precision = Literal["fp32", "bf16", "fp16"]
MemoryFormat = Literal["contiguous", "channels_last"]

_EXTRAS = "extras of tensors"
"""The name in pickles of what the network's tensors have besides values."""

MEMORY_FORMATS: dict[MemoryFormat, torch.memory_format] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}


@dataclass(frozen=True)
class TensorNames:
    """The kinds of entries in a network's state_dict.

    A tensor with several names is listed under each of them.
    """

    weights: tuple[str, ...]
    """Trained parameters."""
    buffers: frozenset[str] = frozenset()
    """Buffers, such as BatchNorm's statistics."""
    aliases: Mapping[str, str] = field(default_factory=dict)
    """The second and further names of tensors, each with the first one."""

    @classmethod
    def of(cls, net: nn.Module) -> Self:
        """Return the names in a network."""
        name_of_tensor: dict[int, str] = {}
        first_names = {
            name: name_of_tensor.setdefault(id(tensor), name)
            for name, tensor in state_tensors(net).items()
        }
        trained = (
            name
            for name, parameter in net.named_parameters(remove_duplicate=False)
            if parameter.requires_grad
        )
        buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
        return cls(
            weights=tuple(name for name in trained if name in first_names),
            buffers=frozenset(buffers.intersection(first_names)),
            aliases={name: first for name, first in first_names.items() if name != first},
        )


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """A network and how it is trained and evaluated."""

    loaded_once: ClassVar[bool] = True
    """Processes load it once and keep it (``engines.codec``): tasks work on replicas."""

    net: nn.Module
    optimizer: NetOptimizer
    loss: BatchFunction
    loss_count: Callable[[Any], Any] | None = None
    """What a user's loss is a mean over; ``None`` for the samples, or what is known of the loss."""
    measures: Measures = field(default_factory=Measures)
    transform: Callable[[Any], Any] | None = None
    """Applied to each batch of x in the worker, on its device."""
    collate: Callable[[list[Any]], Any] | None = None
    """Turns a list of samples into a batch."""
    train_transform: TrainTransform | None = None
    """Applied to training batches only, before ``transform``."""
    precision: Precision = "fp32"
    compile: compilation.Compilation | None = None
    """Compiles forward passes in training; ``None`` runs the network eagerly."""
    memory_format: MemoryFormat = "contiguous"
    class_weight: CheckedWeight = None
    """Class weights of the training loss."""
    gradients: Gradients = field(default_factory=Gradients)
    closure_use: ClosureUse = field(default="no", repr=False)
    """How the optimizer uses a closure of the loss."""
    training_step: Step | None = None
    """Computes the loss of a training batch; ``None`` for the network's outputs and ``loss``."""
    validation_step: Step | None = None
    """Computes the loss of a batch in evaluation; ``None`` as for ``training_step``."""
    original: nn.Module | None = field(default=None, repr=False)
    """The network that the user gave, if functions hold it: those of a copy hold the copy."""
    pairing: Callable[..., Any] | None = None
    """Makes a batch of two batches of time steps, in online fits with pairs."""

    def float_dtype(self) -> str | None:
        """Return the dtype to which columns of tables are converted.

        It is that of the network's first floating-point parameter, float32 if it has none, and
        ``None`` if numpy does not have this dtype.
        """
        dtypes = (parameter.dtype for parameter in self.net.parameters())
        dtype = next((dtype for dtype in dtypes if dtype.is_floating_point), torch.float32)
        name = str(dtype).removeprefix("torch.")
        return name if name in ("float16", "float32", "float64") else None

    def check_evaluable(self) -> None:
        """Raise ``ValueError`` if there is nothing to evaluate the model by."""
        if self.validation_step is None and self.loss is no_loss:
            raise ValueError(
                "the model was built without loss=, and its training step updates optimizers; "
                "build with validation_step=, a function that returns a loss"
            )
        if self.validation_step is None:
            self.check_forward()

    def check_forward(self) -> None:
        """Raise ``ValueError`` for a network that cannot be called, such as a dict of modules."""
        if not compilation.has_forward(self.net):
            raise ValueError(
                f"a {type(self.net).__name__} has no forward; call one of its modules, as in "
                "trainer.model()['name'], or build with a module whose forward uses them"
            )

    @cached_property
    def names(self) -> TensorNames:
        """The names of the network's tensors."""
        return TensorNames.of(self.net)

    def summary(self) -> Table:
        """Return a table of what the network holds: trained and frozen parameters, and buffers."""
        tensors = state_tensors(self.net)
        kinds = (
            dict.fromkeys(tensors, "frozen")
            | dict.fromkeys(self.names.weights, "trained")
            | dict.fromkeys(self.names.buffers, "buffer")
        )
        counts = {"trained": 0, "frozen": 0, "buffer": 0}
        size = 0
        for name, tensor in tensors.items():
            if name not in self.names.aliases:
                counts[kinds[name]] += tensor.numel()
                size += tensor.nbytes
        caption = (
            f"{counts['trained'] + counts['frozen']:,} parameters, {counts['trained']:,} of them "
            f"trained; {size / 1e6:,.3g} MB in each worker's copy"
        )
        return params.table(tensors, caption, kinds)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: not what has been computed from them.

        Hooks of the network's tensors, which pickle leaves out, are beside them.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return values | {_EXTRAS: extras_by_name(self.net)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Set the fields, and what the network's tensors have besides values."""
        extras = state.pop(_EXTRAS)
        vars(self).update(state)
        give_by_name(self.net, extras)
        register_captured()

    @cached_property
    def template(self) -> copies.CopyTemplate:
        """What copies it; later changes of what it holds do not count."""
        # Of the fields: a template of this object, which holds the template, would be a cycle.
        values = {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name not in ("compile", "original")
        }
        own_entries = copies.own_entries(self.net)
        if self.original is None:
            return copies.CopyTemplate(values, own_entries)
        return copies.LinkedTemplate(values, own_entries, self.original, self.net)

    def made_from(self, original: nn.Module) -> Self:
        """Return it for functions that may hold ``original``, of which its network is a copy."""
        linked = replace(self, original=original)
        template = linked.template
        holds_original = isinstance(template, copies.LinkedTemplate) and template.holds_original
        return linked if holds_original else self

    @property
    def for_tasks(self) -> Self:
        """The same, with functions that hold its own network: a copy without values if need be."""
        return self if self.original is None else self.weightless()

    def roots(self) -> dict[str, Any]:
        """Return the objects that may keep something from batch to batch, by names for users."""
        augmentation = self.train_transform and self.train_transform.function
        metrics = self.measures.metrics.items()
        objects = {
            NETWORK: self.net,
            "loss": self.loss,
            **{
                f"metric[{name!r}]": metric
                for name, metric in metrics
                if not isinstance(metric, TorchMetric)  # each round has its own
            },
            "transform": self.transform,
            "train_transform": augmentation,
            "collate": self.collate,
            "training_step": self.training_step,
            "validation_step": self.validation_step,
            "pairing": self.pairing,
        }
        return {name: value for name, value in objects.items() if value is not None}

    @cached_property
    def attributes(self) -> AttributeReader:
        """The attributes that a new copy has."""
        spec = self.for_tasks
        return AttributeReader(spec.net, spec.roots())

    @cached_property
    def immutable_attributes(self) -> ImmutableAttributes:
        """The same, as far as they are immutable."""
        return ImmutableAttributes(self.for_tasks.roots())

    @cached_property
    def global_users(self) -> GlobalUsers:
        """The functions of the user that use global variables, which tasks must not change.

        A task finds them itself: a function of ``__main__`` that came apart from the network would
        have other variables than the network's.
        """
        return global_users(self.roots().values())

    def weightless(self, device: str = "meta") -> Self:
        """Return a copy whose parameters have no values, for tasks, which receive them apart.

        On ``"meta"`` they have no memory either. What is compiled is shared.
        """
        return type(self)(**self.template.copy(device), compile=self.compile)

    def copied(self, parameters: params.Parameters, device: str, *, training: bool) -> Self:
        """Return a copy with these parameters on a device, which shares nothing with this one."""
        copied = self.weightless(device)
        for module in _modules_of(copied):
            # To move nothing takes as long as a small layer.
            if module is not copied.net or is_gpu(device):
                module.to(device)
            # What is in evaluation mode inside of it stays so in training.
            if not (training and module.training):
                module.train(training)
        if copied.memory_format != "contiguous":
            memory_format = MEMORY_FORMATS[copied.memory_format]
            copied.net.to(memory_format=memory_format)  # type: ignore[call-overload]
        params.load_into(copied.net, parameters)
        if copied.compile is not None and training:
            copied.compile.apply(copied.net)
        return copied


def _modules_of(spec: TrainingSpec) -> Iterator[nn.Module]:
    """Iterate over the modules that batches go through: the network first."""
    parts: list[Any] = [spec.net, spec.loss, spec.transform]
    if spec.train_transform is not None:
        parts.append(spec.train_transform.function)
    for metric in spec.measures.metrics.values():
        parts.append(metric.metric if isinstance(metric, TorchMetric) else metric)
    return (part for part in parts if isinstance(part, nn.Module))
