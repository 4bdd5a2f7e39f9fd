"""The methods that train a surrogate of the heat equation: on files of simulations, and while they run."""

from __future__ import annotations

import argparse

import heat
from heat_experiment import TRAINING, Experiment, Recorder, Run, history_file, simulator
from heat_offline import OFFLINE, offline

from compss_train import BufferSpec

RESERVOIR = "Reservoir"
ONLINE = ("FIFO", "FIRO", RESERVOIR)
METHODS = (OFFLINE, *ONLINE)


def concurrent_tasks(options: argparse.Namespace) -> int:
    """Return how many tasks have to run at the same time: only online training needs more than one."""
    online_too = set(options.methods) & set(ONLINE)
    return options.workers + options.simulators if online_too else 1


def run(method: str, experiment: Experiment) -> Run:
    """Train by a method."""
    return offline(experiment) if method == OFFLINE else online(method, experiment)


def online(method: str, experiment: Experiment) -> Run:
    """Train on samples that simulations send through a buffer while they run, until enough batches are trained."""
    options = experiment.options
    recorder = Recorder(history_file(options.output, method), lambda record: int(record["batches"]))
    with experiment.trainer() as trainer:
        trainer.fit_online(
            simulator(options),
            heat.random_parameters(options.seed, TRAINING),
            buffer=buffer(method, options),
            batch_size=options.batch_size,
            num_simulators=options.simulators,
            merge_every_batches=options.merge_every,
            max_batches=options.batches,
            validation_data=experiment.validation,
            record_every=options.record_every,
            callbacks=[recorder],
            progress=False,
        )
        fields = trainer.predict(experiment.validation[0][: options.steps])
    last = recorder.records[-1]
    return Run(method, recorder.records, last["simulations"]["done"], last["repetitions"], fields)


def buffer(method: str, options: argparse.Namespace) -> BufferSpec:
    """Return the method's buffer; raise ``ValueError`` if it cannot hold a batch."""
    spec = BufferSpec(method, options.buffer_size, None if method == "FIFO" else options.threshold)
    spec.check(options.batch_size)
    return spec
