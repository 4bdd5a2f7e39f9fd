"""Stopping and resuming fits: checkpoints, snapshots, ``trainer.stop``."""

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
from compss_train.model.several_optimizers import make_optimizer
from compss_train.training.base_trainer import BaseTrainer
from compss_train.training.callback import Callback, CallbackList
from compss_train.training.checkpoints import compatibility, storage
from compss_train.training.checkpoints.snapshot import Progress, Snapshot
from compss_train.training.data_source import DataSource
from compss_train.training.description import described, described_fields, with_stable_names
from compss_train.training.fit_options import FitOptions
from compss_train.training.fit_state import ActiveFit, FitProgress
from compss_train.training.stopping import TERMINATED, Stopping
from compss_train.training.training_state import MergeState, TrainingState

Checkpoint: TypeAlias = tuple[Path, Snapshot]
"""The path of a checkpoint and its content."""


class ResumableTrainer(BaseTrainer):
    """A coordinator whose fits can be stopped, saved and resumed."""

    stopped: str | None = None
    """Why the last fit ended early: the argument of ``stop``, ``"max_time"`` or ``"SIGTERM"``; else ``None``."""
    resumed_from: Path | None = None
    """The checkpoint that the current or last fit was resumed from."""

    def stop(self, reason: str) -> None:
        """End the fit after the current round; for callbacks. ``reason`` becomes the value of ``stopped``.

        Later rounds that were already submitted are cancelled. Only if workers merge without waiting for each other
        are these still trained and recorded.
        """
        if self._active is None:
            raise RuntimeError("stop was called while no fit is running; call it from a callback")
        self._active.stopping.request(reason)

    @property
    def stopping(self) -> str | None:
        """Why the running fit is about to stop, ``None`` if it is not; for callbacks."""
        return None if self._active is None else self._active.stopping.reason

    def snapshot(self) -> Snapshot:
        """Return the state that a later fit can resume from.

        In a callback it is the state after the last complete round; see ``Callback.needs_state``.
        """
        parameters, state = self._settled()
        active = self._active
        progress = None
        if active is not None and (own := active.progress) is not None:
            progress = Progress(
                options=own.described,
                sizes=own.data.sizes,
                first_epoch=own.first_epoch,
                reached=own.reached,
                fingerprint=own.data.fingerprint,
            )
        return Snapshot(
            parameters=parameters,
            workers=state.workers,
            merge=vars(state.merge),
            epoch=self._epochs,
            history=list(self.history),
            setting=self._setting(),
            progress=progress,
            callbacks={} if active is None else active.callbacks.states(),
            schedule={} if (schedule := self._require_built().lr_schedule) is None else schedule.state_dict(),
        )

    @contextmanager
    def _activated(self, active: ActiveFit) -> Iterator[ActiveFit]:
        """Make this the active fit, which callbacks, Ctrl-C and SIGTERM can stop."""
        self.stopped, self._active = None, active
        try:
            with active.stopping.on_sigterm():
                yield active
        except KeyboardInterrupt:
            self._report_end("Ctrl-C")
            raise
        finally:
            self._active = None

    def _settled(self) -> tuple[params.Parameters, TrainingState]:
        if self._active is not None and self._active.running is not None:
            parameters, state = self._active.running.settled()
            return self._parameters if parameters is None else parameters, state
        if self._session is None:
            return self._current(), self._saved_state
        return self._current(), self._session.state()

    def _setting(self) -> dict[str, Any]:
        """Return the settings that results depend on, besides the data and the options of a fit."""
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
            "compile": described(training_spec.compile),
            "memory_format": training_spec.memory_format,
            "transform": described(training_spec.transform),
            "train_transform": described(training_spec.train_transform),
            "collate": described(training_spec.collate),
            "training_step": described(training_spec.training_step),
            "schedule": described(built.schedule),
            **described_fields(training_spec.gradients),
            "torch": torch.__version__,
            "numpy": np.__version__,
        }

    def _optimizer(self) -> tuple[str, list[dict[str, Any]]]:
        """Return the name of the optimizer's class, and the options of each of its parameter groups."""
        training_spec = self._require_built().training_spec
        optimizer = make_optimizer(training_spec.optimizer, training_spec.net)
        groups = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
        return type(optimizer).__name__, groups

    def restore(self, folder: str | os.PathLike[str], *, best: bool = False) -> None:
        """Load parameters, history, counters and the workers' states from a checkpoint; call ``build`` first.

        ``folder`` is the folder of a ``Checkpoint`` callback, whose newest good checkpoint is loaded, or the best
        one with ``best=True``; or it is a single checkpoint. A fit afterwards is a new fit of the same trainer.
        Warns if later checkpoints of the folder are damaged.

        Raises ``FileNotFoundError``, ``BadCheckpointError``, and ``ValueError`` for a checkpoint of another network
        or optimizer, or of another seed than that of the trainer.
        """
        self._require_built()
        self._require_idle("restore")
        path, content = storage.read_latest_checkpoint(folder, warn=True)
        if best:
            path = storage.checkpoint_path(path.parent, _best_round(path, content))
            content = storage.read_checkpoint(path)
        snapshot = _with_stable_names(Snapshot.from_dict(content))
        compatibility.check_parameters(path, snapshot.parameters, self._parameters)
        compatibility.check_trainer(path, snapshot, self._setting(), self._seed_argument, fit="fits continue")
        self._load(snapshot)

    def _reset_fits(self) -> None:
        super()._reset_fits()
        self.stopped = self.resumed_from = None

    def _find_checkpoint(self, resume: str | os.PathLike[str] | bool, callbacks: CallbackList) -> Checkpoint | None:
        """Return the checkpoint to resume from, ``None`` for a new fit."""
        folder = _folder_of(resume, callbacks.callbacks)
        if folder is None or (resume is True and not storage.list_checkpoints(folder)):
            return None
        path, content = storage.read_latest_checkpoint(folder, warn=True)
        return path, _with_stable_names(Snapshot.from_dict(content))

    def _number_blocks(self, found: Checkpoint | None) -> int:
        """Return the number of blocks that arrays are cut into: one a worker, or as in the fit to resume."""
        progress = None if found is None else found[1].progress
        return self.num_workers if progress is None else len(progress.sizes)

    def _progress(self, found: Checkpoint | None, options: FitOptions, data: DataSource) -> FitProgress:
        """Return where the fit starts; check that a checkpoint is one of this fit."""
        described_options = {**options.described(), **self._objective(data)}
        start = FitProgress(
            options=options,
            data=data,
            first_epoch=self._epochs,
            reached=Position(self._epochs),
            described=described_options,
        )
        if found is None:
            return start
        path, snapshot = found
        compatibility.check_parameters(path, snapshot.parameters, self._parameters)
        saved = compatibility.check_fit(path, snapshot, described_options, data.sizes)
        compatibility.check_buffers(path, saved, options, self.num_workers)
        compatibility.check_data(path, snapshot, data.fingerprint)
        compatibility.check_trainer(path, snapshot, self._setting(), self._seed_argument)
        last = snapshot.history[-1] if snapshot.history else {}
        own = bool(self.history) and self.history[-1]["ended"] == last.get("ended")
        compatibility.check_end(path, saved, options, own=own)
        skipped = tuple(last.get("skipped", ()))
        return replace(start, first_epoch=saved.first_epoch, reached=saved.reached, skipped=skipped)

    def _resume(self, found: Checkpoint | None, callbacks: CallbackList) -> None:
        """Load the checkpoint that the fit starts from, if any."""
        self.resumed_from = None
        if found is not None:
            self.resumed_from, snapshot = found
            self._load(snapshot)
            callbacks.saved = snapshot.callbacks

    def _objective(self, data: DataSource) -> dict[str, Any]:
        """Return the objective that a fit minimizes."""
        training_spec = self._require_built().training_spec
        return {
            "loss": described(training_spec.loss),
            "class_weight": training_spec.class_weight,
            "sample_weight": "given" if data.structure.weighted else None,
            "bucket_by_length": data.structure.bucketed,
        }

    def _load(self, snapshot: Snapshot) -> None:
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
        workers = tuple(state.with_options(changed) for state in snapshot.workers)
        self._averaged = snapshot.merge.get("averaged")
        self._set_state(TrainingState(workers, MergeState(**snapshot.merge)))

    def _end_in_time(self, stopping: Stopping) -> None:
        """End the tasks of a fit that was stopped at once, and the process after SIGTERM."""
        if stopping.terminated:
            self._report_end("SIGTERM")
            raise SystemExit(TERMINATED)
        if stopping.urgent and self._own_engine and self._session is not None:
            state = self._session.state()
            self._end(kill=True)
            self._set_state(state)

    def _report_end(self, how: str) -> None:
        last = f"last complete round: {self.history[-1]['round']}" if self.history else "no round completed"
        print(f"compss_train: fit interrupted by {how}; {last}", file=sys.stderr)


