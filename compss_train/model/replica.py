"""``ModelReplica``: the copy of a network that a worker trains or evaluates: what happens to a batch in it."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
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


_TARGETS = ("floats", "classes")
"""What is converted in targets."""


class ModelReplica:
    """A copy of the model, with given parameters, on its device: what batches go through, shared with nothing.

    Evaluation uses it as it is, and workers train it (``Learner``). Batches that its network does not take are
    converted to the dtype of its parameters, if they have a single one.
    """

    def __init__(self, spec: TrainingSpec, parameters: Parameters, device: str, *, training: bool) -> None:
        self.spec, self.device, self.half = spec, device, HALF.get(spec.precision)
        """What was built, which nothing changes; the device; the lower precision of autocast, or ``None``."""
        own = spec.copied(parameters, device, training)
        self.net, self.measures, self.optimizer_factory = own.net, own.measures, own.optimizer
        self.loss = TrainingLoss(own.loss, spec.class_weight if training else None, device)
        self.collate, self.transform, self.train_transform = own.collate, own.transform, own.train_transform
        self.training_step, self.validation_step = own.training_step, own.validation_step
        self._stage = 0
        self.conversions: set[tuple[str, str]] = set()
        """The dtypes that were converted, each with the new one."""

    @cached_property
    def _dtype(self) -> torch.dtype | None:
        """The dtype of the network's floating-point parameters, if they have a single one."""
        dtypes = {parameter.dtype for parameter in self.net.parameters() if parameter.is_floating_point()}
        return dtypes.pop() if len(dtypes) == 1 else None

    def transformed(self, x: Any) -> Any:
        """Return a batch transformed for the network."""
        return x if self.transform is None else self.transform(x)

    def predict(self, x: Any) -> Any:
        """Return the outputs of a transformed batch.

        A batch that the network does not take is converted to the dtype of its parameters: floats first, and then
        integers, too. Networks that take integers, as embeddings do, therefore get integers.
        """
        failures: dict[int, RuntimeError] = {}
        tried: list[list[str]] = []
        for stage in range(self._stage, len(_STAGES)):
            converted = self._converted(x, _STAGES[stage])
            if tried and _dtypes(converted) in tried:
                continue
            try:
                result = outputs(self.net, self._formatted(converted))
            except RuntimeError as error:
                tried.append(_dtypes(converted))
                failures[stage] = error
            else:
                self._stage = stage
                if converted is not x:
                    self._note(x, converted)
                return result
        try:
            raise failures.get(1, failures[self._stage])  # embeddings do not take integers as floats
        finally:
            failures.clear()  # an error that its own frame holds would keep the batches' readers alive

    def measure_loss(self, x: Any, y: Any, weight: torch.Tensor | None = None) -> StepResult:
        """Return the loss of the network's outputs for a transformed batch.

        Losses of torch and of this package get the ``logits`` of outputs that have them; without y, the outputs'
        own ``loss`` is taken. Raises ``TypeError`` for outputs and ``ValueError`` for shapes that the loss does not
        take.
        """
        output, target = self.predict(x), self._converted(x if y is None else y, _TARGETS)
        if not isinstance(output, torch.Tensor):
            own = _part_of(output, "loss") if y is None else None
            takes_tensor, logits = losses.is_known(self.spec.loss), _part_of(output, "logits")
            output = logits if takes_tensor and logits is not None else output
            if own is not None:
                return StepResult(own, output, target)
            if takes_tensor and logits is None:
                raise TypeError(
                    f"the network returns {losses.kind_of(output)}, and the loss takes a tensor: build with loss=, "
                    "a function of (output, target) that takes all of it, or with training_step="
                )
        compared = losses.elementwise_target(self.spec.loss, output, target)
        try:
            loss = self.loss(output, compared, weight)
        except RuntimeError as error:
            if hint := losses.label_hint(self.spec.loss, output, target):
                error.add_note(hint)
            raise
        return StepResult(loss, output, target)

    def run_step(self, step: Step, x: Any, y: Any, context: StepContext, *, as_made: bool) -> StepResult:
        """Run a training or validation step on a transformed batch, and check what it returns.

        The step gets (x, y) or (x,), or with ``as_made`` x itself.
        """
        converted, y = self._converted(x, _TARGETS), self._converted(y, _TARGETS)
        self._note(x, converted)
        x = self._formatted(converted)
        with self.autocast():
            returned = step(self.net, x if as_made else (x,) if y is None else (x, y), context)
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
        if self.measures.metrics and output is None:
            raise ValueError(
                f"metric= is measured on outputs, which {name} does not return; return "
                "{'loss': loss, 'output': output}, or build without metric= and return the numbers themselves"
            )
        measured = {name: metrics.measured_number(name, value) for name, value in values.items()}
        return StepResult(loss, output, target, measured)

    def end_epoch(self, step: Step | None) -> dict[str, Any]:
        """Call the hook for the end of an epoch of this step of a Lightning-style module; return what it logs."""
        net, context = self.net, StepContext(loss=no_loss)
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

    @contextlib.contextmanager
    def annotate_errors(self, x: Any, y: Any = None, *, own_target: bool = False) -> Iterator[None]:
        """Add notes on a batch and the network to an exception that leaves the block."""
        try:
            yield
        except Exception as error:
            parts = [part for part in leaves(x) if hasattr(part, "dtype")]
            dtypes = sorted({_name(each) for each in self.net.parameters()})
            convert = " If this is the problem, convert x, or batches by build(transform=)."
            described = [f"x with {_described(x)}", *([f"y with {_described(y)}"] if _described(y) else [])]
            error.add_note(
                f"While a batch of {' and '.join(described)} went through a network with {', '.join(dtypes)} "
                f"parameters.{'' if {_name(part) for part in parts} <= {*dtypes} else convert}"
            )
            if isinstance(x, tuple | list | dict) and "forward" in str(error):
                given = "keyword arguments " + ", ".join(x) if isinstance(x, dict) else f"{len(x)} arguments"
                error.add_note(f"x is a {type(x).__name__}, so the network is called with {given}.")
            if own_target and isinstance(x, dict) and "unexpected keyword" in str(error):
                error.add_note("Name the inputs and targets of samples: Samples(dataset, x=..., y=...).")
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

    def _formatted(self, x: Any) -> Any:
        """Return a batch in the memory format of the network."""
        if self.spec.memory_format != "channels_last":
            return x
        last = torch.channels_last
        return map_leaves(lambda part: part.contiguous(memory_format=last) if part.dim() == 4 else part, x)

    def _converted(self, values: Any, kinds: tuple[str, ...]) -> Any:
        """Return a batch with these kinds of numbers in the network's dtype, and class indices that losses take."""
        return map_leaves(lambda part: self._part(part, kinds), values) if kinds else values

    def _part(self, part: Any, kinds: tuple[str, ...]) -> Any:
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
