"""What is malformed ends the connection of its sender, and neither a fit nor a worker of it."""

import warnings

import numpy as np
import pytest
import torch

from compss_train.model.value_encoding import encode_value
from compss_train.net import Address
from tests.helpers.waiting import LIMIT, wait_until
from tests.net.fuzzing import nested
from tests.net.plain_clients import TOKEN, no_open_connections
from tests.net.test_fuzz import AcceptedTasks
from tests.online.sample_streams import connect_sender, send_all
from tests.online.stub_fits import stub_fit

pytestmark = pytest.mark.usefixtures("short_waits")


@pytest.fixture(autouse=True)
def why(monkeypatch):
    """Read why a client is refused, which is disconnected then and no sooner."""
    monkeypatch.setattr("compss_train.net.server._SUSPECT_SECONDS", LIMIT)

    def read(client):
        header, _ = client.receive(LIMIT)
        monkeypatch.setattr("compss_train.net.server._SUSPECT_SECONDS", 0.1)
        with pytest.raises(OSError, match="is lost"):
            client.receive(LIMIT)
        return header["error"]

    return read


@pytest.fixture
def coordinator(tmp_path):
    """A coordinator that accepts a worker and a simulation, and serves a sender afterwards."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        coordinator = AcceptedTasks(str(tmp_path))
        yield coordinator
        with coordinator.senders.connect({"role": "sender", "name": "a"}) as sender:
            assert sender.receive(LIMIT)[0]["accepted"]
        coordinator.close()
        assert coordinator.errors == []


NUMBERS = ["0", "\ud800", 2, -1, 10**40, float("nan"), float("inf"), None, [], nested(900)]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: repr(number)[:9])
@pytest.mark.parametrize("role", ["worker", "simulation"])
def test_a_task_with_a_number_that_is_none(coordinator, role, number):
    number = 10**6 if (role, number) == ("simulation", 2) else number
    with coordinator.server.address.connect({"role": role, "number": number}) as client:
        header, _ = client.receive(LIMIT)
        assert "error" in header or header == {"accepted": False}


GARBAGE = np.arange(100.0)
STATE = encode_value({"random": "no state"})
PART = encode_value({"worker": {"optimizer": None, "random": 1}})
FROM_WORKERS = [
    ({"url": 5}, []),
    ({"url": "\ud800" * 1000}, []),
    ({"report": True}, []),
    ({"report": True}, [GARBAGE]),
    ({"report": True}, [encode_value([1])]),
    ({"report": True}, [encode_value({"no field": 1})]),
    ({"part": 1}, [GARBAGE]),
    ({"part": 1}, [PART, GARBAGE, GARBAGE]),
    ({"part": 1}, [PART, np.arange(3), GARBAGE]),
    ({"part": 1}, [PART, np.arange(2)]),
    ({"part": 1}, [STATE, np.arange(2), GARBAGE]),
    ({"part": 1}, [GARBAGE, np.arange(2), GARBAGE]),
    ({"part": None}, [PART, np.arange(2), GARBAGE]),
    ({"part": 1}, [PART, torch.zeros(2, dtype=torch.bfloat16), GARBAGE]),
    ({"done": True}, [STATE]),
    ({"done": True, "repetitions": ["\ud800"]}, [STATE]),
    ({"done": True, "repetitions": []}, [STATE]),
    ({"failed": "why"}, []),
]
FROM_SIMULATIONS = [
    *({"finished": samples} for samples in ("\ud800", -1, 10**40, float("nan"), None, nested(900))),
    *({"failed": "why"}, {"timeout": 1}, {"timeout": [], "stack": ""}, {"what": "is this"}),
]


@pytest.mark.parametrize(
    ("role", "header", "arrays"),
    [("worker", *message) for message in FROM_WORKERS]
    + [("simulation", header, []) for header in FROM_SIMULATIONS],
    ids=lambda value: repr(value)[:30] if isinstance(value, dict) else "",
)
def test_a_task_with_a_malformed_message(coordinator, role, header, arrays, why):
    with coordinator.server.address.connect({"role": role, "number": 0}) as client:
        assert client.receive(LIMIT)[0]["accepted"]
        client.send(header, arrays)
        assert why(client).startswith("malformed message: ")


@pytest.mark.parametrize(
    "samples", [-1, 10**40, float("inf"), "\ud800", None], ids=lambda samples: repr(samples)[:9]
)
def test_a_sender_with_a_number_of_samples_that_is_none(samples, why):
    with stub_fit() as running:
        address = Address(running.coordinator.url, TOKEN)
        with address.connect({"role": "sender", "name": "solver"}) as sender:
            assert sender.receive(LIMIT)[0]["accepted"]
            sender.send({"finished": samples})
            assert why(sender).startswith("malformed message: ")
        wait_until(lambda: running.coordinator.warnings)
        assert "sender 'solver' has failed and may reconnect" in running.coordinator.warnings[0]
        with connect_sender(running, "solver") as sender:
            send_all(sender, range(2))


def test_texts_of_senders_can_be_printed_and_their_errors_are_reported_whatever_their_length():
    with no_open_connections(), stub_fit(senders=2) as running:
        sender = connect_sender(running, "é")
        send_all(sender, range(2))
        error = ValueError("é\ud800" * 10**6)
        sender.__exit__(ValueError, error, None)
        (failed,) = running.coordinator.wait_for("failed")
        wait_until(lambda: running.coordinator.warnings)
        assert "ValueError: é" in failed
        assert "sender 'é' has failed" in running.coordinator.warnings[0].encode().decode()
        sender.stream.close()
