"""The files that a process leaves that is killed at any system call while it writes checkpoints.

They are those of the moment: a copy of the folder before each call, once the process has ended, is
what SIGKILL would leave.
"""

import itertools
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from compss_train.training.checkpoints import (
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from compss_train.training.shared_history import SharedHistory


def content(number: int) -> dict[str, Any]:
    history = [
        {"round": each, "ended": number // 100 + each / 128} for each in range(number % 100 + 1)
    ]
    values = {"values": torch.full((1000,), float(number)), "more": torch.arange(number)}
    return {"round": number, "history": history, **values}


def check(folder: Path, numbers: set[int]) -> None:
    """Check that every checkpoint is complete, and that those of these rounds exist."""
    found = list_checkpoints(folder)
    assert numbers <= set(found), (numbers, found)
    for number, path in found.items():
        saved = read_checkpoint(path)
        assert saved["round"] in (number, number + 100), path
        assert torch.equal(saved["values"], content(saved["round"])["values"]), path
        assert saved["history"] == content(saved["round"])["history"], path
    prune_checkpoints(folder, set(found))
    assert set(os.listdir(folder)) == {path.name for path in found.values()}


def touches_files(function: Any) -> bool:
    modules = (
        getattr(function, "__module__", None),
        type(getattr(function, "__self__", None)).__module__,
    )
    return any(module in ("posix", "io", "_io", "fcntl") for module in modules)


def copy_at_every_call(folder: Path, action: Callable[[], None], copies: Path) -> None:
    """Copy the folder before each system call that the action makes."""
    numbers = itertools.count()

    def copy_folder(frame: Any, event: str, function: Any) -> None:
        if event == "c_call" and touches_files(function):
            sys.setprofile(None)
            shutil.copytree(folder, copies / str(next(numbers)))
            sys.setprofile(copy_folder)

    sys.setprofile(copy_folder)
    action()
    sys.setprofile(None)


def at_every_call(folder: Path, action: Callable[[], None], kept: set[int]) -> int:
    """Check what a process leaves that is killed before a system call of the action, for each of
    them, or after the last; return how many there are.
    """
    with TemporaryDirectory(dir=folder.parent) as copies:
        if not (child := os.fork()):
            try:
                copy_at_every_call(folder, action, Path(copies))
                os._exit(0)
            finally:
                os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        calls = len(os.listdir(copies))
        for call in range(calls):
            check(Path(copies, str(call)), kept)
    check(folder, kept)
    return calls


def killed_writes(folder: Path) -> int:
    """Return how many system calls there were."""
    shared = SharedHistory()

    def write(number: int) -> None:
        write_checkpoint(checkpoint_path(folder, number % 100), content(number), shared=shared)

    for number in (1, 2, 3, 4):
        write(number)
    # Which shares a file and has one of its own.
    calls = at_every_call(folder, lambda: write(5), {1, 2, 3, 4})
    # A checkpoint that is being replaced may be missing for a moment, but is never read in part.
    calls += at_every_call(folder, lambda: write(105), {1, 2, 3, 4})
    return calls + at_every_call(folder, lambda: prune_checkpoints(folder, {1, 2}), {1, 2})
