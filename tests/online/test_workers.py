"""The workers as the coordinator sees them, and their parts of the last save, with buffers."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from compss_train import WorkerLostError
from compss_train.engines import Resources, Traits
from compss_train.engines.calls import MAX_RUNS
from compss_train.model.value_encoding import decode_value
from compss_train.net import messages
from compss_train.online.events import RECONNECT_SECONDS, ConnectedTask
from compss_train.online.worker_messages import Done, Reported, SavePart, WorkerReport, pack
from compss_train.online.workers import RunningSave, Workers
from compss_train.training.training_state import TrainingState
from compss_train.worker.state import WorkerState


def bytes_of(*values):
    return torch.tensor(values, dtype=torch.uint8)


def engine_of(submitted, **options):
    """Return an engine that runs nothing."""
    return SimpleNamespace(
        traits=Traits(interruptible=False),
        publish=lambda value: value,
        submit=lambda *args, resources: submitted.append(resources),
        arrived=lambda refs: [],
        delete=lambda refs: None,
        **options,
    )


def workers_of(submitted, folder):
    """Return two workers on an engine that runs nothing."""
    session = SimpleNamespace(
        engine=engine_of(submitted),
        separate_states=lambda: [(), ()],
        state=TrainingState,
        device=lambda worker: "cuda",
        resources=Resources(cpus=3, gpus=1),
    )
    spec = SimpleNamespace(weightless=str)
    job = SimpleNamespace(num_workers=2, seed=0)
    return Workers(session, spec, job, reports=None, folder=folder)


def client_of(number, sent=None):
    """Return a client; the arrays that it is sent are added to ``sent``."""
    send = lambda header, arrays=(): None if sent is None else sent.extend(arrays)  # noqa: E731
    return SimpleNamespace(greeting={"role": "worker", "number": number}, send=send)


def received(message):
    """Return the header and the arrays of a worker's message as the coordinator receives it."""
    return messages.unpack(messages.pack(*pack(message)))


def part_of(*values, number=1):
    """Return the part of a worker in a save, whose buffer has these values in its file."""
    state = WorkerState(optimizer=None, random=3)
    part = SavePart(number, state, {"batches": 2}, offsets={0: 5}, buffer=[bytes_of(*values)])
    return received(part)


def take_part(workers, number, client, *values):
    """Let a worker take part in a save."""
    workers.saving = workers.saving or RunningSave(1, urgent=False)
    workers.handle(workers.all[number], client, *part_of(*values, number=workers.saving.number))


def loaded(workers, number):
    """Return the part of a save that a worker gets when it connects again, and this connection."""
    worker = workers.all[number]
    sent = []
    ConnectedTask.disconnect(worker)
    client = client_of(number, sent)
    workers.handle(worker, client, client.greeting, ())
    state = [] if not sent else [decode_value(sent[0])["batches"]]
    return [*state, *(array.tolist() for array in sent[1:])], client


def test_each_worker_gets_its_part_of_the_last_save(tmp_path):
    workers = workers_of([], tmp_path)
    saved, client = loaded(workers, 0)
    assert saved == []
    for values in ([1, 2, 3], [255] * 100_000, [7]):
        take_part(workers, 0, client, *values)
        assert workers.store()
        saved, client = loaded(workers, 0)
        assert saved == [2, values]
    assert loaded(workers, 1)[0] == []
    assert {path.name for path in tmp_path.iterdir()} == {"buffer-0.safetensors"}


def test_a_save_is_complete_when_all_workers_wait_and_given_up_when_one_dies(tmp_path):
    workers = workers_of([], tmp_path)
    told = [[], []]
    clients = [client_of(number) for number in range(2)]
    for client, headers in zip(clients, told, strict=True):
        client.send = lambda header, arrays=(), headers=headers: headers.append(header)
        workers.handle(workers.of(client), client, client.greeting, ())
    workers.handle(workers.all[0], clients[0], {"url": "tcp://a:1"}, ())
    workers.ask()
    assert (workers.saving, workers.all_saved) == (None, False)  # one has not started
    workers.handle(workers.all[1], clients[1], {"url": "tcp://a:2"}, ())
    workers.ask()
    workers.handle(workers.all[0], clients[0], *part_of(1, number=1))
    workers.ask(urgent=True)  # the others are to be quick now
    workers.ask(urgent=True)
    assert told[1][1:] == [{"save": 1, "urgent": False}, {"save": 1, "urgent": True}]
    assert not workers.all_saved
    assert workers.handle(workers.all[1], clients[1], None, ()) == "died"
    assert (told[0][-1], workers.saving) == ({"go_on": 1}, None)
    workers.ask(urgent=True)
    assert workers.saving is None
    assert told[0][-1] == {"go_on": 1}
    workers.handle(workers.all[1], clients[1], clients[1].greeting, ())
    workers.handle(workers.all[1], clients[1], {"url": "tcp://a:3"}, ())
    workers.ask()
    workers.handle(workers.all[0], clients[0], *part_of(1, number=1))  # late
    workers.handle(workers.all[1], clients[1], *part_of(1, number=2))
    assert not workers.all_saved
    workers.handle(workers.all[0], clients[0], *part_of(1, number=2))
    assert workers.all_saved
    workers.go_on()
    assert [headers[-1] for headers in told] == [{"go_on": 2}] * 2
    workers.all[0].done = True
    workers.ask()
    workers.handle(workers.all[1], clients[1], *part_of(1, number=3))
    assert workers.all_saved


