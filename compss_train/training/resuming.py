"""Resuming: the checkpoint that a fit starts from, if it matches; the state of a trainer in one and
back.
"""

import json
import os
import platform
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compss_train._utils.nested import leaves
from compss_train._utils.validation import warn_user
from compss_train.data.coding import Coding
from compss_train.data.partitioning import epochs_of_rounds
from compss_train.model import parameters as params
from compss_train.model.optimizers import make_optimizer
from compss_train.reports.history import line_of
from compss_train.training import checkpoints, description
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.callback import Callback
from compss_train.training.checkpoints import Checkpoint, Progress, Snapshot
from compss_train.training.data_source import DataSource, check_same_coding
from compss_train.training.fit import FitOptions
from compss_train.training.merge import DEFAULTS
from compss_train.training.session import Session
from compss_train.training.trained_model import TrainedModel
from compss_train.training.training_state import MergeState, TrainingState
from compss_train.worker.optimizer_state import optimizer_bytes


def snapshot_of(session: Session) -> Snapshot:
    """Return the state that a later fit can resume from; in a callback, the state after the last
    complete round.
    """
    fit = session.model.fit
    return replace(
        _content(session),
        setting=setting_of(session),
        progress=None if fit is None else fit.progress,
    )


def _content(session: Session) -> Snapshot:
    """Return the same state without what is only compared on resuming."""
    model = session.model
    fit = model.fit
    schedule = model.built.lr_schedule
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
        study=None if save is None else save.content,
        files={} if save is None else save.files,
    )


def checkpoint_bytes(session: Session) -> int:
    """Return about how many bytes a checkpoint takes after the next round, if it shares none with
    an earlier one.

    Workers without a state get that of their optimizer, if ``optimizer_bytes`` knows it, and of
    random generators.
    """
    snapshot = _content(session)
    fit = session.model.fit
    training_spec = session.model.built.training_spec
    history = snapshot.history
    states = leaves(replace(snapshot, history=[]).to_dict())
    held = sum(value.nbytes for value in states if isinstance(value, np.ndarray | torch.Tensor))
    if fit is not None and fit.merge.optimizer_state == "average":
        new = int(snapshot.merge["moments"] is None)
    else:
        new = session.num_workers - sum(worker.optimizer is not None for worker in snapshot.workers)
    added = new * optimizer_bytes(training_spec.net, training_spec.optimizer) if new > 0 else 0
    records = len(history) * len(line_of(history[-1])) if history else 0
    return held + added + records + (session.num_workers + 4) * 2**14


def restore(session: Session, folder: str | os.PathLike[str], *, best: bool = False) -> None:
    """Load the newest good checkpoint of a folder, or the best; ``DistributedTrainer.restore``
    lists the errors.
    """
    setting = setting_of(session)
    with checkpoints.local_copy(folder) as local:
        path, content = checkpoints.read_latest_checkpoint(local, warn=True)
        if best:
            path = checkpoints.checkpoint_path(path.parent, _best_round(path, content))
            content = checkpoints.read_checkpoint(path)
    snapshot = Snapshot.from_dict(content, path)
    check_trainer((path, snapshot), session, setting)
    warn_of_differences((path, snapshot), setting, fit="fits continue")
    load(snapshot, session)


def find_checkpoint(
    resume: str | os.PathLike[str] | bool, callbacks: Sequence[Callback]
) -> Checkpoint | None:
    """Return the checkpoint to resume from, or ``None`` for a new fit: ``True`` and an empty
    folder.
    """
    folder: Any = resume
    if resume is True:
        folder = next(filter(None, (callback.resume_folder() for callback in callbacks)), None)
        if folder is None:
            raise ValueError(
                "resume=True takes the folder of a Checkpoint among the callbacks, "
                "and there is none"
            )
        if not checkpoints.list_checkpoints(folder):
            return None
    with checkpoints.local_copy(folder) as local:
        path, content = checkpoints.read_latest_checkpoint(local, warn=True)
    return path, Snapshot.from_dict(content, path)


