"""Tests of served parameter servers alone: other processes, broken connections, unauthorized
clients.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import zmq

from compss_train import Merge
from compss_train.exceptions import ParameterServerClosedError
from compss_train.net import Address, MessageServer
from compss_train.net.messages import pack, unpack
from compss_train.net.sockets import LOOPBACK, client_socket, proof_of
from compss_train.parameter_server import LocalParameterServer, connect, serve, serve_apart
from compss_train.parameter_server.server_loop import ServerLoop
from tests.helpers.proxy import Proxy
from tests.helpers.shared_engine import other_process
from tests.helpers.waiting import LIMIT, wait_until
from tests.online.simulations import free_port


def push(connection, address, token, delta, pushes):
    """Push so often, report the sum that there is then, and stay."""
    with connect(address, token) as client:
        for _ in range(pushes):
            client.push("w", [np.full(5, delta)])
        connection.send(client.pull("w")[0][0].item())
        connection.recv()


def test_pushes_of_other_processes_survive_a_killed_process(serving, client):
    client.init("w", [np.zeros(5)])
    server = (serving.address, serving.token)
    with (
        other_process(push, *server, 0.5, 300) as (killed, first),
        other_process(push, *server, 2.0, 300) as (_, second),
    ):
        assert first.recv() >= 150
        os.kill(killed, signal.SIGKILL)
        for _ in range(100):
            client.push("w", [np.ones(5)])
        assert second.recv() >= 600
    assert client.pull("w")[0].tolist() == [150.0 + 600.0 + 100.0] * 5


class Cutter(Proxy):
    """A proxy that cuts a connection when so much has passed in one direction."""

    def __init__(self, address, after):
        self.after = after
        self.left = {True: after, False: after}
        self.cuts = 0
        super().__init__(address)

    def passed(self, data, to_server):
        self.left[to_server] -= len(data)
        if self.left[to_server] >= 0:
            return data
        self.left[to_server] = self.after
        self.cuts += 1
        return None


@pytest.mark.parametrize("after", [20_000, 60_000])
def test_over_a_connection_that_breaks_every_push_counts_once(tcp_serving, after):
    cutter = Cutter(tcp_serving.address, after)
    with connect(cutter.address, tcp_serving.token) as client:
        client.init("w", [np.zeros(100)])
        for number in range(150):
            client.push(
                "w", [np.full(100, 2.0**-number if number < 40 else 1.0)], priority=number % 3
            )
            if number % 40 == 0:
                client.pull("w")
        expected = sum(2.0**-number for number in range(40)) + 110
        assert client.pull("w")[0].tolist() == [expected] * 100
    assert cutter.cuts > 1
    cutter.close()


class Bomb:
    def __reduce__(self):
        return exec, ("raise SystemExit",)


PUSH = {"call": "push", "key": "w", "priority": 0, "number": 0, "count": 0}
GREETING = {"client": "other", "generation": 0}


@pytest.mark.parametrize(
    "message",
    [
        [b"[]"],
        [pickle.dumps(Bomb())],
        pack(PUSH),
        [pack(PUSH, [np.ones(2)])[0], bytes(15)],
        *(
            pack(PUSH | changed, [np.ones(2)])
            for changed in ({"call": "drop"}, {"key": "v"}, {"key": []})
        ),
        *(
            pack(PUSH | changed, [np.ones(2)])
            for changed in ({"count": 7}, {"count": "0"}, {"priority": None})
        ),
        pack({"call": "push"}, [np.ones(2)]),
        pack(PUSH | {"more": 1}, [np.ones(2)]),
        pack(PUSH, [np.ones(3)]),
        pack(PUSH | {"number": "x" * (2**20 - 200)}),
        pack(PUSH | {"call": "pull", "key": "\n" * 500_000}),
    ],
    ids=lambda message: bytes(message[0])[:80].decode(errors="replace"),
)
def test_malformed_messages_are_answered_and_change_nothing(serving, client, message):
    client.init("w", [np.zeros(2)])
    greeting = pack(GREETING | {"proof": proof_of(serving.token)})
    for pushed, before in enumerate(([], [greeting]), 1):
        with (
            zmq.Context() as context,
            client_socket(context, serving.address, serving.token) as other,
        ):
            other.connect(serving.address)
            for each in (*before, message):
                other.send_multipart(each)
            answer = {}
            while not answer:  # an empty one asks whether the client is there
                assert other.poll(20_000)
                answer = unpack(other.recv_multipart())[0]
            assert "error" in answer
            client.push("w", [np.ones(2)])
            assert client.pull("w")[0].tolist() == [pushed] * 2


def test_a_server_that_does_not_answer_is_an_error():
    address = f"tcp://127.0.0.1:{free_port()}"
    with pytest.raises(TimeoutError, match=r"has not answered for 0\.3 s"):
        connect(address, "token", timeout=0.3)


def test_without_zeromq_the_error_says_what_to_install(monkeypatch):
    import compss_train.parameter_server as package

    monkeypatch.setitem(sys.modules, "zmq", None)
    for module in [name for name in sys.modules if name.startswith("compss_train.net")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.delitem(sys.modules, "compss_train.parameter_server.serving")
    monkeypatch.delitem(vars(package), "serve")
    with pytest.raises(
        ModuleNotFoundError, match=r"needs ZeroMQ: pip install 'compss_train\[online\]'"
    ):
        package.serve  # noqa: B018
    with pytest.raises(
        ModuleNotFoundError, match=r"needs ZeroMQ: pip install 'compss_train\[online\]'"
    ):
        Merge("parameter_server")
    with pytest.raises(AttributeError, match="has no attribute 'server'"):
        package.server  # noqa: B018


def test_a_server_that_ends_is_an_error_for_waiting_clients(serving, client, monkeypatch):
    client.init("w", [np.zeros(2)])
    serving.close()
    now = [0.0]
    clock = SimpleNamespace(
        monotonic=lambda: now[0], sleep=lambda seconds: now.append(now.pop() + 10)
    )
    monkeypatch.setattr("compss_train.net.caller.time", clock)
    with pytest.raises(TimeoutError, match=r"has not answered for 60\.0 s"):
        client.pull("w")
    client.close()


def test_a_server_that_was_restarted_needs_new_clients(tcp_serving):
    with connect(tcp_serving.address, tcp_serving.token) as client:
        client.init("w", [np.zeros(2)])
        tcp_serving.close()

        def push_and_pull():
            client.push("w", [np.ones(2)])  # raises itself if the answer comes soon
            client.pull("w")

        with (
            serve(tcp_serving.address, token=tcp_serving.token),
            pytest.raises(ValueError, match="if the server was restarted, use a new client"),
        ):
            push_and_pull()


def test_a_fork_can_end_and_cannot_use_the_clients_of_its_parent(serving, client):
    client.init("w", [np.zeros(2)])
    if (child := os.fork()) == 0:
        try:
            with pytest.raises(ParameterServerClosedError, match="the client is another process's"):
                client.pull("w")
            client.close()
        finally:
            os._exit(sys.exc_info()[0] is not None)
    assert os.waitpid(child, 0)[1] == 0
    assert client.pull("w")[0].tolist() == [0.0, 0.0]


def test_a_server_process_that_is_stopped_is_killed():
    server = serve_apart()
    os.kill(server.pid, signal.SIGSTOP)
    server.close()
    with pytest.raises(ProcessLookupError):
        os.kill(server.pid, 0)


def test_another_client_gets_the_specs_of_a_key(serving, client):
    client.init("w", [torch.zeros(2, 3, dtype=torch.bfloat16)])
    with connect(serving.address, serving.token) as other:
        with pytest.raises(ValueError, match=r"'w' holds an array of torch.bfloat16 \(2, 3\)"):
            other.push("w", [np.ones((2, 3), np.float32)])
        other.push("w", [torch.ones(2, 3, dtype=torch.bfloat16)])
        weights = [torch.empty(2, 3, dtype=torch.bfloat16)]
        assert other.pull("w", weights)[0].tolist() == [[1.0] * 3] * 2


def push_named(connection, address, token, name, pushes):
    """Push to two keys, of which one is its own, and report a sum of the other on the way."""
    with connect(address, token, name=name) as client:
        with contextlib.suppress(ValueError):  # it is there
            client.init("own", [np.zeros(3)])
        for number in range(pushes):
            key = "w" if number % 3 else "own"
            client.push(key, [np.full(3, 2.0 ** -(number % 40))], priority=number % 5)
            if number == 100:
                connection.send(client.pull("w")[0][0].item())


def sums(pushes):
    values = [(number % 3 > 0, 2.0 ** -(number % 40)) for number in range(pushes)]
    return [sum(value for other, value in values if other == wanted) for wanted in (True, False)]


def test_a_task_that_is_killed_and_run_again_under_its_name_counts_once(serving, client):
    client.init("w", [np.zeros(3)])
    arguments = (serving.address, serving.token, "task 1", 600)
    with other_process(push_named, *arguments) as (pid, connection):
        assert connection.recv() > 0
        os.kill(pid, signal.SIGKILL)
    ours, theirs = multiprocessing.Pipe()
    with ours, theirs:
        # It goes on where the first one ended; once more after success changes nothing.
        for _ in range(2):
            push_named(theirs, *arguments)
            assert ours.recv() > 0
            assert [client.pull(key)[0].tolist() for key in ("w", "own")] == [
                [s] * 3 for s in sums(600)
            ]


def test_repeated_calls_of_a_named_client_count_once(serving, client):
    client.init("w", [np.zeros(2)])
    for new in range(1, 4):
        with connect(serving.address, serving.token, name="task") as task:
            with pytest.raises(ValueError, match="'w' exists already"):
                task.init("w", [np.ones(2)])  # refused each time, as it was the first
            for _ in range(5 * new):
                task.push("w", [np.ones(2)])
            assert task.pull("w")[0].tolist() == [5.0 * new] * 2
    with connect(serving.address, serving.token, name="another task") as other:
        other.push("w", [np.ones(2)])
    assert client.pull("w")[0].tolist() == [16.0, 16.0]


def test_a_second_client_of_a_name_takes_over_waiting_calls():
    gate = threading.Event()
    store = LocalParameterServer()
    store.init("w", [np.zeros(1)])
    store.init("v", [np.zeros(1)])
    entry = store.entry("v")
    update = entry.update
    entry.update = lambda grads: (gate.wait(LIMIT), update(grads))

    class Opening(Proxy):
        def passed(self, data, to_server):
            gate.set()
            return data

    with ServerLoop(MessageServer(LOOPBACK, "token"), store) as serving:
        with Address(serving.address, "token").connect(
            {"client": "named task", "generation": 0}
        ) as dead:
            for number in range(40):
                push = {"call": "push", "key": "vw"[number % 2], "count": number // 2}
                dead.send({**push, "number": number, "priority": 1}, [np.ones(1)])
        proxy = Opening(serving.address)
        with connect(proxy.address, "token", name="task") as again:
            for _ in range(21):
                again.push("v", [np.ones(1)], priority=1)
                again.push("w", [np.ones(1)], priority=1)
            assert [again.pull(key)[0].item() for key in "vw"] == [21.0, 21.0]
        proxy.close()


def test_a_client_without_a_name_is_forgotten_when_it_closes(serving, client):
    client.init("w", [np.zeros(1)])
    for name in (None, "task", None):
        with connect(serving.address, serving.token, name=name) as other:
            other.push("w", [np.ones(1)])
    assert client.pull("w")[0].item() == 3.0
    wait_until(lambda: len(serving.clients) == 2)
    assert sorted(name.split()[0] for name in serving.clients) == ["named", "unnamed"]


def test_a_later_generation_of_a_name_replaces_the_records_of_the_earlier_ones(serving, client):
    client.init("w", [np.zeros(1)])
    # Each twice, and those that have ended once more, late.
    for generation in (0, 0, 1, 3, 3, 2, 0):
        with connect(
            serving.address, serving.token, name="worker", generation=generation
        ) as worker:
            worker.push("w", [np.ones(1)])
            assert worker.pull("w")[0].item() == client.pull("w")[0].item()
    assert client.pull("w")[0].item() == 3.0
    assert [name for name in serving.clients if name.startswith("named")] == ["named worker"]


def test_large_arrays_are_the_callers_when_push_and_pull_return(serving, client):
    size = 3 * 2**18 + 5  # float32: three pieces and a bit
    grad = np.ones(size, np.float32)
    client.init("w", [np.zeros(size, np.float32)])
    weights = np.full(size, 9, np.float32)
    spread = torch.zeros(size, 2)[:, 0]
    pulled = []
    for number in range(5):
        client.push("w", [grad, torch.from_numpy(grad)])
        grad += 1  # at once
        client.pull("w", [weights, spread])
        pulled.append(client.pull("w")[0])
        expected = sum(2.0 * count for count in range(1, number + 2))
        assert (weights == expected).all()
        assert (spread == expected).all()
    assert [float(value[0]) for value in pulled] == [2.0, 6.0, 12.0, 20.0, 30.0]
    assert all((value == value[0]).all() for value in pulled)


def test_pushes_of_more_than_the_backlog_holds_are_executed(monkeypatch, client):
    with monkeypatch.context() as small:
        small.setattr("compss_train.parameter_server.server_loop.MAX_BACKLOG", 1000)
        client.init("w", [np.zeros(100)])
        for _ in range(50):
            client.push("w", [np.ones(100)])
        assert client.pull("w")[0].tolist() == [50.0] * 100


OPEN = {"address": "tcp://127.0.0.1:1", "token": "t", "timeout": 0.1}


WRONG = [
    *((lambda bad=bad: serve(bad), f"address={bad!r}") for bad in ("ipc:///tmp/x", "a:1", 3)),
    *((lambda bad=bad: serve(token=bad), f"token={bad!r}") for bad in ("", 5, b"x")),
    *((lambda bad=bad: connect(**OPEN | {"token": bad}), f"token={bad!r}") for bad in ("", 5)),
    *((lambda bad=bad: connect(**OPEN | {"name": bad}), f"name={bad!r}") for bad in ("", 3)),
    *((lambda bad=bad: connect(bad, "t"), f"address={bad!r}") for bad in ("foo", 3)),
    (lambda: connect(**OPEN, generation=-1), "generation=-1"),
    *(
        (lambda bad=bad: connect(**OPEN | {"timeout": bad}), f"timeout={bad!r}")
        for bad in (0, "60")
    ),
]


def test_wrong_arguments_are_clear_errors(client, raises):
    for call, name in WRONG:
        with raises(ValueError, name):
            call()
    for key, number in (("w" * 2**20, 1), ("w", 80_000)):
        with pytest.raises(
            ValueError, match=(f"with {number:,} arrays, whose header has 1,.* bytes")
        ):
            client.init(key, [np.zeros(1)] * number)
