"""What every engine does with a task: name it, prepare a process, call it, send exceptions."""

import ctypes
import gc
import importlib
import json
import os
import pickle
import re
import socket
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Self

import cloudpickle
import torch

from compss_train._utils.imports import FOLDER_MODULES, FolderModules
from compss_train.exceptions import WorkerTraceback
from compss_train.model.program_settings import ProgramSettings

LEFT = 79
"""Exit code of a process that ends itself with a task that its fit no longer needs.

Nothing is lost.
"""
MAX_RUNS = 4
"""Maximum number of runs of a task whose process dies each time, as many as COMPSs's."""

FIRST = (
    "gather_items",
    "merge_part",
    "rebased",
    "read_parameters",
    "notify_evaluated",
    "copy_value",
)
"""Functions of this package that are tasks with priority; COMPSs finds tasks by these names."""
ON_GPUS = ("map_chunk", "train_online", "evaluate", "predict", "run")
"""Those that may use a GPU; ``run`` stands for the functions of programs."""
OTHERS = ("simulate_and_send", "write_simulation", "split_rows", "describe")
"""The other tasks of this package."""

MOST_FRAMES = 4
"""Frames that tracebacks of tasks show: the first one and the last ones."""
_FRAME = '  File "'
_FOLDERS = Path(__file__).parents[1], Path(torch.__file__).parent
_INTERNAL = tuple(f"{_FRAME}{folder}{os.sep}" for folder in _FOLDERS)
"""The beginnings of frames of this package and of torch."""

# Parameters of mallopt: number, environment variable, and value in bytes.
_MALLOC_PARAMETERS = ((-1, "MALLOC_TRIM_THRESHOLD_", 2**30), (-3, "MALLOC_MMAP_THRESHOLD_", 2**25))


def prepare_process(preload: Sequence[str] = ()) -> None:
    """Import modules, and those that torch imports late; keep freed memory for the next batch.

    By default, glibc returns memory to the system when the top of the heap is free, and gets it
    back page by page for the next batch: a tenth of the training time of a small CNN. Here it keeps
    up to 1 GiB, unless the user's environment variables set these parameters. Other C libraries are
    unaffected.
    """
    if FOLDER_MODULES in os.environ:
        sys.meta_path.append(FolderModules(*json.loads(os.environ[FOLDER_MODULES])))
    # Objects of modules are permanent. Searching them for garbage takes a third of the time of
    # imports, and 7 % of the processor's time of a fit with 64 small workers.
    gc.disable()
    for module in preload:
        importlib.import_module(module)
    # With the first optimizer of a process torch imports its compiler, which takes more than half a
    # second.
    torch.optim.SGD([torch.zeros(1)], lr=0.1)
    gc.freeze()
    gc.enable()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        for parameter, variable, value in _MALLOC_PARAMETERS:
            if variable not in os.environ:
                libc.mallopt(parameter, value)


