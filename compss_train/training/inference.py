"""``Inference``: submits the tasks of evaluation and prediction, and warns of what they found."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt
from compss_train._utils.validation import check_count, warn_once, warn_user
from compss_train.data.block_passes import Batching, BlockPass
from compss_train.data.conversions import conversion_note
from compss_train.data.order import even_parts
from compss_train.data.remote_block import RemoteBlock
from compss_train.data.sample_reading import SampleReader
from compss_train.engines.base import Ref
from compss_train.engines.codec import SerializedValue
from compss_train.engines.nodes import ONE_CPU
from compss_train.engines.packing import ranges_for_costs
from compss_train.model.devices import CPU, IN_PROCESS
from compss_train.model.measurements import Measured
from compss_train.model.parameters import Parameters
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.data_source import (
    DataSource,
    as_data_source,
    check_same_coding,
    holds_targets,
)
from compss_train.training.published_data import PublishedData
from compss_train.training.session import Session
from compss_train.training.trained_model import TrainedModel
from compss_train.worker.inference import evaluate, predict
from compss_train.worker.work import Job, Work

EVALUATION_BATCH = 1024
"""Samples in a batch of an evaluation or prediction."""

VALIDATION = "validation_data"
"""Describes evaluations on the validation data in errors."""

INFERENCE_FILES = 2
"""Maximum number of files in memory during inference: one is read while the other is used."""


class Inference:
    """Submits the evaluation and prediction tasks of one data set.

    ``batch_size`` is by default the data's own, or large. ``on_cpu`` gives each task a CPU,
    whatever devices the session's workers use; ``name`` is what errors call the evaluation.
    """

    def __init__(
        self,
        session: Session,
        source: DataSource,
        batch_size: int | None = None,
        *,
        on_cpu: bool = False,
        name: str = "",
    ) -> None:
        self.engine = session.engine
        self.data = PublishedData(session.engine, source)
        self._resources = session.resources
        devices = [session.device(worker) for worker in range(session.num_workers)]
        if on_cpu:
            self._resources = ONE_CPU
            devices = [CPU]
        self._sizes = source.sizes
        blocks = len(source.sizes)
        bounds = even_parts(blocks, min(len(devices), blocks))
        self._parts = [
            (device, range(start, stop))
            for device, (start, stop) in zip(devices, bounds, strict=False)
        ]
        """The blocks of each worker, with its device."""
        self._seconds = session.sample_seconds * source.number_samples / 3
        """Rough estimate of the time, in seconds, that a core needs to evaluate all samples."""
        job = Job(
            spec=session.model.built.training_spec.weightless(),
            reader=source.reader,
            batching=Batching(size=batch_size or batch_size_for(source)),
            structure=source.structure,
        )
        self._job = session.publish(job)
        self._name = name
        self._tasks: dict[int, list[tuple[list[Ref], list[Work]]]] = {}
        """The values and the work of each evaluation task, by the slots that they suit."""

    def evaluate(
        self, parameters: Sequence[Ref], reports: Ref | Sequence[Measured] = ()
    ) -> list[Ref]:
        """Submit the evaluation of parameters, given in parts.

        ``reports`` begin with that of worker 0, whose model's state is seen. Returns references to
        lists of the workers' measurements.
        """
        slots = 0 if self._resources.gpus else self.engine.slots(self._resources)
        if slots not in self._tasks:
            parts = len(self._parts)
            task_seconds = self.engine.traits.task_seconds
            groups = ranges_for_costs(parts, slots, self._seconds / parts, task_seconds)
            tasks = [self._task_on(self._parts[group.start : group.stop]) for group in groups]
            self._tasks = {slots: tasks}
        return [
            self.engine.submit(
                evaluate,
                self._job,
                [*parameters],
                values,
                works,
                reports,
                resources=self._resources,
            )
            for values, works in self._tasks[slots]
        ]

    def _task_on(
        self, parts: Sequence[tuple[str, range]], **reading: Any
    ) -> tuple[list[Ref], list[Work]]:
        """Return the values of a task on the parts of several workers, and the work on each."""
        blocks = tuple(number for _, numbers in parts for number in numbers)
        files = self.data.source.files_of(blocks)
        if files is not None:  # a reading thread holds one each
            file_buffer = max(INFERENCE_FILES, files.threads + 1)
            files = replace(files, file_buffer=file_buffer, **reading)
        works = [
            Work(
                block_passes=tuple(BlockPass(number, 0, self._sizes[number]) for number in numbers),
                device=device,
                blocks=blocks,
                files=files,
                name=self._name,
            )
            for device, numbers in parts
        ]
        return self.data.values(blocks), works

    def try_first_batch(self, parameters: Parameters) -> None:
        """Wait for a task that evaluates one batch of samples, and raise its errors."""
        source = self.data.source
        device = self._parts[0][0]
        work = first_batch(source, 0, batch_size_for(source), name=self._name, device=device)
        ref = self.engine.submit(
            evaluate,
            self._job,
            [self.engine.publish(parameters)],
            self.data.values([0]),
            [work],
            resources=self._resources,
        )
        self.engine.fetch([ref])

    def predict(self, parameters: Ref, reports: Sequence[Measured] = ()) -> Any:
        """Return the outputs of all samples in order, in the network's tuples, lists and dicts.

        ``reports`` are as in ``evaluate``. A file that cannot be read is always an error: every
        sample needs an output.
        """
        tasks = [self._task_on([part], skip=False) for part in self._parts]
        refs = [
            self.engine.submit(
                predict,
                self._job,
                parameters,
                values,
                work,
                reports,
                resources=self._resources,
            )
            for values, (work,) in tasks
        ]
        results = self.engine.fetch(refs)
        warn_of_problems([measured for _, measured in results], set())
        batches = [output for outputs, _ in results for output in outputs]
        columns = zip(*map(leaves, batches), strict=True)
        return rebuilt(batches[0], [_joined(column) for column in columns])


def batch_size_for(source: DataSource) -> int:
    """Return the samples in a batch of an evaluation or prediction."""
    return source.batch_size or EVALUATION_BATCH


def one_batch(spec: TrainingSpec, source: DataSource) -> Job:
    """Return the job of a task in this process that evaluates its samples as one batch."""
    reader = copied_reader(source)
    return Job(spec=spec, reader=reader, batching=Batching(1), structure=source.structure)


def copied_reader(source: DataSource) -> SampleReader | None:
    """Return a copy of the reader such as workers get.

    Reading may open files that cannot be pickled, or draw random numbers.
    """
    if source.reader is None:
        return None
    try:
        copied: SampleReader = SerializedValue.of(source.reader).load()
    except Exception:  # a data set that stays in this process
        return source.reader
    return copied


def first_batch(
    source: DataSource,
    number: int,
    size: int,
    *,
    name: str = "",
    device: str = CPU,
    check_outputs: bool = False,
) -> Work:
    """Return the work on the first samples of a block or file, ``size`` at most."""
    return Work(
        block_passes=(BlockPass(number, 0, min(size, source.sizes[number])),),
        device=device,
        blocks=(number,),
        files=source.files_of([number]),
        check_outputs=check_outputs,
        name=name,
    )


def is_for_tasks(source: DataSource, built: BuildArguments) -> bool:
    """Return whether only tasks can evaluate on these samples: on GPUs, or where blocks are."""
    blocks = chain.from_iterable(column.blocks() for column in source.columns.values())
    return built.num_gpu > 0 or any(isinstance(block, RemoteBlock) for block in blocks)


@contextmanager
def inference(
    session: Session,
    method: str,
    samples: tuple[Any, Any],
    batch_size: int | None,
    *,
    targets: bool = True,
    averaged: bool = False,
) -> Iterator[tuple[Inference, Ref]]:
    """Provide the inference tasks on samples, x and y, and the current parameters, published.

    With ``averaged`` these are the average that the last fit kept. Without ``targets``, only x is
    read from files. ``method`` is what the user has called.
    """
    model = session.model
    workers = session.num_workers
    floats = model.built.training_spec.float_dtype
    model.require_workers(method)
    if model.as_built and model.fit is None:
        warn_once(
            "evaluate and predict take the parameters that the network was built with, as no "
            "fit, restore or set_parameters has changed them"
        )
    data = as_data_source(
        *samples, workers, targets=targets, floats=floats, engine=session.engine_class.name
    )
    if data.reader is not None:
        model.check_reader(data.reader)
    check_same_coding(model.coding, data, "the data")
    if targets:
        _tell_of_weights(data)
    if batch_size is not None:
        check_count("batch_size", batch_size)
    with session.working():
        tasks = Inference(session, data, batch_size)
        yield tasks, session.engine.publish(model.current(averaged=averaged))
        tasks.data.warn_of_changes()


def _joined(outputs: Sequence[NDArray[Any]]) -> NDArray[Any] | list[NDArray[Any]]:
    """Return the outputs of all batches; a list of samples if their lengths differ."""
    if len({output.shape[1:] for output in outputs}) > 1:
        return [sample for output in outputs for sample in output]
    return np.concatenate(outputs)


def skipped_batches(number: int) -> dict[str, int]:
    """Return the history field with the number of skipped batches; empty if the number is 0."""
    return {"skipped_batches": number} if number else {}


def warn_of_problems(measured: Sequence[Measured], known_problems: set[str]) -> None:
    """Warn of problems that tasks found, except of known ones; new ones are known from now on."""
    conversions = chain.from_iterable(part.conversions for part in measured)
    for dtypes in sorted(set(conversions)):
        warn_once(conversion_note(*dtypes))
    skipped = chain.from_iterable(part.skipped.items() for part in measured)
    problems = [f"skipped {file} {reason}" for file, reason in skipped]
    for part in measured:
        problems += part.warnings
    for problem in problems:
        if problem not in known_problems:
            known_problems.add(problem)
            warn_user(problem)


def validation_source(session: Session, validation_data: Any) -> DataSource:
    """Return the source of ``validation_data``.

    Raises ``TypeError`` unless it is (x, y), files or a data set.
    """
    spec = session.model.built.training_spec
    spec.check_evaluable()
    pair = (validation_data, None) if holds_targets(validation_data) else validation_data
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        parts = f" of {len(pair)} parts" if isinstance(pair, tuple | list) else ""
        raise TypeError(
            f"validation_data={type(validation_data).__name__}{parts}: give a pair (x, y), without "
            "weights, with y=None if x is its own target, a FileDataset, a data set or a DataLoader"
        )
    x, y = pair
    try:
        data = as_data_source(
            x, y, session.num_workers, floats=spec.float_dtype, engine=session.engine_class.name
        )
    except (TypeError, ValueError) as error:
        error.add_note("This is about validation_data=.")
        raise
    if data.reader is not None:
        session.model.check_reader(data.reader)
    _tell_of_weights(data)
    return data


def _tell_of_weights(data: DataSource) -> None:
    """Tell, once, that the weights of files count in training alone."""
    if data.dataset is not None and data.dataset.weight is not None:
        warn_once(
            f"evaluation is not weighted: the weights {data.dataset.weight!r} of the files count "
            "in training alone"
        )


def evaluate_first_batch(data: DataSource, model: TrainedModel) -> None:
    """Evaluate a copy of the model on one batch of the validation data, in this process on the CPU.

    Streams are left out, as some can be read once only. The run of the fit tries what only
    tasks can evaluate.
    """
    if data.is_stream or is_for_tasks(data, model.built):
        return
    work = first_batch(data, 0, batch_size_for(data), name=VALIDATION)
    job = one_batch(model.built.training_spec, data)
    with IN_PROCESS:
        evaluate(job, [model.parameters], data.load(0), [work])
