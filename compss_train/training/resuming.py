"""What a fit is stopped by and resumed from: the part of a trainer that knows checkpoints."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train.data.partitioning import Position
from compss_train.model import parameters as params
from compss_train.training import checkpoints
from compss_train.training.base_trainer import BaseTrainer
from compss_train.training.callback import Callback, CallbackList
from compss_train.training.checkpoints import Snapshot, compatibility
from compss_train.training.checkpoints.folder import path_of
from compss_train.training.checkpoints.snapshot import Progress
from compss_train.training.data_source import DataSource
from compss_train.training.description import described, described_fields
from compss_train.training.fit_options import FitOptions
from compss_train.training.rounds import FitProgress, Rounds
from compss_train.training.stopping import TERMINATED, Stopping
from compss_train.training.task_submission import values_of
from compss_train.training.worker import WorkerState

Found: TypeAlias = tuple[Path, Snapshot]
"""A checkpoint and what is in it."""


class ResumableTrainer(BaseTrainer):
    """A coordinator whose fits can be stopped, saved and resumed."""

    stopped: str | None = None
    """Why the last fit ended before its last round: what ``stop`` was told, ``"max_time"`` or ``"SIGTERM"``."""
    resumed_from: Path | None = None
    """The checkpoint that the present or last fit went on from."""
    _stopping: Stopping | None = None
    _course: FitProgress | None = None

    def stop(self, reason: str) -> None:
        """End the fit when the round that callbacks are being told of is over; for callbacks.

        Rounds that are under way are given up; only where workers merge without waiting for each other, what they
        have submitted is still trained and recorded. ``reason`` is what ``stopped`` will say.
        """
        if self._stopping is None:
            raise RuntimeError("stop was called while there is no fit; call it from a callback")
        self._stopping.request(reason)

    @property
    def stopping(self) -> str | None:
        """Why the fit that is running is about to stop, ``None`` where it is not; for callbacks."""
        return None if self._stopping is None else self._stopping.reason

    def snapshot(self) -> Snapshot:
        """Return all that a later fit needs to go on from here.

        During a fit it is of the round that callbacks are told of; see ``Callback.needs_state``.
        """
        parameters, workers = self._moment()
        course = self._course
        progress = None
        if course is not None:
            data = course.data
            progress = Progress(course.described, data.sizes, course.first_epoch, course.reached, data.fingerprint)
        return Snapshot(
            parameters=parameters,
            workers=tuple(workers),
            epoch=self._epochs,
            history=list(self.history),
            setting=self._setting(),
            progress=progress,
            callbacks={} if self._told is None else self._told.states(),
            schedule={} if (schedule := self._require_built().lr_schedule) is None else schedule.state_dict(),
        )

    @contextmanager
    def _stoppable(self, stopping: Stopping, told: CallbackList, course: FitProgress | None) -> Iterator[None]:
        """Let callbacks stop and save what runs inside."""
        self.stopped, self._stopping, self._told, self._course = None, stopping, told, course
        try:
            with stopping.on_sigterm():
                yield
        except KeyboardInterrupt:
            self._tell_ended("Ctrl-C")
            raise
        finally:
            self._stopping = self._told = self._course = None

    def _moment(self) -> tuple[params.Parameters, list[WorkerState]]:
        if isinstance(self._rounds, Rounds):
            parameters, states = self._rounds.settled()
            return self._parameters if parameters is None else parameters, states
        if self._session is None:
            return self._current(), self._carried or []
        return self._current(), values_of(self._session.engine, self._session.states)

    def _setting(self) -> dict[str, Any]:
        """Return what the numbers depend on beside the data and the options of a fit."""
        built = self._require_built()
        training_spec = built.training_spec
        optimizer, groups = self._optimizer()
        return {
            "optimizer": optimizer,
            "optimizer_options": [{name: _plain(value) for name, value in group.items()} for group in groups],
            "seed": self.seed,
            "num_workers": self.num_workers,
            "threads": self.threads,
            "num_gpu": built.num_gpu,
            "precision": training_spec.precision,
            "memory_format": training_spec.memory_format,
            "transform": described(training_spec.transform),
            "schedule": described(built.schedule),
            **described_fields(training_spec.step_options),
            "torch": torch.__version__,
            "numpy": np.__version__,
        }

    def _optimizer(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the name of the optimizer's class, and the options of each of its groups of parameters."""
        training_spec = self._require_built().training_spec
        optimizer = training_spec.optimizer(training_spec.net.parameters())
        groups = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
        return type(optimizer).__name__, groups

    def restore(self, folder: str | os.PathLike[str], *, best: bool = False) -> None:
        """Take parameters, history and counters, and the workers' states, from a checkpoint; call ``build`` first.

        ``folder`` is that of a ``Checkpoint`` callback, of which the newest checkpoint is taken, or with ``best``
        the best one; or it is one checkpoint. A fit afterwards is a new one, as a second fit of the same trainer.

        Raises ``FileNotFoundError``, ``BadCheckpointError``, and ``ValueError`` for that of another network or
        optimizer, or of another seed than the trainer was given.
        """
        self._require_built()
        self._require_idle("restore")
        path, content = checkpoints.newest(folder)
        if best:
            path = path_of(path.parent, _best_round(path, content))
            content = checkpoints.read(path)
        snapshot = Snapshot.of(content)
        compatibility.check_parameters(path, snapshot.parameters, self._parameters)
        compatibility.check_trainer(path, snapshot, self._setting(), self._given_seed, fit="fits go")
        self._take(snapshot)

    def _forget_fits(self) -> None:
        super()._forget_fits()
        self.stopped = self.resumed_from = None

    def _found(self, resume: str | os.PathLike[str] | bool, told: CallbackList) -> Found | None:
        """Return the checkpoint to go on from, ``None`` where a fit begins."""
        folder = _folder_of(resume, told.callbacks)
        if folder is None or (resume is True and not checkpoints.checkpoints(folder)):
            return None
        path, content = checkpoints.newest(folder)
        return path, Snapshot.of(content)

    def _blocks(self, found: Found | None) -> int:
        """Return how many blocks arrays are cut into: one a worker, or as many as when the fit began."""
        progress = None if found is None else found[1].progress
        return self.num_workers if progress is None else len(progress.sizes)

    def _resume(
        self, found: Found | None, options: FitOptions, data: DataSource, told: CallbackList
    ) -> FitProgress:
        """Return where a fit begins, having taken what is to be resumed from its checkpoint."""
        self.resumed_from = None
        begin = FitProgress(
            options,
            data,
            self._epochs,
            Position(self._epochs),
            described={**options.described(), **self._objective(data)},
        )
        if found is None:
            return begin
        path, snapshot = found
        compatibility.check_parameters(path, snapshot.parameters, self._parameters)
        progress = compatibility.check_fit(path, snapshot, begin.described, data.sizes)
        compatibility.check_data(path, snapshot, data.fingerprint)
        compatibility.check_trainer(path, snapshot, self._setting(), self._given_seed)
        last = snapshot.history[-1] if snapshot.history else {}
        own = bool(self.history) and self.history[-1]["ended"] == last.get("ended")
        compatibility.check_end(path, progress, options.num_epochs, own=own)
        self._take(snapshot)
        self.resumed_from = path
        told.saved = snapshot.callbacks
        skipped = tuple(last.get("skipped", ()))
        return replace(begin, first_epoch=progress.first_epoch, reached=progress.reached, skipped=skipped)

    def _objective(self, data: DataSource) -> dict[str, Any]:
        """Return what a fit minimises."""
        training_spec = self._require_built().training_spec
        return {
            "loss": described(training_spec.loss),
            "class_weight": training_spec.class_weight,
            "sample_weight": "given" if data.has_weights else None,
        }

    def _take(self, snapshot: Snapshot) -> None:
        self._parameters = params.copy_of({name: snapshot.parameters[name] for name in self._parameters})
        self._epochs = snapshot.epoch
        self.history[:] = snapshot.history
        self.seed = snapshot.setting["seed"]
        if (schedule := self._require_built().lr_schedule) is not None:
            schedule.load_state_dict(snapshot.schedule)
        changed = [
            {name: value for name, value in now.items() if saved.get(name) != _plain(value)}
            for saved, now in zip(snapshot.setting["optimizer_options"], self._optimizer()[1], strict=True)
        ]
        self._carry([state.with_options(changed) for state in snapshot.workers])

    def _end_in_time(self, stopping: Stopping) -> None:
        """End what a fit that had to stop has left running, and the process where SIGTERM asked for that."""
        if stopping.terminated:
            self._tell_ended("SIGTERM")
            raise SystemExit(TERMINATED)
        if stopping.urgent and self._own_engine and self._session is not None:
            states = values_of(self._session.engine, self._session.states)
            self._end(kill=True)
            self._carry(states)

    def _tell_ended(self, how: str) -> None:
        last = (
            f"its last complete round is {self.history[-1]['round']}" if self.history else "no round was complete"
        )
        print(f"compss_train: {how} ended a fit; {last}", file=sys.stderr)