@contextmanager
def intra_op_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` intra-op threads inside the context, as many as before afterwards.

    Sums over a different number of threads round differently. A task gives the same bits on every
    engine because its number of threads is part of its resources.
    """
    before = torch.get_num_threads()
    if before == count:
        yield
        return
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True, slots=True)
class Placeholder:
    """Represents one of the task's inputs among the arguments of a call."""

    index: int


def map_args(args: Sequence[Any], function: Callable[[Any], Any]) -> tuple[Any, ...]:
    """Return a task's arguments, replaced by ``function(argument)``; lists item by item."""
    return tuple(
        [
            [function(item) for item in argument]
            if isinstance(argument, list)
            else function(argument)
            for argument in args
        ]
    )


def filled(args: Sequence[Any], inputs: Sequence[Any]) -> tuple[Any, ...]:
    """Return a task's arguments with its inputs in place of the placeholders."""
    return map_args(
        args, lambda value: inputs[value.index] if isinstance(value, Placeholder) else value
    )


def results_of(
    function: Callable[..., Any],
    args: Sequence[Any],
    returns: int,
    settings: ProgramSettings | None = None,
) -> list[Any]:
    """Call a task's function; return its results, the items of a tuple if there are several.

    ``settings`` are those of the program, in another process.
    """
    with nullcontext() if settings is None else settings.applied():
        result = function(*args)
    if returns == 1:
        return [result]
    if len(result) != returns:
        raise ValueError(
            f"{name_of(function)} returned {len(result)} results, but returns={returns}"
        )
    return list(result)


def select_gpu(devices: str, runtime: str) -> None:
    """Make the GPU that a runtime bound to this task the current device.

    Runtimes set CUDA_VISIBLE_DEVICES, which CUDA reads once per process, but processes serve many
    tasks. So here CUDA sees all devices and each task selects its own; if it was initialized
    earlier with fewer, the last one. Where devices have names, such as the parts of a GPU (MIG), of
    which a process sees one at most, it keeps that.
    """
    name = devices.split(",")[0]
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        if name.isdecimal():
            os.environ.pop("CUDA_VISIBLE_DEVICES", None)
        try:
            if not torch.cuda.is_available():
                raise RuntimeError(
                    f"{runtime} bound GPU {devices} of {socket.gethostname()} to this task, but "
                    "torch sees no GPU there; install a CUDA build of torch on the nodes, or use "
                    "num_gpu=0"
                )
            torch.cuda.init()  # type: ignore[no-untyped-call]
        finally:
            # COMPSs deletes the variable after the task, and its process would fail without it.
            os.environ["CUDA_VISIBLE_DEVICES"] = devices
    torch.cuda.set_device(min(int(name), torch.cuda.device_count() - 1) if name.isdecimal() else 0)


def name_of(function: Callable[..., Any]) -> str:
    """Return the name of a task's function."""
    return getattr(function, "__name__", repr(function))


def task_name(function: Callable[..., Any]) -> str:
    """Return the name of a function's tasks.

    It is the function's name for this package, ``run`` for functions of programs.

    Raises ``ValueError`` for a function of this package that the table of tasks lacks.
    """
    if not (getattr(function, "__module__", None) or "").startswith("compss_train."):
        return "run"
    if function.__name__ not in {*FIRST, *ON_GPUS, *OTHERS}:
        raise ValueError(
            f"{function.__module__}.{name_of(function)} is no task: add its name to FIRST, "
            "ON_GPUS or OTHERS in compss_train.engines.calls, by which COMPSs finds the tasks of "
            "this package"
        )
    return function.__name__


def exited(error: SystemExit) -> RuntimeError:
    """Return the error of a task that would have ended its process, or the whole program."""
    return RuntimeError(
        f"a task called sys.exit({'' if error.code is None else repr(error.code)}): networks, "
        "losses and all else that tasks run must not end their process; raise an exception "
        "instead"
    )


def task_traceback(error: BaseException) -> str:
    """Return the traceback of a task's exception, whose last frame is the user's.

    Of those of this package and of torch there is the last one only if an exception has no others.
    Of all frames there are at most ``MOST_FRAMES``.
    """
    # Frames of __torch_function__ only watch.
    parts = [
        part
        for part in traceback.format_exception(error)
        if ", in __torch_function__\n" not in part
    ]
    frames = [number for number, part in enumerate(parts) if part.startswith(_FRAME)]
    candidates: list[int] = []
    of_exception: list[int] = []
    for number in frames:
        if not parts[number].startswith(_INTERNAL):
            of_exception.append(number)
        if number + 1 not in frames:
            candidates += of_exception or [number]
            of_exception = []
    hidden = {*frames}.difference(candidates[:1], candidates[1:][1 - MOST_FRAMES :])
    text = ""
    for is_hidden, group in groupby(range(len(parts)), hidden.__contains__):
        numbers = list(group)
        if is_hidden:
            text += f"  [frames left out: {len(numbers)}]\n"
        else:
            text += "".join(_without_marks(parts[number]) for number in numbers)
    return text


def _without_marks(part: str) -> str:
    """Return a frame as its place and its line of code, and any other part as it is."""
    return re.sub(r"\A(  File .*\n.*\n)(?s:.*)", r"\1", part)


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of a task in a form that can be sent.

    One that cannot be pickled becomes a ``RuntimeError``.
    """

    pickled: bytes
    text: str
    node: str
    """The host name of the node."""

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the failure for an exception that is being handled.

        ``SystemExit`` becomes a ``RuntimeError``.
        """
        text = task_traceback(error)
        if isinstance(error, SystemExit):
            error = exited(error)
        try:
            pickled = cloudpickle.dumps(error)
            pickle.loads(pickled)
        except Exception:
            pickled = pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return cls(pickled, text, socket.gethostname())

    def exception(self, module_advice: str | None = None) -> BaseException:
        """Return the exception with the worker's traceback as its cause.

        ``module_advice`` says how nodes get modules: a note for an error of a missing one. Its
        ``{folder}`` is that in which this program has found the module.
        """
        error: BaseException = pickle.loads(self.pickled)
        error.__cause__ = WorkerTraceback(self.text)
        if module_advice is not None and isinstance(error, ModuleNotFoundError):
            advice = module_advice.replace("{folder}", _folder_of_module(error.name or ""))
            error.add_note(
                f"Processes on the node {self.node} do not find the module {error.name!r}, which "
                f"this program may have imported. {advice}"
            )
        return error


def _folder_of_module(name: str) -> str:
    """Return the folder in which this program has found a module, or ``FOLDER``."""
    module = sys.modules.get(name.partition(".")[0])
    file = getattr(module, "__file__", None)
    if file is None:
        return "FOLDER"
    path = Path(file).absolute()
    return str(path.parents[1] if path.name == "__init__.py" else path.parent)
