"""The messages between workers and the coordinator arrive as they were sent."""

import numpy as np
import pytest
import torch

from compss_train.buffers.samples import NO_KEYS
from compss_train.model.value_encoding import encode_value
from compss_train.net import MessageError, messages
from compss_train.online.worker_messages import (
    Done,
    EndReception,
    Failed,
    Forget,
    GoOn,
    Listening,
    Reported,
    Save,
    SavePart,
    Settle,
    Shutdown,
    Stop,
    WorkerReport,
    header_of,
    pack,
    parse,
    parse_command,
)
from compss_train.worker.state import WorkerState

STATE = WorkerState(optimizer={"step": 3}, random=5, batches=7)
REPORT = WorkerReport(samples=20, batches=4, loss=0.5, held=3, put=40, got=20, waited=0.25)
LOSSES = np.arange(12.0).reshape(2, 6)


def plain(value):
    """Return what values of messages are compared by."""
    if isinstance(value, WorkerReport):
        return vars(value)
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (torch.Tensor, messages.ReceivedArray)):
        tensor = value if isinstance(value, torch.Tensor) else value.tensor()
        return tensor.tolist()
    return value


def fields_of(message):
    return {name: plain(value) for name, value in vars(message).items()}


@pytest.mark.parametrize(
    "message",
    [
        Listening("tcp://10.0.0.1:5555"),
        Failed("ValueError: too hot", "Traceback ..."),
        Reported(REPORT),
        Reported(WorkerReport(), LOSSES, settled=2, stops=3),
        Reported(WorkerReport(), held=np.array([[3, 40], [2**40, 1]])),
        SavePart(
            number=4,
            state=STATE,
            position={"batches": 7, "merged": 6},
            offsets={0: 5, 2**40: 1},
            buffer=[torch.arange(9, dtype=torch.uint8), torch.zeros(0, dtype=torch.uint8)],
        ),
        Done([0, 12, 3], STATE),
    ],
    ids=lambda message: type(message).__name__,
)
def test_messages_of_workers_arrive_as_they_were_sent(message):
    received = parse(*messages.unpack(messages.pack(*pack(message))))
    assert type(received) is type(message)
    assert fields_of(received) == fields_of(message)


@pytest.mark.parametrize(
    "command",
    [Save(3, urgent=True), GoOn(3), Settle(2), Forget([1, 2]), EndReception(), Stop(), Shutdown()],
    ids=lambda command: type(command).__name__,
)
def test_commands_arrive_as_they_were_sent(command):
    header, arrays = messages.unpack(messages.pack(header_of(command)))
    assert parse_command(header) == command
    assert arrays == []


def test_what_is_no_command_is_passed_over_and_what_is_no_message_of_a_worker_is_an_error():
    assert parse_command({}) is None  # by which a server finds out whether a client is there
    with pytest.raises(MessageError, match=r"malformed message: a worker sends no \['what'\]"):
        parse({"what": "is this"}, [])


def test_texts_are_shortened_where_they_are_sent_and_where_they_are_received():
    header, _ = pack(Failed("é" * 10**6, ""))
    assert len(header["failed"]) < 10**5
    failed = parse({"failed": "é" * 10**6, "traceback": ""}, [])
    assert failed.error == header["failed"]


def test_a_report_without_its_losses_has_none():
    arrays = messages.unpack(
        messages.pack({}, [encode_value({"samples": 3}), torch.from_numpy(NO_KEYS)])
    )[1]
    reported = parse({"report": True}, arrays)
    assert reported.losses is None
    assert (reported.report.samples, reported.settled, reported.stops) == (3, -1, None)
