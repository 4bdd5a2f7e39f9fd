"""``ModelReplica``: the copy of a network that a worker trains or evaluates: what happens to a batch in it."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from compss_train._utils.nested import leaves, map_leaves
from compss_train.model import losses, metrics
from compss_train.model.losses import TrainingLoss
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import Precision, TrainingSpec
from compss_train.model.training_step import EPOCH_ENDS, ModuleStep, Step, StepContext, StepResult, no_loss

HALF: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions of autocast."""

_STAGES: tuple[tuple[str, ...], ...] = ((), ("floats",), ("floats", "integers"))
_CLASSES = (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64)
"""Dtypes of class indices that torch's losses do not take."""


class ModelReplica:
    """A copy of the model, with given parameters, on its device.

    Batches that its network does not take are converted to the dtype of its parameters, if they have a single one.
    """

    def __init__(self, training_spec: TrainingSpec, parameters: Parameters, device: str, *, training: bool) -> None:
        self.training_spec = own = training_spec.copied(parameters, device, training)
        self.device = device
        self.loss: Callable[..., torch.Tensor] = own.loss
        """The loss of outputs and targets; in training with class weights, and also of the weights of samples."""
        if training:
            self.loss = TrainingLoss(own.loss, own.class_weight, device)
        dtypes = {parameter.dtype for parameter in own.net.parameters() if parameter.is_floating_point()}
        self._dtype = dtypes.pop() if len(dtypes) == 1 else None
        self._stage = 0
        self.conversions: set[tuple[str, str]] = set()
        """The dtypes that were converted, each with the new one."""

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
        """Return the outputs of a transformed batch.

        A batch that the network does not take is converted to the dtype of its parameters: floats first, and then
        integers, too. Networks that take integers, as embeddings do, therefore get integers.
        """
        failures: dict[int, RuntimeError] = {}
        tried: list[list[str]] = []
        for stage in range(self._stage, len(_STAGES)):
            converted = self._converted(x, _STAGES[stage])
            if (dtypes := _dtypes(converted)) in tried:
                continue
            try:
                result = outputs(self.training_spec.net, self.formatted(converted))
            except RuntimeError as error:
                tried.append(dtypes)
                failures[stage] = error
            else:
                self._stage = stage
                self._note(x, converted)
                return result
        try:
            raise failures.get(1, failures[self._stage])  # embeddings do not take integers as floats
        finally:
            failures.clear()  # an error that its own frame holds would keep the batches' readers alive

    def measure_loss(self, x: Any, y: Any, *weight: Any) -> StepResult:
        """Return the loss of the network's outputs for a transformed batch.

        Losses of torch and of this package get the ``logits`` of outputs that have them; without y, the outputs'
        own ``loss`` is taken. Raises ``TypeError`` for outputs and ``ValueError`` for shapes that the loss does not
        take.
        """
        output, target = self.predict(x), self._targets(x if y is None else y)
        own = _part_of(output, "loss") if y is None else None
        takes_tensor = losses.is_known(self.training_spec.loss)
        logits = _part_of(output, "logits")
        output = logits if takes_tensor and logits is not None else output
        if own is not None:
            return StepResult(own, output, target)
        if takes_tensor and not isinstance(output, torch.Tensor):
            raise TypeError(
                f"the network returns {losses.kind_of(output)}, and the loss takes a tensor: build with loss=, a "
                "function of (output, target) that takes all of it, or with training_step="
            )
        compared = losses.elementwise_target(self.training_spec.loss, output, target)
        try:
            loss = self.loss(output, compared, *weight)
        except RuntimeError as error:
            if hint := losses.label_hint(self.training_spec.loss, output, target):
                error.add_note(hint)
            raise
        return StepResult(loss, output, target)

    def run_step(self, step: Step, x: Any, y: Any, context: StepContext) -> StepResult:
        """Run a training or validation step on a transformed batch, and check what it returns."""
        x, y = self.formatted(self._inputs(x)), self._targets(y)
        with self.autocast():
            returned = step(self.training_spec.net, x if y is None else (x, y), context)
        values = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
        if values.get("loss") is None:  # what it logged counts
            values.pop("loss", None)
        values = context.logged | values
        name = getattr(step, "__name__", type(step).__name__)
        if not isinstance(loss := values.pop("loss", None), torch.Tensor):
            raise TypeError(
                f"{name} returned {losses.kind_of(returned)} without a loss; return the loss, a tensor, or a dict "
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

    def _targets(self, y: Any) -> Any:
        """Return y with floating-point numbers in the network's dtype, and class indices that losses take."""
        return self._converted(y, ("floats", "classes"))

    def _inputs(self, x: Any) -> Any:
        """Return x as ``_targets`` does, and note the dtypes that were converted."""
        converted = self._targets(x)
        self._note(x, converted)
        return converted

    def _converted(self, values: Any, kinds: tuple[str, ...]) -> Any:
        return map_leaves(lambda part: self._part(part, kinds), values) if kinds else values

    def _part(self, part: Any, kinds: tuple[str, ...]) -> Any:
        if not isinstance(part, torch.Tensor) or part.is_complex():
            return part
        if "classes" in kinds and part.dtype in _CLASSES:
            return part.long()
        wanted = "floats" if part.is_floating_point() else "integers"
        return part if self._dtype is None or wanted not in kinds else part.to(self._dtype)

    def _note(self, before: Any, after: Any) -> None:
        if after is before:
            return
        for one, other in zip(_dtypes(before), _dtypes(after), strict=True):
            if one != other and other == str(self._dtype).removeprefix("torch."):
                self.conversions.add((one, other))


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


def _dtypes(values: Any) -> list[str]:
    parts = [part for part in leaves(values) if isinstance(part, torch.Tensor)]
    return [_name(part) for part in parts]
