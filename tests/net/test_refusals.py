"""One message ends no server: its sender gets an error and is disconnected, and others are
served.
"""

import json
import logging
import os
import socket
import tempfile

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from compss_train.net import messages, sockets
from compss_train.net.connection import Address, ConnectionLostError
from compss_train.net.messages import MessageError, pack, parsing, shortened, unpack
from compss_train.net.server import MessageServer
from compss_train.net.sockets import LOOPBACK
from compss_train.parameter_server import connect, serve
from compss_train.parameter_server.call_queue import CallQueue
from tests.buffers.kinds import make
from tests.helpers.waiting import LIMIT, wait_until
from tests.net.fuzzing import FuzzingClient, encoded, nested
from tests.net.plain_clients import KEYS, TOKEN, raw_socket
from tests.net.test_attacks import received_from
from tests.online.sample_streams import connect_sender, send_stream
from tests.online.stub_fits import stub_fit

LONG = "é" * 400_000
"""Less than a mebibyte as it is sent, and more in JSON of ASCII characters."""
PUSH = {"call": "push", "key": "w", "priority": 0, "number": 0, "count": 0}


def answer_of(client, *all_frames):
    """Send messages; return the first answer with an error."""
    for frames in all_frames:
        assert client.send(frames, keep_answers=True)
    while True:
        assert client.socket.poll(1000 * LIMIT)
        header, _ = unpack(client.socket.recv_multipart())
        if "error" in header:
            return header


@pytest.fixture(params=[None, LOOPBACK], ids=["socket file", "TCP"])
def serving(request):
    """A parameter server, which serves a client afterwards."""
    with serve(request.param) as serving, connect(serving.address, serving.token) as client:
        client.init("w", [np.zeros(2)])
        yield serving
        client.push("w", [np.ones(2)])
        with connect(serving.address, serving.token, timeout=LIMIT) as other:
            other.pull("w")


GREETING = {"client": "other", "generation": 0}
MALFORMED = {
    "a long dtype": {"arrays": [[LONG, [1]]]},
    "a long call": PUSH | {"call": LONG},
    "a long key": PUSH | {"key": LONG, "call": "pull"},
    "many dimensions": PUSH | {"arrays": [["bool", [0] * 100_000]]},
    "depth": PUSH | {"call": nested(900)},
    "no number": {"call": "hello"},
    "a repeated name": PUSH | {"records": 1},
}


@pytest.mark.parametrize("malformed", MALFORMED)
@pytest.mark.parametrize("greeted", [False, True])
def test_a_parameter_server_outlives(serving, malformed, greeted):
    with FuzzingClient(serving.address, serving.token) as client:
        greeting = encoded({"arrays": []} | GREETING | client.proof)
        before = [[greeting]] if greeted else []
        first = (
            {"arrays": [["uint8", [1]]]} | MALFORMED[malformed] | ({} if greeted else client.proof)
        )
        answer = answer_of(client, *before, [encoded(first), b"1"])
        assert len(json.dumps(answer["error"])) < 2**19


@pytest.mark.parametrize("proof", ["\ud800", "é", 3, None, [], nested(900), LONG])
def test_a_socket_file_outlives_what_proves_nothing(proof):
    with serve() as serving:
        with FuzzingClient(serving.address, serving.token) as client:
            frames = [encoded({"arrays": [], "proof": proof} | GREETING)]
            assert answer_of(client, frames) == {"error": sockets.WRONG_TOKEN}
        with connect(serving.address, serving.token, timeout=LIMIT) as client:
            client.init("w", [np.zeros(1)])


def test_an_answer_that_no_header_has_room_for_is_an_error(serving):
    arrays = [["bool", [0] * 64]] * 7525
    init = encoded(PUSH | {"call": "init", "key": "v", "arrays": arrays})
    assert 2**20 - 4000 < len(init) < 2**20
    with FuzzingClient(serving.address, serving.token) as client:
        greeting = encoded({"arrays": []} | GREETING | client.proof)
        pull = encoded(PUSH | {"call": "pull", "key": "v", "number": 10**4000, "arrays": []})
        answer = answer_of(client, [greeting], [init, *[b""] * len(arrays)], [pull])
    assert answer["numbers"] == [10**4000]
    assert "the maximum is 1,048,576" in answer["error"][1]


