"""How a sender finds a fit: addresses, names, tokens, and workers that are not there yet."""

import socket
import time
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.exceptions import TrainingEndedError
from compss_train.online import sender as sending
from compss_train.online.sender import SampleSender, host_and_port
from compss_train.online.stream import BusyNameError
from tests.buffers.kinds import Thread, until
from tests.online.parts import HERE, TOKEN, fit
from tests.online.streams import connect, nothing_open, send_all

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.mark.usefixtures("short_pauses")
def test_a_sender_that_meets_a_dead_worker_at_first_tries_again(monkeypatch):
    with nothing_open(), fit() as running:
        running.places[0].die()

        successors = iter([True])

        def replace(seconds):
            if next(successors, False):
                running.coordinator.place(0, None)
                running.replace(0)
            else:  # its name is not free yet
                time.sleep(seconds)

        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=time.monotonic, sleep=replace))
        with connect(running, "solver") as sender:
            send_all(sender, range(3))
        assert running.coordinator.until_heard("finished") == [3]
        until(lambda: running.coordinator.do(lambda: running.coordinator.senders.all_ended))


def test_a_sender_waits_for_a_fit_that_has_not_begun(monkeypatch):
    with fit() as running:
        coordinator, waits = running.coordinator, []
        real = sending.Stream

        def not_yet(address, hello):
            if len(waits) < 3:
                raise ConnectionRefusedError
            return real(address, hello)

        monkeypatch.setattr(sending, "Stream", not_yet)
        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=time.monotonic, sleep=waits.append))
        connect(running).close()
        assert len(waits) == 3
        assert coordinator.until_heard("finished") == [0]


def free_port():
    with socket.create_server((HERE, 0)) as free:
        return free.getsockname()[1]


def test_where_nobody_listens_that_is_told_in_time():
    port = free_port()
    with (
        nothing_open(),
        pytest.raises(ConnectionRefusedError, match=f"nobody listens at tcp://{HERE}:{port}; start"),
    ):
        SampleSender(f"tcp://{HERE}:{port}", TOKEN, timeout=0)


def test_who_may_not_send_is_told_why():
    with nothing_open(), fit(senders=1) as running:
        for port, token in (
            (running.coordinator.door.port, TOKEN + "x"),
            (running.coordinator.address.port, TOKEN),
        ):
            with pytest.raises(PermissionError, match=f"{HERE}:.*the token"):  # at once: it will be no other one
                SampleSender(f"tcp://{HERE}:{port}", token)
        with connect(running, "solver") as first:
            with pytest.raises(PermissionError, match="another program sends as 'solver'") as raised:
                connect(running, "solver", timeout=0)
            assert isinstance(raised.value, BusyNameError)
            first.send(1.0)
        assert running.places[0].drained() == [1]


def test_who_comes_when_the_buffers_know_that_nothing_more_will_come_is_not_wanted():
    with nothing_open(), fit() as running:
        running.coordinator.do(running.coordinator.senders.shut_out)
        with pytest.raises(TrainingEndedError, match="no more samples are wanted"):
            connect(running)


@pytest.mark.parametrize("how", ["ends", "is gone"])
def test_a_sender_waits_until_its_name_is_free(monkeypatch, how):
    with nothing_open(), fit() as running:
        first, waits = connect(running, "solver"), []
        first.send(1.0)
        until(lambda: running.places[0].buffer.samples_put == 1)

        def wait(seconds):
            waits.append(seconds)
            if len(waits) == 3:
                first.close() if how == "ends" else first._stream.close()

        monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=time.monotonic, sleep=wait))
        with connect(running, "solver") as again:
            assert (len(waits) >= 3, again.delivered) == (True, 1)
            again.skip(1)
        assert running.coordinator.until_heard("finished")[-1] == 1


def test_a_fit_that_ends_while_a_stream_begins_leaves_nothing_open():
    with nothing_open(), fit() as running:
        running.coordinator.place(0, None)
        opening = Thread(connect, running)
        running.coordinator.until_heard("hello")
        running.coordinator.director.close()
        with pytest.raises(OSError):
            opening.result()


@pytest.mark.parametrize(
    "address",
    [
        *(
            "",
            "localhost:5555",
            "tcp://localhost",
            "tcp://:5555",
            "tcp://*:5555",
            "tcp://host:port",
            "tcp://host:-1",
        ),
        *(
            "tcp://host:65536",
            "tcp://host:5555/",
            "http://host:80",
            "tcp://host:1 ",
            "xtcp://host:1",
            "tcp://a:1\n",
        ),
        *(None, 5555, b"tcp://host:5555", ("host", 5555)),
    ],
)
def test_an_address_that_is_none_is_an_error_that_says_what_to_give(address):
    for read in (host_and_port, lambda address: SampleSender(address, TOKEN)):
        with pytest.raises(ValueError, match=r"address=.*: give tcp://HOST:PORT"):
            read(address)


@given(st.text("abz09.-", min_size=1), st.integers(0, 65535))
def test_an_address_is_read_as_it_was_written(host, port):
    assert host_and_port(f"tcp://{host}:{port}") == (host, port)


@pytest.mark.parametrize("name", [["a"], {"a": 1}, 1.5])
def test_a_name_that_is_none_harms_nobody_else(name):
    with fit(senders=2) as running:
        with pytest.raises((PermissionError, TypeError, ValueError)):
            connect(running, name)
        with connect(running, "solver") as sender:
            sender.send(1.0)
        assert running.coordinator.until_heard("finished") == [1]
