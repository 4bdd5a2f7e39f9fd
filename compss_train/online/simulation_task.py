"""The task of one simulation: runs it, sends its samples, and ends its process if it hangs."""

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train.data.values import check_sample
from compss_train.engines import calls
from compss_train.exceptions import TrainingEndedError
from compss_train.net import Address
from compss_train.online.guard import descendants
from compss_train.online.solver import Solver, SteppedX
from compss_train.online.solver_process import NotStartedError, SolverProcess
from compss_train.online.source_messages import (
    Interrupted,
    SimulationFailed,
    SimulationMessage,
    TimedOut,
)
from compss_train.online.stream import Sample, Stream, as_sample
from compss_train.reports.study_state import here

IMPORT_SECONDS = 300.0
"""How long imports of the simulation's modules may take, if its timeout is shorter."""
_MISTAKES = (
    NameError,
    TypeError,
    AttributeError,
    SyntaxError,
    NotImplementedError,
    NotStartedError,
)
"""Exceptions that a program's mistakes cause, and that it would raise again."""
_PACKAGE = str(Path(__file__).parents[1])
"""The folder of this package."""
_END = object()
"""What stands for the end of the samples."""
_TICK = 0.25
"""Seconds between two looks of the watchdog."""
_ANSWER_SECONDS = 1.0
"""How long the coordinator may take to answer that a simulation hangs."""
_GRACE = 2.0
"""Seconds for a simulation to end after training has ended, or to report that it hangs."""


class SampleSink(Protocol):
    """Where the samples of a simulation go: the stream to the workers, or a file."""

    @property
    def number(self) -> int:
        """The number of the simulation."""

    @property
    def paired(self) -> bool:
        """Whether each sample needs its time step."""

    @property
    def sent(self) -> int:
        """How many samples there are so far."""

    @property
    def rejected(self) -> str:
        """Why a sample does not fit, if that is the sample's fault."""

    @property
    def ended(self) -> threading.Event:
        """Set when no more samples are needed."""

    def send(self, sample: Sample, step: int | None) -> None:
        """Take the next sample."""

    def update(self, timeout: float = 0.0) -> None:
        """Learn whether more samples are needed."""

    def notify(self, message: SimulationMessage) -> None:
        """Take the watchdog's report before it ends the process."""


def simulate_and_send(
    simulate: bytes,
    value: bytes,
    number: int,
    coordinator: Address,
    timeout: float | None,
    steps: int | None,
) -> None:
    """Run a simulation and report its outcome, also its exceptions, to the coordinator.

    ``simulate`` and its input are pickled, so that errors of unpickling are also reported.
    ``timeout`` is the maximum number of seconds per sample; after it the process ends. Without
    exactly so many ``steps``, unless ``None``, the simulation has failed. Returns
    immediately if the coordinator is gone or does not accept the simulation.
    """
    greeting = {"role": "simulation", "number": number, **here()}
    with suppress(OSError), Stream(coordinator, greeting, _interrupt) as stream:
        if not stream.accepted:
            return
        try:
            stream.open()
            with Watchdog(stream, timeout) as watchdog:
                sent = send_all(simulate, value, stream, watchdog=watchdog, steps=steps)
            stream.finish(sent)
        except SamplesLostError as error:
            stream.notify(Interrupted(str(error)))
        except BaseException as error:  # also SystemExit of a solver
            if isinstance(error, TrainingEndedError) and stream.ended.is_set():
                return
            with suppress(OSError, ValueError, TrainingEndedError, SamplesLostError):
                stream.flush()  # no other attempt may follow, so these samples count
            stream.notify(failure_of(error, stream))


def failure_of(error: BaseException, stream: SampleSink) -> SimulationFailed:
    """Return the message of an exception, with what the coordinator decides by."""
    [*_, (frame, line)] = traceback.walk_tb(error.__traceback__)
    file = frame.f_code.co_filename
    # A ValueError of this package is one about samples, or about inputs that a command has no place
    # for.
    is_ours = isinstance(error, ValueError) and file.startswith(_PACKAGE)
    return SimulationFailed(
        f"{type(error).__name__}: {error}",
        calls.task_traceback(error),
        place=f"{type(error).__name__} at {file}:{line}",
        sent=stream.sent,
        repeats=is_ours or isinstance(error, _MISTAKES),
        rejected=stream.rejected,
    )


class SamplesLostError(Exception):
    """A worker has died with samples of this simulation, which has to run again."""


def _interrupt(reason: str) -> None:
    raise SamplesLostError(reason)


class IncompleteError(Exception):
    """A simulation has ended before its last step."""


