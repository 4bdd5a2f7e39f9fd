"""The documented messages, from a client that has nothing of the package."""

import socket

import pytest
import torch

from tests.buffers.kinds import until
from tests.online.parts import KEY, TOKEN, bare, fit, frame, said
from tests.online.streams import connect

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_a_client_of_sockets_alone_sends_samples_as_documented(paired, slow):
    def say(sock, header, *arrays):
        data = frame(header, *arrays)
        for part in [data[n : n + 1] for n in range(len(data))] if slow else [data]:
            sock.sendall(part)

    with fit(2, paired=paired) as running, bare(running.coordinator.door.port) as control:
        say(control, {"hello": "sender", "name": None, "token": TOKEN})
        told = said(control)
        number, workers = told["stream"], told["workers"]
        assert (told["go"], told["paired"], len(workers)) == (True, paired, 2)
        socks = [bare(port) for _, port in workers]
        for sock in socks:
            say(sock, {"hello": "samples", "stream": number, "token": told["key"]})
            assert said(sock)["next"] == 0
        for n in range(5):
            turn = number % 2 if paired else (number + n) % 2
            step = {"step": n} if paired else {}
            say(socks[turn], {"sample": n, **step}, torch.tensor([n, n * 0.5]), torch.tensor([-float(n)]))
        for sock in socks:
            say(sock, {"end": True})
            assert said(sock)["ended"] is True
        say(control, {"finished": 5})
        running.coordinator.until_heard("finished")
        until(lambda: running.coordinator.do(lambda: running.coordinator.senders.all_ended))
        for sock in socks:
            sock.close()
        if paired:
            assert [place.buffer.samples_put for place in running.places] == [5, 0]
        else:
            for worker, place in enumerate(running.places):
                own = torch.arange(worker, 5, 2.0)
                x, y = place.buffer.get_batch(len(own))
                assert torch.equal(x, torch.stack([own, own / 2], 1))
                assert torch.equal(y, -own[:, None])


NONSENSE = {
    "a sample that is no number": frame({"sample": "x"}, torch.zeros(2)),
    "something else": frame({"what": 1}),
    "no sample": frame({"sample": None}),
    "no arrays": frame({"sample": 0}),
    "no shape": frame({"sample": 0, "arrays": [["float32", [-1]]]}),
    "no dtype": frame({"sample": 0, "arrays": [["object", [1]]]}),
    "too large an array": frame({"sample": 0, "arrays": [["uint8", [2**60]]]}),
    "no message": b"\xff" * 5,
}


@pytest.mark.parametrize("nonsense", NONSENSE)
def test_a_client_that_says_nonsense_is_told_and_others_go_on(nonsense):
    with fit() as running, connect(running) as other:
        other.send(torch.zeros(2), torch.zeros(1))
        with bare(running.places[0].port) as sock:
            sock.sendall(frame({"hello": "samples", "stream": 9, "token": KEY}))
            assert said(sock)["next"] == 0
            sock.sendall(NONSENSE[nonsense])
            assert "error" in said(sock)
            sock.sendall(NONSENSE[nonsense] * 3)  # which nobody minds
        other.send(torch.ones(2), torch.ones(1))
        assert running.places[0].failures == []


@pytest.mark.parametrize("hello", [{}, {"stream": None}, {"stream": "x"}, {"stream": [1]}], ids=str)
def test_a_hello_without_a_stream_does_no_harm(hello):
    with fit() as running, connect(running) as other:
        with bare(running.places[0].port) as sock:
            sock.sendall(frame({"hello": "samples", "token": KEY, **hello}))
            sock.shutdown(socket.SHUT_WR)
            assert b"next" not in b"".join(iter(lambda: sock.recv(2**16), b""))
        other.send(1.0)
