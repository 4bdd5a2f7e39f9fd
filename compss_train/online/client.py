"""Solvers in Python: ``init``, ``send`` and ``finalize``, as ``compss_train.h`` has them for C.

A program that a ``Solver`` starts sends its fields with these functions. They need numpy, import
neither torch nor ZeroMQ, and send what the header sends.
"""

import atexit
import os
import socket
import struct
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray

from compss_train.data.values import check_values

VARIABLE = "COMPSS_TRAIN_SOLVER"
"""The environment variable with the address of the fit."""
NOWHERE = "none"
"""Its value with which nothing is sent, to run a solver by itself."""
_PROTOCOL = 1
"""The version of the messages, which ``compss_train.h`` describes."""
_FIELD = 1
_VALUES = 2
_TEXT = 3
_END = 4
_HEADER = struct.Struct("=IIQ")
"""Kind of a message, number of the field, and length of what follows."""
_MOST_AHEAD = 8
"""How many parts of fields a rank may be ahead of rank 0."""
_BYTES_AHEAD = 2**22
"""Bytes that may wait in a socket file; the system may allow fewer."""
_SMALL = 2**16
"""Bytes of a message up to which it is copied, to be sent at once with its header."""
_PAUSE = 0.00005
"""Seconds between looks at what other ranks have sent."""


class Ranks:
    """The ranks of an MPI program, over a communicator of mpi4py: parts of fields go to rank 0.

    The communicator is a duplicate, so that no message is taken for one of the solver's. Ranks that
    wait do not take the processor from those that they wait for.
    """

    def __init__(self, comm: Any) -> None:
        self._comm = comm.Dup()
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self._sent: deque[Any] = deque()
        """Requests of parts that rank 0 may not have received."""
        # A rank that ends early would wait in MPI_Finalize for the others, and they for it.
        atexit.register(self._end_others)

    def is_of(self, comm: Any) -> bool:
        """Return whether a communicator has the same ranks in the same order."""
        mpi = sys.modules["mpi4py.MPI"]  # of which the communicator is
        return mpi.Comm.Compare(comm, self._comm) in (mpi.IDENT, mpi.CONGRUENT)

    def counts(self, field: str, count: int) -> list[int]:
        """Return how many numbers of a field each rank has; raise ``ValueError`` if it differs."""
        declared = self._comm.allgather((field, count))
        for rank, (name, _) in enumerate(declared):
            if name != declared[0][0]:
                raise ValueError(
                    f"rank 0 declares {declared[0][0]!r}, but rank {rank} declares {name!r}; all "
                    "ranks declare the same fields in the same order"
                )
        return [number for _, number in declared]

    def gather(self, field: str | None, values: NDArray[np.float64]) -> NDArray[np.float64] | None:
        """Return the values of all ranks on rank 0, ``None`` on others; ``None`` for their end.

        Raises ``ValueError`` if a rank sends another field.
        """
        if self.rank:
            while len(self._sent) >= _MOST_AHEAD:
                self._wait(self._sent.popleft())
            # Which completes when rank 0 receives it.
            self._sent.append(self._comm.issend((field, values), 0))
            return None
        parts = [values]
        for rank in range(1, self.size):
            while not self._comm.iprobe(rank):
                time.sleep(_PAUSE)
            name, part = self._comm.recv(source=rank)
            if name != field:
                raise ValueError(
                    f"rank 0 sends {_shown(field)}, but rank {rank} sends {_shown(name)}; all "
                    "ranks send the same fields in the same order"
                )
            parts.append(part)
        return np.concatenate(parts)

    def _wait(self, request: Any) -> None:
        while not request.Test():
            time.sleep(_PAUSE)

    def leave(self) -> None:
        """Wait until rank 0 has received everything, and until all ranks leave."""
        self.gather(None, np.empty(0))
        while self._sent:
            self._wait(self._sent.popleft())
        atexit.unregister(self._end_others)
        self._comm.Free()

    def _end_others(self) -> None:
        self.fail(f"rank {self.rank} has ended without finalize")

    def fail(self, text: str) -> None:
        """Print an error, and end the program, all its ranks."""
        try:
            print(f"compss_train: {text}", file=sys.stderr, flush=True)
        finally:  # also where stderr is closed, as the other ranks would wait for ever
            self._comm.Abort(1)


