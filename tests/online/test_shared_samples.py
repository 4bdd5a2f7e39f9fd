"""Samples that a stream and a worker on one machine exchange through shared memory."""

import gc
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from compss_train import BufferSpec, DistributedTrainer, Merge, Simulations
from compss_train.net import SharedMemory, pack_arrays
from compss_train.net.sockets import LOOPBACK
from compss_train.online import received_stream, receiver, route
from compss_train.online.intake import NUMBERS
from tests.buffers.kinds import Thread, make
from tests.helpers.waiting import wait_until
from tests.net.plain_clients import TOKEN
from tests.online.sample_streams import connect_sender, send_from_one_memory, send_stream
from tests.online.stub_fits import stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.fixture
def shared(monkeypatch):
    """Let messages of any size lie in shared memory, from the first on; return where they did."""
    arrays_in = received_stream.arrays_in
    starts = []

    def note(memory, start, descriptions):
        starts.append(start)
        return arrays_in(memory, start, descriptions)

    monkeypatch.setattr(route, "_LEAST_BYTES", 0)
    monkeypatch.setattr(route, "_OFFER_BYTES", -1)
    monkeypatch.setattr(received_stream, "arrays_in", note)
    return starts


def send_numbers(sender, numbers, length):
    """Send samples that consist of their numbers, in memory that is used again at once."""
    memory = np.zeros(length, np.float32)
    for number in numbers:
        memory[:] = number
        sender.send(memory, np.int64(-number))
        memory[:] = -1


def numbers_in(samples):
    """Return the numbers of samples, each of which must consist of its own."""
    for sample in samples:
        assert sample["x"].eq(-sample["y"]).all()
    return [-int(sample["y"]) for sample in samples]


def take(buffer, count):
    return [buffer.get(timeout=300) for _ in range(count)]


@given(
    st.sampled_from([1, 5_000, 20_000, 300_000]),
    st.lists(st.booleans(), max_size=40),
    st.integers(1, 3),
)
def test_samples_arrive_as_they_were_when_they_were_sent(shared, length, with_step, workers):
    shared.clear()
    with stub_fit(workers) as running:
        with connect_sender(running) as sender:
            expected = send_from_one_memory(sender, length, with_step, workers)
        for stub, samples in zip(running.workers, expected, strict=True):
            assert stub.buffer.samples_put == len(samples)
            got = take(stub.buffer, len(samples))
            assert numbers_in(got) == [number for number, _ in samples]
            assert [sample[NUMBERS].tolist() for sample in got] == [
                [0, step] for _, step in samples
            ]
    assert len(shared) > 0 or len(with_step) <= 2 * workers


@pytest.mark.parametrize("length", [1_000, 20_000])
def test_a_full_buffer_blocks_the_sender_and_zeromq_carries_what_finds_no_room(
    shared, monkeypatch, length
):
    """Two messages have room in the memory, and more may be on their way."""
    monkeypatch.setattr(route, "samples_ahead", lambda _: 0)
    monkeypatch.setattr(receiver, "samples_ahead", lambda _: 256)
    with stub_fit(capacity=3) as running, connect_sender(running) as sender:
        sending = Thread(send_numbers, sender, range(300), length)
        buffer = running.workers[0].buffer
        wait_until(lambda: sender.stream.sent > 200)
        assert numbers_in(take(buffer, 300)) == list(range(300))
        sending.result()
        assert 0 < len(shared) < 290
        assert len(set(shared)) == 2


@pytest.mark.parametrize("missing", ["memory of this system", "file of the client"])
def test_without_shared_memory_zeromq_carries_all(shared, monkeypatch, missing):
    if missing == "memory of this system":
        monkeypatch.delattr(os, "memfd_create")
    else:
        monkeypatch.setattr(received_stream, "map_memory", lambda _: None)
    with stub_fit() as running, connect_sender(running) as sender:
        send_numbers(sender, range(30), 20_000)
        assert numbers_in(take(running.workers[0].buffer, 30)) == list(range(30))
    assert shared == []


@pytest.mark.usefixtures("short_pauses")
def test_a_replacement_of_a_worker_gets_memory_of_its_own(shared):
    with stub_fit() as running, connect_sender(running) as sender:
        send_numbers(sender, range(30), 20_000)
        wait_until(lambda: running.workers[0].buffer.samples_put == 30)
        before = len(shared)
        running.kill(0)
        running.replace(0, {0: 30})
        send_numbers(sender, range(30, 60), 20_000)
        buffer = running.workers[0].buffer
        assert numbers_in(take(buffer, 30)) == list(range(30, 60))
        assert 0 < before < len(shared)


PROGRAM = """
import sys
import numpy as np
from compss_train import SampleSender
from compss_train.online import route
route._OFFER_BYTES = 0
with SampleSender(sys.argv[1], sys.argv[2], "solver") as sender:
    for number in range(int(sys.argv[3])):
        sender.send(np.full(300_000, number, np.float32), np.int64(-number))
"""


