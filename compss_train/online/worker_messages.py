"""What a worker and the coordinator tell each other: a class for each kind of message.

A worker tells what has happened (``WorkerMessage``), the coordinator what to do (``Command``). On
the wire messages are data, a header in JSON and arrays, and never pickles.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers.samples import NO_KEYS
from compss_train.data.block import Block
from compss_train.model.measurements import Measured
from compss_train.model.value_encoding import decode_value, encode_value
from compss_train.net import Address, Header, MessageError, ReceivedArray, parsing, shortened
from compss_train.online import sample_losses
from compss_train.training.snapshot import worker_from_dict, worker_to_dict
from compss_train.worker.state import WorkerState

# From a worker


@dataclass(frozen=True)
class Listening:
    """The worker receives samples."""

    url: str
    """Where streams connect to it."""


@dataclass(frozen=True)
class Failed:
    """The worker has raised an exception, which ends the fit."""

    error: str
    """The exception's class and text."""
    traceback: str


@dataclass(kw_only=True, eq=False)
class WorkerReport(Measured):
    """What a worker has measured since its last report, and the state of its buffer."""

    held: int = 0
    """Samples in the buffer."""
    unseen: int = 0
    """Those of them that were in no batch yet."""
    put: int = 0
    """Samples that were put into the buffer so far."""
    got: int = 0
    """Samples that batches took from it so far; repetitions count."""
    waited: float = 0.0
    """Seconds that the worker has waited for samples since its last report."""
    rates: dict[str, float] = field(default_factory=dict)
    """The learning rates of its last batch by their names in records, if a schedule sets them."""


@dataclass(frozen=True, eq=False)
class Reported:
    """The worker reports what it has measured."""

    report: WorkerReport
    losses: NDArray[np.float64] | None = None
    """The rows of ``SampleLosses.report``, if a sampler of inputs needs them."""
    held: NDArray[np.int64] = field(default_factory=lambda: NO_KEYS)
    """The simulations that have samples in the buffer, and how many, shape (n, 2)."""
    settled: int = -1
    """The number of the last ``Settle`` with which it has complied."""
    stops: int | None = None
    """The number of the save for which it stands still from now on, if any."""


@dataclass(frozen=True, eq=False)
class SavePart:
    """The worker takes part in a save, and waits until all workers have."""

    number: int
    """That of the save."""
    state: WorkerState
    position: dict[str, Any]
    """The numbers of batches trained and merged, and the change that was not merged."""
    offsets: Mapping[int, int]
    """The worker's offset in each stream."""
    buffer: Sequence[Any]
    """The file of its buffer in pieces: tensors where it is sent, else a ``ReceivedArray`` each."""


@dataclass(frozen=True, eq=False)
class Done:
    """The worker has trained on all samples, or ``max_batches``."""

    repetitions: list[int]
    """At index n, how many samples were trained on n times."""
    state: WorkerState
    changed_variables: Sequence[tuple[str, str]] = ()
    """The variables of the program that functions have changed (``program_variables``)."""


WorkerMessage: TypeAlias = Listening | Failed | Reported | SavePart | Done


def pack(message: WorkerMessage) -> tuple[Header, Sequence[Block]]:
    """Return a message of a worker as it is sent."""
    match message:
        case Listening():
            return {"url": message.url}, []
        case Failed():
            texts = {"failed": message.error, "traceback": message.traceback}
            return {name: shortened(text) for name, text in texts.items()}, []
        case Reported():
            arrays = [encode_value(message.report.__getstate__()), torch.from_numpy(message.held)]
            if message.losses is not None:
                arrays.append(torch.from_numpy(message.losses))
            return {"report": True, "settled": message.settled, "stops": message.stops}, arrays
        case SavePart():
            saved = {"worker": worker_to_dict(message.state), **message.position}
            offsets = torch.tensor(list(message.offsets.items()), dtype=torch.int64)
            return {"part": message.number}, [
                encode_value(saved),
                offsets,
                *message.buffer,
            ]
        case Done():
            state = encode_value(worker_to_dict(message.state))
            header = {
                "done": True,
                "repetitions": message.repetitions,
                "changed_variables": message.changed_variables,
            }
            return header, [state]


