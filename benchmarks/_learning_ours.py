"""Our fits of ``learning``: accuracies at the marks, or the seconds of merges."""

from __future__ import annotations

import inspect
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from _common import network
from _learning_cases import OURS, Case, schedule_of
from _learning_results import Marks, Result, images_of
from torch import nn

from compss_train import DistributedTrainer, Merge
from compss_train.callbacks import Callback
from compss_train.engines import SerialEngine
from compss_train.exceptions import DivergedError
from compss_train.reports.timeline import totals, worker_intervals
from compss_train.training import PostLocal

WARM_UP_SAMPLES = 2_000
FIRST_MERGES = 3
"""Merges that are not measured."""


def missing_options(case: Case) -> list[str]:
    """Return the options of ``fit`` and its ``Merge`` that the installed version does not have."""
    known = {*inspect.signature(DistributedTrainer.fit).parameters, *(each.name for each in fields(Merge))}
    return [name for name in case.options if name not in known]


class _KeepMarks(Callback):
    """Keeps the parameters at the marks of a fit."""

    def __init__(self, marks: Marks, samples: int) -> None:
        self.marks = marks
        self._samples = samples
        self._trained = 0
        self._began = time.perf_counter()

    def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
        """Keep the parameters where a mark has been passed."""
        self._trained += record["samples"]
        epochs = self._trained / self._samples
        if self.marks.is_due(epochs):
            parameters = trainer.get_parameters()
            self.marks.add(epochs, time.perf_counter() - self._began, parameters)


class _Weighing(SerialEngine):
    """Notes how many bytes the first training task returns to be merged."""

    bytes: int | None = None

    def submit(self, function: Callable[..., Any], *args: Any, returns: int = 1, **options: Any) -> Any:
        """Run the task, and weigh what it returns first."""
        results = super().submit(function, *args, returns=returns, **options)
        if function.__name__ == "train_group" and self.bytes is None:
            self.bytes = len(pickle.dumps(self.fetch(results[:1]), protocol=5))
        return results


@contextmanager
def _trainer(case: Case) -> Iterator[tuple[DistributedTrainer, Callable[[], int | None]]]:
    """Yield a trainer, and what returns the bytes of a merge after a fit."""
    weighing = _Weighing() if case.engine == "serial" else None
    with DistributedTrainer(case.workers, engine=weighing or case.engine, seed=case.seed, threads=1) as trainer:
        yield trainer, lambda: weighing.bytes if weighing else None


def run_ours(case: Case) -> Result:
    """Fit, and evaluate at the marks. Processes are started and warm before the time begins."""
    images = images_of(case)
    with _trainer(case) as (trainer, merge_bytes):
        build = partial(
            trainer.build,
            network(case.network, case.seed),
            case.optimizer,
            "cross_entropy",
            schedule=schedule_of(case),
        )
        build()
        if case.engine != "serial":
            warm = slice(WARM_UP_SAMPLES)
            trainer.fit(images.x[warm], images.y[warm], num_epochs=1, batch_size=100, progress=False)
            build()
        marks = Marks(case=case)
        diverged = False
        keep = _KeepMarks(marks, len(images.x))
        try:
            _fit(trainer, case, images.x, images.y, keep)
        except DivergedError:
            diverged = True
        used = dict(trainer.configuration["fit"] or {})
        return marks.result(
            images,
            merges=len(trainer.history),
            diverged=diverged,
            merge_bytes=merge_bytes(),
            used=used,
        )


def _fit(trainer: DistributedTrainer, case: Case, x: Any, y: Any, *callbacks: Callback) -> None:
    """Fit with the options of the case; all samples are shuffled, so that the shares of workers are alike."""
    options = dict(case.options)
    if isinstance(every := options.get("every"), dict):
        options["every"] = PostLocal(**every)
    chosen = {each.name: options.pop(each.name) for each in fields(Merge) if each.name in options}
    options["merge"] = Merge(options.get("merge"), **chosen)
    try:
        trainer.fit(x, y, num_epochs=case.epochs, shuffle="total", callbacks=callbacks, progress=False, **options)
    except Exception as error:
        error.add_note(f"in the case: {case.label}")
        raise


def run_merges(case: Case) -> Result:
    """Measure merges of two workers that train a network of 10 million parameters on one batch a round."""
    x, y = np.zeros((case.samples, 1000), np.float32), np.zeros(case.samples, np.int64)
    with DistributedTrainer(case.workers, engine=case.engine, seed=case.seed, threads=1) as trainer:
        trainer.build(_wide_network(), case.optimizer, "cross_entropy")
        _fit(trainer, case, x, y)
        seconds = totals(worker_intervals(trainer.history))
        rounds = range(min(FIRST_MERGES, case.epochs - 2), case.epochs - 1)  # the last one waits for the end, too
        return Result(
            merges=len(trainer.history),
            merge_seconds=[seconds[position, 0]["merging"] for position in rounds],
            used=dict(trainer.configuration["fit"]),
        )


def _wide_network() -> nn.Module:
    """1000-3330-2000: 10 million parameters."""
    return nn.Sequential(nn.Linear(1000, 3330), nn.ReLU(), nn.Linear(3330, 2000))


def run(case: Case) -> Result:
    """Run a case of ours."""
    return run_ours(case) if case.contestant == OURS else run_merges(case)
