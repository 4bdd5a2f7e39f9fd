"""The callback that reports a fit to Ray Tune, from inside of a trial."""

import shutil
import tempfile
import weakref
from typing import Any

from compss_train._utils.imports import import_optional
from compss_train.callbacks.checkpoint import Checkpoint
from compss_train.reports.records import epoch_of, measured_numbers
from compss_train.training.trainer_protocol import TrainerProtocol

_RATE = "samples_per_second"


class RayTune(Checkpoint):
    """Reports each round to Ray Tune, with a checkpoint, so that schedulers can act on the trial.

    Make one in the function that ``tune.Tuner`` runs, and give ``fit(resume=True)``: a trial that
    was paused, has failed, or takes over from another one (``PopulationBasedTraining``) then goes
    on from its checkpoint, with the learning rate and other options of ``build`` that the trial has
    now. ``ASHAScheduler`` and others stop trials between rounds.

    Reported are the losses and metrics of the history by their names, ``round``, ``epoch`` and
    ``samples_per_second``.

    Parameters
    ----------
    every:
        Number of rounds between checkpoints, 1 by default. Between them only numbers are reported.

    Raises ``ModuleNotFoundError`` without Ray Tune (the extra ``tune``), and ``RuntimeError``
    outside of a trial.
    """

    def __init__(self, every: int = 1) -> None:
        self._tune = import_optional(
            "ray.tune", extra="tune", needed_by="RayTune", package="ray[tune]"
        )
        if self._tune.get_context().get_trial_id() is None:
            raise RuntimeError(
                "RayTune reports to a trial of Ray Tune, and this is none: make it in the function "
                "that tune.Tuner(function) runs"
            )
        folder = tempfile.mkdtemp(prefix="compss_train-trial-")
        self._remove = weakref.finalize(self, _remove_folder, folder)
        received = self._tune.get_checkpoint()
        if received is not None:
            with received.as_directory() as source:
                shutil.copytree(source, folder, dirs_exist_ok=True)
        super().__init__(folder, every=every, keep=1)

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write a checkpoint if it is due, and report the round; Tune may end the trial here."""
        before = self.path
        super().on_round_end(trainer, record)
        numbers = {**measured_numbers(record), **epoch_of(record), "round": record["round"]}
        if _RATE in record:
            numbers[_RATE] = record[_RATE]
        checkpoint = None
        if self.path != before:
            checkpoint = self._tune.Checkpoint.from_directory(self.folder)
        self._tune.report(numbers, checkpoint=checkpoint)


def _remove_folder(folder: str) -> None:
    shutil.rmtree(folder, ignore_errors=True)
