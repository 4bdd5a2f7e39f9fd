"""The documented messages, from a client that does not use the package."""

import socket

import pytest
import torch

from tests.buffers.kinds import until
from tests.online.bare_connections import KEY, TOKEN, BareClient
from tests.online.sample_streams import connect_sender
from tests.online.stub_fits import stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.mark.parametrize("paired", [False, True])
@pytest.mark.parametrize("slow", [False, True])
def test_a_client_of_raw_sockets_sends_samples_as_documented(paired, slow):
    def send(sock, header, *arrays):
        data = sock.encode(header, *arrays)
        for part in [data[n : n + 1] for n in range(len(data))] if slow else [data]:
            sock.sendall(part)

    with (
        stub_fit(2, paired=paired) as running,
        BareClient(running.coordinator.sender_address.port, TOKEN) as control,
    ):
        send(control, {"role": "sender", "name": None})
        reply = control.read()
        number, workers = reply["stream"], reply["workers"]
        assert (reply["accepted"], reply["paired"], len(workers)) == (True, paired, 2)
        assert KEY.encode().hex() not in reply["key"]
        socks = [BareClient(port, control.reveal(reply["key"])) for _, port in workers]
        for sock in socks:
            send(sock, {"role": "samples", "stream": number})
            assert sock.read()["next"] == 0
        for n in range(5):
            turn = number % 2 if paired else (number + n) % 2
            step = {"step": n} if paired else {}
            send(socks[turn], {"sample": n, **step}, torch.tensor([n, n * 0.5]), torch.tensor([-float(n)]))
        for sock in socks:
            send(sock, {"end": True})
            assert sock.read()["ended"] is True
        send(control, {"finished": 5})
        running.coordinator.wait_for("finished")
        until(lambda: running.coordinator.call(lambda: running.coordinator.senders.all_ended))
        for sock in socks:
            sock.close()
        if paired:
            assert [stub.buffer.samples_put for stub in running.workers] == [5, 0]
        else:
            for worker, stub in enumerate(running.workers):
                own = torch.arange(worker, 5, 2.0)
                x, y = stub.buffer.get_batch(len(own))
                assert torch.equal(x, torch.stack([own, own / 2], 1))
                assert torch.equal(y, -own[:, None])


MALFORMED = {
    "a sample that is no number": ({"sample": "x"}, torch.zeros(2)),
    "something else": ({"what": 1},),
    "no sample": ({"sample": None},),
    "no arrays": ({"sample": 0},),
    "no shape": ({"sample": 0, "arrays": [["float32", [-1]]]},),
    "no dtype": ({"sample": 0, "arrays": [["object", [1]]]},),
    "too large an array": ({"sample": 0, "arrays": [["uint8", [2**60]]]},),
}


@pytest.mark.parametrize("malformed", MALFORMED)
def test_a_malformed_message_is_answered_and_others_continue(malformed):
    with stub_fit() as running, connect_sender(running) as other:
        other.send(torch.zeros(2), torch.zeros(1))
        with BareClient(running.workers[0].port, KEY) as sock:
            sock.send({"role": "samples", "stream": 9})
            assert sock.read()["next"] == 0
            sock.send(*MALFORMED[malformed])
            assert "error" in sock.read()
            for _ in range(3):
                sock.send(*MALFORMED[malformed])  # ignored
        other.send(torch.ones(2), torch.ones(1))
        assert running.workers[0].failures == []


@pytest.mark.parametrize("handshake", [{}, {"stream": None}, {"stream": "x"}, {"stream": [1]}], ids=str)
def test_a_handshake_without_stream_is_rejected(handshake):
    with stub_fit() as running, connect_sender(running) as other:
        with BareClient(running.workers[0].port, KEY) as sock:
            sock.send({"role": "samples", **handshake})
            sock.shutdown(socket.SHUT_WR)
            assert b"next" not in b"".join(iter(lambda: sock.recv(2**16), b""))
        other.send(1.0)
