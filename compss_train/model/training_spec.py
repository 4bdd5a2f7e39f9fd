"""``TrainingSpec``: a network and how it is trained; ``ModelReplica``: a copy, and through which
batches go.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from compss_train._utils.nested import is_sequence, leaves, map_leaves
from compss_train.model import broadcasting, compilation, copies, losses, metrics, optimizers
from compss_train.model import parameters as params
from compss_train.model.devices import is_gpu
from compss_train.model.losses import TrainingLoss
from compss_train.model.parameters import Parameters
from compss_train.model.torch_metric import TorchMetric
from compss_train.model.train_transform import TrainTransform
from compss_train.model.training_step import (
    EPOCH_ENDS,
    ModuleStep,
    Step,
    StepContext,
    StepResult,
    no_loss,
)
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


HALF: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions of autocast."""

_STAGES: tuple[tuple[str, ...], ...] = ((), ("floats",), ("floats", "integers"))
_CLASSES = (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64)
"""Dtypes of class indices that torch's losses do not take."""


_TARGETS = ("floats", "classes")
"""What is converted in targets."""


class ModelReplica:
    """A copy of the model, with given parameters, on its device: what batches go through, shared
    with nothing.

    Evaluation uses it as it is, and workers train it (``Learner``). Batches that its network does
    not take are converted to the dtype of its parameters, if they have a single one.
    """

    def __init__(
        self, spec: TrainingSpec, parameters: Parameters, device: str, *, training: bool
    ) -> None:
        self.spec = spec
        self.device = device
        self.half = HALF.get(spec.precision)
        """What was built, which nothing changes; the device; the lower precision of autocast, or
        ``None``.
        """
        own = spec.copied(parameters, device, training)
        self.net = own.net
        self.measures = own.measures
        self.optimizer_factory = own.optimizer
        self.loss = TrainingLoss(own.loss, spec.class_weight if training else None, device)
        self.collate = own.collate
        self.transform = own.transform
        self.train_transform = own.train_transform
        self.training_step = own.training_step
        self.validation_step = own.validation_step
        self._stage = 0
        self.compares_step = False
        """Whether the next step is watched for outputs and targets that it broadcasts."""
        self.conversions: set[tuple[str, str]] = set()
        """The dtypes that were converted, each with the new one."""

    @cached_property
    def _dtype(self) -> torch.dtype | None:
        """The dtype of the network's floating-point parameters, if they have a single one."""
        dtypes = {
            parameter.dtype for parameter in self.net.parameters() if parameter.is_floating_point()
        }
        return dtypes.pop() if len(dtypes) == 1 else None

    def transformed(self, x: Any) -> Any:
        """Return a batch transformed for the network."""
        return x if self.transform is None else self.transform(x)

    def predict(self, x: Any) -> Any:
        """Return the outputs of a transformed batch.

        A batch that the network does not take is converted to the dtype of its parameters: floats
        first, and then integers, too. Networks that take integers, as embeddings do, therefore get
        integers.
        """
        failures: dict[int, Exception] = {}
        tried: list[list[str]] = []
        for stage in range(self._stage, len(_STAGES)):
            converted = self._converted(x, _STAGES[stage])
            if tried and _dtypes(converted) in tried:
                continue
            try:
                result = outputs(self.net, self._formatted(converted))
            except (RuntimeError, ValueError) as error:  # the latter by recurrent layers
                tried.append(_dtypes(converted))
                failures[stage] = error
            else:
                self._stage = stage
                if converted is not x:
                    self._note(x, converted)
                return result
        try:
            # Not for their dtype.
            shaped = (error for error in failures.values() if "channels" in str(error))
            # Embeddings do not take integers as floats.
            raise next(shaped, failures.get(1, failures[self._stage]))
        finally:
            # An error that its own frame holds would keep the batches' readers alive.
            failures.clear()

    def measure_loss(self, x: Any, y: Any, weight: torch.Tensor | None = None) -> StepResult:
        """Return the loss of the network's outputs for a transformed batch.

        Losses of torch and of this package get the ``logits`` of outputs that have them; without y,
        the outputs' own ``loss`` is taken. Raises ``TypeError`` for outputs and ``ValueError`` for
        shapes that the loss does not take.
        """
        output = self.predict(x)
        target = self._converted(x if y is None else y, _TARGETS)
        if not isinstance(output, torch.Tensor):
            own = _part_of(output, "loss") if y is None else None
            takes_tensor = losses.is_known(self.spec.loss)
            logits = _part_of(output, "logits")
            output = logits if takes_tensor and logits is not None else output
            if own is not None:
                return StepResult(own, output, target)
            if takes_tensor and logits is None:
                raise TypeError(
                    f"the network returns {losses.kind_of(output)}, and the loss takes a tensor: "
                    "build with loss=, a function of (output, target) that takes all of it, or "
                    "with training_step="
                )
        compared = losses.suitable_target(self.spec.loss, output, target)
        try:
            loss = self.loss(output, compared, weight)
        except RuntimeError as error:
            if hint := losses.label_hint(self.spec.loss, output, target):
                error.add_note(hint)
            raise
        return StepResult(loss, output, target)

    def run_step(
        self, step: Step, x: Any, y: Any, context: StepContext, *, as_made: bool
    ) -> StepResult:
        """Run a training or validation step on a transformed batch, and check what it returns.

        The step gets (x, y) or (x,), or with ``as_made`` x itself.
        """
        converted = self._converted(x, _TARGETS)
        y = self._converted(y, _TARGETS)
        self._note(x, converted)
        x = self._formatted(converted)
        watched = (
            broadcasting.ComparingStep(y)
            if self.compares_step and self.spec.compile is None
            else contextlib.nullcontext()
        )
        self.compares_step = False
        with self.autocast(), watched:
            returned = step(self.net, x if as_made else (x,) if y is None else (x, y), context)
        values = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
        if values.get("loss") is None:  # what it logged counts
            values.pop("loss", None)
        values = context.logged | values
        name = getattr(step, "__name__", type(step).__name__)
        if not isinstance(loss := values.pop("loss", None), torch.Tensor):
            raise TypeError(
                f"{name} returned {losses.kind_of(returned)} without a loss; return the loss, a "
                "tensor, or a dict with it as 'loss'"
            )
        output = values.pop("output", None)
        target = values.pop("target", x if y is None else y)
        by_sample = values.pop("losses", None)
        if self.measures.metrics and output is None:
            raise ValueError(
                f"metric= is measured on outputs, which {name} does not return; return {{'loss': "
                "loss, 'output': output}, or build without metric= and return the numbers "
                "themselves"
            )
        measured = {name: metrics.measured_number(name, value) for name, value in values.items()}
        return StepResult(loss, output, target, measured, by_sample)

    @torch.no_grad()
    def losses_by_sample(self, result: StepResult, samples: int) -> torch.Tensor:
        """Return the loss of each sample, shape (n,): what a step returned, or the loss of its
        outputs once more.

        Raises ``ValueError`` if there is neither, or if there are not as many as samples.
        """
        values = result.losses
        if values is None and result.output is not None and self.spec.loss is not no_loss:
            compared = losses.suitable_target(self.spec.loss, result.output, result.target)
            with self.autocast():
                values = self.loss.by_sample(result.output, compared)
        if not isinstance(values, torch.Tensor) or values.shape != (samples,):
            raise ValueError(
                f"a sampler of inputs needs the loss of each of {samples} samples, and got "
                f"{losses.kind_of(values)}: a training step returns {{'loss': ..., 'losses': "
                f"...}}, the second of shape ({samples},), or 'output' if build has loss=; "
                "transforms and collate= keep every sample"
            )
        return values.detach()

    def end_epoch(self, step: Step | None) -> dict[str, Any]:
        """Call the hook for the end of an epoch of this step of a Lightning-style module; return
        what it logs.
        """
        if not isinstance(step, ModuleStep):
            return {}
        context = StepContext(loss=no_loss)
        hook = EPOCH_ENDS[step.__name__]
        if callable(getattr(self.net, hook, None)):
            ModuleStep(hook)(self.net, None, context)
        logged = context.logged.items()
        return {
            name: metrics.measured_number(name, value) for name, value in logged if name != "loss"
        }

    def autocast(self) -> contextlib.AbstractContextManager[object]:
        """Return the context in which forward passes and losses run."""
        if self.half is None:
            return contextlib.nullcontext()
        return torch.autocast(torch.device(self.device).type, self.half)

    @contextlib.contextmanager
    def annotate_errors(self, x: Any, y: Any = None, *, own_target: bool = False) -> Iterator[None]:
        """Add notes on a batch and the network to an exception that leaves the block."""
        try:
            yield
        except Exception as error:
            parts = _tensors(x)
            dtypes = sorted({_name(each) for each in self.net.parameters()})
            convert = " If this is the problem, convert x, or batches by build(transform=)."
            described = [
                f"x with {_described(x)}",
                *([f"y with {_described(y)}"] if _described(y) else []),
            ]
            error.add_note(
                f"While a batch of {' and '.join(described)} went through a network with "
                f"{', '.join(dtypes)} "
                f"parameters.{'' if {_name(part) for part in parts} <= {*dtypes} else convert}"
            )
            if isinstance(x, torch.Tensor) and x.ndim == 1:
                error.add_note(
                    "Each x is a number, of shape (); a network of features needs shape (1,)."
                )
            if (isinstance(x, dict) or is_sequence(x)) and "forward" in str(error):
                given = (
                    "keyword arguments " + ", ".join(x)
                    if isinstance(x, dict)
                    else (f"{len(x)} arguments")
                )
                error.add_note(f"x is a {type(x).__name__}, so the network is called with {given}.")
            if own_target and isinstance(x, dict) and "unexpected keyword" in str(error):
                error.add_note(
                    "Name the inputs and targets of samples: Samples(dataset, x=..., y=...)."
                )
            if own_target:
                error.add_note("There is no y, so x is its own target.")
            known = isinstance(y, torch.Tensor) and y.numel() and not y.is_floating_point()
            if str(error).startswith("Target ") and known:
                bounds = f"from {int(y.min())} to {int(y.max())}"
                error.add_note(
                    f"The targets of the batch go {bounds}: classes are numbered from 0, and the "
                    "network needs an output for each."
                )
            shape: tuple[int, ...] = (
                parts[0].shape if len(parts) == 1 and "channels" in str(error) else ()
            )
            # Torch takes the samples for channels.
            if len(shape) == 3 and "input[1, " in str(error):
                error.add_note(
                    "x has no dimension of channels: give x[:, None], or build(transform=lambda "
                    "x: x.unsqueeze(1))."
                )
            if len(shape) == 4 and (last := shape[-1]) in (1, 3, 4):
                error.add_note(
                    f"x seems to have its {last} channels last, but torch expects them after the "
                    "samples: give x.transpose(0, 3, 1, 2), or build(transform=lambda x: "
                    "x.permute(0, 3, 1, 2))."
                )
            if "does not require grad" in str(error) and not torch.is_grad_enabled():
                error.add_note(
                    "Evaluation computes no gradients, except within `with torch.enable_grad():`."
                )
            if "backward through the graph a second time" in str(error):
                error.add_note(
                    "The trainer calls backward() itself: leave it out of the training step."
                )
            if "embedding" in str(error) and "indices" in str(error):
                error.add_note(
                    "nn.Embedding takes integers: give codes apart from other numbers, as in "
                    "x={'numbers': ..., 'codes': ...}; of CSV files with "
                    "CsvReader(dtypes={'code': 'int64'})."
                )
            if str(error) == "index out of range in self":
                found = [
                    f"from {int(each.min())} to {int(each.max())}"
                    for each in parts
                    if _is_integer(each)
                ]
                error.add_note(
                    "nn.Embedding(n, ...) takes integers from 0 to n - 1; those in x go "
                    f"{' and '.join(found)}."
                )
            if "cannot be multiplied" in str(error) and [part.dim() for part in parts] == [1]:
                error.add_note(
                    "x has one number for each sample: give x[:, None], or x[None] "
                    "for a single sample."
                )
            if "between 0 and 1" in str(error):
                error.add_note(
                    "The loss takes probabilities: end the network with nn.Sigmoid(), or build "
                    "with torch.nn.BCEWithLogitsLoss(), which takes logits."
                )
            if str(error).startswith("Expected more than 1 value per channel"):
                error.add_note(
                    "BatchNorm needs two samples in each batch: choose a batch_size that leaves "
                    "no batch of one, or GroupNorm or LayerNorm."
                )
            raise

    def _formatted(self, x: Any) -> Any:
        """Return a batch in the memory format of the network."""
        if self.spec.memory_format != "channels_last":
            return x
        last = torch.channels_last

        def formatted(part: Any) -> Any:
            is_image = isinstance(part, torch.Tensor) and part.dim() == 4
            return part.contiguous(memory_format=last) if is_image else part

        return map_leaves(formatted, x)

    def _converted(self, values: Any, kinds: tuple[str, ...]) -> Any:
        """Return a batch with these kinds of numbers in the network's dtype, and class indices that
        losses take.
        """
        return map_leaves(lambda part: self._part(part, kinds), values) if kinds else values

    def _part(self, part: Any, kinds: tuple[str, ...]) -> Any:
        if isinstance(part, PackedSequence):
            return part.to(self._part(part.data, kinds).dtype)
        if not isinstance(part, torch.Tensor) or part.is_complex():
            return part
        if "classes" in kinds and part.dtype in _CLASSES:
            return part.long()
        wanted = "floats" if part.is_floating_point() else "integers"
        return part if wanted not in kinds or self._dtype is None else part.to(self._dtype)

    def _note(self, before: Any, after: Any) -> None:
        """Note which dtypes were converted."""
        for one, other in zip(_dtypes(before), _dtypes(after), strict=True):
            if one != other and other == str(self._dtype).removeprefix("torch."):
                self.conversions.add((one, other))


def outputs(net: nn.Module, x: Any) -> Any:
    """Return the network's outputs for x; a tuple or list is passed as arguments, a dict as keyword
    arguments.
    """
    if isinstance(x, dict):
        return net(**x)
    return net(*x) if is_sequence(x) else net(x)


def _part_of(output: Any, name: str) -> Any:
    """Return a part of outputs that have names, as those of Hugging Face's models, or ``None``."""
    part = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
    return part if isinstance(part, torch.Tensor) else None


def _described(batch: Any) -> str:
    return " and ".join(
        f"shape {tuple(part.shape)} and dtype {_name(part)}" for part in _tensors(batch)
    )


def _tensors(values: Any) -> list[torch.Tensor]:
    """Return the tensors of a batch; of packed sequences, their items."""
    parts = (each.data if isinstance(each, PackedSequence) else each for each in leaves(values))
    return [part for part in parts if isinstance(part, torch.Tensor)]


def _is_integer(tensor: torch.Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)


def _name(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _dtypes(values: Any) -> list[str]:
    return [_name(part) for part in _tensors(values)]