def test_a_sender_that_is_killed_leaves_whole_samples_and_no_memory(shared):
    with stub_fit(capacity=40) as running:
        command = [sys.executable, "-c", PROGRAM, running.coordinator.url, TOKEN, "200"]
        sending = subprocess.Popen(command)
        buffer = running.workers[0].buffer
        got = take(buffer, 30)
        os.kill(sending.pid, signal.SIGKILL)
        sending.wait()
        running.coordinator.wait_for_disconnects()
        assert shared
        again = Thread(subprocess.run, command, check=True)
        got += take(buffer, 170)
        again.result()
        assert numbers_in(got) == list(range(200))
        assert buffer.samples_put == 200
    gc.collect()
    assert "memfd:compss-train" not in Path("/proc/self/maps").read_text()


# Fits


def uniform_samples(number):
    """A simulation whose samples of 1.2 MB consist of their numbers."""
    for step in range(20):
        value = 20 * number + step
        yield np.array([value], np.float32), np.full(300_000, value, np.float32)


def whole_samples_step(model, batch, context):
    """A training step that does nothing for samples of one number each, and fails for others."""
    x, y = batch
    if not (y == x).all():
        raise RuntimeError(f"the samples {x.tolist()} have other values in y")
    return model(x).sum()


@pytest.mark.parametrize("kind", [("FIFO", 8), ("Reservoir", 8, 4)])
def test_a_fit_trains_on_whole_samples(local, kind):
    """Records come while a buffer is empty, too."""
    trainer = DistributedTrainer(2, engine=local, seed=0, threads=1)
    optimizer = {"optimizer": "sgd", "lr": 0.0}
    trainer.build(nn.Linear(1, 1), optimizer, training_step=whole_samples_step)
    trainer.fit_online(
        Simulations(uniform_samples, range(3)),
        buffer=BufferSpec(*kind),
        batch_size=4,
        merge=Merge(every=2),
        record_every=0.01,
        progress=False,
    )
    assert trainer.history[-1]["received"] == 60
    trained = sum(record["samples"] for record in trainer.history)
    assert trained == 60 if kind[0] == "FIFO" else trained >= 60


# Malformed messages


def offered(connection):
    """Offer a worker memory for two messages of 4 MB, which it maps."""
    memory = SharedMemory(2, 2**22)
    connection.connection.send({"memory": memory.offer})
    return memory


def test_a_worker_says_what_it_has_released(make_stub):
    stub = make_stub(make("FIFO", 9))
    with stub.connect(0) as connection:
        memory = offered(connection)
        for number in range(6):
            descriptions, frames = pack_arrays([np.full(2**20, number, np.float32)])
            while not connection.credit:
                memory.released = connection.read("released")["released"]
            assert memory.released >= number - 1
            start = memory.write([frames])
            connection.credit -= 1
            shared = {"start": start, "arrays": descriptions}
            connection.connection.send({"sample": number, "shared": shared})
        assert "ended" in connection.end()
    memory.close()
    got = [stub.buffer.get()["x"] for _ in range(6)]
    assert [x.unique().tolist() for x in got] == [[number] for number in range(6)]


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"memory": {}}, '"memory" was offered before'),
        ({"sample": 0, "shared": {}}, "malformed"),
        (
            {"sample": 0, "shared": {"start": 64, "arrays": [["float32", [10_000_000]]]}},
            "do not lie",
        ),
        ({"sample": 0, "shared": {"start": 64, "arrays": []}}, "a sample of 0 arrays"),
        ({"sample": 1, "shared": {"start": 64, "arrays": [["float32", [1]]]}}, "a gap"),
    ],
)
def test_malformed_messages_about_shared_memory_are_refused(make_stub, header, reason):
    stub = make_stub(make("FIFO", 9))
    with stub.connect(0) as connection:
        memory = offered(connection)
        connection.connection.send(header)
        assert reason in connection.read("error")["error"]
        memory.close()
    send_stream(stub, 0, 2)
    assert stub.drain() == [0, 1]
    assert stub.receiver.failed is None


def test_samples_in_memory_that_was_not_offered_are_refused(make_stub):
    stub = make_stub(make("FIFO", 9))
    with stub.connect(0) as connection:
        shared = {"start": 64, "arrays": [["float32", [1]]]}
        connection.connection.send({"sample": 0, "shared": shared})
        assert "without memory that this worker has mapped" in connection.read("error")["error"]
    assert stub.receiver.failed is None


def test_memory_is_not_opened_for_clients_over_tcp(make_stub):
    stub = make_stub(make("FIFO", 9), address=LOOPBACK)
    with stub.connect(0) as connection:
        memory = offered(connection)
        assert '"memory" over TCP' in connection.read("error")["error"]
        memory.close()
    send_stream(stub, 0, 2)
    assert stub.drain() == [0, 1]
