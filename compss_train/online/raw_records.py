"""Raw records: samples that a solver in any language writes to a pipe; ``compss-train send``."""

import argparse
import re
from collections.abc import Iterator
from contextlib import ExitStack
from typing import IO, Any, BinaryIO

import numpy as np

from compss_train.exceptions import TrainingEndedError
from compss_train.online.sender import SampleSender
from compss_train.online.solver_process import SolverProcess
from compss_train.online.stream import FitLostError


def record_dtype(x: str, y: str | None, dtype: str, *, steps: bool) -> np.dtype[np.void]:
    """Return the layout of a record: its time step (int64) if it has one, x, and y if present.

    There is no padding. Shapes are written as ``"64x64"``; ``"1"`` is an array of one number.
    """
    fields: list[tuple[Any, ...]] = [("step", np.int64)] if steps else []
    for name, shape in (("x", x), ("y", y)):
        if shape is None:
            continue
        if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", shape):
            raise ValueError(f"shape {shape!r}: give numbers separated by x, such as 6 or 64x64")
        fields.append((name, np.dtype(dtype), tuple(map(int, shape.split("x")))))
    return np.dtype(fields)


def read_records(
    file: BinaryIO | IO[bytes], layout: np.dtype[np.void], solver: SolverProcess | None = None
) -> Iterator[np.void]:
    """Iterate over the records of a file, or of a solver's output.

    Raises ``ChildProcessError`` if the solver has failed, and ``ValueError`` if the last record is
    truncated.
    """
    while len(data := file.read(layout.itemsize)) == layout.itemsize:
        yield np.frombuffer(data, layout)[0]
    if solver is not None and solver.status(None):
        raise solver.failure()
    if data:
        raise ValueError(
            f"the last record has {len(data)} bytes of {layout.itemsize}; check shapes and dtype"
        )


def send_records(options: argparse.Namespace, token: str, file: BinaryIO) -> str:
    """Send the records of a solver's output, or of a file, until they or training end.

    Returns a summary. Raises the errors of ``read_records``, ``ValueError`` for another number of
    samples than ``options.samples``: the fit does not take the stream for complete then; and
    ``ConnectionError`` if the fit has failed.
    """
    layout = record_dtype(options.x, options.y, options.dtype, steps=options.steps)
    solver: SolverProcess | None = None
    samples = 0
    with ExitStack() as stack:
        if options.solver is not None:
            solver = stack.enter_context(SolverProcess(options.solver, piped=True))
        records = read_records(file if solver is None else solver.output, layout, solver)
        try:
            with SampleSender(
                options.address, token, options.name, timeout=options.timeout
            ) as sender:
                for record in records:
                    arrays = [record[name] for name in ("x", "y") if name in (layout.names or ())]
                    sender.send(*arrays, step=int(record["step"]) if options.steps else None)
                    samples += 1
                if options.samples not in (None, samples):
                    raise ValueError(f"{samples} samples in place of --samples {options.samples}")
        except FitLostError as error:
            raise ConnectionError(f"{error} after {samples} samples of this stream") from error
        except TrainingEndedError:
            return f"training has ended after {samples} samples of this stream"
    summary = f"{samples} samples sent"
    if solver is None and options.samples is None:
        summary += (
            "; if the solver has failed, nobody knows: give --samples N, or the solver after --"
        )
    return summary
