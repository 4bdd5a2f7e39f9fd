"""The workers as the coordinator sees them, and its store of checkpoints: the last one of each, in files."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from compss_train import WorkerLostError
from compss_train.engines import Resources, Traits
from compss_train.net.messages import pack, unpack
from compss_train.online.events import RECONNECT_SECONDS, ConnectedTask
from compss_train.online.workers import MAX_RUNS, CheckpointStore, Workers


def bytes_of(*values):
    return torch.tensor(values, dtype=torch.uint8)


def load(store, worker):
    return [tensor.tolist() for tensor in store.load(worker)]


def test_the_last_checkpoint_of_each_worker_is_loaded():
    with CheckpointStore() as store:
        assert load(store, 0) == []
        for saved in ([1, 2, 3], [], [255] * 100_000, [7]):
            store.store(0, bytes_of(*saved))
            assert load(store, 0) == [saved]
        store.store(11, bytes_of(9))
        store.store(1, bytes_of(8))
        assert [load(store, worker) for worker in (0, 1, 2, 11)] == [[[7]], [[8]], [], [[9]]]
        loaded = store.load(0)[0]
        loaded[0] = 0
        assert load(store, 0) == [[7]]


def test_a_failed_write_keeps_the_previous_checkpoint(monkeypatch):
    def write(path, data):
        path.touch()
        raise OSError("no space")

    with CheckpointStore() as store:
        store.store(0, bytes_of(1, 2))
        with monkeypatch.context() as full:
            full.setattr(Path, "write_bytes", write)
            with pytest.raises(OSError, match="no space"):
                store.store(0, bytes_of(3))
        assert load(store, 0) == [[1, 2]]
        assert {path.name for path in Path(store._folder.path).iterdir()} == {".lock", "0.checkpoint"}


def engine_of(submitted, **options):
    """Return an engine that runs nothing."""
    return SimpleNamespace(
        traits=Traits(interruptible=False),
        submit=lambda *args, resources: submitted.append(resources),
        arrived=lambda refs: [],
        delete=lambda refs: None,
        **options,
    )


def workers_of(submitted, store=lambda worker, data: None):
    """Return two workers on an engine that runs nothing."""
    session = SimpleNamespace(
        engine=engine_of(submitted),
        regroup=lambda groups: None,
        training_spec=None,
        states=[(), ()],
        devices=["cuda", "cuda"],
        resources=Resources(cpus=3, gpus=1),
    )
    return Workers(session, SimpleNamespace(num_workers=2), None, SimpleNamespace(store=store))


def client_of(number):
    return SimpleNamespace(greeting={"role": "worker", "number": number}, send=lambda header: None)


CHECKPOINT = unpack(pack({"checkpoint": True}, [bytes_of(1), torch.tensor([[0, 5]])]))


def test_a_worker_that_does_not_connect_again_is_submitted_again(clock):
    submitted = []
    worker = workers_of(submitted).all[1]
    worker.connect(client_of(1))
    worker.disconnect()
    clock.now += RECONNECT_SECONDS + 1
    worker.check()
    assert submitted == [Resources(cpus=3, gpus=1, own_process=True)] * 3


def test_a_worker_is_given_up_after_four_attempts_without_a_checkpoint_between_them():
    workers, client = workers_of([]), client_of(1)
    worker = workers.all[1]

    def attempts(count):
        for _ in range(count):
            worker.connect(client)
            assert workers.handle(worker, client, None, ()) == "died"

    for _ in range(3):
        attempts(MAX_RUNS - 1)
        worker.connect(client)
        assert workers.handle(worker, client, *CHECKPOINT) == "saved"
        ConnectedTask.disconnect(worker)
    with pytest.raises(WorkerLostError, match=r"worker 1 was started 4 times, .* before its next checkpoint"):
        attempts(MAX_RUNS)


def test_a_checkpoint_that_cannot_be_stored_is_a_warning_and_does_not_count():
    def full(worker, data):
        raise OSError("no space left on device")

    workers, client = workers_of([], full), client_of(1)
    worker = workers.all[1]
    worker.connect(client)
    with pytest.warns(UserWarning, match="no space left on device; training continues"):
        assert workers.handle(worker, client, *CHECKPOINT) is None
    assert workers.handle(worker, client, *CHECKPOINT) is None  # warned once
    assert worker.saved_offsets == {}


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
def test_a_task_that_ended_is_submitted_again_if_it_had_connected_or_its_error_may_pass(interruptible):
    submitted, asked = [], []
    engine = engine_of(submitted, fetch=lambda refs: 1 / 0)
    engine.traits, engine.arrived = Traits(interruptible=interruptible), lambda refs: refs
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
