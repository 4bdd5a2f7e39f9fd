"""``ModelReplica``: a copy of the model, through which batches go."""

import contextlib
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from compss_train._utils.nested import is_sequence, map_leaves
from compss_train.model import (
    broadcasting,
)
from compss_train.model.error_hints import (
    dtypes,
    error_notes,
    kind_of,
    label_hint,
)
from compss_train.model.lightning_style import EPOCH_ENDS, ModuleStep
from compss_train.model.losses import is_from_library, suitable_target
from compss_train.model.measurements import measured_number
from compss_train.model.parameters import Parameters
from compss_train.model.training_loss import TrainingLoss
from compss_train.model.training_spec import Precision, TrainingSpec
from compss_train.model.training_step import Step, StepContext, StepResult, no_loss

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
        kinds = {
            parameter.dtype for parameter in self.net.parameters() if parameter.is_floating_point()
        }
        return kinds.pop() if len(kinds) == 1 else None

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
            if tried and dtypes(converted) in tried:
                continue
            try:
                result = outputs(self.net, self._formatted(converted))
            except (RuntimeError, ValueError) as error:  # the latter by recurrent layers
                tried.append(dtypes(converted))
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
            takes_tensor = is_from_library(self.spec.loss)
            logits = _part_of(output, "logits")
            output = logits if takes_tensor and logits is not None else output
            if own is not None:
                return StepResult(own, output, target)
            if takes_tensor and logits is None:
                raise TypeError(
                    f"the network returns {kind_of(output)}, and the loss takes a tensor: "
                    "build with loss=, a function of (output, target) that takes all of it, or "
                    "with training_step="
                )
        compared = suitable_target(self.spec.loss, output, target)
        try:
            loss = self.loss(output, compared, weight)
        except RuntimeError as error:
            if hint := label_hint(self.spec.loss, output, target):
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
                f"{name} returned {kind_of(returned)} without a loss; return the loss, a "
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
        measured = {name: measured_number(name, value) for name, value in values.items()}
        return StepResult(loss, output, target, measured, by_sample)

    @torch.no_grad()
    def losses_by_sample(self, result: StepResult, samples: int) -> torch.Tensor:
        """Return the loss of each sample, shape (n,): what a step returned, or the loss of its
        outputs once more.

        Raises ``ValueError`` if there is neither, or if there are not as many as samples.
        """
        values = result.losses
        if values is None and result.output is not None and self.spec.loss is not no_loss:
            compared = suitable_target(self.spec.loss, result.output, result.target)
            with self.autocast():
                values = self.loss.by_sample(result.output, compared)
        if not isinstance(values, torch.Tensor) or values.shape != (samples,):
            raise ValueError(
                f"a sampler of inputs needs the loss of each of {samples} samples, and got "
                f"{kind_of(values)}: a training step returns {{'loss': ..., 'losses': "
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
        return {name: measured_number(name, value) for name, value in logged if name != "loss"}

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
            for note in error_notes(error, x, y, self.net, own_target=own_target):
                error.add_note(note)
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
        for one, other in zip(dtypes(before), dtypes(after), strict=True):
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
