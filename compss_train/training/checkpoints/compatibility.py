"""Checks that a checkpoint matches the network, the trainer and the fit that resume from it."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.data.partitioning import epochs_of_rounds
from compss_train.model.parameters import Parameters
from compss_train.training.checkpoints.snapshot import Progress, Snapshot
from compss_train.training.fit_options import FitOptions

CHANGEABLE_OPTIONS = ("num_epochs", "preset")
"""Options of ``fit`` that may change when it is resumed; the options that a preset chooses may not."""


def check_parameters(path: Path, saved: Parameters, current: Parameters) -> None:
    """Raise ``ValueError`` unless both are parameters of the same network."""
    differences = [
        *(f"it has no {name!r}" for name in current if name not in saved),
        *(f"it has {name!r}, which the network lacks" for name in saved if name not in current),
        *_differences(
            {name: _describe_array(array) for name, array in saved.items()},
            {name: _describe_array(array) for name, array in current.items()},
        ),
    ]
    if differences:
        raise ValueError(f"{path} is the checkpoint of another network: {_join_first(differences)}")


def check_fit(path: Path, snapshot: Snapshot, options: Mapping[str, Any], sizes: Sequence[int]) -> Progress:
    """Return the progress of the fit; raise ``ValueError`` if it had other options or sizes of blocks."""
    progress = snapshot.progress
    if progress is None:
        raise ValueError(f"{path} was not written during fit, so it cannot be resumed; use trainer.restore")
    saved = {name: value for name, value in progress.options.items() if name not in CHANGEABLE_OPTIONS}
    differences = list(_differences(saved, options))
    differences.extend(_data_differences(progress.sizes, sizes))
    if differences:
        raise ValueError(
            f"{path} is the checkpoint of another fit: {_join_first(differences)}. Give the same options and data "
            "to resume it, or begin a new fit with its parameters by trainer.restore"
        )
    return progress


def check_buffers(path: Path, progress: Progress, options: FitOptions, num_workers: int) -> None:
    """Raise ``ValueError`` if workers carry buffers inside an epoch, and there were more or fewer of them."""
    reached = progress.reached
    if options.carries_buffers and reached.units and reached.cut_for != num_workers:
        raise ValueError(
            f"{path} was written inside an epoch by {reached.cut_for} workers, whose buffers hold samples of it, "
            f"so that {num_workers} cannot resume it: take num_workers={reached.cut_for}, or a checkpoint at the "
            "end of an epoch"
        )


def check_end(path: Path, progress: Progress, options: FitOptions, *, own: bool) -> None:
    """Warn if the fit was complete, and is the trainer's ``own`` or had a shorter last round."""
    saved_epochs, num_epochs = progress.options["num_epochs"], options.num_epochs
    if progress.reached.epoch < progress.first_epoch + saved_epochs:
        return
    if own and num_epochs <= saved_epochs:
        warn_user(
            f"the fit resumes from {path}, the end of one with num_epochs={saved_epochs}: nothing is left to "
            "train. Raise num_epochs to train on; a new fit needs its own folder, or no resume="
        )
    first, end = progress.first_epoch, progress.first_epoch + num_epochs
    (last,) = deque(epochs_of_rounds(range(first, first + saved_epochs), options.every), maxlen=1)
    planned = next(epochs_of_rounds(range(last.start, max(end, last.stop)), options.every))
    if options.merge.unit == "epochs" and len(planned) > len(last):
        warn_user(
            f"the fit resumes from {path}, but not bit for bit as a fit of {num_epochs} epochs: its last "
            f"merge was after {len(last)} of {len(planned)} epochs"
        )


def check_data(path: Path, snapshot: Snapshot, fingerprint: int | None) -> None:
    """Warn if data of the same sizes have other values, based on a sample of rows."""
    saved = None if snapshot.progress is None else snapshot.progress.fingerprint
    if saved is not None and fingerprint is not None and saved != fingerprint:
        warn_user(f"the fit resumes from {path}, but its data had other values than these, or another order")


def check_trainer(
    path: Path, snapshot: Snapshot, setting: Mapping[str, Any], seed: int | None, *, fit: str = "the fit resumes"
) -> None:
    """Raise ``ValueError`` for another optimizer or seed; warn of differences that change the numbers."""
    saved = snapshot.setting
    if saved["optimizer"] != setting["optimizer"]:
        raise ValueError(
            f"{path} has the states of {saved['optimizer']}, but the optimizer is {setting['optimizer']}; build "
            "with the same optimizer"
        )
    if len(saved["optimizer_options"]) != len(setting["optimizer_options"]):
        groups = f"{len(saved['optimizer_options'])} groups of parameters, and this one"
        raise ValueError(f"{path} is of an optimizer with {groups} has {len(setting['optimizer_options'])}")
    if seed is not None and seed != saved["seed"]:
        raise ValueError(f"{path} is of a fit with seed={saved['seed']}, and this trainer has seed={seed}")
    others = [name for name in setting if name not in ("optimizer", "optimizer_options", "seed")]
    different = [
        *_optimizer_differences(saved["optimizer_options"], setting["optimizer_options"]),
        *_differences({name: saved[name] for name in others}, setting),
        *_worker_differences(saved["num_workers"], setting["num_workers"]),
    ]
    if different:
        warn_user(f"{fit} from {path}, but not bit for bit as without interruption: {_join_first(different)}")


def _optimizer_differences(
    saved: Sequence[Mapping[str, Any]], current: Sequence[Mapping[str, Any]]
) -> Iterator[str]:
    for number, groups in enumerate(zip(saved, current, strict=True)):
        prefix = f"group {number}'s " if len(current) > 1 else ""
        yield from (f"{prefix}{difference}" for difference in _differences(*groups))


def _worker_differences(saved: int, current: int) -> Iterator[str]:
    if current > saved:
        yield f"the optimizers and random numbers of {_name_workers(saved, current)} are new"
    if current < saved:
        yield f"the optimizers and random numbers of {_name_workers(current, saved)} are dropped"


def _name_workers(first: int, stop: int) -> str:
    return f"worker {first}" if stop == first + 1 else f"workers {first} to {stop - 1}"


def _data_differences(saved: Sequence[int], current: Sequence[int]) -> Iterator[str]:
    if (len(saved), sum(saved)) != (len(current), sum(current)):
        hint = (
            f" (split them into {len(saved)}, as by BlockedTensor.from_array)" if sum(saved) == sum(current) else ""
        )
        yield f"its data are {_describe_sizes(saved)}, and these {_describe_sizes(current)}{hint}"
    else:
        for block, (before, after) in enumerate(zip(saved, current, strict=True)):
            if before != after:
                yield f"block {block} had {before} samples, and has {after}"


def _describe_sizes(sizes: Sequence[int]) -> str:
    return f"{sum(sizes)} samples in {len(sizes)} blocks"


def _differences(saved: Mapping[str, Any], current: Mapping[str, Any]) -> Iterator[str]:
    for name, value in saved.items():
        if name in current and current[name] != value:
            yield f"{name} was {value}, and is {current[name]}"


def _describe_array(array: Any) -> str:
    return f"{array.dtype} {array.shape}"


def _join_first(differences: list[str], limit: int = 5) -> str:
    more = f" and {len(differences) - limit} more" if len(differences) > limit else ""
    return "; ".join(differences[:limit]) + more