def _folder_of(resume: object, callbacks: Sequence[Callback]) -> Path | None:
    """Return the folder to resume from, ``None`` for a new fit."""
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


def _with_stable_names(snapshot: Snapshot) -> Snapshot:
    setting = with_stable_names(snapshot.setting)
    if snapshot.progress is None:
        return replace(snapshot, setting=setting)
    progress = replace(snapshot.progress, options=with_stable_names(snapshot.progress.options))
    return replace(snapshot, setting=setting, progress=progress)


def _plain(value: Any) -> Any:
    """Return an optimizer's option as a value that a checkpoint can store and compare."""
    return value if isinstance(value, bool | int | float | str | tuple | None) else repr(value)


def _best_round(path: Path, content: Mapping[str, Any]) -> int:
    """Return the best round according to the state of a ``Checkpoint``; other callbacks may have other bests."""
    states = [state for name, state in content["callbacks"].items() if name.startswith("Checkpoint ")]
    kept = [state for state in states if state["best_round"] is not None]
    if not kept:
        raise ValueError(f"{path} records no best round; Checkpoint(folder, best='val_loss') keeps it")
    here = [state for state in kept if Path(state["folder"]).resolve() == path.parent.resolve()]
    there = storage.list_checkpoints(path.parent)
    numbers = [int(state["best_round"]) for state in here or kept]  # all, if the folder has been moved
    return next((number for number in numbers if number in there), numbers[0])
