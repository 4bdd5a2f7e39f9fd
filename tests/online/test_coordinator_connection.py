"""The connection of a worker to the coordinator, and the values that travel over it, as data."""

import pickle
from threading import Thread
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save

from compss_train.model.value_encoding import JSON, decode_value, encode_value
from compss_train.net.server import MessageServer
from compss_train.net.sockets import new_token
from compss_train.online.coordinator_connection import CoordinatorConnection
from compss_train.online.worker_messages import SavePart
from compss_train.worker.state import WorkerState
from tests.helpers.waiting import LIMIT


@pytest.mark.parametrize("answer", [{"go_on": 3}, {"stop": True}])
def test_a_worker_trains_on_when_its_save_is_complete_or_training_ends(answer):
    """It waits for the other workers, not for other saves."""
    events = []

    def save():
        with CoordinatorConnection(server.address, 0) as coordinator:
            coordinator.listen(SimpleNamespace(url="tcp://0.0.0.0:1", forget=list), "127.0.0.1")
            coordinator.update(LIMIT)
            assert (coordinator.asked, coordinator.urgent) == (3, True)
            coordinator.save(SavePart(3, WorkerState(None, random=1), {}, offsets={}, buffer=[]))
            events.append("trains on")

    with MessageServer(None, new_token()) as server:
        thread = Thread(target=save)
        thread.start()
        while "trains on" not in events:
            client, header, _ = server.receive(LIMIT)
            if header is client.greeting:
                client.send({"accepted": True})
                client.send({"save": 3, "urgent": True})
            elif header.get("part") == 3:
                client.send({"go_on": 2})
                thread.join(0.1)
                events.append("part")
                client.send(answer)
                thread.join()
    assert events == ["part", "trains on"]


def test_objects_cannot_be_sent_and_pickles_are_not_read():
    with pytest.raises(TypeError, match=r"value/error is a builtins.ZeroDivisionError"):
        encode_value({"error": ZeroDivisionError()})
    with pytest.raises(ValueError, match="SafetensorError"):
        decode_value(torch.frombuffer(bytearray(pickle.dumps({"a": 1})), dtype=torch.uint8))


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (b"[" * 100_000 + b"]" * 100_000, "RecursionError"),
        (b'{"$": "dict", "items": ' * 100_000 + b"0" + b"}" * 100_000, "RecursionError"),
        (b'{"$": "tensor", "name": "missing"}', "KeyError: 'missing'"),
        (b'{"$": "dict"}', "KeyError: 'items'"),
        (b'{"$": "tuple", "items": 3}', "TypeError"),
        (b"{", "JSONDecodeError"),
    ],
    ids=["lists", "dicts", "no tensor", "no items", "no list", "no JSON"],
)
def test_other_values_are_a_clear_error(document, reason):
    data = save({JSON: torch.frombuffer(bytearray(document), dtype=torch.uint8)})
    with pytest.raises(ValueError, match=rf"not a value that encode_value made \({reason}"):
        decode_value(torch.frombuffer(bytearray(data), dtype=torch.uint8))
