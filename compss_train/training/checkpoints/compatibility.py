"""Whether a checkpoint is of what a program is about to go on with, and what is different if it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from compss_train._utils.validation import warn_user
from compss_train.model.parameters import Parameters
from compss_train.training.checkpoints.snapshot import Progress, Snapshot

MAY_DIFFER = ("num_epochs", "file_buffer")
"""Options of a fit that may be others when it is resumed."""


def check_parameters(path: Path, saved: Parameters, now: Parameters) -> None:
    """Raise ``ValueError`` unless both are parameters of the same network."""
    differences = [
        *(f"it has no {name!r}" for name in now if name not in saved),
        *(f"it has {name!r}, and the network none" for name in saved if name not in now),
        *_differences(
            {name: _kind(array) for name, array in saved.items()},
            {name: _kind(array) for name, array in now.items()},
        ),
    ]
    if differences:
        raise ValueError(f"{path} is the checkpoint of another network: {_some(differences)}")


def check_fit(path: Path, snapshot: Snapshot, options: Mapping[str, Any], sizes: Sequence[int]) -> Progress:
    """Return how far the fit had come; raise ``ValueError`` unless it had these options and sizes of blocks."""
    progress = snapshot.progress
    if progress is None:
        raise ValueError(f"{path} was not written during fit, so there is nothing to resume; use trainer.restore")
    saved = {name: value for name, value in progress.options.items() if name not in MAY_DIFFER}
    differences = list(_differences(saved, options))
    differences.extend(_of_data(progress.sizes, sizes))
    if differences:
        raise ValueError(
            f"{path} is the checkpoint of another fit: {_some(differences)}. Give what it was given to resume it; "
            "or begin a new fit with its parameters, by trainer.restore"
        )
    return progress


def check_end(path: Path, progress: Progress, num_epochs: int, *, own: bool) -> None:
    """Warn where a fit had come to its end: if it was the trainer's ``own``, or its last round was cut short."""
    before, every = progress.options["num_epochs"], progress.options["merge_every"]
    if progress.reached.epoch < progress.first_epoch + before:
        return
    if own and num_epochs <= before:
        warn_user(
            f"the fit goes on from {path}, the end of one with num_epochs={before}: nothing is left to train; a "
            "new fit needs a folder of its own, or no resume="
        )
    cut = progress.options["merge_unit"] == "epochs" and (before % every if every else before)
    if cut and num_epochs > before:
        warn_user(
            f"the fit goes on from {path}, but not bit for bit as if it had always had {num_epochs} epochs: there "
            f"the workers merged after {cut} of {every or num_epochs}"
        )


def check_data(path: Path, snapshot: Snapshot, fingerprint: int | None) -> None:
    """Warn of data of the same sizes with other values, as far as a few of them tell."""
    saved = None if snapshot.progress is None else snapshot.progress.fingerprint
    if saved is not None and fingerprint is not None and saved != fingerprint:
        warn_user(f"the fit goes on from {path}, but its data had other values than these, or another order")


def check_trainer(
    path: Path, snapshot: Snapshot, setting: Mapping[str, Any], seed: int | None, *, fit: str = "the fit goes"
) -> None:
    """Raise ``ValueError`` for another optimizer or seed; warn of what makes other numbers than without a break."""
    saved = snapshot.setting
    if saved["optimizer"] != setting["optimizer"]:
        raise ValueError(
            f"{path} has the states of {saved['optimizer']}, and the optimizer is {setting['optimizer']}; build "
            "with the same one"
        )
    if len(saved["optimizer_options"]) != len(setting["optimizer_options"]):
        groups = f"{len(saved['optimizer_options'])} groups of parameters, and this one"
        raise ValueError(f"{path} is of an optimizer with {groups} has {len(setting['optimizer_options'])}")
    if seed is not None and seed != saved["seed"]:
        raise ValueError(f"{path} is of a fit with seed={saved['seed']}, and this trainer has seed={seed}")
    others = [name for name in setting if name not in ("optimizer", "optimizer_options", "seed")]
    different = [
        *_of_optimizers(saved["optimizer_options"], setting["optimizer_options"]),
        *_differences({name: saved.get(name) for name in others}, setting),
        *_of_workers(saved["num_workers"], setting["num_workers"]),
    ]
    if different:
        warn_user(f"{fit} on from {path}, but not bit for bit as without interruption: {_some(different)}")


def _of_optimizers(saved: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for number, (before, after) in enumerate(zip(saved, now, strict=True)):
        where = f"group {number}'s " if len(now) > 1 else ""
        yield from (f"{where}{told}" for told in _differences(before, after))


def _of_workers(saved: int, now: int) -> Iterator[str]:
    if now > saved:
        yield f"the optimizers and random numbers of {_numbered(saved, now)} are new"
    if now < saved:
        yield f"the optimizers and random numbers of {_numbered(now, saved)} are left behind"


def _numbered(first: int, stop: int) -> str:
    return f"worker {first}" if stop == first + 1 else f"workers {first} to {stop - 1}"


def _differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for name, value in saved.items():
        if name in now and now[name] != value:
            yield f"{name} was {value}, and is {now[name]}"


def _kind(array: Any) -> str:
    return f"{array.dtype} {array.shape}"


def _of_data(saved: Sequence[int], now: Sequence[int]) -> Iterator[str]:
    if (len(saved), sum(saved)) != (len(now), sum(now)):
        again = f" (cut them into {len(saved)}, as by BlockedTensor.from_array)" if sum(saved) == sum(now) else ""
        yield f"its data are {_shape(saved)}, and these {_shape(now)}{again}"
    else:
        for block, (before, after) in enumerate(zip(saved, now, strict=True)):
            if before != after:
                yield f"block {block} had {before} samples, and has {after}"


def _shape(sizes: Sequence[int]) -> str:
    return f"{sum(sizes)} samples in {len(sizes)} blocks"


def _some(differences: list[str], most: int = 5) -> str:
    more = f" and {len(differences) - most} more" if len(differences) > most else ""
    return "; ".join(differences[:most]) + more