def test_a_worker_that_has_completed_its_training_only_receives(tmp_path):
    workers = workers_of([], tmp_path)
    sent = []
    worker = workers.all[0]
    worker.done = True
    client = client_of(0)
    client.send = lambda header, arrays: sent.append(header)
    workers.handle(worker, client, client.greeting, ())
    assert sent == [{"accepted": True, "stop": True}]
    workers.handle(worker, client, {"url": "tcp://a:1"}, ())
    assert worker.url == "tcp://a:1"
    # Its first attempt has sent the true ones.
    for message in (Reported(WorkerReport(held=3)), Done([0, 9], WorkerState(None, 3))):
        assert workers.handle(worker, client, *received(message)) is None
    assert worker.repetitions == []


def test_a_worker_that_does_not_connect_again_is_submitted_again(clock, tmp_path):
    submitted = []
    worker = workers_of(submitted, tmp_path).all[1]
    worker.connect(client_of(1))
    worker.disconnect()
    clock.now += RECONNECT_SECONDS + 1
    worker.check()
    assert submitted == [Resources(cpus=3, gpus=1, own_process=True)] * 3


def test_a_worker_is_given_up_after_four_attempts_without_a_save_between_them(tmp_path):
    workers = workers_of([], tmp_path)
    client = client_of(1)
    worker = workers.all[1]

    def attempts(count):
        for _ in range(count):
            worker.connect(client)
            assert workers.handle(worker, client, None, ()) == "died"

    for _ in range(3):
        attempts(MAX_RUNS - 1)
        worker.connect(client)
        take_part(workers, 1, client, 1)
        assert workers.store()
        ConnectedTask.disconnect(worker)
    with pytest.raises(
        WorkerLostError, match=r"worker 1 was started 4 times, .* before its next save"
    ):
        attempts(MAX_RUNS)


def test_a_part_that_cannot_be_stored_is_a_warning_and_keeps_the_previous_one(tmp_path):
    def full_disk():
        yield b"some"
        raise OSError("no space left on device")

    workers = workers_of([], tmp_path)
    worker = workers.all[1]
    (_, client) = loaded(workers, 1)
    take_part(workers, 1, client, 1, 2)
    assert workers.store()
    before = worker.part
    for warns in (
        pytest.warns(UserWarning, match="no space left on device.* training continues"),
        nullcontext(),
    ):
        take_part(workers, 1, client, 3)
        worker.arrived = replace(worker.arrived, buffer=[SimpleNamespace(pieces=full_disk())])
        with warns:  # once
            assert not workers.store()
    assert worker.part is before
    assert loaded(workers, 1)[0] == [2, [1, 2]]
    assert {path.name for path in tmp_path.iterdir()} == {"buffer-1.safetensors"}


def test_an_error_of_a_task_that_may_pass_does_not_keep_the_fit():
    error = ConnectionError("its node was busy")

    def fetch(refs):
        raise error

    engine = engine_of([], fetch=fetch)
    engine.arrived = lambda refs: refs
    ConnectedTask(engine, lambda: "task").restart(lambda caught: caught is error)
    assert error.__traceback__ is None


def test_a_task_is_submitted_again_if_it_is_lost_and_not_before(clock):
    submitted = []
    task = ConnectedTask(engine_of(submitted), lambda: submitted.append("task"))

    def check(times):
        task.restart(lambda error: True)
        assert len(submitted) == times

    clock.now += 2 * RECONNECT_SECONDS
    check(1)  # it never connected: it may wait for its turn
    for times in (1, 2):
        assert task.connect("client")
        clock.now += 2 * RECONNECT_SECONDS
        check(times)
        task.disconnect()
        clock.now += RECONNECT_SECONDS
        check(times)
        clock.now += 1
        check(times + 1)


@pytest.mark.parametrize("interruptible", [True, False])
def test_a_task_that_ended_is_submitted_again_if_it_had_connected_or_its_error_may_pass(
    interruptible,
):
    submitted = []
    asked = []
    engine = engine_of(submitted, fetch=lambda refs: 1 / 0)
    engine.traits = Traits(interruptible=interruptible)
    engine.arrived = lambda refs: refs
    task = ConnectedTask(engine, lambda: submitted.append("task"))
    for again in (False, True):
        task.restart(lambda error, again=again: asked.append(error) or again)
    assert [type(error) for error in asked] == [ZeroDivisionError] * 2
    assert len(submitted) == 2
    task.connect("client")
    task.restart(None)  # it is there
    task.disconnect()
    task.restart(None)
    assert len(submitted) == 3