def parse(header: Header, arrays: Sequence[ReceivedArray]) -> WorkerMessage:
    """Return a message of a worker that was received; raise ``MessageError`` if it is malformed."""
    with parsing():
        match header:
            case {"url": url}:
                return Listening(Address(url, token="").url)
            case {"failed": error}:
                return Failed(shortened(str(error)), shortened(str(header["traceback"])))
            case {"report": _}:
                return _report(header, arrays)
            case {"part": number}:
                return _part(int(number), arrays)
            case {"done": _}:
                repetitions = [int(samples) for samples in header["repetitions"]]
                state = decode_value(arrays[0].tensor())
                changed = [(str(root), str(name)) for root, name in header["changed_variables"]]
                return Done(repetitions, worker_from_dict(state), changed)
            case _:
                raise MessageError(f"malformed message: a worker sends no {sorted(header)}")


def _report(header: Header, arrays: Sequence[ReceivedArray]) -> Reported:
    losses = None
    if len(arrays) > 2:
        losses = arrays[2].tensor().double().numpy().reshape(-1, sample_losses.COLUMNS)
    return Reported(
        WorkerReport(**decode_value(arrays[0].tensor())),
        losses,
        held=arrays[1].tensor().numpy().astype(np.int64, casting="safe").reshape(-1, 2),
        settled=int(header.get("settled", -1)),
        stops=header.get("stops"),
    )


def _part(number: int, arrays: Sequence[ReceivedArray]) -> SavePart:
    # The file of a buffer has at least one piece.
    saved, offsets, _ = (array.tensor().numpy().reshape(-1) for array in arrays[:3])
    position = decode_value(torch.from_numpy(saved))
    state = worker_from_dict(position.pop("worker"))
    pairs: Any = offsets.astype(np.int64, casting="safe").reshape(-1, 2).tolist()
    return SavePart(number, state, position, offsets=dict(pairs), buffer=arrays[2:])


# From the coordinator. The fields of a command are those of its header.


@dataclass(frozen=True)
class Save:
    """Take part in a save at the next merge, or at once if it is ``urgent``."""

    save: int
    """Its number."""
    urgent: bool


@dataclass(frozen=True)
class GoOn:
    """Go on after a save, or without it."""

    go_on: int
    """The number of the save."""


@dataclass(frozen=True)
class Settle:
    """Report when every full batch of what has arrived is trained."""

    settle: int
    """The number that the report has then."""


@dataclass(frozen=True)
class Forget:
    """Forget streams whose samples are in the last save."""

    forget: Sequence[int]
    """Their numbers."""


@dataclass(frozen=True)
class EndReception:
    """Expect no streams but those that are open."""

    end_reception: bool = True


@dataclass(frozen=True)
class Stop:
    """Stop training."""

    stop: bool = True


@dataclass(frozen=True)
class Shutdown:
    """End the task, as the fit has ended."""

    shutdown: bool = True


Command: TypeAlias = Save | GoOn | Settle | Forget | EndReception | Stop | Shutdown

_COMMANDS: dict[str, type[Command]] = {
    "save": Save,
    "go_on": GoOn,
    "settle": Settle,
    "forget": Forget,
    "end_reception": EndReception,
    "stop": Stop,
    "shutdown": Shutdown,
}
"""Commands by the field that only their headers have."""


def header_of(command: Command) -> Header:
    """Return a command as it is sent to workers."""
    return vars(command)


def parse_command(header: Header) -> Command | None:
    """Return the command in a header; ``None`` for others, which only try the connection."""
    for name, kind in _COMMANDS.items():
        if name in header:
            return kind(**header)
    return None
