"""The simulation task: runs one simulation and sends its samples to the workers as they come."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from compss_train.exceptions import TrainingEndedError
from compss_train.online.connection import Address
from compss_train.online.sender import as_sample
from compss_train.online.stream import Sample, Stream, WorkerGoneError
from compss_train.online.watchdog import Watchdog


def simulate_and_send(simulate: bytes, value: bytes, number: int, director: Address, limit: float | None) -> None:
    """Run a simulation, telling the coordinator how it ended; an exception of its own is told, not raised.

    ``simulate`` and its input are pickled, so that what goes wrong with them is told, too. ``limit`` is the most
    seconds that it may take for a sample, else its process ends. Nothing happens where the coordinator is gone or
    does not want it any more.
    """
    with suppress(OSError), Stream(director, {"hello": "simulation", "number": number}) as stream:
        if not stream.wanted:
            return
        try:
            stream.open()
            with Watchdog(stream, limit) as watchdog:
                _send_all(simulate, value, stream, watchdog)
            stream.finish()
        except WorkerGoneError as error:
            stream.tell({"interrupted": str(error)})
        except BaseException as error:  # SystemExit too: it is the solver's
            if isinstance(error, TrainingEndedError) and stream.ended.is_set():
                return
            with suppress(OSError, ValueError, TrainingEndedError):
                stream.flush()  # what it gave before may be all that it gives
            text = "".join(traceback.format_exception(error))
            stream.tell({"failed": f"{type(error).__name__}: {error}", "traceback": text})


def _send_all(simulate: bytes, value: bytes, stream: Stream, watchdog: Watchdog) -> None:
    with watchdog.computing():
        samples = iter(pickle.loads(simulate)(pickle.loads(value)))
    try:
        for sample in _computed(samples, watchdog):
            stream.send(*_parsed(sample, stream))
    finally:
        if hasattr(samples, "close"):  # a generator, which may have something to clean up
            with watchdog.computing():
                samples.close()


def _computed(samples: Iterator[Any], watchdog: Watchdog) -> Iterator[Any]:
    """Iterate over the samples, watched while they are computed and not while they wait to be sent."""
    end = object()
    while True:
        with watchdog.computing():
            sample = next(samples, end)
        if sample is end:
            return
        yield sample


def _parsed(sample: Any, stream: Stream) -> tuple[Sample, int | None]:
    """Return (x, y) or (x,), and the time step where there is one."""
    parts = sample if isinstance(sample, tuple) else (sample,)
    if len(parts) == 3:
        return as_sample(parts[1:]), int(parts[0])
    if len(parts) not in (1, 2) or stream.paired:
        wanted = "(step, x, y), as the buffer pairs time steps" if stream.paired else "(x, y), or (step, x, y)"
        raise TypeError(f"the simulation gave a tuple of {len(parts)}; a sample is {wanted}")
    return as_sample(parts), None