ROLES = [LONG, "\ud800" * 170_000, nested(900), None, 3, "worker", "é"]


@pytest.mark.parametrize("role", ROLES, ids=lambda role: repr(role)[:9])
def test_the_address_for_senders_outlives_any_role(role):
    with stub_fit(senders=9) as running:
        with FuzzingClient(running.coordinator.url, TOKEN) as client:
            assert answer_of(client, [encoded({"arrays": [], "role": role})])
        with connect_sender(running) as sender:
            sender.send(1.0)


@pytest.mark.parametrize("address", [None, LOOPBACK], ids=["socket file", "TCP"])
@pytest.mark.parametrize(
    ("stream", "sample"),
    [
        (10**30, 0),
        (-1, 0),
        (float("inf"), 0),
        ("\ud800", 0),
        (LONG, 0),
        (0, 10**30),
        (0, -1),
        (0, 2**63 - 1),
    ],
    ids=lambda value: repr(value)[:9],
)
def test_a_worker_outlives_numbers_that_no_checkpoint_can_hold(make_stub, address, stream, sample):
    stub = make_stub(make("FIFO", 9), address=address)
    with FuzzingClient(stub.url, KEYS.token) as client:
        greeting = {"arrays": [], "stream": stream, "stream_key": KEYS.of(0)} | client.proof
        message = [encoded({"arrays": [["float32", [1]]], "sample": sample}), bytes(4)]
        assert answer_of(client, [encoded(greeting)], message)
    send_stream(stub, 1, 2)
    assert stub.receiver.snapshot()[1] == {1: 2}
    assert stub.drain() == [100, 101]


@pytest.mark.parametrize(
    ("fields", "arrays", "reason"),
    [
        ({}, 0, "0 arrays"),
        ({}, 3, "3 arrays"),
        ({"step": -1}, 1, "step=-1"),
        ({"step": None}, 1, "int"),
    ],
)
def test_a_worker_refuses_samples_without_x_and_steps_that_are_none(
    make_stub, fields, arrays, reason
):
    stub = make_stub(make("FIFO", 9))
    greeting = {"stream": 0, "stream_key": KEYS.of(0)}
    with Address(stub.url, KEYS.token).connect(greeting) as connection:
        connection.send({"sample": 0} | fields, [np.zeros(2)] * arrays)
        while "error" not in (answer := connection.receive(LIMIT)[0]):
            pass
        assert reason in answer["error"]
    send_stream(stub, 1, 2)
    assert stub.drain() == [100, 101]


def test_the_end_of_a_stream_is_kept_once(make_stub):
    stub = make_stub(make("FIFO", 1))
    with stub.connect(0) as connection:
        connection.send_all(range(2))  # one of them waits for room
        for _ in range(3):
            connection.connection.send({"end": True})
        assert "after the end" in connection.read("error")["error"]


# Refusals


@pytest.mark.parametrize("address", [None, LOOPBACK], ids=["socket file", "TCP"])
def test_a_refused_client_is_disconnected_and_another_is_not(address, caplog):
    with (
        MessageServer(address, TOKEN) as server,
        server.address.connect({"n": 1}) as other,
        server.address.connect({"n": 2}) as client,
    ):
        peers = {header["n"]: peer for peer, header, _ in (received_from(server) for _ in range(2))}
        peers[2].refuse(ValueError("é" * 10**6))
        client.send({"ignored": 1})
        assert received_from(server) == (peers[2], None, [])
        header, _ = client.receive(LIMIT)
        assert header["error"].startswith("ValueError: éé")
        client.send({"ignored": 2})

        wait_until(lambda: server.receive() is None and peers[2].is_closed)
        with pytest.raises(ConnectionLostError):
            client.receive(LIMIT)
        other.send({"n": 3})
        assert received_from(server)[:2] == (peers[1], {"n": 3})
        assert other.receive(0.05) is None
    (logged,) = caplog.records
    assert (logged.levelno, logged.name) == (logging.WARNING, "compss_train.net.server")
    assert logged.exc_info[0] is ValueError


