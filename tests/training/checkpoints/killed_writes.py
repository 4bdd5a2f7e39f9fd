"""Kill processes with SIGKILL at each system call while they write checkpoints, and check the
files.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
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


def killed_at(call: int, action: Callable[[], None]) -> bool:
    """Run ``action`` in a process that is killed before its n-th system call; return whether it was
    killed.
    """
    if not (child := os.fork()):
        calls = 0

        def count(frame: Any, event: str, function: Any) -> None:
            nonlocal calls
            if event == "c_call" and touches_files(function):
                calls += 1
                if calls == call:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.setprofile(count)
        action()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


def at_every_call(folder: Path, action: Callable[[], None], kept: set[int]) -> int:
    """Kill the action before each of its system calls in turn; return how many it makes."""
    call = 1
    while killed_at(call, action):
        check(folder, kept)
        call += 1
    check(folder, kept)
    return call - 1


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
