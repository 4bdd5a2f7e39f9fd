"""``ModelReplica``: a copy of the model, through which batches go."""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from typing import Any

import torch
from torch.nn.utils.rnn import PackedSequence

from compss_train._utils.nested import is_sequence, map_leaves
from compss_train.model.attributes.changes import changed_attributes
from compss_train.model.attributes.reader import AttributeReader
from compss_train.model.broadcasting import ComparingStep
from compss_train.model.error_hints import dtypes, error_notes, kind_of, label_hint
from compss_train.model.lightning_style import EPOCH_ENDS, ModuleStep
from compss_train.model.losses import is_from_library, suitable_target
from compss_train.model.measurements import measured_number
from compss_train.model.model_state import ModelState, restore
from compss_train.model.output_loss import output_loss, part_of
from compss_train.model.parameters import Parameters
from compss_train.model.training_loss import TrainingLoss, checked_count
from compss_train.model.training_spec import Precision, TrainingSpec
from compss_train.model.training_step import Step, StepContext, StepResult, no_loss

HALF: dict[Precision, torch.dtype] = {"bf16": torch.bfloat16, "fp16": torch.float16}
"""The precisions of autocast."""

_STAGES: tuple[tuple[str, ...], ...] = ((), ("floats",), ("floats", "integers"))
"""What is converted in inputs, until the network takes them."""

_TARGETS = ("floats", "classes")
"""What is converted in targets."""

_CLASSES = (torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint32, torch.uint64)
"""Dtypes of class indices that torch's losses do not take."""


