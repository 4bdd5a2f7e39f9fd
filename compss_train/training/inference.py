"""``Inference``: submits the tasks of evaluation and prediction; warnings of what tasks have found."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compss_train._utils.nested import leaves, rebuilt
from compss_train._utils.validation import warn_user
from compss_train.data.order import split_points
from compss_train.data.reading import FilePart
from compss_train.engines import Engine, Ref, Resources
from compss_train.model.measured import Measured
from compss_train.model.weighted_mean import ranges_for_costs
from compss_train.training.published_data import PublishedData
from compss_train.worker import (
    Work,
    evaluate,
    predict,
)

EVALUATION_BATCH = 1024
"""Samples in a batch of an evaluation or prediction."""


@dataclass(kw_only=True)
class Inference:
    """Submits the evaluation and prediction tasks of one data set."""

    engine: Engine
    training_spec: Ref
    data: PublishedData
    batch_size: int
    resources: Resources
    devices: list[str]
    seconds: float
    """Roughly as long as an evaluation of all samples takes a core."""
    _tasks: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict, repr=False)
    """Of an evaluation, the arguments of each task but the parameters; for a number of places."""

    @cached_property
    def _ranges(self) -> list[tuple[str, list[int]]]:
        """The blocks of each worker, with its device."""
        blocks = len(self.data.sizes)
        points = split_points(blocks, min(len(self.devices), blocks))
        pairs = zip(self.devices, pairwise(points), strict=False)
        return [(device, list(range(start, stop))) for device, (start, stop) in pairs]

    def evaluate(self, parameters: Ref) -> list[Ref]:
        """Submit the evaluation of these parameters; return references to lists of the workers' measurements."""
        places = 0 if self.resources.gpus else self.engine.places(self.resources)
        if places not in self._tasks:
            number = len(self._ranges)
            groups = ranges_for_costs(number, places, self.seconds / number, self.engine.traits.task_seconds)
            self._tasks = {places: [self._task_on(self._ranges[group.start : group.stop]) for group in groups]}
        first, tasks = (self.training_spec, parameters), self._tasks[places]
        return [self.engine.submit(evaluate, *first, *task, resources=self.resources) for task in tasks]

    def _task_on(self, parts: list[tuple[str, list[int]]]) -> tuple[Any, ...]:
        """Return the arguments of an evaluation task on the blocks or files of several workers."""
        xs, others = zip(*(self.data.select(numbers) for _, numbers in parts), strict=True)
        in_files = isinstance(xs[0], FilePart)
        return (
            list(xs if in_files else chain.from_iterable(xs)),
            list(chain.from_iterable(others)),
            [] if in_files else [len(numbers) for _, numbers in parts],
            self.batch_size,
            parts[0][0],
            self.data.structure,
        )

    def submit(
        self, function: Callable[..., Any], parameters: Ref, numbers: Sequence[int], work: Work, *more: Any
    ) -> Ref:
        """Submit a task on some blocks or files, on the first worker's device."""
        x, others = self.data.select(numbers)
        first = self.training_spec, parameters
        ref: Ref = self.engine.submit(
            function, *first, x, others, work._replace(device=self.devices[0]), *more, resources=self.resources
        )
        return ref

    def predict(self, parameters: Ref) -> Any:
        """Predict and return the outputs of all samples in order, in the network's tuples, lists and dicts."""
        refs = [
            self.engine.submit(
                predict,
                self.training_spec,
                parameters,
                *self.data.select(numbers),
                self.batch_size,
                device,
                self.data.structure,
                resources=self.resources,
            )
            for device, numbers in self._ranges
        ]
        results = self.engine.fetch(refs)
        self.engine.delete(refs)
        warn_of_random_transform(any(is_random for _, is_random in results))
        batches = [output for outputs, _ in results for output in outputs]
        columns = zip(*map(leaves, batches), strict=True)
        return rebuilt(batches[0], [_joined(column) for column in columns])


def _joined(outputs: Sequence[NDArray[Any]]) -> NDArray[Any] | list[NDArray[Any]]:
    """Return the outputs of all batches; a list of samples where batches were padded to different lengths."""
    if len({output.shape[1:] for output in outputs}) > 1:
        return [sample for output in outputs for sample in output]
    return np.concatenate(outputs)


def skipped_batches(number: int) -> dict[str, int]:
    """Return the history field with the number of skipped batches; empty if there were none."""
    return {"skipped_batches": number} if number else {}


def warn_of_first_batch(measured: Sequence[Measured]) -> bool:
    """Warn of networks that could not be compiled and of two softmaxes, if tasks found any; return whether so."""
    reasons = [part.not_compiled for part in measured if part.not_compiled is not None]
    if reasons:
        warn_user(f"compile= has no effect, and the network runs as it is, since {reasons[0]} where workers run")
    found = any(part.probabilities for part in measured)
    if found:
        warn_user(
            "the outputs of the network are probabilities (at least 0, and those of each sample sum to 1), but the "
            "loss takes logits, and applies a softmax to them once more; remove the softmax at the end of the "
            "network, or build with loss='categorical_cross_entropy', which takes probabilities"
        )
    return found or bool(reasons)


def warn_of_random_transform(found: bool) -> bool:
    """Warn if the transform has drawn random numbers outside of training; return whether it has."""
    if found:
        warn_user(
            "transform= draws random numbers, also in evaluation and prediction, whose results depend on them; "
            "give augmentation as train_transform=, which applies to training batches only"
        )
    return found


def warn_of_skipped_files(measured: Sequence[Measured], known: dict[str, str]) -> None:
    """Warn of each file that tasks have skipped, unless it is in ``known``; add it there with the reason."""
    for file, reason in chain.from_iterable(part.skipped.items() for part in measured):
        if file not in known:
            known[file] = reason
            warn_user(f"skipped {file} {reason}")
