"""Offline training: simulations write files, which are read in every epoch."""

from __future__ import annotations

import argparse
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import heat
from heat_experiment import TRAINING, Experiment, Record, Recorder, Run, simulator

from compss_train import FileDataset, Merge, PartialShuffle, write_files

OFFLINE = "offline"


def offline(experiment: Experiment, simulations: int) -> Run:
    """Run so many simulations, store their samples in files, and train on these for some epochs."""
    options = experiment.options
    plan = Epochs.plan(options, simulations)
    recorder = Recorder(experiment.history_file(OFFLINE), plan.batches)
    files = FileDataset(simulate_to_files(experiment, simulations))
    with experiment.trainer() as trainer:
        trainer.fit(
            files,
            num_epochs=plan.number,
            batch_size=options.batch_size,
            merge=Merge(every=plan.between_merges),
            shuffle=PartialShuffle(options.buffer_size),
            validation_data=experiment.validation,
            callbacks=[recorder],
            progress=False,
        )
        fields = trainer.predict(experiment.validation[0][: options.steps])
    repetitions = [0] * plan.number + [files.number_samples]
    return Run(OFFLINE, experiment.seed, recorder.records, simulations, repetitions, fields)


@dataclass(frozen=True)
class Epochs:
    """Number of epochs for the requested number of batches, and number of epochs between merges."""

    number: int
    between_merges: int
    batch_size: int

    @classmethod
    def plan(cls, options: argparse.Namespace, simulations: int) -> Epochs:
        """Plan for the requested batches per worker, rounded up to whole epochs."""
        share = math.ceil(simulations * options.steps / options.workers)
        batches_of_epoch = math.ceil(share / options.batch_size)
        number = math.ceil(options.batches / batches_of_epoch)
        between_merges = min(number, math.ceil(options.merge_every / batches_of_epoch))
        return cls(number, between_merges, options.batch_size)

    def batches(self, record: Record) -> int:
        """Return the total number of batches of a round; the last round may have fewer epochs."""
        epochs = self.number % self.between_merges if record["epoch"] == self.number else 0
        epochs = epochs or self.between_merges
        shares = (worker["samples"] / epochs for worker in record["workers"])
        return epochs * sum(math.ceil(share / self.batch_size) for share in shares)


def simulate_to_files(experiment: Experiment, simulations: int) -> list[str]:
    """Run the simulations in tasks and return their files, which replace those of earlier runs."""
    engine = experiment.engine
    options = experiment.options
    folder = options.output.resolve() / OFFLINE
    for path in folder.glob("simulation-*/part-*.npz"):
        path.unlink()
    inputs = itertools.islice(heat.random_parameters(experiment.seed, TRAINING), simulations)
    refs = [
        engine.submit(
            simulate_to_file, simulator(options), parameters, folder / f"simulation-{number:06d}"
        )
        for number, parameters in enumerate(inputs)
    ]
    return list(itertools.chain.from_iterable(engine.fetch(refs, small=True)))


def simulate_to_file(
    simulate: Callable[[heat.Floats], Any], parameters: heat.Floats, folder: Path
) -> list[str]:
    """Run one simulation and write its samples as a file."""
    x, y = heat.stack_samples(simulate(parameters))
    return write_files(folder, {"x": x, "y": y}, rows=len(x))
