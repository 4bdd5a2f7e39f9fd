"""The tasks without gradients: ``evaluate`` and ``predict``."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import map_leaves
from compss_train.data.block import Block
from compss_train.data.columns import SINGLE, ColumnStructure
from compss_train.data.reading import FilePart
from compss_train.engines import liveness
from compss_train.model.measured import Measured
from compss_train.model.metrics import MetricAccumulator
from compss_train.model.parameters import Parameters
from compss_train.model.random_state import RandomState, random_state
from compss_train.model.training_spec import ModelReplica, TrainingSpec
from compss_train.model.training_step import StepContext, StepResult
from compss_train.worker.batches import Batch, placed_batches
from compss_train.worker.preparing import collated
from compss_train.worker.source import Source, source_of, taking, unshuffled
from compss_train.worker.work import Work

INFERENCE_FILES = 2
"""The most files in memory at a time during evaluation and prediction: one is read while the other is used."""


def evaluate(
    training_spec: TrainingSpec,
    parameters: Parameters,
    xs: Sequence[Block] | Sequence[FilePart],
    ys: Sequence[Block],
    parts: Sequence[int],
    batch_size: int,
    device: str,
    structure: ColumnStructure = SINGLE,
) -> list[Measured]:
    """Return what is measured of each part of blocks, or of files, in evaluation mode.

    ``xs`` are the blocks of the first column, ``ys`` those of the others, part by part and column by column.
    ``parts`` are the numbers of blocks; of files, each item of ``xs`` is a part. What is measured of a part has the
    same bits whichever other parts the task has.
    """
    evaluated = partial(_evaluate, training_spec, parameters, batch_size, device, structure)
    if not parts:
        return [evaluated(part, []) for part in xs if isinstance(part, FilePart)]
    bounds, columns = pairwise(accumulate(parts, initial=0)), len(ys) // len(xs)
    return [evaluated(xs[start:stop], ys[columns * start : columns * stop]) for start, stop in bounds]


def _evaluate(
    training_spec: TrainingSpec,
    parameters: Parameters,
    batch_size: int,
    device: str,
    structure: ColumnStructure,
    xs: Any,
    ys: Sequence[Block],
) -> Measured:
    xs = _held(xs)
    work, values = taking(unshuffled(xs, batch_size, structure), xs, ys)
    source = source_of(work, values)
    with random_state(0, device), torch.no_grad():
        replica = training_spec.replica(parameters, device, training=False)
        transform, accumulator = _Transform(replica), MetricAccumulator(replica.training_spec.measures)
        for batch in _batches(replica, work, source):
            _measure(replica, batch, transform, accumulator)
            liveness.beat()
        return replace(accumulator.measured(), **source.measured(), random_transform=transform.is_random)


def _held(xs: Any) -> Any:
    """Return files with a limit of few in memory at a time: a reading thread holds one each. Others as they are."""
    if not isinstance(xs, FilePart):
        return xs
    return replace(xs, file_buffer=max(INFERENCE_FILES, xs.threads + 1))


class _Transform:
    """The transform, of which the first batch shows whether it draws random numbers."""

    def __init__(self, replica: ModelReplica) -> None:
        self._replica = replica
        self._checked = replica.training_spec.transform is None
        self.is_random = False
        """Whether it draws random numbers."""

    def __call__(self, x: Any) -> Any:
        if self._checked:
            return self._replica.transformed(x)
        self._checked = True
        before = RandomState.capture(self._replica.device)
        transformed = self._replica.transformed(x)
        if not RandomState.capture(self._replica.device).is_same(before):
            self.is_random = True
        return transformed


def _batches(replica: ModelReplica, work: Work, source: Source) -> Iterator[Batch]:
    """Iterate over the batches as the transform gets them."""
    for place, columns in placed_batches(
        work, source, replica.columns_device, samples=replica.training_spec.samples
    ):
        batch = collated(replica, place, columns, lambda _: 0)
        if batch.samples:
            yield batch


def _measure(replica: ModelReplica, batch: Batch, transform: _Transform, accumulator: MetricAccumulator) -> None:
    with replica.annotate_errors(batch.x, batch.y, own_target=batch.y is None):
        with replica.autocast():
            x = transform(batch.x)
            result = _result(replica, x, batch.y)
        accumulator.add(batch.samples, *result)


def _result(replica: ModelReplica, x: Any, y: Any) -> StepResult:
    spec = replica.training_spec
    if spec.validation_step is not None:
        return replica.run_step(spec.validation_step, x, y, StepContext(loss=spec.loss, training=False))
    output, target = replica.predict(x), x if y is None else y
    return StepResult(spec.loss(output, target), output, target)


def predict(
    training_spec: TrainingSpec,
    parameters: Parameters,
    xs: Sequence[Block] | FilePart,
    others: Sequence[Block],
    batch_size: int,
    device: str,
    structure: ColumnStructure = SINGLE,
) -> tuple[list[Any], bool]:
    """Return the outputs of each batch of blocks or files, and whether the transform draws random numbers.

    The network is in evaluation mode.

    bfloat16 is converted to float32, and so is the float16 of autocast. A file that cannot be read is always an
    error: every sample needs an output.
    """
    xs = replace(_held(xs), skip=False) if isinstance(xs, FilePart) else xs
    work, values = taking(unshuffled(xs, batch_size, structure), xs, others)
    with random_state(0, device), torch.no_grad():
        replica = training_spec.replica(parameters, device, training=False)
        transform = _Transform(replica)
        every = _batches(replica, work, source_of(work, values))
        return [_output(replica, batch, transform) for batch in every], transform.is_random


def _output(replica: ModelReplica, batch: Batch, transform: _Transform) -> Any:
    """Return the outputs of a batch: an array, or tuples, lists and dicts of arrays as the network returns them."""
    with replica.annotate_errors(batch.x), replica.autocast():
        output = replica.predict(transform(batch.x))
    return map_leaves(partial(_as_array, replica.half), output)


def _as_array(half: torch.dtype | None, output: Any) -> NDArray[np.generic]:
    if not isinstance(output, torch.Tensor) or not output.dim():
        kind = "a single number" if isinstance(output, torch.Tensor) else f"a {type(output).__name__}"
        raise TypeError(
            "predict needs a network that returns a tensor with a row for each sample, or tuples, lists and dicts "
            f"of such tensors, this one returns {kind}; wrap it in a module that returns what you need, or use "
            "model()"
        )
    narrow = output.dtype in (torch.bfloat16, half)
    array: NDArray[np.generic] = (output.float() if narrow else output).cpu().numpy()
    return array
