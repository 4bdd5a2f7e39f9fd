"""What only a served parameter server has: other processes, broken connections, strangers."""

import contextlib
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
import zmq

from compss_train.parameter_server import connect, serve
from compss_train.wire import WireError, pack, unpack

PUSHER = """
import sys
import numpy as np
from compss_train.parameter_server.client import connect

with connect(*sys.argv[1:3]) as client:
    delta = np.full(5, float(sys.argv[3]))
    for number in range(int(sys.argv[4])):
        client.push("w", [delta])
    print(client.pull("w")[0][0].item(), flush=True)
    if sys.argv[5:]:
        sys.stdin.readline()
"""


@pytest.fixture
def serving():
    with serve() as serving:
        yield serving


@pytest.fixture
def client(serving):
    with connect(serving.address, serving.token) as client:
        yield client


def pusher(serving, *arguments, **options):
    command = [sys.executable, "-c", PUSHER, serving.address, serving.token, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True, **options)


def test_processes_push_and_one_that_is_killed_takes_nothing_of_others_along(serving, client):
    client.init("w", [np.zeros(5)])
    with pusher(serving, 0.5, 300, "stay") as killed, pusher(serving, 2, 300) as other:
        assert float(killed.stdout.readline()) >= 150
        killed.send_signal(signal.SIGKILL)
        for _ in range(100):
            client.push("w", [np.ones(5)])
        assert float(other.communicate(timeout=60)[0]) >= 600
    assert client.pull("w")[0].tolist() == [150.0 + 600.0 + 100.0] * 5


class Cutter:
    """A proxy that breaks its connections now and then."""

    def __init__(self, address, after):
        host, port = address.removeprefix("tcp://").split(":")
        self.target, self.after = (host, int(port)), after
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.listener.getsockname()[1]}"
        self.cuts = 0
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
                far = socket.create_connection(self.target)
            except OSError:
                return
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self.forward, args=[source, sink], daemon=True).start()

    def forward(self, source, sink):
        passed = 0
        try:
            while data := source.recv(4096):
                passed += len(data)
                if passed > self.after:
                    self.cuts += 1
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@pytest.mark.parametrize("after", [20_000, 60_000])
def test_over_a_connection_that_breaks_every_push_counts_once(serving, after):
    cutter = Cutter(serving.address, after)
    with connect(cutter.address, serving.token) as client:
        client.init("w", [np.zeros(100)])
        for number in range(150):
            client.push("w", [np.full(100, 2.0**-number if number < 40 else 1.0)], priority=number % 3)
            if number % 40 == 0:
                client.pull("w")
        expected = sum(2.0**-number for number in range(40)) + 110
        assert client.pull("w")[0].tolist() == [expected] * 100
    assert cutter.cuts > 1
    cutter.listener.close()


def test_who_does_not_know_the_token_changes_nothing(serving, client):
    client.init("w", [np.zeros(2)])
    with pytest.raises(PermissionError, match="the token is not the server's"):
        connect(serving.address, serving.token + "x")
    assert client.pull("w")[0].tolist() == [0.0, 0.0]


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit",)


def test_what_is_no_message_does_no_harm(serving, client):
    client.init("w", [np.zeros(2)])
    token = serving.token.encode()
    header, array = pack({"call": "push", "key": "w", "priority": 0, "number": 0, "count": 0}, [np.ones(2)])
    messages = [
        [token],
        [token, b"{"],
        [token, b"[]"],
        [token, pickle.dumps(Bomb())],
        [token, header],
        [token, header, bytes(array)[:-1]],
        [token, header.replace(b"[2]", b"[-2]"), array],
        [token, header.replace(b"float64", b"object"), array],
        [token, header.replace(b'"push"', b'"drop"'), array],
        [token, header.replace(b'"w"', b'"v"'), array],
        [b"", header, array],
        [token, header.replace(b'"count": 0', b'"count": 7'), array],
    ]
    context = zmq.Context()
    stranger = context.socket(zmq.DEALER)
    stranger.connect(serving.address)
    for message in messages:
        stranger.send_multipart(message)
    stranger.send_multipart([token, header, array])
    deadline = time.monotonic() + 20
    while client.pull("w")[0].tolist() != [1.0, 1.0]:
        assert time.monotonic() < deadline
    context.destroy(0)


def test_where_nobody_answers_that_is_told():
    free = socket.create_server(("127.0.0.1", 0))
    address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    free.close()
    with pytest.raises(TimeoutError, match=r"has not answered for 0\.3 s"):
        connect(address, "token", timeout=0.3)


def test_without_zeromq_the_error_says_what_to_install(monkeypatch):
    import compss_train.parameter_server as package

    monkeypatch.setitem(sys.modules, "zmq", None)
    monkeypatch.delitem(sys.modules, "compss_train.parameter_server.serving")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'compss_train\[server\]'"):
        package.serve  # noqa: B018
    with pytest.raises(AttributeError, match="has no attribute 'server'"):
        package.server  # noqa: B018


def test_a_server_that_ends_is_an_error_for_who_waits(serving):
    client = connect(serving.address, serving.token, timeout=0.5)
    client.init("w", [np.zeros(2)])
    serving.close()
    with pytest.raises(TimeoutError):
        client.pull("w")
    client.close()


def test_an_address_that_is_taken_is_an_error(serving):
    with pytest.raises(OSError, match="cannot listen at"):
        serve(serving.address)


def test_another_client_learns_what_a_key_holds(serving, client):
    client.init("w", [torch.zeros(2, 3, dtype=torch.bfloat16)])
    with connect(serving.address, serving.token) as other:
        with pytest.raises(ValueError, match=r"'w' holds an array of torch.bfloat16 \(2, 3\)"):
            other.push("w", [np.ones((2, 3), np.float32)])
        other.push("w", [torch.ones(2, 3, dtype=torch.bfloat16)])
        weights = [torch.empty(2, 3, dtype=torch.bfloat16)]
        assert other.pull("w", weights)[0].tolist() == [[1.0] * 3] * 2


@pytest.mark.parametrize(
    "array", [np.arange(6.0).reshape(2, 3), torch.ones(3).bfloat16(), np.zeros((0, 2)), torch.tensor(3)]
)
def test_a_message_is_read_as_it_was_written(array):
    header, arrays = unpack([bytearray(frame) for frame in pack({"call": "x"}, [array, array])])
    assert header == {"call": "x"}
    assert all(torch.equal(part, torch.as_tensor(array)) for part in arrays)
    with pytest.raises(WireError, match="2 arrays are announced, 1 came"):
        unpack(pack({}, [array, array])[:2])
