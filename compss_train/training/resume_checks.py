"""Whether a trainer or a fit may continue from a checkpoint, and the same bits with it."""

import json
import platform
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from compss_train._utils.validation import warn_user
from compss_train.data.coding import Coding
from compss_train.data.partitioning import epochs_of_rounds
from compss_train.model import parameters as params
from compss_train.model.net_optimizers import make_optimizer
from compss_train.training import description
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.data_source import DataSource
from compss_train.training.fit import FitOptions
from compss_train.training.merge import DEFAULTS, Merge
from compss_train.training.session import Session
from compss_train.training.snapshot import Checkpoint, Progress, Snapshot

CHANGEABLE_OPTIONS = ("num_epochs", "preset")
"""Options of ``fit`` that may change when it is resumed; what a preset chooses may not."""


def setting_of(session: Session) -> dict[str, Any]:
    """Return the settings that results depend on, besides the data and the options of a fit."""
    model = session.model
    built = session.model.built
    training_spec = built.training_spec
    optimizer = make_optimizer(training_spec.optimizer, training_spec.net)
    groups = options_of_groups(optimizer)
    optimizer_name = type(optimizer).__name__
    if len(groups) > 1:
        optimizer_name += f" with {len(groups)} groups of parameters"
    compared_fields = "precision", "memory_format", "compile"
    return {
        "optimizer": optimizer_name,
        "optimizer_options": [
            {name: plain_option(value) for name, value in group.items()} for group in groups
        ],
        "seed": model.seed,
        "coding": json.dumps(model.coding),  # one text, as there may be many classes
        "num_workers": session.num_workers,
        "threads": session.threads,
        "num_gpu": built.num_gpu,
        **{name: description.described(getattr(training_spec, name)) for name in compared_fields},
        **built.surroundings,
        **description.described_fields(training_spec.gradients),
        "python": platform.python_version().rpartition(".")[0],
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def coding_in(snapshot: Snapshot) -> Coding:
    """Return what the numbers of the data meant; nothing for a checkpoint that does not say it."""
    coding = json.loads(snapshot.setting.get("coding", "{}"))
    return {meaning: tuple(values) for meaning, values in coding.items()}


def options_of_groups(optimizer: torch.optim.Optimizer) -> list[dict[str, Any]]:
    """Return the options of each group of parameters."""
    return [
        {name: group[name] for name in group if name != "params"}
        for group in optimizer.param_groups
    ]


def compared_values(options: FitOptions, data: DataSource, built: BuildArguments) -> dict[str, Any]:
    """Return what must be the same when a fit is resumed: of its options, objective and data."""
    determining = options.determining
    merge = _merge_options(determining.pop("merge"))
    return {
        **merge,
        **{name: plain_option(value) for name, value in determining.items()},
        **built.objective,
        "class_weight": built.training_spec.class_weight,
        "sample_weight": "given" if data.structure.weighted else None,
    }


def _merge_options(merge: Merge) -> dict[str, Any]:
    return {f"merge.{name}": description.described(value) for name, value in vars(merge).items()}


def plain_option(value: Any) -> Any:
    """Return an option as a value that a checkpoint can store and compare."""
    return value if isinstance(value, bool | int | float | str | tuple | None) else repr(value)


def check_trainer(checkpoint: Checkpoint, session: Session, setting: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` for another network, optimizer or seed; ``setting`` is the session's."""
    path, snapshot = checkpoint
    seed = session.model.given_seed
    saved = snapshot.setting
    layout = _layout(snapshot.parameters)
    network = _layout(session.model.parameters)
    differences = [f"it has no {name!r}" for name in network if name not in layout]
    differences += [
        f"it has {name!r}, which the network lacks" for name in layout if name not in network
    ]
    differences += [
        f"{name} was {array}, and is {network[name]}"
        for name, array in layout.items()
        if name in network and array != network[name]
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
    path, snapshot = checkpoint
    saved = snapshot.setting
    saved_groups = saved["optimizer_options"]
    groups = setting["optimizer_options"]
    differences: list[str] = []
    for number, (saved_group, group) in enumerate(zip(saved_groups, groups, strict=True)):
        prefix = f"group {number}'s " if len(groups) > 1 else ""
        differences += [prefix + text for text in _differences(saved_group, group)]
    compared_elsewhere = "optimizer_options", "seed", "coding"
    differences += _differences(
        {name: value for name, value in saved.items() if name not in compared_elsewhere},
        {name: value for name, value in setting.items() if name not in compared_elsewhere},
    )
    if differences:
        warn_user(
            f"{fit} from {path}, but not bit for bit as without interruption: "
            f"{_join_first(differences)}"
        )


def check_same_fit(
    checkpoint: Checkpoint,
    planned: Progress,
    options: FitOptions,
    workers: int,
    *,
    is_ray_data: bool = False,
) -> Progress:
    """Return the progress of the fit in a checkpoint; ``planned`` is that of the new fit.

    Warns if some rows show that data of the same sizes have other values.

    Raises ``ValueError`` if it had other options or block sizes, or another number of workers with
    filled buffers.
    """
    path, snapshot = checkpoint
    progress = snapshot.progress
    if progress is None:
        raise ValueError(
            f"{path} was not written during fit, so it cannot be resumed; use trainer.restore"
        )
    saved_options = _without_changeable(progress.options)
    planned_options = _without_changeable(planned.options)
    differences = _differences(saved_options, planned_options, _defaults())
    data_differences = _data_differences(progress.sizes, planned.sizes)
    if data_differences and is_ray_data:
        data_differences[-1] += (
            ". The blocks of a Ray data set depend on the cluster; "
            f"dataset.repartition({len(progress.sizes)}) before both fits makes the same ones"
        )
    differences += data_differences
    if differences:
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
    fingerprints = {progress.fingerprint, planned.fingerprint}
    if None not in fingerprints and len(fingerprints) > 1:
        warn_user(
            f"the fit resumes from {path}, but its data had other values than these, or "
            "another order"
        )
    return progress


def _without_changeable(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in CHANGEABLE_OPTIONS}


def check_end(path: Path, progress: Progress, options: FitOptions, *, is_own: bool) -> None:
    """Warn if the fit had ended: if nothing is left to train, or its last round was shorter.

    ``is_own`` says whether it was this trainer that had trained it.
    """
    start = progress.first_epoch
    saved_epochs = range(start, start + progress.options["num_epochs"])
    epochs = range(start, start + options.num_epochs)
    if progress.reached.epoch < saved_epochs.stop:
        return
    if is_own and len(epochs) <= len(saved_epochs):
        warn_user(
            f"the fit resumes from {path}, the end of one with num_epochs={len(saved_epochs)}: "
            "nothing is left to train. Raise num_epochs to continue; a new fit needs its own "
            "folder, or no resume="
        )
    every = options.merge.every
    (last_round,) = deque(epochs_of_rounds(saved_epochs, every), maxlen=1)
    longest = range(last_round.start, max(epochs.stop, last_round.stop))
    planned_round = next(epochs_of_rounds(longest, every))
    if options.merge.unit == "epochs" and len(planned_round) > len(last_round):
        warn_user(
            f"the fit resumes from {path}, but not bit for bit as a fit of {len(epochs)} epochs: "
            f"its last merge was after {len(last_round)} of {len(planned_round)} epochs"
        )


def _data_differences(saved: Sequence[int], current: Sequence[int]) -> list[str]:
    """Return how the sizes of blocks differ."""
    if (len(saved), sum(saved)) == (len(current), sum(current)):
        pairs = enumerate(zip(saved, current, strict=True))
        return [
            f"block {block} had {saved_size} samples, and has {size}"
            for block, (saved_size, size) in pairs
            if saved_size != size
        ]
    hint = ""
    if sum(saved) == sum(current):
        hint = f" (split them into {len(saved)}, as by BlockedTensor.from_array)"
    return [f"its data are {_totals(saved)}, and these {_totals(current)}{hint}"]


def _totals(sizes: Sequence[int]) -> str:
    return f"{sum(sizes)} samples in {len(sizes)} blocks"


def _layout(parameters: params.Parameters) -> dict[str, str]:
    return {name: f"{array.dtype} {array.shape}" for name, array in parameters.items()}


def _differences(
    saved: Mapping[str, Any], current: Mapping[str, Any], defaults: Mapping[str, Any] | None = None
) -> list[str]:
    """Return how options differ.

    One that a side lacks, as of another version, has its default there, or is off.
    """
    differences = []
    for name in {**saved, **current}:
        default = None if defaults is None else defaults.get(name)
        saved_value = saved.get(name, default)
        value = current.get(name, default)
        is_in_both = name in saved and name in current
        if saved_value != value and (saved_value or value or is_in_both):
            differences.append(f"{name} was {saved_value}, and is {value}")
    return differences


def _defaults() -> dict[str, Any]:
    """Return the defaults of the options of a fit."""
    options = {
        option.name: plain_option(option.default)
        for option in fields(FitOptions)
        if option.default is not MISSING
    }
    return {**_merge_options(DEFAULTS), **options}


def _join_first(differences: list[str], limit: int = 5) -> str:
    """Return the first differences, and the number of the others."""
    hidden = len(differences) - limit
    suffix = f" and {hidden} more" if hidden > 0 else ""
    return "; ".join(differences[:limit]) + suffix
