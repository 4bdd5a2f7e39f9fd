"""The methods that train a surrogate of the heat equation, on files or while simulations run."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import heat
from heat_experiment import TRAINING, Experiment, Recorder, Run, simulator
from heat_offline import OFFLINE, offline

from compss_train import BufferSpec, Merge, Simulations

RESERVOIR = "Reservoir"
ONLINE = ("FIFO", "FIRO", RESERVOIR)
METHODS = (*ONLINE, OFFLINE)
"""In the order in which they run."""
SIMULATIONS = 10
"""What offline training has where nothing was trained online before."""


def concurrent_tasks(options: argparse.Namespace) -> int:
    """Return how many tasks have to run at the same time.

    Only online training needs more than one.
    """
    trains_online = bool(set(options.methods) & set(ONLINE))
    return options.workers + options.simulators if trains_online else 1


def run_all(experiment: Experiment) -> Iterator[Run]:
    """Train by each method.

    Offline training gets as many simulations as the method before it has seen.
    """
    simulations = SIMULATIONS
    for method in sorted(set(experiment.options.methods), key=METHODS.index):
        if method == OFFLINE:
            yield offline(experiment, experiment.options.offline_simulations or simulations)
        else:
            run = online(method, experiment)
            yield run
            simulations = max(1, run.simulations)


def online(method: str, experiment: Experiment) -> Run:
    """Train on samples that simulations send through a buffer while they run."""
    options = experiment.options
    recorder = Recorder(experiment.history_file(method), lambda record: int(record["batches"]))
    with experiment.trainer() as trainer:
        trainer.fit_online(
            Simulations(
                simulator(options),
                heat.random_parameters(experiment.seed, TRAINING),
                options.simulators,
            ),
            buffer=buffer(method, options),
            batch_size=options.batch_size,
            merge=Merge(every=options.merge_every),
            max_batches=options.batches,
            validation_data=experiment.validation,
            record_every=options.record_every,
            callbacks=[recorder],
            progress=False,
        )
        fields = trainer.predict(experiment.validation[0][: options.steps])
    last = recorder.records[-1]
    return Run(
        method,
        experiment.seed,
        recorder.records,
        simulations=last["simulations"]["done"],
        repetitions=last["repetitions"],
        fields=fields,
    )


def buffer(method: str, options: argparse.Namespace) -> BufferSpec:
    """Return the method's buffer; raise ``ValueError`` if it cannot hold a batch."""
    spec = BufferSpec(method, options.buffer_size, None if method == "FIFO" else options.threshold)
    spec.check(options.batch_size)
    return spec
