"""Resuming: the state of a trainer as a ``Snapshot``, and back from the one in a checkpoint."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compss_train._utils.nested import leaves
from compss_train._utils.validation import warn_user
from compss_train.model import parameters as params
from compss_train.model.model_state import model_state
from compss_train.model.net_optimizers import make_optimizer
from compss_train.reports.history import line_of
from compss_train.training import checkpoints
from compss_train.training.callback import Callback
from compss_train.training.data_source import DataSource, check_same_coding
from compss_train.training.fit import FitOptions
from compss_train.training.hyperparameters import HyperparameterChanges
from compss_train.training.remote_checkpoints import local_copy
from compss_train.training.resume_checks import (
    check_end,
    check_same_fit,
    check_trainer,
    coding_in,
    options_of_groups,
    plain_option,
    setting_of,
    warn_of_differences,
)
from compss_train.training.session import Session
from compss_train.training.snapshot import Checkpoint, Progress, Snapshot
from compss_train.training.trained_model import TrainedModel
from compss_train.training.training_state import MergeState, TrainingState
from compss_train.worker.optimizer_state import numbered_state, optimized_names


def snapshot_of(session: Session) -> Snapshot:
    """Return the state to resume from; in a callback, that after the last complete round."""
    fit = session.model.fit
    progress = None if fit is None else fit.progress
    return replace(_content(session), setting=setting_of(session), progress=progress)


def _content(session: Session) -> Snapshot:
    """Return the same state without what is only compared on resuming."""
    model = session.model
    fit = model.fit
    schedule = model.built.lr_schedule
    changes = model.hyperparameters
    save = None if fit is None else fit.save
    if model.run is not None:
        reached, state = model.run.state()
        parameters = model.parameters if reached is None else reached
    else:
        parameters = model.current()
        state = session.state()
    return Snapshot(
        parameters=parameters,
        workers=state.workers if save is None else save.workers,
        merge=vars(state.merge),
        epoch=model.epochs,
        history=list(model.history),
        setting={},
        progress=None,
        callbacks={} if fit is None else fit.callbacks.states(),
        schedule={} if schedule is None else schedule.state_dict(),
        hyperparameters=[] if changes is None else changes.state(),
        study=None if save is None else save.content,
        files={} if save is None else save.files,
    )


def checkpoint_bytes(session: Session) -> int:
    """Return about how many bytes a checkpoint takes, if it shares none with an earlier one.

    It is that after the next round. Workers without a state get that of their optimizer, if
    it is known, and of random generators.
    """
    snapshot = _content(session)
    fit = session.model.fit
    history = snapshot.history
    values = leaves(replace(snapshot, history=[]).to_dict())
    arrays = sum(value.nbytes for value in values if isinstance(value, np.ndarray | torch.Tensor))
    if fit is not None and fit.merge.optimizer_state == "average":
        missing_states = int(snapshot.merge["moments"] is None)
    else:
        states = sum(worker.optimizer is not None for worker in snapshot.workers)
        missing_states = max(0, session.num_workers - states)
    optimizers = 0
    if missing_states:
        optimizers = missing_states * session.model.built.state_bytes
    records = len(history) * len(line_of(history[-1])) if history else 0
    return arrays + optimizers + records + (session.num_workers + 4) * 2**14


def restore(session: Session, folder: str | os.PathLike[str], *, best: bool = False) -> None:
    """Load the newest good checkpoint of a folder, or the best.

    ``DistributedTrainer.restore`` lists the errors.
    """
    setting = setting_of(session)
    with local_copy(folder) as local_folder:
        path, content = checkpoints.read_latest_checkpoint(local_folder, warn=True)
        if best:
            path = checkpoints.checkpoint_path(path.parent, _best_round(path, content))
            content = checkpoints.read_checkpoint(path)
    checkpoint = Checkpoint(path, Snapshot.from_dict(content, path))
    check_trainer(checkpoint, session, setting)
    warn_of_differences(checkpoint, setting, fit="fits continue")
    load(checkpoint.snapshot, session)
    if session.model.hyperparameters is not None:
        session.model.hyperparameters.settle()


def check_resume(resume: object) -> None:
    """Raise ``TypeError`` or ``ValueError`` for what ``fit(resume=...)`` does not take."""
    if not isinstance(resume, bool | str | os.PathLike):
        raise TypeError(
            f"resume={resume!r}: give a folder of checkpoints, True for that of the Checkpoint "
            "among the callbacks, or False for a new fit"
        )
    if not isinstance(resume, bool) and os.fspath(resume) == "":
        raise ValueError(f"resume={resume!r}: give the folder of checkpoints; '.' is this one")


def find_checkpoint(
    resume: str | os.PathLike[str] | bool,  # noqa: FBT001
    callbacks: Sequence[Callback],
) -> Checkpoint | None:
    """Return the checkpoint to resume from, or ``None`` for a new fit.

    That is for ``True`` and an empty folder. Raises ``ValueError`` for ``True`` without a folder,
    and ``TypeError`` for what is none.
    """
    check_resume(resume)
    folder: Any = resume
    if resume is True:
        folders = (callback.resume_folder() for callback in callbacks)
        folder = next(filter(None, folders), None)
        if folder is None:
            raise ValueError(
                "resume=True takes the folder of a Checkpoint among the callbacks, "
                "and there is none"
            )
        if not checkpoints.list_checkpoints(folder):
            return None
    with local_copy(folder) as local_folder:
        path, content = checkpoints.read_latest_checkpoint(local_folder, warn=True)
    return Checkpoint(path, Snapshot.from_dict(content, path))


def check(
    checkpoint: Checkpoint,
    planned: Progress,
    options: FitOptions,
    session: Session,
    data: DataSource,
) -> tuple[Progress, tuple[str, ...]]:
    """Return the progress in a checkpoint, and the files that were skipped.

    Raises ``ValueError`` if it is not of the planned fit.
    """
    model = session.model
    setting = setting_of(session)
    path, snapshot = checkpoint
    check_trainer(checkpoint, session, setting)
    check_same_coding(coding_in(snapshot), data, "this fit's data", f"those of {path}")
    progress = check_same_fit(
        checkpoint, planned, options, session.num_workers, is_ray_data=data.is_ray_data
    )
    _check_optimizers(snapshot, model)
    warn_of_differences(checkpoint, setting, fit="the fit resumes")
    last_record = snapshot.history[-1] if snapshot.history else {}
    is_own = bool(model.history) and model.history[-1]["ended"] == last_record.get("ended")
    check_end(path, progress, options, is_own=is_own)
    return progress, tuple(last_record.get("skipped", ()))


def _check_optimizers(snapshot: Snapshot, model: TrainedModel) -> None:
    """Raise ``ValueError`` if the optimizers' states are for other parameters."""
    spec = model.built.training_spec
    for state in snapshot.workers[:1]:
        optimizer = make_optimizer(spec.optimizer, spec.net)
        added = len((state.optimizer or {}).get("param_groups", ())) - len(optimizer.param_groups)
        # Workers know those that an Unfreeze has added.
        if state.optimizer is not None and added <= 0:
            numbered_state(state.optimizer, optimizer, spec.net)