def _shown(field: str | None) -> str:
    return "nothing more (finalize)" if field is None else repr(field)


@dataclass
class _Field:
    """A field that was declared."""

    number: int
    count: int
    """How many numbers this rank has."""


class SolverClient:
    """Sends the fields of a solver to the fit that has started it.

    A time step is complete when each field was sent once. Methods wait while the fit does not keep
    up. If there are several ranks, all call the same methods in the same order, and an error prints
    one line and ends them all; otherwise it is raised.
    """

    def __init__(self) -> None:
        self._fields: dict[str, _Field] = {}
        self._ranks: Ranks | None = None
        self._socket: socket.socket | None = None
        """The connection, on rank 0."""

    def init(self, field: str, count: int, comm: Any = None) -> None:
        """Declare a field of ``count`` numbers, of which each rank of ``comm`` has so many.

        ``comm`` is a communicator of mpi4py. Without it the ranks are those of ``COMM_WORLD`` if
        the program has imported ``mpi4py.MPI``, and otherwise this process is alone.

        Raises ``ValueError`` for another length than before and ranks that differ,
        ``ConnectionError`` without a fit, and ``TypeError`` for other types.
        """
        comm = _communicator(comm)
        if not self._fields and comm is not None:
            self._ranks = Ranks(comm)
        try:
            self._declare(field, count, comm)
        except Exception as error:
            self._fail(error)

    def _declare(self, field: str, count: int, comm: Any) -> None:
        if not isinstance(field, str) or not field:
            raise TypeError(f"the field {field!r}: give its name")
        if isinstance(count, bool) or not isinstance(count, int | np.integer) or count < 0:
            raise TypeError(f"the field {field!r} has {count!r} numbers; give an integer from 0 on")
        ranks = self._ranks
        is_same = (ranks is None) == (comm is None) and (ranks is None or ranks.is_of(comm))
        if not is_same:
            raise ValueError(
                f"the field {field!r} has other ranks than the first field; give the same "
                "communicator"
            )
        if ranks is not None:
            ranks.counts(field, int(count))
        known = self._fields.get(field)
        if known is not None:
            if known.count != count:
                raise ValueError(
                    f"the field {field!r} has {count} numbers, and was declared with {known.count}"
                )
            return
        if not self._fields and (ranks is None or ranks.rank == 0):
            self._socket = _connection()
        self._fields[field] = _Field(len(self._fields), int(count))
        self._message(_FIELD, self._fields[field].number, field.encode())

    def send(self, field: str, values: ArrayLike, text: str = "") -> None:
        """Send the values of a field at the next time step; with a text, as ``fields.metadata``.

        They are an array of any shape, in the order of C, with the numbers of this rank; float64
        arrives. The text of rank 0 counts.

        Raises ``ValueError`` for a field that was not declared and another number of values,
        ``TypeError`` for values that are no real numbers or masked, and a text that is no ``str``,
        and ``ConnectionError`` if the fit has ended.
        """
        try:
            encoded = _encoded(field, text)
            whole = self._whole(field, values)
            number = self._fields[field].number
            if whole is not None:
                if encoded:
                    self._message(_TEXT, number, encoded)
                self._message(_VALUES, number, whole.data.cast("B") if whole.size else b"")
        except Exception as error:
            self._fail(error)

    def _whole(self, field: str, values: ArrayLike) -> NDArray[np.float64] | None:
        """Return the values of all ranks on rank 0, ``None`` on others."""
        known = self._fields.get(field)
        if known is None:
            declared = ", ".join(map(repr, self._fields)) or "none is"
            raise ValueError(f"the field {field!r} was not declared by init; {declared} declared")
        check_values(f"the field {field!r}", values)
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise TypeError(f"values of {field!r} are {array.dtype}; give real numbers")
        if array.size != known.count:
            raise ValueError(
                f"{array.size} values of {field!r}, which was declared with {known.count}"
            )
        part = np.ascontiguousarray(array, np.float64).reshape(-1)
        return part if self._ranks is None else self._ranks.gather(field, part)

    def finalize(self) -> None:
        """Say that all time steps were sent, and disconnect; without it the solver has failed."""
        try:
            if self._ranks is not None:
                self._ranks.leave()
            self._message(_END, 0, b"")
        except Exception as error:
            self._fail(error)
        self._close()

    def _message(self, kind: int, number: int, content: bytes | memoryview) -> None:
        connection = self._socket
        if connection is None:
            return
        try:
            header = _HEADER.pack(kind, number, len(content))
            if len(content) <= _SMALL:
                connection.sendall(header + content)
            else:
                connection.sendall(header)
                connection.sendall(content)
        except OSError as error:
            raise ConnectionError(f"the fit has closed the connection: {error}") from None

    def _fail(self, error: Exception) -> NoReturn:
        """Raise an error, or end all ranks, which would wait for this one."""
        if self._ranks is not None:
            self._ranks.fail(str(error))
        raise error

    def _close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._ranks = None
        self._fields = {}


