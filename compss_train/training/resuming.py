"""Resuming: the checkpoint that a fit starts from, and the state of a trainer in one and back."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compss_train.model import parameters as params
from compss_train.model.optimizers import make_optimizer
from compss_train.training.callback import Callback
from compss_train.training.checkpoints import compatibility, storage
from compss_train.training.checkpoints.snapshot import Snapshot
from compss_train.training.data_source import DataSource
from compss_train.training.description import described, described_fields
from compss_train.training.fit import Checkpoint, FitOfEpochs
from compss_train.training.trained_model import TrainedModel
from compss_train.training.training_state import MergeState, TrainingState
from compss_train.training.workplace import Workplace


def snapshot_of(model: TrainedModel, workplace: Workplace) -> Snapshot:
    """Return the state that a later fit can resume from; in a callback that after the last complete round."""
    fit = model.fit
    if fit is not None and fit.running is not None:
        settled, state = fit.running.settled()
        parameters = model.parameters if settled is None else settled
    else:
        parameters, state = model.current(), workplace.state()
    schedule = model.built.lr_schedule
    return Snapshot(
        parameters=parameters,
        workers=state.workers,
        merge=vars(state.merge),
        epoch=model.epochs,
        history=list(model.history),
        setting=_setting(model, workplace),
        progress=None if fit is None else fit.progress(),
        callbacks={} if fit is None else fit.callbacks.states(),
        schedule={} if schedule is None else schedule.state_dict(),
    )


def restore(
    model: TrainedModel, workplace: Workplace, folder: str | os.PathLike[str], *, best: bool = False
) -> None:
    """Load the newest good checkpoint of a folder, or the best one; ``DistributedTrainer`` has the errors."""
    path, content = storage.read_latest_checkpoint(folder, warn=True)
    if best:
        path = storage.checkpoint_path(path.parent, _best_round(path, content))
        content = storage.read_checkpoint(path)
    snapshot = Snapshot.from_dict(content)
    compatibility.check_parameters(path, snapshot.parameters, model.parameters)
    setting = _setting(model, workplace)
    compatibility.check_trainer(path, snapshot, setting, model.given_seed, fit="fits continue")
    load(snapshot, model, workplace)


def find_checkpoint(resume: str | os.PathLike[str] | bool, callbacks: Sequence[Callback]) -> Checkpoint | None:
    """Return the checkpoint to resume from, ``None`` for a new fit."""
    folder = _folder_of(resume, callbacks)
    if folder is None or (resume is True and not storage.list_checkpoints(folder)):
        return None
    path, content = storage.read_latest_checkpoint(folder, warn=True)
    return path, Snapshot.from_dict(content)


def resumed(fit: FitOfEpochs, model: TrainedModel, workplace: Workplace) -> FitOfEpochs:
    """Return the fit with its start in its checkpoint, if it has one; check that this is of the same fit."""
    fit.described = {**fit.options.described(), **_objective(model, fit.data)}
    if fit.checkpoint is None:
        return fit
    path, snapshot = fit.checkpoint
    compatibility.check_parameters(path, snapshot.parameters, model.parameters)
    saved = compatibility.check_fit(path, snapshot, fit.described, fit.data.sizes)
    compatibility.check_buffers(path, saved, fit.options, workplace.num_workers)
    compatibility.check_data(path, snapshot, fit.data.fingerprint)
    compatibility.check_trainer(path, snapshot, _setting(model, workplace), model.given_seed)
    last = snapshot.history[-1] if snapshot.history else {}
    own = bool(model.history) and model.history[-1]["ended"] == last.get("ended")
    compatibility.check_end(path, saved, fit.options, own=own)
    skipped = tuple(last.get("skipped", ()))
    return replace(fit, first_epoch=saved.first_epoch, reached=saved.reached, skipped=skipped)


def load(snapshot: Snapshot, model: TrainedModel, workplace: Workplace) -> None:
    """Continue from the state of a checkpoint that has been checked."""
    model.parameters = params.copy_of({name: snapshot.parameters[name] for name in model.parameters})
    model.epochs = snapshot.epoch
    model.history[:] = snapshot.history
    model.seed = snapshot.setting["seed"]
    if (schedule := model.built.lr_schedule) is not None:
        schedule.load_state_dict(snapshot.schedule)
    changed = [
        {name: value for name, value in now.items() if saved.get(name) != _plain(value)}
        for saved, now in zip(snapshot.setting["optimizer_options"], _optimizer(model)[1], strict=True)
    ]
    workers = tuple(state.with_options(changed) for state in snapshot.workers)
    model.averaged = snapshot.merge.get("averaged")
    workplace.set_state(TrainingState(workers, MergeState(**snapshot.merge)))


def _setting(model: TrainedModel, workplace: Workplace) -> dict[str, Any]:
    """Return the settings that results depend on, besides the data and the options of a fit."""
    built = model.built
    training_spec = built.training_spec
    optimizer, groups = _optimizer(model)
    return {
        "optimizer": optimizer,
        "optimizer_options": [{name: _plain(value) for name, value in group.items()} for group in groups],
        "seed": model.seed,
        "num_workers": workplace.num_workers,
        "threads": workplace.threads,
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


def _optimizer(model: TrainedModel) -> tuple[str, list[dict[str, Any]]]:
    """Return the name of the optimizer's class, and the options of each of its parameter groups."""
    training_spec = model.built.training_spec
    optimizer = make_optimizer(training_spec.optimizer, training_spec.net)
    groups = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
    return type(optimizer).__name__, groups


def _objective(model: TrainedModel, data: DataSource) -> dict[str, Any]:
    """Return the objective that a fit minimizes, and what else its data say."""
    training_spec = model.built.training_spec
    return {
        "loss": described(training_spec.loss),
        "class_weight": training_spec.class_weight,
        "sample_weight": "given" if data.structure.weighted else None,
        "bucket_by_length": data.structure.bucketed,
    }


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