def _folder_of(resume: object, callbacks: Sequence[Callback]) -> Path | None:
    """Return the folder to resume from, ``None`` for a fit that begins; raise for what cannot be one."""
    if resume is False or resume is None:
        return None
    if isinstance(resume, str | os.PathLike):
        return Path(resume)
    if resume is not True:
        raise TypeError(
            f"resume={resume!r}: give a folder of checkpoints, or True for that of the Checkpoint callback"
        )
    folder = next(filter(None, (callback.resume_folder() for callback in callbacks)), None)
    if folder is None:
        raise ValueError("resume=True takes the folder of a Checkpoint among the callbacks, and there is none")
    return folder


def _plain(value: Any) -> Any:
    """Return an optimizer's option as a checkpoint can hold and compare it."""
    return value if isinstance(value, bool | int | float | str | tuple | None) else repr(value)


def _best_round(path: Path, content: Mapping[str, Any]) -> int:
    """Return the round that a ``Checkpoint`` has kept as the best; other callbacks have bests of their own."""
    states = [state for name, state in content["callbacks"].items() if name.startswith("Checkpoint ")]
    kept = [state for state in states if state["best_round"] is not None]
    if not kept:
        raise ValueError(f"{path} does not know which is the best; Checkpoint(folder, best='val_loss') keeps it")
    here = [state for state in kept if Path(state["folder"]).resolve() == path.parent.resolve()]
    there = checkpoints.checkpoints(path.parent)
    numbers = [int(state["best_round"]) for state in here or kept]  # all, where the folder has been moved
    return next((number for number in numbers if number in there), numbers[0])
