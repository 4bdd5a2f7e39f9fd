"""Sending samples into an online fit from any program: ``SampleSender``, and raw records from a
pipe.
"""

import argparse
import math
import re
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, nullcontext, suppress
from typing import IO, Any, BinaryIO

import numpy as np
import torch

from compss_train._utils import Closable, validation
from compss_train.data.values import check_parts, signed, tensor_of
from compss_train.exceptions import TrainingEndedError
from compss_train.net import Address, Header
from compss_train.online.solver_process import SolverProcess
from compss_train.online.source_messages import SenderFailed
from compss_train.online.stream import FitLostError, NameInUseError, Sample, Stream

_RETRY_SECONDS = 0.2


class SampleSender(Closable):
    """Sends samples from any program to a ``fit_online`` that listens at an ``address``. Use it in
    one thread.

    Parameters
    ----------
    address:
        The address given to ``fit_online``, ``"tcp://host:port"``.
    token:
        The token given to ``fit_online``.
    name:
        Name of this stream of samples. If a program restarts under the same name and sends the same
        samples again, none counts twice. If the fit ends without having stopped training, a sender
        with a name warns and waits, without a limit, until it is started again, and goes on.
        ``None`` (default) starts a new stream.
    timeout:
        Seconds to wait for a fit that has not started yet, 60 by default.

    Use it as a context manager: the end of the block marks the stream as complete, an exception in
    it marks the program as failed. ``send`` blocks while the buffers are full. If a worker dies, or
    the fit goes on from a save, samples that were not saved are lost, with a warning. Raises
    ``ConnectionRefusedError`` if no fit listens, ``PermissionError`` for a wrong token, and
    ``TrainingEndedError`` when the fit accepts no more samples.
    """

    def __init__(
        self, address: str, token: str, name: str | None = None, *, timeout: float = 60.0
    ) -> None:
        self._address = Address(address, token)
        self._greeting = {"role": "sender", "name": name}
        self._stream = open_stream(
            self._address, self._greeting, validation.check_non_negative("timeout", timeout)
        )
        self._closed = False

    @property
    def delivered(self) -> int:
        """How many samples under this name, counted from the first, were delivered before.

        Skip them (``skip``) or send them again.
        """
        return self._stream.delivered

    def skip(self, number: int) -> None:
        """Skip the next ``number`` samples, which must have been delivered before."""
        self._stream.skip(number)

    def send(self, x: Any, y: Any = None, *, step: int | None = None) -> None:
        """Send a sample of arrays, tensors or numbers; paired buffers need its time step
        ``step``.
        """
        if self._closed:
            raise ValueError(
                "this sender was closed, and its stream is complete; make another one to send more"
            )
        sample = as_sample((x,) if y is None else (x, y))
        self._persist(lambda: self._stream.send(sample, step))

    def _persist(self, action: Callable[[], None]) -> None:
        """Call ``action``, and again each time that the fit has ended without a word and was
        started again.
        """
        while True:
            try:
                action()
                return
            except FitLostError:
                if (name := self._greeting["name"]) is None:
                    raise
            validation.warn_user(
                f"the fit at {self._address.url} has failed, or was stopped or killed: sender "
                f"{name!r} waits until it is started again, and goes on; interrupt this program "
                "if it will not be"
            )
            sent = self._stream.sent
            self._stream.close()
            self._stream = open_stream(self._address, self._greeting, math.inf)
            if lost := self._stream.go_on(sent):
                validation.warn_user(
                    f"{lost} of the first {sent} samples of {name!r} are lost: the fit goes on "
                    "from a save that does not have them"
                )

    def close(self) -> None:
        """Wait until all samples are delivered, and mark the stream as complete; idempotent."""
        if not self._closed:
            self._closed = True
            try:
                self._persist(lambda: self._stream.finish())
            except ValueError as error:  # a sample was rejected
                with suppress(OSError):
                    self._stream.notify(SenderFailed(str(error)))
                raise
            finally:
                self._stream.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: Any
    ) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            self._closed = True
            with self._stream, suppress(OSError):
                if not self._stream.ended.is_set():
                    trace = "".join(traceback.format_exception(error))
                    self._stream.notify(SenderFailed(trace))