def check(
    checkpoint: Checkpoint,
    planned: Progress,
    options: FitOptions,
    session: Session,
    data: DataSource,
) -> tuple[Progress, tuple[str, ...]]:
    """Return the progress in a checkpoint and the files that were skipped; check that it is of the
    planned fit.
    """
    model = session.model
    setting = setting_of(session)
    (path, snapshot) = checkpoint
    check_trainer(checkpoint, session, setting)
    check_same_coding(_coding_in(snapshot), data, "this fit's data", f"those of {path}")
    saved = check_same_fit(checkpoint, planned, options, session.num_workers)
    warn_of_differences(checkpoint, setting, fit="the fit resumes")
    last = snapshot.history[-1] if snapshot.history else {}
    check_end(
        path,
        saved,
        options,
        own=bool(model.history) and model.history[-1]["ended"] == last.get("ended"),
    )
    return saved, tuple(last.get("skipped", ()))


def load(snapshot: Snapshot, session: Session) -> None:
    """Continue from the state of a checkpoint that has been checked."""
    model = session.model
    model.parameters = params.copy_of(
        {name: snapshot.parameters[name] for name in model.parameters}
    )
    model.epochs = snapshot.epoch
    model.history[:] = snapshot.history
    model.seed = snapshot.setting["seed"]
    model.coding = _coding_in(snapshot)
    if (schedule := model.built.lr_schedule) is not None:
        schedule.load_state_dict(snapshot.schedule)
    changed = [
        {name: value for name, value in now.items() if saved.get(name) != _plain(value)}
        for saved, now in zip(
            snapshot.setting["optimizer_options"], _optimizer(model)[1], strict=True
        )
    ]
    workers = tuple(state.with_options(changed) for state in snapshot.workers)
    model.averaged = snapshot.merge.get("averaged")
    session.set_state(TrainingState(workers, MergeState(**snapshot.merge)))


