"""``SampleSender`` sends samples into an online fit from any program."""

import math
import os
import time
import traceback
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

from compss_train._utils import Closable, validation
from compss_train.data.values import holds_arrays
from compss_train.exceptions import TrainingEndedError
from compss_train.net import Address, Header
from compss_train.online.job_variables import ADDRESS_VARIABLE, NAME_VARIABLE, TOKEN_VARIABLE
from compss_train.online.source_messages import SenderFailed
from compss_train.online.stream import FitLostError, NameInUseError, Stream, as_sample
from compss_train.reports.study_state import here

_RETRY_SECONDS = 0.2
"""How long to wait between two attempts to connect to a fit."""


class SampleSender(Closable):
    """Sends samples from any program to a ``fit_online`` that listens at an ``address``.

    Use it in one thread.

    Parameters
    ----------
    address:
        The address given to ``fit_online``, ``"tcp://host:port"``. Without it, in a job of
        ``Jobs``: that of COMPSS_TRAIN_ADDRESS, with COMPSS_TRAIN_NAME as the name.
    token:
        The token given to ``fit_online``; by default that of COMPSS_TRAIN_TOKEN.
    name:
        Name of this stream of samples. If a program restarts under the same name and sends the same
        samples again, none counts twice. If the fit ends without having stopped training, a sender
        with a name warns and waits, without a limit, until it is started again, and goes on.
        ``None`` (default) starts a new stream.
    timeout:
        Seconds to wait for a fit that has not started yet, 60 by default.

    Use it as a context manager: the end of the block marks the stream as complete, an exception in
    it marks the program as failed. ``send`` blocks while the buffers are full. Samples of up to
    32 kB that follow each other within 5 ms travel together, 5 ms later at most. If a worker dies,
    or the fit goes on from a save, samples that were not saved are lost, with a warning; the fit
    ends with an error if a worker dies with samples of a sender without a name. Raises
    ``ConnectionRefusedError`` if no fit listens, ``PermissionError`` for a wrong token, and
    ``TrainingEndedError`` when the fit accepts no more samples.
    """

    def __init__(
        self,
        address: str | None = None,
        token: str | None = None,
        name: str | None = None,
        *,
        timeout: float = 60.0,
    ) -> None:
        if address is None:
            address = _variable("address", ADDRESS_VARIABLE)
            name = name or os.environ.get(NAME_VARIABLE)
        if token is None:
            token = _variable("token", TOKEN_VARIABLE)
        self._address = Address(address, validation.check_token(token))
        validation.check_name("name", name)
        self._name = name
        self._greeting = {"role": "sender", "name": name, **here()}
        timeout = validation.check_non_negative("timeout", timeout)
        self._stream = open_stream(self._address, self._greeting, timeout)
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
        """Send a sample of arrays, tensors or numbers; paired buffers need its time ``step``.

        Torch is imported only for what is not of numpy, such as a list. Raises ``TypeError`` and
        ``ValueError`` for what is no sample, which does not count.
        """
        if self._closed:
            raise ValueError(
                "this sender was closed, and its stream is complete; make another one to send more"
            )
        if y is None and holds_arrays(x):
            raise TypeError(
                f"send was given a {type(x).__name__} of arrays, which may be x and y or x alone: "
                "call send(x, y), or send(np.stack(x))"
            )
        sample = as_sample((x,) if y is None else (x, y))
        self._persist(lambda: self._stream.send(sample, step))

    def _persist(self, action: Callable[[], None]) -> None:
        """Call ``action``, and again whenever the fit was lost and is started again."""
        while True:
            try:
                action()
                return
            except FitLostError:
                if self._name is None:
                    raise
            self._wait_for_next_fit()

    def _wait_for_next_fit(self) -> None:
        """Go on when the fit, which was lost, is started again; warn of samples that it lacks."""
        validation.warn_user(
            f"the fit at {self._address.url} has failed, or was stopped or killed: sender "
            f"{self._name!r} waits until it is started again, and goes on; interrupt this program "
            "if it will not be"
        )
        samples = self._stream.sent
        self._stream.close()
        self._stream = open_stream(self._address, self._greeting, math.inf)
        lost_samples = self._stream.go_on(samples)
        if lost_samples:
            validation.warn_user(
                f"{lost_samples} of the first {samples} samples of {self._name!r} are lost: "
                "the fit goes on from a save that does not have them"
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
                self._stream.send_gathered()
                if not self._stream.ended.is_set():
                    text = "".join(traceback.format_exception(error))
                    self._stream.notify(SenderFailed(text))


def _variable(argument: str, variable: str) -> str:
    """Return an environment variable; raise ``ValueError`` if it is not set."""
    value = os.environ.get(variable)
    if not value:
        raise ValueError(
            f"{argument}=None, and {variable} is not set, as it is in a job of Jobs: give "
            f"{argument}= of fit_online"
        )
    return value


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
                may_start = persists or isinstance(error, ConnectionRefusedError)
                if isinstance(error, PermissionError) or not may_start:
                    raise
                if time.monotonic() > deadline:
                    raise ConnectionRefusedError(
                        f"no fit listens at {address.url}; start fit_online(..., address=) first"
                    ) from error
        (sleep or time.sleep)(_RETRY_SECONDS)
