"""The ways to train a surrogate of the heat equation: from files that simulations left, and while they run."""

from __future__ import annotations

import argparse

import heat
from heat_experiment import TRAINING, Experiment, Recorder, Run, history_file, simulator
from heat_offline import OFFLINE, offline

from compss_train import BufferSpec

RESERVOIR = "Reservoir"
ONLINE = ("FIFO", "FIRO", RESERVOIR)
METHODS = (OFFLINE, *ONLINE)


def tasks_at_once(options: argparse.Namespace) -> int:
    """Return how many tasks have to run at the same time: offline training can wait, online training cannot."""
    online_too = set(options.methods) & set(ONLINE)
    return options.workers + options.simulators + 1 if online_too else 1  # one validates


def run(method: str, experiment: Experiment) -> Run:
    """Train by the method of that name."""
    return offline(experiment) if method == OFFLINE else online(method, experiment)


def online(method: str, experiment: Experiment) -> Run:
    """Train on what simulations send while they run, through a buffer; as many run as the batches need."""
    options = experiment.options
    recorder = Recorder(history_file(options.output, method), lambda record: int(record["batches"]))
    with experiment.trainer() as trainer:
        trainer.fit_online(
            simulator(options),
            heat.draws(options.seed, TRAINING),
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
    """Return what the method's buffer is like; raise ``ValueError`` where batches could never come from it."""
    spec = BufferSpec(method, options.buffer_size, None if method == "FIFO" else options.threshold)
    spec.check(options.batch_size)
    return spec
