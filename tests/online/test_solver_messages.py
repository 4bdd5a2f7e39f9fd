"""The messages of solvers, from a program that sends some of them, or others."""

import socket
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.online.solver_messages import PROTOCOL, SolverMessages, byte_order_of

FIELD = 1
VALUES = 2
TEXT = 3
END = 4


def message(kind, field=0, rest=b"", order="<"):
    return struct.pack(f"{order}IIQ", kind, field, len(rest)) + rest


def field(number, name):
    return message(FIELD, number, name.encode())


def values(number, *numbers, order="<"):
    return message(VALUES, number, np.array(numbers, f"{order}f8").tobytes(), order)


def received(*messages, order="<"):
    """Return the time steps that these messages make, and whether they have an end."""
    reading, writing = socket.socketpair()
    with reading, writing, SolverMessages(reading, order) as messages_read:
        writing.sendall(b"".join(messages))
        writing.shutdown(socket.SHUT_WR)
        return [
            {name: array.tolist() for name, array in step.items()} for step in messages_read.steps()
        ], messages_read.ended


U = field(0, "u")
V = field(1, "v")


@given(st.integers(0, 5), st.integers(1, 3), st.data())
def test_steps_have_each_field_once_in_any_order(steps, fields, data):
    sent = [field(number, f"f{number}") for number in range(fields)]
    expected = []
    for step in range(steps):
        order = data.draw(st.permutations(range(fields)))
        sent += [values(number, step, number) for number in order]
        expected.append({f"f{number}": [float(step), float(number)] for number in order})
    assert received(*sent, message(END)) == (expected, True)
    steps_read, ended = received(*sent)
    assert (steps_read, ended) == (expected if steps > 1 else [], False)


def test_fields_may_be_declared_until_the_first_step_is_complete():
    assert received(U, values(0, 1), V, values(1, 2), values(0, 3), values(1, 4), message(END)) == (
        [{"u": [1], "v": [2]}, {"u": [3], "v": [4]}],
        True,
    )


def test_fields_may_be_empty():
    assert received(U, V, values(0), values(1, 2), message(END)) == ([{"u": [], "v": [2]}], True)


def test_big_endian_numbers_are_swapped():
    sent = message(FIELD, 0, b"u", ">"), values(0, 1, 0.1, order=">"), message(END, order=">")
    assert received(*sent, order=">") == ([{"u": [1, 0.1]}], True)


def test_a_message_that_is_cut_off_is_no_message():
    whole = [U, values(0, 1), values(0, 2), message(END)]
    text = b"".join(whole)
    for size in range(len(text)):
        steps, ended = received(text[:size])
        assert (steps in ([], [{"u": [1.0]}], [{"u": [1.0]}, {"u": [2.0]}]), ended) == (True, False)
    assert received(text) == ([{"u": [1.0]}, {"u": [2.0]}], True)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([U, V, values(0, 1), message(END)], "ended without having sent 'v'"),
        ([U, V, values(0, 1), values(0, 2)], "sent 'u' again without having sent 'v'"),
        ([U, values(0, 1), values(0, 2), V], "declared the field 'v' after the first time step"),
        ([U, values(0, 1), values(0, 2, 3)], "sent 2 values of 'u', and 1 at earlier time steps"),
        ([values(0, 1)], "field 0 of 0"),
        ([U, message(TEXT, 3, b"{}")], "field 3 of 1"),
        ([message(9, 0, b"what")], "kind 9 and 4 bytes"),
        ([U, message(VALUES, 0, b"1234567")], "kind 2 and 7 bytes"),
        ([struct.pack("<IIQ", FIELD, 0, 2**40)], "kind 1 and 1099511627776 bytes"),
    ],
)
def test_other_messages_are_errors(messages, said, raises):
    with raises(ValueError, said):
        received(*messages)


def test_the_first_line_has_version_byte_order_and_token(raises):
    assert byte_order_of(b"compss_train %d little -\n" % PROTOCOL, "-") == "<"
    assert byte_order_of(b"compss_train %d big secret\n" % PROTOCOL, "secret") == ">"
    with raises(ValueError, "has the byte order 'middle'"):
        byte_order_of(b"compss_train %d middle -\n" % PROTOCOL, "-")
    with raises(ValueError, "protocol 2"):
        byte_order_of(b"compss_train 2 little -\n", "-")
    for line in (b"", b"GET / HTTP/1.1\n", b"x" * 10_000, b"\xff\xfe\n"):
        with pytest.raises(PermissionError, match="no solver"):
            byte_order_of(line, "-")
    for line in (
        b"compss_train 2 little other\n",
        b"compss_train 1 little\n",
        b"compss_train 1 little \n",
    ):
        with pytest.raises(PermissionError, match="another token"):
            byte_order_of(line, "secret")
