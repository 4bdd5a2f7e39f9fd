"""``TrainingSpec``: a network and how it is trained; ``ModelReplica``: the copy of it that a worker trains."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn

from compss_train._utils.nested import leaves, map_leaves
from compss_train.model import compilation, conversion, copies, losses, metrics, optimizers
from compss_train.model import parameters as params
from compss_train.model.loss_weights import TrainingLoss
from compss_train.model.train_transform import TrainTransform
from compss_train.model.training_step import EPOCH_ENDS, ModuleStep, Step, StepContext, StepResult, no_loss
from compss_train.reports.formatting import Table

Precision = Literal["fp32", "bf16", "fp16"]
MemoryFormat = Literal["contiguous", "channels_last"]

HALF: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions of autocast."""
_SHARED_BY_REPLICAS = "compile", "sample_reader"
MEMORY_FORMATS: dict[MemoryFormat, torch.memory_format] = {
    "contiguous": torch.contiguous_format,
    "channels_last": torch.channels_last,
}


@dataclass(frozen=True)
class TensorNames:
    """The kinds of entries in a network's state_dict; a tensor with several names is listed under each of them."""

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
        stored = {name: first.setdefault(id(each), name) for name, each in net.state_dict(keep_vars=True).items()}
        named = net.named_parameters(remove_duplicate=False)
        buffers = {name for name, _ in net.named_buffers(remove_duplicate=False)}
        return cls(
            weights=tuple(name for name, parameter in named if parameter.requires_grad and name in stored),
            buffers=frozenset(buffers.intersection(stored)),
            aliases={name: own for name, own in stored.items() if name != own},
        )


@dataclass(frozen=True, kw_only=True)
class TrainingSpec:
    """A network and how it is trained and evaluated."""

    loaded_once: ClassVar[bool] = True
    """Processes load it once and keep it (``engines.codec``): tasks work on replicas."""

    net: nn.Module
    optimizer: optimizers.NetOptimizer
    loss: losses.BatchFunction
    measures: metrics.Measures = field(default_factory=metrics.Measures)
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
    gradients: optimizers.Gradients = field(default_factory=optimizers.Gradients)
    training_step: Step | None = None
    """Computes the loss of a training batch; ``None`` for the network's outputs and ``loss``."""
    validation_step: Step | None = None
    """Computes the loss of a batch in evaluation; ``None`` for the network's outputs and ``loss``."""
    sample_reader: Any = field(default=None, repr=False)
    """The ``SampleReader`` of a fit whose batches hold sample numbers; ``None`` if they hold the samples."""

    @property
    def float_dtype(self) -> str | None:
        """The dtype of the network's first floating parameter, to which table columns are converted.

        float32 for a network without floating parameters, ``None`` for a dtype that numpy does not have.
        """
        floating = (each for each in self.net.parameters() if each.is_floating_point())
        name = _name(next(floating, torch.empty(0, dtype=torch.float32)))
        return name if name in ("float16", "float32", "float64") else None

    def check_evaluable(self) -> None:
        """Raise ``ValueError`` if there is nothing to evaluate the model by."""
        if self.validation_step is None and self.loss is no_loss:
            raise ValueError(
                "the model was built without loss=, and its training step updates optimizers; build with "
                "validation_step=, a function that returns a loss"
            )
        if self.validation_step is None:
            self.check_forward()

    def check_forward(self) -> None:
        """Raise ``ValueError`` for a network without outputs of its own, such as a dict of modules."""
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
        tensors, names = self.net.state_dict(), self.names
        kinds = dict.fromkeys(tensors, "frozen") | dict.fromkeys(names.weights, "trained")
        kinds |= dict.fromkeys(names.buffers, "buffer")
        distinct = [name for name in tensors if name not in names.aliases]
        numbers = sum(tensors[name].numel() for name in distinct if kinds[name] != "buffer")
        trained = sum(tensors[name].numel() for name in distinct if kinds[name] == "trained")
        size = sum(tensors[name].nbytes for name in distinct) / 1e6
        caption = f"{numbers:,} parameters, {trained:,} of them trained; {size:,.3g} MB in each worker's copy"
        return params.table(tensors, caption, kinds)

    @cached_property
    def _template(self) -> copies.CopyTemplate:
        own = {name: value for name, value in self.__getstate__().items() if name not in _SHARED_BY_REPLICAS}
        return copies.CopyTemplate(own)  # not of this object: a cycle would keep its memory

    @cached_property
    def _entries(self) -> list[torch.Tensor]:
        return copies.own_entries(self.net)

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields only: not what has been computed from them."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def without_weights(self) -> Self:
        """Return a copy for tasks, with a network without values: tasks receive the parameters separately."""
        return copy.deepcopy(self, dict(copies.unset_copies(self._entries, "meta")))

    def replica(self, parameters: params.Parameters, device: str, training: bool) -> "ModelReplica":
        """Return a copy of the model with these parameters, which shares nothing with this object."""
        shared = {name: getattr(self, name) for name in _SHARED_BY_REPLICAS}
        own = TrainingSpec(**self._template.copy(copies.unset_copies(self._entries, device)), **shared)
        augment = own.train_transform and own.train_transform.function
        for part in (own.net, own.loss, own.transform, augment, *own.measures.modules()):
            if isinstance(part, nn.Module):
                part.to(device)
                if not (training and part.training):  # what is in evaluation mode inside of it stays so in training
                    part.train(training)
        if own.memory_format != "contiguous":
            own.net.to(memory_format=MEMORY_FORMATS[own.memory_format])  # type: ignore[call-overload]
        params.load_into(own.net, parameters)
        if own.compile is not None and training:
            own.compile.apply(own.net)
        loss = TrainingLoss(own.loss, own.class_weight, device)
        return ModelReplica(own, device, loss, conversion.Converter(own.net))


