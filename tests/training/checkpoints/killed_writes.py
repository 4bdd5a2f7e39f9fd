"""Kill processes with SIGKILL while they write checkpoints, check the files, and count how many were killed."""

import os
import random
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


def content(number: int, size: int = 1000) -> dict[str, Any]:
    history = [{"round": each, "ended": number // 100 + each / 128} for each in range(number % 100 + 1)]
    values = {"values": torch.full((size,), float(number)), "more": torch.arange(number)}
    return {"round": number, "history": history, **values}


def check(folder: Path, numbers: set[int], size: int = 1000) -> None:
    """Check that every checkpoint is complete, and that those of these rounds exist."""
    found = list_checkpoints(folder)
    assert numbers <= set(found), (numbers, found)
    for number, path in found.items():
        saved = read_checkpoint(path)
        assert saved["round"] in (number, number + 100), path
        assert torch.equal(saved["values"], content(saved["round"], size)["values"]), path
        assert saved["history"] == content(saved["round"])["history"], path
    prune_checkpoints(folder, set(found))
    assert set(os.listdir(folder)) == {path.name for path in found.values()}


def touches_files(function: Any) -> bool:
    modules = (getattr(function, "__module__", None), type(getattr(function, "__self__", None)).__module__)
    return any(module in ("posix", "io", "_io", "fcntl") for module in modules)


def killed_at(call: int, action: Callable[[], None]) -> bool:
    """Run ``action`` in a process that is killed before its n-th system call; return whether it was killed."""
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


def at_random(folder: Path, times: int) -> int:
    """Kill a process that writes one checkpoint after another, at random times."""
    size, draw = 300_000, random.Random(0)
    write_checkpoint(checkpoint_path(folder, 0), content(0, size))
    for _ in range(times):
        run, seconds = draw.choice([0, 100]), draw.uniform(1e-6, 0.05)
        if not (child := os.fork()):
            signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which ends a process as SIGKILL does
            signal.setitimer(signal.ITIMER_REAL, seconds)
            number, shared = 0, SharedHistory()
            while True:
                number = (number + 1) % 50
                write_checkpoint(checkpoint_path(folder, number), content(number + run, size), shared=shared)
                prune_checkpoints(folder, {0, number - 1, number})
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGALRM
        check(folder, set(), size)
    return times


def killed_writes(folder: Path, times: int) -> tuple[int, int]:
    shared = SharedHistory()

    def write(number: int) -> None:
        write_checkpoint(checkpoint_path(folder, number % 100), content(number), shared=shared)

    for number in (1, 2, 3, 4):
        write(number)
    calls = at_every_call(folder, lambda: write(5), {1, 2, 3, 4})  # which shares a file and has one of its own
    # A checkpoint that is being replaced may be missing for a moment, but is never read in part.
    calls += at_every_call(folder, lambda: write(105), {1, 2, 3, 4})
    calls += at_every_call(folder, lambda: prune_checkpoints(folder, {1, 2}), {1, 2})
    (folder / "random").mkdir()
    return calls, at_random(folder / "random", times)
