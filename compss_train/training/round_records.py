"""``round_record``: the entry of a round in the history, made of what its tasks have measured."""

import time
from collections.abc import Mapping, Sequence
from fractions import Fraction
from functools import partial
from itertools import chain

from compss_train.model.measurements import Measured, Measures
from compss_train.reports.records import AVERAGED_PREFIX, VALIDATION_PREFIX, Record, per_second
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.inference import skipped_batches
from compss_train.training.merge import MergeKind
from compss_train.training.schedules.base import SubmittedRound
from compss_train.worker.callbacks import WorkerCallback


def round_record(
    submitted: SubmittedRound,
    measured: Mapping[str, list[Measured]],
    built: BuildArguments,
    *,
    in_workers: Sequence[WorkerCallback] = (),
    fit_started: float,
    seconds: float,
    merge: MergeKind,
    skipped: Sequence[str],
) -> Record:
    """Return the record of a round that has just ended.

    ``measured`` is what its tasks have measured, by the keys of ``submitted.measured``. The round
    took so many ``seconds`` from the end of the one before; ``skipped`` are the files that could
    not be read since the fit began.
    """
    round_ = submitted.workers.round
    of_workers = measured["workers"]
    measures = built.training_spec.measures
    samples = sum(part.planned_samples for part in of_workers)
    workers = chain.from_iterable(submitted.tasks)
    return {
        "round": round_.number,
        "epoch": round_.last_epoch + 1,
        **measures.values(of_workers),
        "samples": samples,
        "seconds": seconds,
        "samples_per_second": per_second(samples, seconds),
        "fit_started": fit_started,
        "ended": time.time(),
        "merge": merge,
        **({"skipped": list(skipped)} if skipped else {}),
        **skipped_batches(sum(part.skipped_batches for part in of_workers)),
        **_learning_rates(submitted, built, in_workers),
        "workers": [
            _worker_record(worker, part, measures, submitted.weights)
            for worker, part in zip(workers, of_workers, strict=True)
        ],
        **_validation_measures(measured, measures),
    }


def _learning_rates(
    submitted: SubmittedRound, built: BuildArguments, in_workers: Sequence[WorkerCallback]
) -> dict[str, float]:
    """Return the learning rates at the end of a round, if they change or differ."""
    round_ = submitted.workers.round
    set_values = submitted.workers.set_values
    change = None
    is_set = False
    if set_values is not None:
        change = partial(set_values.over, schedule=built.lr_schedule)
        is_set = any("lr" in values for values in set_values.groups)
    rates = built.rates if change is None else built.changed_rates(change)
    if built.lr_schedule is not None:
        stops = [stop for start, stop in round_.spans if start < stop]
        trained_part = max(stops, default=Fraction(1))  # of the last epoch
        rates = built.lr_schedule.rates(round_.last_epoch, trained_part, change)
    added: dict[str, float] = {}
    for callback in in_workers:
        added.update(callback.added_rates(round_.first_epoch))
    rates = rates | {f"lr/{name}": rates["lr"] * factor for name, factor in added.items()}
    return rates if len(rates) > 1 or built.lr_schedule is not None or is_set else {}


def _worker_record(
    worker: int, part: Measured, measures: Measures, weights: Mapping[int, float] | None
) -> Record:
    return {
        "worker": worker,
        "samples": part.samples,
        "seconds": part.seconds,
        **measures.values([part]),
        "started": part.started,
        **({} if part.files is None else {"files": part.files}),
        **({} if weights is None else {"weight": weights[worker]}),
        **skipped_batches(part.skipped_batches),
    }


def _validation_measures(measured: Mapping[str, list[Measured]], measures: Measures) -> Record:
    values: Record = {}
    for prefix in (VALIDATION_PREFIX, AVERAGED_PREFIX):
        if measured[prefix]:
            values |= measures.values(measured[prefix], prefix)
    return values