def open_stream(
    address: Address,
    greeting: Header,
    timeout: float,
    *,
    sleep: Callable[[float], None] | None = None,
) -> Stream:
    """Return an open stream; retries until the fit listens and the name is free.

    With an infinite ``timeout`` also if the fit ends meanwhile: it is started again.
    """
    deadline = time.monotonic() + timeout
    persists = timeout == math.inf
    while True:
        with ExitStack() as stack:
            try:
                stream = stack.enter_context(Stream(address, greeting, validation.warn_user))
                if not stream.accepted:
                    raise TrainingEndedError("training has ended; no more samples are accepted")
                stream.open()
                stack.pop_all()
                return stream
            except NameInUseError:
                if time.monotonic() > deadline:
                    raise
            except FitLostError:
                if not persists:
                    raise
            except OSError as error:
                if isinstance(error, PermissionError) or not (
                    persists or isinstance(error, ConnectionRefusedError)
                ):
                    raise
                if time.monotonic() > deadline:
                    raise ConnectionRefusedError(
                        f"no fit listens at {address.url}; start fit_online(..., address=) first"
                    ) from error
        (sleep or time.sleep)(_RETRY_SECONDS)


def as_sample(parts: Sequence[Any]) -> Sample:
    """Return x and y as arrays or tensors; raise ``TypeError`` or ``ValueError`` for what no tensor
    can hold.
    """
    check_parts("a part of a sample", parts)
    return tuple(
        signed(part if isinstance(part, np.ndarray | torch.Tensor) else tensor_of(part))
        for part in parts
    )


# Raw records: samples that a solver in any language writes to a pipe, sent by ``compss-train send``


def record_dtype(x: str, y: str | None, dtype: str, steps: bool) -> np.dtype[np.void]:
    """Return the layout of a record: its time step (int64) if records have one, x, and y if
    present, no padding.

    Shapes are written as ``"64x64"``; ``"1"`` is an array of one number.
    """
    fields: list[tuple[Any, ...]] = [("step", np.int64)] if steps else []
    for name, text in (("x", x), ("y", y)):
        if text is not None:
            if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", text):
                raise ValueError(f"shape {text!r}: give numbers separated by x, such as 6 or 64x64")
            fields.append((name, np.dtype(dtype), tuple(map(int, text.split("x")))))
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
    """Send the records of a solver's output, or of a file, until it ends, or training does; return
    a summary.

    Raises the errors of ``read_records``, ``ValueError`` for another number of samples than
    ``options.samples``: the fit does not take the stream for complete then; and ``ConnectionError``
    if the fit has failed.
    """
    layout = record_dtype(options.x, options.y, options.dtype, options.steps)
    sent = 0
    unknown = "; if the solver has failed, nobody knows: give --samples N, or the solver after --"
    with (
        nullcontext()
        if options.solver is None
        else SolverProcess(options.solver, piped=True) as solver
    ):
        records = read_records(file if solver is None else solver.output, layout, solver)
        try:
            with SampleSender(
                options.address, token, options.name, timeout=options.timeout
            ) as sender:
                for record in records:
                    arrays = [record[name] for name in ("x", "y") if name in (layout.names or ())]
                    sender.send(*arrays, step=int(record["step"]) if options.steps else None)
                    sent += 1
                if options.samples not in (None, sent):
                    raise ValueError(f"{sent} samples in place of --samples {options.samples}")
        except FitLostError as error:
            raise ConnectionError(f"{error} after {sent} samples of this stream") from error
        except TrainingEndedError:
            return f"training has ended after {sent} samples of this stream"
    return f"{sent} samples sent{unknown if solver is None and options.samples is None else ''}"