class ModelReplica:
    """A copy of the model on a device, which shares nothing: what batches go through.

    Evaluation uses it as it is, and workers train it (``Learner``). Batches that its network does
    not take are converted to the dtype of its parameters, if they have a single one.
    """

    def __init__(
        self, spec: TrainingSpec, parameters: Parameters, device: str, *, training: bool
    ) -> None:
        self.spec = spec
        """What was built, which nothing changes."""
        self.device = device
        self.half = HALF.get(spec.precision)
        """The lower precision of autocast, or ``None``."""
        copied = spec.copied(parameters, device, training=training)
        self._roots = copied.roots()
        self.net = copied.net
        self.measures = copied.measures
        self.optimizer_factory = copied.optimizer
        weights = spec.class_weight if training else None
        if isinstance(weights, dict):
            raise ValueError(
                f"class_weight={weights!r} is by names of classes, which only fit knows, of its y: "
                "give a weight for each class index"
            )
        self.loss = TrainingLoss(copied.loss, weights, device, count=copied.loss_count)
        self.collate = copied.collate
        self.transform = copied.transform
        self.train_transform = copied.train_transform
        self.training_step = copied.training_step
        self.validation_step = copied.validation_step
        self.pairing = copied.pairing
        self._stage = 0
        """The first of ``_STAGES`` that may do for the network."""
        self.compares_step = False
        """Whether the next step is watched for outputs and targets that it broadcasts."""
        self.conversions: set[tuple[str, str]] = set()
        """The dtypes that were converted, each with the new one."""

    def attributes(self) -> AttributeReader:
        """Read the attributes of the copy as they are now."""
        return AttributeReader(self.net, self._roots)

    def restore(self, state: ModelState) -> None:
        """Let the copy be in the state that a worker's was in."""
        restore(state, self.net, self._roots, self.device)

    def changed_attributes(self, worker: int) -> dict[str, Any]:
        """Return the attributes that a new copy has not, after a worker has trained this one."""
        immutable = self.spec.immutable_attributes
        if immutable.hold and immutable.are_in(self._roots):
            return {}
        before = self.spec.attributes
        after = AttributeReader(self.net, self._roots, before)
        return changed_attributes(before, after, worker)

    @cached_property
    def _dtype(self) -> torch.dtype | None:
        """The dtype of the network's floating-point parameters, if they have a single one."""
        floating = {
            parameter.dtype for parameter in self.net.parameters() if parameter.is_floating_point()
        }
        return floating.pop() if len(floating) == 1 else None

    def transformed(self, x: Any) -> Any:
        """Return a batch transformed for the network."""
        return x if self.transform is None else self.transform(x)

    def predict(self, x: Any, labels: Any = None) -> Any:
        """Return the outputs of a transformed batch; a network with its own loss gets ``labels``.

        A batch that the network does not take is converted to the dtype of its parameters: floats
        first, and then integers, too. Networks that take integers, as embeddings do, therefore get
        integers.
        """
        net = self.net if labels is None else partial(self.net, labels=labels)
        failures: dict[int, Exception] = {}
        tried: list[list[str]] = []
        for stage in range(self._stage, len(_STAGES)):
            converted = self._converted(x, _STAGES[stage])
            if tried and dtypes(converted) in tried:
                continue
            try:
                result = outputs(net, self._formatted(converted))
            except (RuntimeError, ValueError) as error:  # the latter by recurrent layers
                tried.append(dtypes(converted))
                failures[stage] = error
            else:
                self._stage = stage
                if converted is not x:
                    self._note_conversion(x, converted)
                return result
        try:
            # Errors about channels are about shapes, and no dtype mends them.
            of_shapes = (error for error in failures.values() if "channels" in str(error))
            # Embeddings do not take integers as floats.
            raise next(of_shapes, failures.get(1, failures[self._stage]))
        finally:
            # An error that its own frame holds would keep the batches' readers alive.
            failures.clear()

    def as_taken(self, x: Any) -> Any:
        """Return a transformed batch with the dtypes and formats that the network took last."""
        return self._formatted(self._converted(x, _STAGES[self._stage]))

    def measure_loss(self, x: Any, y: Any, weight: torch.Tensor | None = None) -> StepResult:
        """Return the loss of the network's outputs for a transformed batch.

        Losses of torch and of this package get the ``logits`` of outputs that have them; without y,
        the outputs' own ``loss`` is taken. Raises ``TypeError`` for outputs and ``ValueError`` for
        shapes that the loss does not take.
        """
        target = self._converted(x if y is None else y, _TARGETS)
        if self.spec.loss is output_loss:
            output = self.predict(x, labels=None if y is None else target)
            loss, counted = self.loss.of_batch(output, target, weight)
            logits = part_of(output, "logits")
            return StepResult(loss, output if logits is None else logits, target, counted=counted)
        output = self.predict(x)
        if not isinstance(output, torch.Tensor):
            takes_tensor = is_from_library(self.spec.loss)
            loss_of_network = part_of(output, "loss") if y is None else None
            logits = part_of(output, "logits")
            if takes_tensor and logits is not None:
                output = logits
            if loss_of_network is not None:
                return StepResult(loss_of_network, output, target)
            if takes_tensor and logits is None:
                raise TypeError(
                    f"the network returns {kind_of(output)}, and the loss takes a tensor: "
                    "build with loss=, a function of (output, target) that takes all of it, or "
                    "with training_step="
                )
        compared = suitable_target(self.spec.loss, output, target)
        try:
            loss, counted = self.loss.of_batch(output, compared, weight)
        except RuntimeError as error:
            hint = label_hint(self.spec.loss, output, target)
            if hint:
                error.add_note(hint)
            raise
        return StepResult(loss, output, target, counted=counted)

    def run_step(
        self, step: Step, x: Any, y: Any, *, context: StepContext, as_made: bool
    ) -> StepResult:
        """Run a training or validation step on a transformed batch, and check what it returns.

        The step gets (x, y) or (x,), or with ``as_made`` x itself.
        """
        converted = self._converted(x, _TARGETS)
        self._note_conversion(x, converted)
        x = self._formatted(converted)
        y = self._converted(y, _TARGETS)
        batch = (x,) if y is None else (x, y)
        if as_made:
            batch = x
        is_watched = self.compares_step and self.spec.compile is None
        self.compares_step = False
        with self.autocast(), ComparingStep(y) if is_watched else contextlib.nullcontext():
            returned = step(self.net, batch, context)
        values = dict(returned) if isinstance(returned, Mapping) else {"loss": returned}
        if values.get("loss") is None:  # what it logged counts
            values.pop("loss", None)
        values = context.logged | values
        step_name = getattr(step, "__name__", type(step).__name__)
        loss = values.pop("loss", None)
        if not isinstance(loss, torch.Tensor):
            raise TypeError(
                f"{step_name} returned {kind_of(returned)} without a loss; return the loss, a "
                "tensor, or a dict with it as 'loss'"
            )
        output = values.pop("output", None)
        target = values.pop("target", x if y is None else y)
        losses = values.pop("losses", None)
        counts = {name: checked_count(count) for name, count in context.counts.items()}
        counted = self.loss.take_count(loss)
        if loss is context.logged.get("loss"):
            counted = counts.get("loss", counted)
        if isinstance(returned, Mapping) and "count" in returned:
            counted = checked_count(values.pop("count"))
        needs_output = self.measures.metrics or (self.measures.whole and not context.training)
        if needs_output and output is None:
            raise ValueError(
                f"metric= is measured on outputs, which {step_name} does not return; return "
                "{'loss': loss, 'output': output}, or build without metric= and return the "
                "numbers themselves"
            )
        measured = {name: measured_number(name, value) for name, value in values.items()}
        return StepResult(
            loss, output, target, measured=measured, losses=losses, counts=counts, counted=counted
        )

    @torch.no_grad()
    def losses_by_sample(self, result: StepResult, samples: int) -> torch.Tensor:
        """Return the loss of each sample, shape (n,).

        A step may have returned them; otherwise they are computed once more, of its outputs. Raises
        ``ValueError`` if there is neither, or if there are not as many as samples.
        """
        losses = result.losses
        if losses is None and result.output is not None and self.spec.loss is not no_loss:
            compared = suitable_target(self.spec.loss, result.output, result.target)
            with self.autocast():
                losses = self.loss.by_sample(result.output, compared)
        if not isinstance(losses, torch.Tensor) or losses.shape != (samples,):
            raise ValueError(
                f"a sampler of inputs needs the loss of each of {samples} samples, and got "
                f"{kind_of(losses)}: a training step returns {{'loss': ..., 'losses': "
                f"...}}, the second of shape ({samples},), or 'output' if build has loss=; "
                "transforms and collate= keep every sample"
            )
        return losses.detach()

    def end_epoch(
        self, step: Step | None, *, training: bool, epoch: int = 0, number: int = 0
    ) -> dict[str, Any]:
        """Call the hook for the end of an epoch, and return what it logs.

        Only modules in Lightning's style have one, for each of their steps.
        """
        if not isinstance(step, ModuleStep):
            return {}
        context = StepContext(loss=no_loss, training=training, epoch=epoch, number=number)
        hook = EPOCH_ENDS[step.__name__]
        if callable(getattr(self.net, hook, None)):
            ModuleStep(hook)(self.net, None, context)
        context.logged.pop("loss", None)
        return {name: measured_number(name, value) for name, value in context.logged.items()}

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
            for note in error_notes(error, x, y, net=self.net, own_target=own_target):
                error.add_note(note)
            raise

    def _formatted(self, x: Any) -> Any:
        """Return a batch in the memory format of the network."""
        if self.spec.memory_format != "channels_last":
            return x
        return map_leaves(_with_channels_last, x)

    def _converted(self, values: Any, kinds: tuple[str, ...]) -> Any:
        """Return a batch with these kinds of numbers in the network's dtype.

        Of the kind ``"classes"``, indices become those that losses take.
        """
        if not kinds:
            return values
        return map_leaves(lambda part: self._converted_part(part, kinds), values)

    def _converted_part(self, part: Any, kinds: tuple[str, ...]) -> Any:
        if isinstance(part, PackedSequence):
            return part.to(self._converted_part(part.data, kinds).dtype)
        if not isinstance(part, torch.Tensor) or part.is_complex():
            return part
        if "classes" in kinds and part.dtype in _CLASSES:
            return part.long()
        kind = "floats" if part.is_floating_point() else "integers"
        return part if kind not in kinds or self._dtype is None else part.to(self._dtype)

    def _note_conversion(self, before: Any, after: Any) -> None:
        """Note which dtypes were converted to that of the network."""
        dtype = str(self._dtype).removeprefix("torch.")
        for old, new in zip(dtypes(before), dtypes(after), strict=True):
            if old != new and new == dtype:
                self.conversions.add((old, new))


def _with_channels_last(part: Any) -> Any:
    """Return images (N, C, H, W) in the memory format of channels last, and all else as it is."""
    if isinstance(part, torch.Tensor) and part.dim() == 4:
        return part.contiguous(memory_format=torch.channels_last)
    return part


def outputs(net: Callable[..., Any], x: Any) -> Any:
    """Return the network's outputs for x.

    A tuple or list is passed as arguments, a dict as keyword arguments.
    """
    if isinstance(x, dict):
        return net(**x)
    return net(*x) if is_sequence(x) else net(x)