def send_all(
    simulate: bytes, value: bytes, stream: SampleSink, *, watchdog: "Watchdog", steps: int | None
) -> int:
    """Send all samples; return the number of time steps, of which some may make no sample.

    The watchdog times their computation, not the wait until they are sent. Raises
    ``IncompleteError`` for fewer than ``steps``, unless that is ``None``, and ``ValueError`` for
    more.
    """
    with watchdog.computing(IMPORT_SECONDS):
        function = pickle.loads(simulate)
        argument = pickle.loads(value)
    with watchdog.computing():
        is_solver = isinstance(function, Solver)
        if is_solver:
            returned = function.run(
                argument, steps, simulation=stream.number, on_start=watchdog.watch_output
            )
        else:
            returned = function(argument)
        if not _yields_samples(returned):
            raise TypeError(
                f"the simulation returned {type(returned).__name__}; write `yield x, y` for each "
                "sample"
            )
        samples = iter(returned)
    sent = 0
    try:
        while True:
            with watchdog.computing():
                sample = next(samples, _END)
            if sample is _END:
                break
            if sent == steps:
                raise ValueError(f"the simulation has more than the {steps} steps of steps=")
            if sample is not None or not is_solver:
                stream.send(*_parse(sample, stream))
            sent += 1
    finally:
        if hasattr(samples, "close"):  # a generator, which may have to clean up
            with watchdog.computing():
                samples.close()
    if steps is not None and sent < steps:
        raise IncompleteError(f"it ended after {sent} of {steps} steps")
    return sent


def _yields_samples(returned: Any) -> bool:
    """Return whether a value can be iterated over, and is not one sample instead."""
    if isinstance(returned, np.ndarray | torch.Tensor | Mapping | str):
        return False
    if isinstance(returned, tuple):
        return all(isinstance(sample, tuple) for sample in returned)
    return isinstance(returned, Iterable)


def _parse(sample: Any, stream: SampleSink) -> tuple[Sample, int | None]:
    """Return (x, y) or (x,), and the time step or None."""
    if isinstance(sample, SteppedX):
        return as_sample([sample.x]), sample.step
    check_sample("the simulation yielded", sample)
    parts = sample if isinstance(sample, tuple) else (sample,)
    if any(isinstance(part, Mapping) for part in parts):
        raise TypeError("the simulation yielded a dict; a sample is (x, y), two arrays")
    if len(parts) == 3:
        if np.ndim(parts[0]):
            raise TypeError(
                "the simulation yielded an array first of three; a sample is (step, x, y)"
            )
        step = int(parts[0])
        if step != parts[0]:
            raise ValueError(
                f"the simulation yielded the time step {parts[0]!r}; give its number, an integer"
            )
        return as_sample(parts[1:]), step
    if len(parts) not in (1, 2) or stream.paired:
        expected = "(x, y), or (step, x, y)"
        if stream.paired:
            expected = "(step, x, y), as the buffer pairs time steps"
        raise TypeError(f"the simulation yielded a tuple of {len(parts)}; a sample is {expected}")
    return as_sample(parts), None


class Watchdog(Closable):
    """Ends the process if the main thread's ``computing()`` takes longer than ``timeout`` seconds.

    It also ends the process if the simulation continues after training has ended. Programs that the
    process has started are killed with it: nothing else interrupts a solver in native code. The
    engine starts another process.
    """

    def __init__(self, stream: SampleSink, timeout: float | None) -> None:
        self._stream = stream
        self._timeout = timeout
        self._limit = 0.0
        """The timeout in force."""
        self._deadline: float | None = None
        """When it is over, while the main thread is computing."""
        self._solver: SolverProcess | None = None
        """The program that the main thread waits for, if any."""
        self._closed = threading.Event()
        self._watched_thread = threading.get_ident()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)
        self._thread.start()

    def watch_output(self, process: SolverProcess) -> None:
        """Let the report have the last lines of a solver's output."""
        self._solver = process

    @contextmanager
    def computing(self, least: float = 0.0) -> Iterator[None]:
        """Apply the timeout to the block, or ``least`` if that is longer."""
        if self._timeout is None:
            yield
            return
        self._limit = max(self._timeout, least)
        self._deadline = time.monotonic() + self._limit
        # For a solver that never releases the interpreter lock.
        seconds = min(self._limit + _GRACE, threading.TIMEOUT_MAX - 1)
        faulthandler.dump_traceback_later(seconds, exit=True, file=sys.__stderr__ or 2)
        try:
            yield
        finally:
            self._deadline = None
            faulthandler.cancel_dump_traceback_later()

    def _run(self) -> None:
        while not self._closed.wait(_TICK):
            self._stream.update()
            if self._stream.ended.is_set() and not self._closed.wait(_GRACE):
                end_process(calls.LEFT)
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline:
                self._report()
                end_process()

    def _report(self) -> None:
        frame = sys._current_frames().get(self._watched_thread)
        with suppress(OSError):
            lines = [] if self._solver is None else self._solver.last_lines()
            output = "".join(f"  {line}\n" for line in lines)
            stack = "".join(traceback.format_stack(frame)) + output
            self._stream.notify(TimedOut(self._limit, stack))
            # The process ends now, and ZeroMQ with it: the answer says that the message has left.
            self._stream.update(_ANSWER_SECONDS)

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._thread.join()


def end_process(code: int = 1) -> None:
    """Kill all descendants of this process, then exit; what guards have started then ends, too."""
    for child in descendants(os.getpid()):
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
    os._exit(code)