def setting_of(session: Session) -> dict[str, Any]:
    """Return the settings that results depend on, besides the data and the options of a fit."""
    model = session.model
    built = session.model.built
    training_spec = built.training_spec
    optimizer, groups = _optimizer(model)
    compared = "precision", "memory_format", "compile"
    return {
        "optimizer": optimizer,
        "optimizer_options": [
            {name: _plain(value) for name, value in group.items()} for group in groups
        ],
        "seed": model.seed,
        "coding": json.dumps(model.coding),  # one text, as there may be many classes
        "num_workers": session.num_workers,
        "threads": session.threads,
        "num_gpu": built.num_gpu,
        **{name: description.described(getattr(training_spec, name)) for name in compared},
        **built.surroundings,
        **description.described_fields(training_spec.gradients),
        "python": platform.python_version().rpartition(".")[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def _coding_in(snapshot: Snapshot) -> Coding:
    """Return what the numbers of the data meant; of a checkpoint that does not say it, nothing."""
    return {
        what: tuple(values)
        for what, values in json.loads(snapshot.setting.get("coding", "{}")).items()
    }


def _optimizer(model: TrainedModel) -> tuple[str, list[dict[str, Any]]]:
    """Return the name of the optimizer, and the options of each of its parameter groups."""
    training_spec = model.built.training_spec
    optimizer = make_optimizer(training_spec.optimizer, training_spec.net)
    groups = [
        {name: group[name] for name in group if name != "params"}
        for group in optimizer.param_groups
    ]
    several = f" with {len(groups)} groups of parameters" if len(groups) > 1 else ""
    return type(optimizer).__name__ + several, groups


def compared(options: FitOptions, data: DataSource, built: BuildArguments) -> dict[str, Any]:
    """Return what must be the same when a fit is resumed: its options, its objective, settings of
    its data.
    """
    determining = options.determining
    merge = {
        f"merge.{key}": description.described(own)
        for key, own in vars(determining.pop("merge")).items()
    }
    return {
        **merge,
        **{name: _plain(value) for name, value in determining.items()},
        **built.objective,
        "class_weight": built.training_spec.class_weight,
        "sample_weight": "given" if data.structure.weighted else None,
    }


def _plain(value: Any) -> Any:
    """Return an optimizer's option as a value that a checkpoint can store and compare."""
    return value if isinstance(value, bool | int | float | str | tuple | None) else repr(value)


def _best_round(path: Path, content: Mapping[str, Any]) -> int:
    """Return the best round by the state of a ``Checkpoint``; other callbacks may monitor other
    measures.
    """
    states = [
        state for name, state in content["callbacks"].items() if name.startswith("Checkpoint ")
    ]
    kept = [state for state in states if state["best_round"] is not None]
    if not kept:
        raise ValueError(
            f"{path} records no best round; Checkpoint(folder, best='val_loss') keeps it"
        )
    here = [state for state in kept if Path(state["folder"]).resolve() == path.parent.resolve()]
    there = checkpoints.list_checkpoints(path.parent)
    # All, if the folder has been moved.
    numbers = [int(state["best_round"]) for state in here or kept]
    return next((number for number in numbers if number in there), numbers[0])


CHANGEABLE_OPTIONS = ("num_epochs", "preset")
"""Options of ``fit`` that may change when it is resumed; the options that a preset chooses may
not.
"""


def check_trainer(checkpoint: Checkpoint, session: Session, setting: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for another network, optimizer or seed; ``setting`` is the session's."""
    (path, snapshot) = checkpoint
    seed = session.model.given_seed
    saved = snapshot.setting
    before = _layout(snapshot.parameters)
    now = _layout(session.model.parameters)
    differences = [
        *(f"it has no {name!r}" for name in now if name not in before),
        *(f"it has {name!r}, which the network lacks" for name in before if name not in now),
        *(
            f"{name} was {each}, and is {now[name]}"
            for name, each in before.items()
            if each != now.get(name, each)
        ),
    ]
    if differences:
        raise ValueError(f"{path} is the checkpoint of another network: {_join_first(differences)}")
    if saved["optimizer"] != setting["optimizer"]:
        raise ValueError(
            f"{path} has the states of {saved['optimizer']}, but the optimizer is "
            f"{setting['optimizer']}; build with the same optimizer"
        )
    if seed is not None and seed != saved["seed"]:
        raise ValueError(
            f"{path} is of a fit with seed={saved['seed']}, and this trainer has seed={seed}"
        )


def warn_of_differences(checkpoint: Checkpoint, setting: Mapping[str, Any], *, fit: str) -> None:
    """Warn of settings that change results."""
    path = checkpoint[0]
    saved = checkpoint[1].setting
    apart = "optimizer_options", "seed", "coding"
    others = {name: value for name, value in saved.items() if name not in apart}
    groups = zip(saved["optimizer_options"], setting["optimizer_options"], strict=True)
    differences = [
        (f"group {number}'s " if len(setting["optimizer_options"]) > 1 else "") + difference
        for number, (before, after) in enumerate(groups)
        for difference in _option_differences(before, after)
    ]
    differences += _option_differences(
        others, {name: setting[name] for name in setting if name not in apart}
    )
    if differences:
        warn_user(
            f"{fit} from {path}, but not bit for bit as without interruption: "
            f"{_join_first(differences)}"
        )


def check_same_fit(
    checkpoint: Checkpoint, planned: Progress, options: FitOptions, workers: int
) -> Progress:
    """Return the progress of the fit; warn if some rows show that data of the same sizes have other
    values.

    ``planned`` is that of the new fit.

    Raises ``ValueError`` if it had other options or block sizes, or another number of workers with
    filled buffers.
    """
    path = checkpoint[0]
    progress = checkpoint[1].progress
    if progress is None:
        raise ValueError(
            f"{path} was not written during fit, so it cannot be resumed; use trainer.restore"
        )
    saved = {
        name: value for name, value in progress.options.items() if name not in CHANGEABLE_OPTIONS
    }
    now = {name: value for name, value in planned.options.items() if name not in CHANGEABLE_OPTIONS}
    differences = _option_differences(saved, now, _defaults())
    if differences := [*differences, *_data_differences(progress.sizes, planned.sizes)]:
        raise ValueError(
            f"{path} is the checkpoint of another fit: {_join_first(differences)}. Give the same "
            "options and data to resume it, or begin a new fit with its parameters by "
            "trainer.restore"
        )
    reached = progress.reached
    if options.carries_buffers and reached.units and reached.cut_for != workers:
        raise ValueError(
            f"{path} was written inside an epoch by {reached.cut_for} workers, whose buffers "
            f"hold samples of it, so {workers} cannot resume it: use "
            f"num_workers={reached.cut_for}, or a checkpoint from the end of an epoch"
        )
    if (
        None not in (fingerprints := (progress.fingerprint, planned.fingerprint))
        and len({*fingerprints}) > 1
    ):
        warn_user(
            f"the fit resumes from {path}, but its data had other values than these, or "
            "another order"
        )
    return progress


def check_end(path: Path, progress: Progress, options: FitOptions, *, own: bool) -> None:
    """Warn if the fit was complete and is the trainer's ``own``, or had a shorter last round."""
    saved_epochs = progress.options["num_epochs"]
    num_epochs = options.num_epochs
    if progress.reached.epoch < progress.first_epoch + saved_epochs:
        return
    if own and num_epochs <= saved_epochs:
        warn_user(
            f"the fit resumes from {path}, the end of one with num_epochs={saved_epochs}: "
            "nothing is left to train. Raise num_epochs to continue; a new fit needs its own "
            "folder, or no resume="
        )
    first = progress.first_epoch
    end = progress.first_epoch + num_epochs
    (last,) = deque(
        epochs_of_rounds(range(first, first + saved_epochs), options.merge.every), maxlen=1
    )
    planned = next(epochs_of_rounds(range(last.start, max(end, last.stop)), options.merge.every))
    if options.merge.unit == "epochs" and len(planned) > len(last):
        warn_user(
            f"the fit resumes from {path}, but not bit for bit as a fit of {num_epochs} epochs: "
            f"its last merge was after {len(last)} of {len(planned)} epochs"
        )


def _data_differences(saved: Sequence[int], current: Sequence[int]) -> list[str]:
    if (len(saved), sum(saved)) == (len(current), sum(current)):
        pairs = enumerate(zip(saved, current, strict=True))
        return [
            f"block {block} had {old} samples, and has {new}"
            for block, (old, new) in pairs
            if old != new
        ]
    hint = (
        f" (split them into {len(saved)}, as by BlockedTensor.from_array)"
        if sum(saved) == sum(current)
        else ""
    )
    before, after = (f"{sum(sizes)} samples in {len(sizes)} blocks" for sizes in (saved, current))
    return [f"its data are {before}, and these {after}{hint}"]


def _layout(parameters: params.Parameters) -> dict[str, str]:
    return {name: f"{array.dtype} {array.shape}" for name, array in parameters.items()}


def _option_differences(
    saved: Mapping[str, Any], current: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> list[str]:
    """Return how options differ. One that a side lacks, as of another version, has its default
    there, or is off.
    """
    known = defaults or {}
    pairs = {
        name: [side.get(name, known.get(name)) for side in (saved, current)]
        for name in {**saved, **current}
    }
    return [
        f"{name} was {before}, and is {after}"
        for name, (before, after) in pairs.items()
        if before != after and (before or after or (name in saved and name in current))
    ]


def _defaults() -> dict[str, Any]:
    merge = {
        f"merge.{name}": description.described(value) for name, value in vars(DEFAULTS).items()
    }
    return merge | {
        each.name: _plain(each.default)
        for each in fields(FitOptions)
        if each.default is not MISSING
    }


def _join_first(differences: list[str], limit: int = 5) -> str:
    more = f" and {len(differences) - limit} more" if len(differences) > limit else ""
    return "; ".join(differences[:limit]) + more