@dataclass(frozen=True, slots=True)
class ModelReplica:
    """A copy of the model on its device."""

    training_spec: TrainingSpec
    device: str
    loss: TrainingLoss
    converter: conversion.Converter

    @property
    def columns_device(self) -> str:
        """The device that data columns are copied to; the CPU for sample numbers, and for what ``collate`` gets."""
        return self.device if (self.training_spec.sample_reader or self.training_spec.collate) is None else "cpu"

    def transformed(self, x: Any) -> Any:
        """Return a batch transformed for the network."""
        return x if self.training_spec.transform is None else self.training_spec.transform(x)

    def formatted(self, x: Any) -> Any:
        """Return a batch in the memory format of the network."""
        if self.training_spec.memory_format != "channels_last":
            return x
        last = torch.channels_last
        return map_leaves(lambda part: part.contiguous(memory_format=last) if part.dim() == 4 else part, x)

    def predict(self, x: Any) -> Any:
        """Return the outputs of a transformed batch."""
        return self.converter.call(lambda batch: outputs(self.training_spec.net, self.formatted(batch)), x)

    def measure_loss(self, loss: Callable[..., torch.Tensor], x: Any, y: Any, *weight: Any) -> StepResult:
        """Return the loss of the network's outputs for a transformed batch.

        Losses of torch and of this package get the ``logits`` of outputs that have them; without y, the outputs'
        own ``loss`` is taken. Raises ``TypeError`` for outputs and ``ValueError`` for shapes that the loss does not
        take.
        """
        output, target = self.predict(x), self.converter.targets(x if y is None else y)
        own = _part_of(output, "loss") if y is None else None
        takes_tensor = losses.is_known(self.training_spec.loss)
        logits = _part_of(output, "logits")
        output = logits if takes_tensor and logits is not None else output
        if own is not None:
            return StepResult(own, output, target)
        if takes_tensor and not isinstance(output, torch.Tensor):
            raise TypeError(
                f"the network returns {metrics.kind_of(output)}, and the loss takes a tensor: build with loss=, a "
                "function of (output, target) that takes all of it, or with training_step="
            )
        compared = losses.elementwise_target(self.training_spec.loss, output, target)
        return StepResult(loss(output, compared, *weight), output, target)

    def run_step(self, step: Step, x: Any, y: Any, context: StepContext) -> StepResult:
        """Run a training or validation step on a transformed batch, and check what it returns."""
        x, y = self.formatted(self.converter.inputs(x)), self.converter.targets(y)
        with self.autocast():
            returned = step(self.training_spec.net, x if y is None else (x, y), context)
        values = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
        if values.get("loss") is None:  # what it logged counts
            values.pop("loss", None)
        values = context.logged | values
        name = getattr(step, "__name__", type(step).__name__)
        if not isinstance(loss := values.pop("loss", None), torch.Tensor):
            raise TypeError(
                f"{name} returned {metrics.kind_of(returned)} without a loss; return the loss, a tensor, or a dict "
                "with it as 'loss'"
            )
        output, target = values.pop("output", None), values.pop("target", x if y is None else y)
        if self.training_spec.measures.metrics and output is None:
            raise ValueError(
                f"metric= is measured on outputs, which {name} does not return; return "
                "{'loss': loss, 'output': output}, or build without metric= and return the numbers themselves"
            )
        measured = {name: metrics.measured_number(name, value) for name, value in values.items()}
        return StepResult(loss, output, target, measured)

    def end_epoch(self, step: Step | None) -> dict[str, Any]:
        """Call the hook for the end of an epoch of this step of a Lightning-style module; return what it logs."""
        net, context = self.training_spec.net, StepContext(loss=no_loss)
        hook = EPOCH_ENDS[step.__name__] if isinstance(step, ModuleStep) else ""
        if callable(getattr(net, hook, None)):
            ModuleStep(hook)(net, None, context)
        logged = context.logged.items()
        return {name: metrics.measured_number(name, value) for name, value in logged if name != "loss"}

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which forward passes and losses run."""
        if self.half is None:
            return contextlib.nullcontext()
        return torch.autocast(torch.device(self.device).type, self.half)

    @property
    def half(self) -> torch.dtype | None:
        """The lower precision of autocast, or ``None``."""
        return HALF.get(self.training_spec.precision)

    @contextlib.contextmanager
    def annotate_errors(self, x: Any, y: Any = None, *, own_target: bool = False) -> Iterator[None]:
        """Add notes on a batch and the network to an exception that leaves the block."""
        try:
            yield
        except Exception as error:
            parts = [part for part in leaves(x) if hasattr(part, "dtype")]
            dtypes = sorted({_name(each) for each in self.training_spec.net.parameters()})
            convert = " If this is the problem, convert x, or batches by build(transform=)."
            described = [f"x with {_described(x)}", *([f"y with {_described(y)}"] if _described(y) else [])]
            error.add_note(
                f"While a batch of {' and '.join(described)} went through a network with {', '.join(dtypes)} "
                f"parameters.{'' if {_name(part) for part in parts} <= {*dtypes} else convert}"
            )
            if isinstance(x, tuple | list | dict) and "forward" in str(error):
                given = "keyword arguments " + ", ".join(x) if isinstance(x, dict) else f"{len(x)} arguments"
                error.add_note(f"x is a {type(x).__name__}, so the network is called with {given}.")
            if own_target:
                error.add_note("There is no y, so x is its own target.")
            known = isinstance(y, torch.Tensor) and y.numel() and not y.is_floating_point()
            if str(error).startswith("Target ") and known:
                bounds = f"from {int(y.min())} to {int(y.max())}"
                error.add_note(
                    f"The targets of the batch go {bounds}: classes are numbered from 0, and the network needs an "
                    "output for each."
                )
            shape: tuple[int, ...] = parts[0].shape if len(parts) == 1 and "channels" in str(error) else ()
            if len(shape) == 3 and "input[1, " in str(error):  # torch takes the samples for channels
                error.add_note(
                    "x has no dimension of channels: give x[:, None], or build(transform=lambda x: x.unsqueeze(1))."
                )
            if len(shape) == 4 and (last := shape[-1]) in (1, 3, 4):
                error.add_note(
                    f"x seems to have its {last} channels last, but torch expects them after the samples: give "
                    "x.transpose(0, 3, 1, 2), or build(transform=lambda x: x.permute(0, 3, 1, 2))."
                )
            if "between 0 and 1" in str(error):
                error.add_note(
                    "The loss takes probabilities: end the network with nn.Sigmoid(), or build with "
                    "torch.nn.BCEWithLogitsLoss(), which takes logits."
                )
            if str(error).startswith("Expected more than 1 value per channel"):
                error.add_note(
                    "BatchNorm needs two samples in each batch: choose a batch_size that leaves no batch of one, "
                    "or GroupNorm or LayerNorm."
                )
            raise


def outputs(net: nn.Module, x: Any) -> Any:
    """Return the network's outputs for x; a tuple or list is passed as arguments, a dict as keyword arguments."""
    if isinstance(x, dict):
        return net(**x)
    return net(*x) if isinstance(x, tuple | list) else net(x)


def _part_of(output: Any, name: str) -> Any:
    """Return a part of outputs that have names, as those of Hugging Face's models, or ``None``."""
    part = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return part if isinstance(part, torch.Tensor) else None


def _described(batch: Any) -> str:
    parts = [part for part in leaves(batch) if hasattr(part, "dtype")]
    return " and ".join(f"shape {tuple(part.shape)} and dtype {_name(part)}" for part in parts)


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")
