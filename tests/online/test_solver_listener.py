"""Where a solver connects, whatever strangers do there."""

import math
import socket
import struct
from contextlib import ExitStack

import pytest

from compss_train.online import solver_listener
from compss_train.online.solver_listener import SolverListener
from tests.buffers.kinds import Thread
from tests.helpers.waiting import LIMIT, pause

FIELD = struct.pack("<IIQ", 1, 0, 1) + b"u"
VALUES = struct.pack("<IIQ", 2, 0, 8) + struct.pack("<d", 3.0)
END = struct.pack("<IIQ", 4, 0, 0)


class RunningProcess:
    """A solver's program that has not ended."""

    def status(self, timeout=0.0):
        return None


class EndedProcess:
    """One that has ended with status 0."""

    def status(self, timeout=0.0):
        return 0

    def failure(self, said):
        return ChildProcessError(said)


@pytest.fixture
def listener():
    with SolverListener(tcp=True) as opened:
        yield opened


def connect(listener):
    host, port = listener.address.removeprefix("tcp://").partition("/")[0].split(":")
    return socket.create_connection((host, int(port)))


def send_as_solver(listener, pauses=0.0):
    """Send one time step as a solver; ``pauses`` are seconds after each byte of its first line."""
    token = listener.address.partition("tcp://")[2].partition("/")[2]
    with connect(listener) as connection:
        for byte in f"compss_train 1 little {token}\n".encode():
            connection.sendall(bytes([byte]))
            if pauses:
                pause(pauses)
        connection.sendall(FIELD + VALUES + END)


def accepted_values(listener, process):
    with listener.accept(process) as messages:
        return [fields["u"].tolist() for fields in messages.steps()]


STRANGERS = {
    "idle": lambda connection: None,
    "half a line": lambda connection: connection.sendall(b"compss_train 1 lit"),
    "another program": lambda connection: connection.sendall(b"GET / HTTP/1.1\n"),
    "another token": lambda connection: connection.sendall(b"compss_train 1 little guessed\n"),
    "another version, without the token": lambda connection: connection.sendall(
        b"compss_train 7 little guessed\n"
    ),
    "gone": lambda connection: connection.close(),
}


@pytest.mark.parametrize("stranger", STRANGERS)
@pytest.mark.parametrize("number", [6, 200])
def test_no_stranger_delays_a_solver(listener, monkeypatch, stranger, number):
    """Not even more of them than the listener keeps: the solver does not wait for their deadlines,
    which never come.
    """
    monkeypatch.setattr(solver_listener, "_HELLO_SECONDS", math.inf)
    with ExitStack() as stack:
        accepting = Thread(accepted_values, listener, RunningProcess())
        for _ in range(number):
            connection = stack.enter_context(connect(listener))
            STRANGERS[stranger](connection)
        send_as_solver(listener)
        assert accepting.result() == [[3.0]]


def test_a_solver_whose_first_line_trickles_is_accepted(listener):
    with connect(listener):
        accepting = Thread(accepted_values, listener, RunningProcess())
        send_as_solver(listener, pauses=0.005)
        assert accepting.result() == [[3.0]]


def test_strangers_are_closed_in_time(listener, monkeypatch):
    monkeypatch.setattr(solver_listener, "_HELLO_SECONDS", 0.2)
    accepting = Thread(accepted_values, listener, RunningProcess())
    with connect(listener) as connection:
        connection.settimeout(LIMIT)
        assert connection.recv(1) == b""
    send_as_solver(listener)
    assert accepting.result() == [[3.0]]


def test_a_solver_that_has_ended_already_is_accepted_and_idle_strangers_are_not(listener):
    with connect(listener):
        send_as_solver(listener)
        assert accepted_values(listener, EndedProcess()) == [[3.0]]


def test_a_solver_that_ends_without_connecting_fails_while_strangers_wait(listener, raises):
    with connect(listener), raises(ChildProcessError, "has not connected"):
        accepted_values(listener, EndedProcess())
