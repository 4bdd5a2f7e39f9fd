"""What simulations and other programs tell the coordinator: a class for each kind of message.

The fields of a message are those of its header on the wire.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

from compss_train.net import Header, MessageError, parsing, shortened

_MAX_NUMBER = 2**62
"""The next number also fits into the arrays of saves."""


@dataclass(frozen=True)
class Finished:
    """All samples of the stream are delivered."""

    finished: int
    """Their number."""
    steps: int | None = None
    """The number of time steps of a simulation; samples are made of some of them."""


@dataclass(frozen=True)
class Interrupted:
    """A worker has died with samples of the simulation, which has to run again."""

    interrupted: str
    """What has happened."""


@dataclass(frozen=True)
class SimulationFailed:
    """The simulation has raised an exception."""

    failed: str
    """The exception's class and text."""
    traceback: str = ""
    place: str = ""
    """The exception's class and the line that raised it; empty if that is not known."""
    sent: int = 0
    """The number of samples sent before."""
    repeats: bool = False
    """Whether it would fail again, as with a mistake of the program."""
    rejected: str = ""
    """Why a worker has rejected a sample, if that was the sample's fault."""


@dataclass(frozen=True)
class TimedOut:
    """The simulation has made no sample in time; its process ends."""

    timeout: float
    """Its limit in seconds."""
    stack: str
    """Where it hangs, and the last lines of a solver's output."""


@dataclass(frozen=True)
class SenderFailed:
    """A program has failed, or a worker has rejected its sample."""

    failed: str
    """The reason, or a traceback."""


@dataclass(frozen=True)
class SamplesLost:
    """A program goes on without samples that it has sent, and cannot send again."""

    lost: int
    """Their number."""


@dataclass(frozen=True)
class Progress:
    """A program that was asked for it makes samples, or waits for room for them."""

    progress: int
    """The number of samples sent."""


SimulationMessage: TypeAlias = Finished | Interrupted | SimulationFailed | TimedOut
SenderMessage: TypeAlias = Finished | SenderFailed | SamplesLost | Progress


def header_of(message: SimulationMessage | SenderMessage) -> Header:
    """Return a message as it is sent."""
    fields = vars(message).items()
    return {name: shortened(value) if isinstance(value, str) else value for name, value in fields}


def parse_simulation_message(header: Header) -> SimulationMessage:
    """Return a message of a simulation's task; raise ``MessageError`` if it is malformed."""
    with parsing():
        match header:
            case {"finished": _}:
                steps = number_in(header, "steps") if "steps" in header else None
                return Finished(number_in(header, "finished"), steps)
            case {"interrupted": reason}:
                return Interrupted(shortened(str(reason)))
            case {"timeout": seconds}:
                return TimedOut(float(seconds), shortened(str(header["stack"])))
            case {"failed": error, "traceback": traceback}:
                return SimulationFailed(
                    shortened(str(error)),
                    shortened(str(traceback)),
                    place=shortened(str(header.get("place", ""))),
                    sent=int(header.get("sent", 0)),
                    repeats=bool(header.get("repeats")),
                    rejected=shortened(str(header.get("rejected", ""))),
                )
    raise MessageError(f"malformed message: a simulation sends no {sorted(header)}")


def parse_sender_message(header: Header) -> SenderMessage:
    """Return a message of another program; raise ``MessageError`` if it is malformed."""
    match header:
        case {"finished": _}:
            return Finished(number_in(header, "finished"))
        case {"failed": reason}:
            return SenderFailed(shortened(str(reason)))
        case {"lost": _}:
            return SamplesLost(number_in(header, "lost"))
        case {"progress": _}:
            return Progress(number_in(header, "progress"))
    raise MessageError(f"malformed message: a sender sends no {sorted(header)}")


def number_in(header: Header, name: str) -> int:
    """Return a number of streams, samples or time steps from a header, at most 2**62.

    Raises ``MessageError`` for anything else.
    """
    number = header.get(name)
    if type(number) is int and 0 <= number <= _MAX_NUMBER:
        return number
    with parsing():
        return _number(name, header[name])


def numbers_in(header: Header, name: str) -> list[int]:
    """Return a list of such numbers from a header; raise ``MessageError`` for anything else."""
    with parsing():
        return [_number(name, value) for value in header[name]]


def _number(name: str, value: Any) -> int:
    number = int(value)
    if not 0 <= number <= _MAX_NUMBER:
        raise ValueError(f"{name}={number}: give an integer from 0 to 2**62")
    return number
