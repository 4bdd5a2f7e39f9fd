"""The tasks without gradients: ``evaluate`` and ``predict``."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, map_leaves
from compss_train.data.collating import PredictionCollate
from compss_train.data.generators import seed_all
from compss_train.engines import liveness
from compss_train.model.devices import RandomState, random_state
from compss_train.model.measurements import Measured, MetricAccumulator
from compss_train.model.parameters import Parameters
from compss_train.model.parts import Part, joined
from compss_train.model.replica import ModelReplica
from compss_train.model.training_step import StepContext, StepResult
from compss_train.model.whole import Gatherer
from compss_train.worker.batches import Batch, cut_batches
from compss_train.worker.preparing import collated, with_targets
from compss_train.worker.source import Source, retry_without_gpu_rows, source_of
from compss_train.worker.work import Job, Work


@retry_without_gpu_rows
def evaluate(
    job: Job,
    parts: Sequence[Parameters | Part],
    values: Sequence[Any],
    works: Sequence[Work],
    reports: Sequence[Measured] = (),
) -> list[Measured]:
    """Return the measurements on the blocks or files of each ``Work``, in evaluation mode.

    ``parts`` are those of the parameters, ``values`` the blocks of all works. ``reports`` begin
    with that of worker 0, whose model's state is seen. Measurements have the same bits whatever
    else the task evaluates.
    """
    parameters = joined(parts)
    try:
        return [_evaluate(job, parameters, values, work, reports) for work in works]
    except Exception as error:
        if works[0].name:
            error.add_note(f"This was an evaluation of {works[0].name}.")
        raise


def _evaluate(
    job: Job,
    parameters: Parameters,
    values: Sequence[Any],
    work: Work,
    reports: Sequence[Measured],
) -> Measured:
    source = source_of(job, work, values)
    with random_state(0, work.device), torch.no_grad():
        replica = ModelReplica(job.spec, parameters, work.device, training=False)
        if reports and reports[0].model_state is not None:
            replica.restore(reports[0].model_state)
        replica.compares_step = True
        transform = _Transform(replica)
        accumulator = MetricAccumulator(replica.measures)
        whole = replica.measures.whole
        gatherer = Gatherer(whole) if whole else None
        for batch in _collated_batches(replica, source):
            if batch.as_made and replica.validation_step is None:
                batch = with_targets(batch)
            with replica.annotate_errors(batch.x, batch.y, own_target=batch.y is None):
                with replica.autocast():
                    result = _result(replica, batch._replace(x=transform(batch.x)))
                accumulator.add(batch.samples, result)
                if gatherer is not None:
                    gatherer.add(result.output, result.target)
            liveness.beat()
        ended = replica.end_epoch(replica.validation_step, training=False)
        accumulator.measure(ended, accumulator.samples)
        return replace(
            accumulator.measured(),
            gathered=[] if gatherer is None else gatherer.batches,
            **source.measured(),
            warnings=transform.warnings,
            conversions=sorted(replica.conversions),
        )


_RANDOM_TRANSFORM = (
    "transform= draws random numbers, also in evaluation and prediction, whose results depend on "
    "them; give augmentation as train_transform=, which applies to training batches only"
)


class _Transform:
    """The transform; its first batch shows whether it draws random numbers."""

    def __init__(self, replica: ModelReplica) -> None:
        self._replica = replica
        self._is_checked = replica.transform is None
        self.warnings: Sequence[str] = ()
        """What users should know of it."""

    def __call__(self, x: Any) -> Any:
        if self._is_checked:
            return self._replica.transformed(x)
        self._is_checked = True
        before = RandomState.capture(self._replica.device)
        transformed = self._replica.transformed(x)
        if not RandomState.capture(self._replica.device).is_same(before):
            self.warnings = [_RANDOM_TRANSFORM]
        return transformed


def _collated_batches(replica: ModelReplica, source: Source) -> Iterator[Batch]:
    """Iterate over the batches before the transform."""
    if source.job.reader is not None:
        seed_all(source.job.reader.generators, 0)
    for cut in cut_batches(source, replica.device):
        batch = collated(cut, replica, source.job.reader, lambda _: 0)
        if batch.samples:
            yield batch


def _result(replica: ModelReplica, batch: Batch) -> StepResult:
    step = replica.validation_step
    context = StepContext(loss=replica.loss, training=False)
    if step is not None:
        return replica.run_step(step, batch.x, batch.y, context=context, as_made=batch.as_made)
    return replica.measure_loss(batch.x, batch.y)


def _without_targets(replica: ModelReplica, source: Source) -> Iterator[Batch]:
    """Iterate over the batches of a prediction before the transform."""
    if replica.collate is not None:
        replica.collate = PredictionCollate(replica.collate)
    return _collated_batches(replica, source)


def try_collate(job: Job, parameters: Parameters, values: Sequence[Any], work: Work) -> None:
    """Make the first batch of a prediction; raise its error."""
    with random_state(0, work.device):
        replica = ModelReplica(job.spec, parameters, work.device, training=False)
        next(_without_targets(replica, source_of(job, work, values)), None)


def first_inputs(
    job: Job,
    parameters: Parameters,
    values: Sequence[Any],
    work: Work,
) -> tuple[Any, Any]:
    """Return what the network gets of the first batch of a prediction, and its outputs."""
    with random_state(0, work.device), torch.no_grad():
        replica = ModelReplica(job.spec, parameters, work.device, training=False)
        transform = _Transform(replica)
        batch = next(_without_targets(replica, source_of(job, work, values)))
        x = transform(batch.x)
        outputs = _output(replica, batch._replace(x=x), lambda transformed: transformed)
        return replica.as_taken(x), outputs


@retry_without_gpu_rows
def predict(
    job: Job,
    parameters: Parameters,
    values: Sequence[Any],
    work: Work,
    reports: Sequence[Measured] = (),
) -> tuple[list[Any], Measured]:
    """Return the outputs of each batch in evaluation mode, and what users should know of them.

    ``reports`` are as in ``evaluate``. bfloat16 is converted to float32, and so is the float16 of
    autocast.
    """
    with random_state(0, work.device), torch.no_grad():
        replica = ModelReplica(job.spec, parameters, work.device, training=False)
        if reports and reports[0].model_state is not None:
            replica.restore(reports[0].model_state)
        transform = _Transform(replica)
        batches = _without_targets(replica, source_of(job, work, values))
        outputs = [_with_rows(_output(replica, batch, transform), batch) for batch in batches]
        conversions = sorted(replica.conversions)
        return outputs, Measured(warnings=transform.warnings, conversions=conversions)


def _output(replica: ModelReplica, batch: Batch, transform: Callable[[Any], Any]) -> Any:
    """Return the outputs of a batch: an array, or the network's tuples, lists and dicts of them."""
    with replica.annotate_errors(batch.x), replica.autocast():
        output = replica.predict(transform(batch.x))
    return map_leaves(lambda part: _as_array(part, replica.half), output)


def _with_rows(output: Any, batch: Batch) -> Any:
    """Return the outputs of a batch; raise ``ValueError`` unless they have a row for each sample.

    Those of several batches are joined by rows.
    """
    for array in leaves(output):
        if len(array) != batch.samples:
            raise ValueError(
                f"the network returns an output of shape {array.shape} for a batch of "
                f"{batch.samples} samples, and predict joins batches by rows, one for each sample: "
                "return samples on the first axis, as output.transpose(0, 1) of a recurrent "
                "network or transformer without batch_first=True, and no states of layers; or use "
                "model()"
            )
    return output


def _as_array(output: Any, half: torch.dtype | None) -> NDArray[np.generic]:
    if not isinstance(output, torch.Tensor) or not output.dim():
        is_number = isinstance(output, torch.Tensor)
        kind = "a single number" if is_number else f"a {type(output).__name__}"
        raise TypeError(
            "predict needs a network that returns a tensor with a row for each sample, or "
            f"tuples, lists and dicts of such tensors, this one returns {kind}; wrap it in a "
            "module that returns what you need, or use model()"
        )
    if output.dtype in (torch.bfloat16, half):
        output = output.float()
    array: NDArray[np.generic] = output.cpu().numpy()
    return array