def _communicator(comm: Any) -> Any:
    """Return the communicator of several ranks; ``None`` for one rank."""
    if comm is None:
        module = sys.modules.get("mpi4py.MPI")
        is_running = module is not None and module.Is_initialized() and not module.Is_finalized()
        comm = module.COMM_WORLD if module is not None and is_running else None
    elif not hasattr(comm, "Get_rank"):
        raise TypeError(f"comm={comm!r}: give a communicator of mpi4py, such as MPI.COMM_WORLD")
    return None if comm is None or comm.Get_size() == 1 else comm


def _encoded(field: str, text: object) -> bytes:
    """Return the text of a field as it is sent; raise ``TypeError`` for another type."""
    if not isinstance(text, str):
        raise TypeError(
            f"the text of {field!r} is a {type(text).__name__}; give a str, as of json.dumps"
        )
    return text.encode()


def _connection() -> socket.socket | None:
    """Return a connection to the fit, ``None`` where nothing is sent.

    Raises ``ConnectionError`` if there is no fit.
    """
    address = os.environ.get(VARIABLE, "")
    if address == NOWHERE:
        return None
    if not address:
        raise ConnectionError(
            f"{VARIABLE} is not set: start this solver with compss_train's Solver, export the "
            f"variable to all ranks, or set it to {NOWHERE}"
        )
    place, _, token = address.removeprefix("tcp://").partition("/")
    host, _, port = place.rpartition(":")
    is_file = address.startswith("/")
    if not is_file and not (address.startswith("tcp://") and port.isdigit() and token):
        raise ConnectionError(f"{VARIABLE}={address!r} is no address that a fit has set")
    connection = socket.socket(socket.AF_UNIX if is_file else socket.AF_INET)
    try:
        if is_file:
            with suppress(OSError):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BYTES_AHEAD)
            connection.connect(address)
        else:
            connection.connect((host, int(port)))
        hello = f"compss_train {_PROTOCOL} {sys.byteorder} {'-' if is_file else token}\n"
        connection.sendall(hello.encode())
    except OSError as error:
        connection.close()
        raise ConnectionError(
            f"cannot connect to the fit: {error}; a fit accepts one connection of a run (ranks of "
            "MPI give comm= to init)"
        ) from None
    return connection


_CLIENT = SolverClient()
"""That of this process, as the fit accepts one."""


def init(field: str, count: int, comm: Any = None) -> None:
    """Declare a field of ``count`` numbers, as ``SolverClient.init`` does."""
    _CLIENT.init(field, count, comm)


def send(field: str, values: ArrayLike, text: str = "") -> None:
    """Send the values of a field at the next time step, as ``SolverClient.send`` does."""
    _CLIENT.send(field, values, text)


def finalize() -> None:
    """Say that all time steps were sent, and disconnect."""
    _CLIENT.finalize()
