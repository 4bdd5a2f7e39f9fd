"""Tasks for the conformance suite: plain module-level functions, as an engine asks for."""

import os
import socket
import sys
import threading
from pathlib import Path

import numpy as np
import torch

from compss_train.model.program_settings import ProgramSettings
from tests.helpers.waiting import wait_until


def add(*numbers):
    return sum(numbers)


def total(arrays):
    return np.sum(arrays, axis=0)


def plus(value, other):
    return value + other


def split(array):
    return array[:1], array[1:], "text"


def threads():
    return torch.get_num_threads()


def program_settings():
    return ProgramSettings()


def scribble(array):
    """Changes its argument, which no task should; others must not see it."""
    array += 1
    return float(array.sum())


def end_once(path: Path, code: int) -> int:
    """End the process, and return the code when the task runs again."""
    if not path.exists():
        path.touch()
        os._exit(code)
    return code


def fail(message):
    raise KeyError(message)


class Unpicklable(Exception):  # noqa: N818
    def __init__(self, one, two):
        super().__init__(f"{one} {two}")
        self.lock = threading.Lock()


def fail_strangely():
    raise Unpicklable("cannot", "travel")


def note(value, path: Path):
    """Append to a file, to see the order in which tasks ran."""
    with path.open("a") as file:
        file.write(f"{value}\n")
    return value


def wait_for(path: Path, value):
    """Return the value once the file is there; gives up with an error, so that no test hangs.

    Meanwhile other processes may have to start twice, which has taken 30 s each on a machine with
    little time left.
    """
    wait_until(path.exists, said=lambda: f"{path} never came")
    return value


def note_and_wait(notes: Path, gate: Path):
    """Note the process, and return it once the gate is there."""
    note(os.getpid(), notes)
    return wait_for(gate, os.getpid())


def meet(place: Path, number, size):
    """Return the number once ``size`` such tasks, numbered from 0, run at the same time."""
    (place / str(number)).touch()
    for other in range(size):
        wait_for(place / str(other), number)
    return number


def greet(address):
    with socket.create_connection(tuple(address), timeout=30) as coordinator:
        coordinator.sendall(b"hello")


def good_and_bad():
    return np.ones(20_000), threading.Lock()


def _refuse():
    raise ImportError("this cannot be loaded")


class Unloadable:
    """Can be pickled, not unpickled: like a class whose module the worker lacks."""

    def __reduce__(self):
        return _refuse, ()


def die(_value=None):
    os.kill(os.getpid(), 9)


def die_once(flag: Path, value, number=9):
    """Kill this process by a signal the first time, return the value the second."""
    if not flag.exists():
        flag.touch()
        os.kill(os.getpid(), number)
    return value


def break_gpu(runs: Path, times, error):
    """Raise an error of CUDA the first times, return the number of the process after that."""
    note(os.getpid(), runs)
    if len(runs.read_text().split()) <= times:
        raise RuntimeError(f"CUDA error: {error}\nCompile with TORCH_USE_CUDA_DSA")
    return os.getpid()


def leave(code):
    sys.exit(code)
