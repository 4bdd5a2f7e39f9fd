"""A worker's connection to the coordinator, which it holds as long as its task runs."""

from contextlib import suppress

from compss_train._utils import Closable
from compss_train.engines import liveness
from compss_train.net import Address, ConnectionLostError
from compss_train.online.receiver import Receiver
from compss_train.online.worker_messages import (
    EndReception,
    Forget,
    GoOn,
    Listening,
    Save,
    SavePart,
    Settle,
    Shutdown,
    Stop,
    WorkerMessage,
    pack,
    parse_command,
)
from compss_train.reports.study_state import here

TICK = 0.2
"""Seconds between checks for the end of the fit while a worker waits."""
_ALL_ADDRESSES = "0.0.0.0"


class CoordinatorConnection(Closable):
    """The connection of a worker to the coordinator, for one thread.

    Raises ``OSError`` if the coordinator is gone.
    """

    def __init__(self, coordinator: Address, worker: int) -> None:
        self._connection = coordinator.connect({"role": "worker", "number": worker, **here()})
        reply, arrays = self._connection.receive() or ({}, [])
        self.accepted = bool(reply.get("accepted"))
        """False if another task is connected as this worker."""
        self.part = [array.tensor() for array in arrays]
        """This worker's part of the last save, its state and its buffer; empty before the first."""
        self.stopped = bool(reply.get("stop"))
        """Whether training is to end now.

        After an earlier attempt has completed it, this one only receives.
        """
        self.asked: int | None = None
        """The number of a save in which the worker is to take part."""
        self.urgent = False
        """Whether that is to be at once, instead of at the next merge."""
        self.settle = -1
        """The number with which the coordinator has asked for a report of all that has arrived."""

    def listen(self, receiver: Receiver, local_host: str) -> None:
        """Report where the worker receives samples."""
        self._receiver = receiver
        self.send(Listening(receiver.url.replace(_ALL_ADDRESSES, local_host)))

    def update(self, timeout: float | None = 0.0) -> None:
        """Do what the coordinator has asked for.

        Raises ``ConnectionLostError`` if it has ended this fit.
        """
        while (message := self._connection.receive(timeout)) is not None:
            timeout = 0.0
            header, _ = message
            match parse_command(header):
                case Save(number, urgent):
                    self.asked = number
                    self.urgent = urgent
                case GoOn(number) if number == self.asked:
                    self.asked = None
                case Settle(number):
                    self.settle = number
                case Forget(streams):
                    self._receiver.forget(streams)
                case EndReception():
                    self._receiver.end_reception()
                case Stop():
                    self.stopped = True
                case Shutdown():
                    raise ConnectionLostError("the coordinator has ended this fit")

    def await_end(self) -> None:
        """Stay connected until the coordinator ends the fit; raise an error of the receiver."""
        with suppress(ConnectionLostError):
            while self._receiver.failed is None:
                self.update(TICK)
            raise self._receiver.failed

    def save(self, part: SavePart) -> None:
        """Send this worker's part of a save, and wait until all workers have, or training ends.

        After a save with which training ends streams have no end, as it may lack their last
        samples.
        """
        header, arrays = pack(part)
        self._connection.send(header, arrays, copy=False)
        while self.asked == part.number and not self.stopped:
            liveness.beat()
            self.update(TICK)
        self._receiver.holds_ends = self.asked == part.number

    def send(self, message: WorkerMessage) -> None:
        """Send a message to the coordinator."""
        self._connection.send(*pack(message))

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()
