"""What each role can change that is not its own: nothing, with the numbers of all others.

docs/trust.md has the table of roles and messages.
"""

import warnings

import numpy as np
import pytest

from compss_train.model.value_encoding import encode_value
from compss_train.net import Address
from tests.helpers.waiting import LIMIT, wait_until
from tests.net.plain_clients import KEYS, TOKEN
from tests.net.test_fuzz import AcceptedTasks
from tests.online.sample_streams import SampleConnection, number_sample, simulation_stream
from tests.online.stub_fits import stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")

VICTIMS = range(3)
"""The streams of simulations that are there before the sender."""
SAMPLES = 6
"""How many samples each of them has."""


@pytest.fixture
def running():
    """A fit in which simulations have sent half of their samples."""
    with stub_fit(capacity=1000) as running:
        yield running


def half_sent(running):
    opened = [simulation_stream(running.coordinator, number) for number in VICTIMS]
    for number, stream in zip(VICTIMS, opened, strict=True):
        for sample in range(SAMPLES // 2):
            stream.send(number_sample(100 * number + sample), None)
    put = len(VICTIMS) * (SAMPLES // 2)
    wait_until(lambda: running.workers[0].buffer.samples_put == put)
    return opened


def finish(running, opened):
    """Send the other half; check that the worker has each sample of these streams once."""
    for number, stream in zip(VICTIMS, opened, strict=True):
        for sample in range(SAMPLES // 2, SAMPLES):
            stream.send(number_sample(100 * number + sample), None)
        stream.finish()
        stream.close()
    _, offsets = running.workers[0].receiver.snapshot()
    assert {number: offsets[number] for number in VICTIMS} == dict.fromkeys(VICTIMS, SAMPLES)
    expected = {100 * number + sample for number in VICTIMS for sample in range(SAMPLES)}
    drained = [sample for sample in running.workers[0].drain() if sample in expected]
    assert sorted(drained) == sorted(expected)


def accepted_sender(running, **fields):
    """Connect as a sender; return its connection, and what it is told."""
    running.coordinator.router.next_number = max(
        running.coordinator.router.next_number, len(VICTIMS)
    )
    client = Address(running.coordinator.url, TOKEN).connect({"role": "sender", **fields})
    reply, _ = client.receive(LIMIT)
    return client, reply


def refusal_of(url, token, greeting):
    """Return the error that a client with a greeting gets."""
    with Address(url, token).connect(greeting) as client:
        header, _ = client.receive(LIMIT)
        return header["error"]


# Senders at the workers


@pytest.mark.parametrize("stream", [*VICTIMS, 10**6])
def test_a_sender_cannot_open_the_stream_of_another(running, stream):
    """By its own key, by that of all receivers, by none, or by one that it makes up."""
    opened = half_sent(running)
    client, reply = accepted_sender(running, name=None)
    [worker] = reply["workers"]
    for key in (reply["stream_key"], reply["key"], TOKEN, "", None, [], "é\ud800", 5):
        greeting = {"stream": stream, "stream_key": key}
        error = refusal_of(worker, reply["key"], greeting)
        assert f"stream {stream} needs the stream_key that the coordinator gave" in error
    assert "stream_key" in refusal_of(worker, reply["key"], {"stream": stream})
    client.close()
    finish(running, opened)


def test_a_token_of_senders_opens_neither_workers_nor_the_address_of_tasks(running):
    worker = running.workers[0].url
    for url in (worker, running.coordinator.address.url):
        with pytest.raises(PermissionError):
            refusal_of(url, TOKEN, {"stream": 0, "stream_key": KEYS.of(0)})


@pytest.mark.parametrize("number", VICTIMS)
def test_messages_about_a_stream_change_no_other(running, number):
    """Whatever numbers of others they have, they are about the stream of their connection."""
    opened = half_sent(running)
    client, reply = accepted_sender(running, name=None, stream=number, number=number)
    mine = reply["stream"]
    assert mine not in VICTIMS
    others = {"stream": number, "stream_key": reply["stream_key"]}
    with SampleConnection(reply["workers"][0], mine) as connection:
        connection.connection.send({"lost": 2**61, **others})
        connection.send(2**61, **others)
        connection.connection.send({"end": True, **others})
        assert "ended" in connection.read("ended")
    _, offsets = running.workers[0].receiver.snapshot()
    assert offsets == {**dict.fromkeys(VICTIMS, SAMPLES // 2), mine: 2**61 + 1}
    client.close()
    finish(running, opened)


# Senders at the coordinator


@pytest.mark.parametrize("role", ["worker", "simulation", "evaluation", "x", None, 5])
def test_a_sender_has_no_other_role(running, role):
    greeting = {"role": role, "number": 0, "name": None}
    error = refusal_of(running.coordinator.url, TOKEN, greeting)
    assert "this address is for others" in error


@pytest.mark.parametrize("name", ["solver", None])
@pytest.mark.parametrize("message", [{"finished": 2**61}, {"failed": "why"}, {"lost": 2**61}])
def test_what_a_sender_says_is_about_its_own_stream(running, name, message):
    opened = half_sent(running)
    victim, told = accepted_sender(running, name="victim")
    client, reply = accepted_sender(running, name=name)
    assert reply["stream"] != told["stream"]
    client.send({**message, "stream": told["stream"], "name": "victim", "number": 0})
    running.coordinator.wait_for(next(iter(message)))
    victim.send({"finished": 4})
    running.coordinator.wait_for("finished", 2 if "finished" in message else 1)
    senders = running.coordinator.call(lambda: running.coordinator.senders.state_dict([]))
    assert [told["stream"], 4] in senders["completed"]
    assert [told["stream"], 2**61] not in senders["completed"]
    for connection in (victim, client):
        connection.close()
    finish(running, opened)


def test_a_name_that_is_connected_cannot_be_taken(running):
    victim, _ = accepted_sender(running, name="victim")
    client, reply = accepted_sender(running, name="victim")
    client.close()
    assert reply["busy"]
    assert running.coordinator.call(running.coordinator.senders.counts)["running"] == 1
    victim.close()


# Tasks: what one role says means nothing from another

STATE = encode_value({"worker": {"optimizer": None, "random": 1}})
MESSAGES = {
    "worker": [
        ({"url": "tcp://127.0.0.1:1"}, []),
        ({"report": True}, [np.arange(3.0)]),
        ({"part": 1}, [STATE, np.arange(2), np.arange(3)]),
        ({"done": True, "repetitions": []}, [STATE]),
    ],
    "simulation": [
        ({"finished": 3}, []),
        ({"interrupted": "why"}, []),
        ({"timeout": 1.0, "stack": ""}, []),
        ({"failed": "why", "traceback": ""}, []),
    ],
    "sender": [({"finished": 3}, []), ({"failed": "why"}, []), ({"lost": 3}, [])],
    "stream": [({"sample": 0}, [np.ones(3, np.float32)]), ({"end": True}, []), ({"lost": 3}, [])],
}


@pytest.fixture
def tasks(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coordinator = AcceptedTasks(str(tmp_path))
        yield coordinator
        coordinator.close()


OTHERS_MESSAGES = [
    (role, other, header, arrays)
    for role in ("worker", "simulation")
    for other, messages in MESSAGES.items()
    for header, arrays in messages
    if other != role
    and not (header.keys() & {"finished", "failed"} and other == "sender")
    and (role, *header) != ("worker", "failed", "traceback")  # both say that they have failed
]


@pytest.mark.parametrize(
    ("role", "other", "header", "arrays"),
    OTHERS_MESSAGES,
    ids=lambda value: repr(value)[:20] if isinstance(value, str | dict) else "",
)
def test_a_task_that_sends_what_another_role_does_is_refused(tasks, role, other, header, arrays):
    with tasks.server.address.connect({"role": role, "number": 0}) as client:
        assert client.receive(LIMIT)[0]["accepted"]
        client.send({**header, "number": 1, "stream": 1}, arrays)
        error = client.receive(LIMIT)[0]["error"]
        assert error.startswith("malformed message: ")
    assert tasks.errors == []


def test_a_task_whose_place_is_taken_is_not_accepted(tasks):
    for role in ("worker", "simulation"):
        greeting = {"role": role, "number": 0}
        with tasks.server.address.connect(greeting) as first:
            assert first.receive(LIMIT)[0]["accepted"]
            with tasks.server.address.connect(greeting) as second:
                header, _ = second.receive(LIMIT)
                assert header == {"accepted": False}
                second.send({"finished": 3} if role == "simulation" else {"url": "tcp://a:1"})
            assert tasks.errors == []


def test_a_sender_without_a_name_ends_no_fit_by_what_it_says_is_lost(running):
    client, _ = accepted_sender(running, name=None)
    client.send({"lost": 5})
    running.coordinator.wait_for("lost")
    running.coordinator.call(lambda: None)
    [said] = running.coordinator.warnings
    assert said == "a sender goes on without 5 samples, which are lost"
    client.close()
