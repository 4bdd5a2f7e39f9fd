"""``TrainingSpec``: a network and how it is trained and evaluated."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn

from compss_train.model import compilation, copies
from compss_train.model import parameters as params
from compss_train.model.devices import is_gpu
from compss_train.model.gradients import Gradients
from compss_train.model.losses import BatchFunction
from compss_train.model.measurements import Measures
from compss_train.model.net_optimizers import NetOptimizer
from compss_train.model.torch_metric import TorchMetric
from compss_train.model.train_transform import TrainTransform
from compss_train.model.training_step import Step, no_loss
from compss_train.reports.formatting import Table

Precision = Literal["fp32", "bf16", "fp16"]


MemoryFormat = Literal["contiguous", "channels_last"]


MEMORY_FORMATS: dict[MemoryFormat, torch.memory_format] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}


@dataclass(frozen=True)
class TensorNames:
    """The kinds of entries in a network's state_dict; a tensor with several names is listed under
    each of them.
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
        first: dict[int, str] = {}
        stored = {
            name: first.setdefault(id(each), name)
            for name, each in net.state_dict(keep_vars=True).items()
        }
        named = net.named_parameters(remove_duplicate=False)
        buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
        return cls(
            weights=tuple(
                name for name, parameter in named if parameter.requires_grad and name in stored
            ),
            buffers=frozenset(buffers.intersection(stored)),
            aliases={name: own for name, own in stored.items() if name != own},
        )


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """A network and how it is trained and evaluated."""

    loaded_once: ClassVar[bool] = True
    """Processes load it once and keep it (``engines.codec``): tasks work on replicas."""

    net: nn.Module
    optimizer: NetOptimizer
    loss: BatchFunction
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
    class_weight: tuple[float, ...] | None = None
    """Class weights of the training loss."""
    gradients: Gradients = field(default_factory=Gradients)
    training_step: Step | None = None
    """Computes the loss of a training batch; ``None`` for the network's outputs and ``loss``."""
    validation_step: Step | None = None
    """Computes the loss of a batch in evaluation; ``None`` for the network's outputs and
    ``loss``.
    """

    def float_dtype(self) -> str | None:
        """Return the dtype of the network's first floating parameter, to which table columns are
        converted.

        float32 for a network without floating parameters, ``None`` for a dtype that numpy does not
        have.
        """
        floating = (each for each in self.net.parameters() if each.is_floating_point())
        name = str(next(floating, torch.empty(0, dtype=torch.float32)).dtype).removeprefix("torch.")
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
        """Raise ``ValueError`` for a network without outputs of its own, such as a dict of
        modules.
        """
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
        tensors = self.net.state_dict()
        names = self.names
        kinds = dict.fromkeys(tensors, "frozen") | dict.fromkeys(names.weights, "trained")
        kinds |= dict.fromkeys(names.buffers, "buffer")
        distinct = [name for name in tensors if name not in names.aliases]
        numbers = sum(tensors[name].numel() for name in distinct if kinds[name] != "buffer")
        trained = sum(tensors[name].numel() for name in distinct if kinds[name] == "trained")
        size = sum(tensors[name].nbytes for name in distinct) / 1e6
        caption = (
            f"{numbers:,} parameters, {trained:,} of them trained; {size:,.3g} MB in each "
            "worker's copy"
        )
        return params.table(tensors, caption, kinds)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: not what has been computed from them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    @cached_property
    def _template(self) -> copies.CopyTemplate:
        copied = {
            each.name: getattr(self, each.name) for each in fields(self) if each.name != "compile"
        }
        # Not of this object: it would be a cycle.
        return copies.CopyTemplate(copied, copies.own_entries(self.net))

    def weightless(self, device: str = "meta") -> Self:
        """Return a copy without values, for tasks, which receive them apart; on ``"meta"`` without
        memory, too.
        """
        # What is compiled is shared.
        return type(self)(**self._template.copy(device), compile=self.compile)

    def copied(self, parameters: params.Parameters, device: str, training: bool) -> Self:
        """Return a copy with these parameters on a device, which shares nothing with this
        object.
        """
        own = self.weightless(device)
        augment = own.train_transform and own.train_transform.function
        metrics = own.measures.metrics.values()
        measured = (each.metric if isinstance(each, TorchMetric) else each for each in metrics)
        for part in (own.net, own.loss, own.transform, augment, *measured):
            if isinstance(part, nn.Module):
                # To move nothing takes as long as a small layer.
                if part is not own.net or is_gpu(device):
                    part.to(device)
                # What is in evaluation mode inside of it stays so in training.
                if not (training and part.training):
                    part.train(training)
        if own.memory_format != "contiguous":
            own.net.to(memory_format=MEMORY_FORMATS[own.memory_format])  # type: ignore[call-overload]
        params.load_into(own.net, parameters)
        if own.compile is not None and training:
            own.compile.apply(own.net)
        return own
