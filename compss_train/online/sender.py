"""Sending samples into an online fit from any program."""

from __future__ import annotations

import re
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import torch

from compss_train._utils.closing import Closable
from compss_train._utils.validation import warn_user
from compss_train.exceptions import TrainingEndedError
from compss_train.online.connection import Address, Header
from compss_train.online.stream import BusyNameError, Sample, Stream, WorkerGoneError

_RETRY_SECONDS = 0.2


class SampleSender(Closable):
    """Sends samples from any program into a ``fit_online`` that was given an ``address``. For one thread.

    Parameters
    ----------
    address:
        That address, ``"tcp://host:port"``.
    token:
        The token that ``fit_online`` was given.
    name:
        Of this stream of samples. A program that starts again under the same name and sends the same samples sends
        none of them twice. ``None`` is a new stream.
    timeout:
        Seconds to wait for a fit that has not begun yet, 60 by default.

    Use it as a context: leaving it says that all samples have been sent, leaving it by an exception that the
    program has failed. ``send`` waits while the buffers are full. Where a worker has died, samples that it had not
    saved are lost, with a warning. Raises ``ConnectionRefusedError`` where there is no fit, ``PermissionError`` for
    a wrong token, and ``TrainingEndedError`` when the fit wants no more.
    """

    def __init__(self, address: str, token: str, name: str | None = None, *, timeout: float = 60.0) -> None:
        host, port = host_and_port(address)
        if not isinstance(name, str | None):
            raise TypeError(f"name={name!r}: give a string, or None")
        self._stream = _patiently(Address(host, port, token), {"hello": "sender", "name": name}, timeout)
        self._closed = False

    @property
    def delivered(self) -> int:
        """How many samples of this name, the first ones, had arrived before; ``skip`` them or send them again."""
        return self._stream.delivered

    def skip(self, number: int) -> None:
        """Go on after the next ``number`` samples without sending them; they must have arrived before."""
        self._stream.skip(number)

    def send(self, x: Any, y: Any = None, *, step: int | None = None) -> None:
        """Send a sample: arrays, tensors or numbers; ``step``, its time step, is for paired buffers."""
        sample = as_sample((x,) if y is None else (x, y))
        self._until_done(lambda: self._stream.send(sample, step))

    def _until_done(self, act: Callable[[], None]) -> None:
        """Do something, again with every worker that takes the place of one that died meanwhile."""
        lost: WorkerGoneError | None = None
        while True:
            try:
                if lost is not None and (samples := self._stream.reopen(lost.worker)):
                    warn_user(f"{lost}, and with it {samples} samples of this stream")
                lost = None
                act()
                return
            except WorkerGoneError as error:
                lost = error

    def close(self) -> None:
        """Wait until all samples have arrived, and say that they were all; may be called again."""
        if not self._closed:
            self._closed = True
            with self._stream:
                self._until_done(self._stream.finish)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.close()
        elif not self._closed:
            self._closed = True
            with self._stream, suppress(OSError):
                if not self._stream.ended.is_set():
                    self._stream.tell({"failed": "".join(traceback.format_exception(error))})


def _patiently(address: Address, hello: Header, timeout: float) -> Stream:
    """Return a stream that is open, waiting for the fit to begin and for its workers to be there."""
    until = time.monotonic() + timeout
    while True:
        try:
            return _opened(Stream(address, hello))
        except (ConnectionRefusedError, WorkerGoneError, BusyNameError) as error:
            if time.monotonic() > until and isinstance(error, BusyNameError):
                raise
            if time.monotonic() > until:
                raise ConnectionRefusedError(
                    f"nobody listens at tcp://{address.host}:{address.port}; start fit_online(..., address=) first"
                ) from error
            time.sleep(_RETRY_SECONDS)


def _opened(stream: Stream) -> Stream:
    try:
        if not stream.wanted:
            raise TrainingEndedError("training has ended: no more samples are wanted")
        stream.open()
    except BaseException:
        stream.close()
        raise
    return stream


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``"tcp://host:port"``; raise ``ValueError`` for anything else."""
    match = re.fullmatch(r"tcp://([^:/*]+):(\d+)", address) if isinstance(address, str) else None
    if match is None or int(match[2]) >= 2**16:
        raise ValueError(f"address={address!r}: give tcp://HOST:PORT")
    return match[1], int(match[2])


def as_sample(parts: Sequence[Any]) -> Sample:
    """Return x and y as arrays or tensors."""
    return tuple(part if isinstance(part, np.ndarray | torch.Tensor) else torch.as_tensor(part) for part in parts)