def test_no_other_file_is_shut_down():
    """The descriptor of a connection that ZeroMQ has closed may belong to anything."""
    ours, theirs = socket.socketpair()  # of Unix, without names
    with (
        MessageServer(LOOPBACK, TOKEN) as server,
        MessageServer(None, TOKEN) as private,
        ours,
        theirs,
        tempfile.TemporaryFile() as file,
        socket.create_server(("127.0.0.1", 0)) as tcp,
    ):
        others = {str(each.fileno()) for each in (ours, file, tcp)}
        before = set(os.listdir("/proc/self/fd"))
        for each in (ours, file, tcp):
            for connections in (server.connections, private.connections):
                connections.shut_down(each.fileno())
        server.connections.shut_down(10**6)
        # Connections of earlier tests may be closed meanwhile.
        wait_until(lambda: others <= set(os.listdir("/proc/self/fd")) <= before)
        ours.sendall(b"1")
        assert theirs.recv(1) == b"1"


@pytest.mark.slow
def test_a_lost_client_is_noticed_after_many_strangers():
    with MessageServer(LOOPBACK, TOKEN) as server:
        with server.address.connect({"n": 1}):
            peer, _, _ = received_from(server)
        wait_until(lambda: peer.is_closed)
        for _ in range(1100):
            raw_socket(server.address.url).close()
        assert received_from(server) == (peer, None, [])


def test_a_server_whose_connections_nobody_watches_says_so(monkeypatch):
    with MessageServer(LOOPBACK, TOKEN) as server:
        monkeypatch.setattr("compss_train.net.connections.time", None)
        with server.address.connect({"n": 1}):
            pass
        with pytest.raises(
            RuntimeError, match=("the thread that watches connections has died: AttributeError")
        ):
            wait_until(lambda: server.receive() == "never")


def test_a_parameter_server_that_dies_is_named_to_its_clients_at_once(serving_that_dies):
    serving, client = serving_that_dies
    with pytest.raises(
        RuntimeError, match=r"the thread of the parameter server at .* has died: KeyError: 'a bug'"
    ):
        client.pull("w")
    with pytest.raises(
        RuntimeError, match=r"the thread of the parameter server at .* has died: KeyError"
    ):
        serving.close()
    serving.close()


@pytest.fixture
def serving_that_dies(monkeypatch):
    serving = serve(LOOPBACK)
    client = connect(serving.address, serving.token, timeout=600)
    client.init("w", [np.zeros(2)])

    def fail(queue):
        raise KeyError("a bug")

    monkeypatch.setattr(CallQueue, "take", fail)
    yield serving, client
    client.close()


def test_a_receiver_that_dies_is_named_to_its_worker_and_its_senders(make_stub, monkeypatch):
    stub = make_stub(make("FIFO", 1))
    with stub.connect(0) as connection:
        connection.send_all(range(2))  # a sender that waits for room
        monkeypatch.setattr(stub.receiver, "_put_waiting", lambda: {}["a bug"])
        with pytest.raises(OSError, match="is lost"):
            connection.read("never")
    wait_until(lambda: stub.receiver.failed is not None)
    assert str(stub.receiver.failed) == (
        "the thread that receives samples has died: KeyError: 'a bug'"
    )


# Texts


@given(
    st.text(st.characters(), max_size=20).map(lambda text: text * 5000) | st.text(st.characters())
)
@example("\ud800" * 10**6)
@example("\U0001f600" * 10**6)
@example("\x01" * 10**6)
def test_two_texts_of_any_length_fit_into_a_header_and_can_be_printed(text):
    short = shortened(text)
    short.encode()
    header, _ = unpack(pack({"failed": short, "traceback": short}))
    assert header == {"failed": short, "traceback": short}
    if len(text) < messages.MAX_TEXT and not any("\ud800" <= each <= "\udfff" for each in text):
        assert short == text
    else:
        assert short[:1000] == shortened(text[:2000])[:1000]
        assert short[-1000:] == shortened(text[-2000:])[-1000:]


def test_what_goes_wrong_with_a_message_is_one_error():
    for wrong in (lambda: int(float("inf")), lambda: {}["x"], lambda: repr(nested_too_deeply())):
        with pytest.raises(MessageError, match="malformed message: "), parsing():
            wrong()


def nested_too_deeply():
    value = []
    for _ in range(10**5):
        value = [value]
    return value