def load(snapshot: Snapshot, session: Session) -> None:
    """Continue from the state of a checkpoint that has been checked.

    Warns of hyperparameters that were set for the next fit where the checkpoint has others. Raises
    ``ValueError`` for attributes that were set and are not there now.
    """
    model = session.model
    changed_options = _changed_options(snapshot, model)
    hyperparameters = HyperparameterChanges(model.built)
    hyperparameters.load_state(snapshot.hyperparameters, changed_options)
    if model.hyperparameters is not None:
        _warn_of_lost_values(model.hyperparameters.lost_in(hyperparameters))
    model.hyperparameters = hyperparameters if snapshot.hyperparameters else None
    model.parameters = params.copy_of(
        {name: snapshot.parameters[name] for name in model.parameters}
    )
    model.epochs = snapshot.epoch
    model.history[:] = snapshot.history
    model.seed = snapshot.setting["seed"]
    model.coding = coding_in(snapshot)
    schedule = model.built.lr_schedule
    if schedule is not None:
        schedule.load_state_dict(snapshot.schedule)
    training_spec = model.built.training_spec
    workers = tuple(state.with_options(changed_options) for state in snapshot.workers)
    model.averaged = snapshot.merge.get("averaged")
    model.state = None
    for worker in snapshot.workers[:1]:
        steps = training_spec.validation_step is not None
        model.state = model_state(worker.module_buffers, worker.attributes, steps=steps)
    session.set_state(TrainingState(workers, _merge_state(snapshot, model)))


def _warn_of_lost_values(lost: Mapping[str, tuple[Any, Any]]) -> None:
    if not lost:
        return
    replaced = []
    for name, (value, in_checkpoint) in lost.items():
        other = "that of build" if in_checkpoint is None else in_checkpoint
        replaced.append(f"{name} {value} by {other}")
    warn_user(
        "set_hyperparameters was called before a checkpoint was loaded, whose values replace those "
        f"that were set: {', '.join(replaced)}; call it in on_fit_start of the fit that goes on, "
        "or after restore"
    )


def _changed_options(snapshot: Snapshot, model: TrainedModel) -> list[dict[str, Any]]:
    """Return the options that the optimizer has been built with otherwise, by parameter group."""
    spec = model.built.training_spec
    groups = options_of_groups(make_optimizer(spec.optimizer, spec.net))
    saved_groups = snapshot.setting["optimizer_options"]
    return [
        {name: value for name, value in group.items() if saved.get(name) != plain_option(value)}
        for saved, group in zip(saved_groups, groups, strict=True)
    ]


def _merge_state(snapshot: Snapshot, model: TrainedModel) -> MergeState:
    """Return what merges keep; of older checkpoints, with names in place of numbers."""
    spec = model.built.training_spec
    saved = MergeState(**snapshot.merge)
    moments = saved.moments
    if moments is not None:
        names = optimized_names(make_optimizer(spec.optimizer, spec.net), spec.net)
        moments = {(_named(name, names), key): array for (name, key), array in moments.items()}
    outer = saved.outer
    if outer is not None:
        weights = spec.names.weights
        state = {_named(name, weights): value for name, value in outer["state"].items()}
        outer = {**outer, "state": state}
    return replace(saved, moments=moments, outer=outer)


def _named(name: str | int, names: Sequence[str]) -> str:
    """Return the name of a parameter that may be given by its number."""
    return names[name] if isinstance(name, int) else name


def _best_round(path: Path, content: Mapping[str, Any]) -> int:
    """Return the best round by the state of a ``Checkpoint``.

    That of the same folder counts first, then others, in case the folder has been moved. Other
    callbacks may monitor other measures.
    """
    states = [
        state
        for name, state in content["callbacks"].items()
        if name.startswith("Checkpoint ") and state["best_round"] is not None
    ]
    if not states:
        raise ValueError(
            f"{path} records no best round; Checkpoint(folder, best='val_loss') keeps it"
        )
    folder = path.parent.resolve()
    of_folder = [state for state in states if Path(state["folder"]).resolve() == folder]
    rounds = [int(state["best_round"]) for state in of_folder or states]
    stored = checkpoints.list_checkpoints(path.parent)
    return next((number for number in rounds if number in stored), rounds[0])
