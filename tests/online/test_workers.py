"""The workers as the coordinator sees them, and its store of checkpoints: the last one of each, in files."""

from types import SimpleNamespace

import pytest
import torch

from compss_train import WorkerLostError
from compss_train.engines import Resources, Traits
from compss_train.online.workers import MAX_RUNS, CheckpointStore, Worker, Workers


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


def test_a_failed_write_keeps_the_previous_checkpoint():
    class Full:
        def numpy(self):
            return self

        def tofile(self, path):
            path.write_bytes(b"ha")
            raise OSError("no space")

    with CheckpointStore() as store:
        store.store(0, bytes_of(1, 2))
        with pytest.raises(
            OSError, match=r"a checkpoint of worker 0 could not be written to .*compss_train-.*: no space"
        ):
            store.store(0, Full())
        assert load(store, 0) == [[1, 2]]
        assert not list(store._folder.glob("*.new"))


def test_close_removes_the_files_and_is_idempotent():
    store = CheckpointStore()
    store.store(0, bytes_of(1))
    folder = store._folder
    assert list(folder.iterdir())
    store.close()
    store.close()
    assert not folder.exists()
    other = CheckpointStore()
    folder = other._folder
    del other
    assert not folder.exists()


def workers_of(submitted, simulations=None, store=lambda worker, data: None):
    """Return two workers on an engine that runs nothing."""
    engine = SimpleNamespace(
        traits=Traits(interruptible=False),
        submit=lambda *args, resources: submitted.append(resources),
        arrived=lambda refs: [],
        delete=lambda refs: None,
    )
    session = SimpleNamespace(
        engine=engine,
        regroup=lambda groups: None,
        training_spec=None,
        states=[(), ()],
        devices=["cuda", "cuda"],
        resources=Resources(cpus=3, gpus=1, gpu_tasks=2),
    )
    job = SimpleNamespace(num_workers=2)
    return Workers(
        session=session, job=job, simulations=simulations, progress=None, checkpoints=SimpleNamespace(store=store)
    )


def test_a_worker_that_is_submitted_again_does_not_wait_for_the_others():
    """The limit of tasks on GPUs would make it wait for the first one, which runs to the end of the fit."""
    submitted = []
    workers = workers_of(submitted)
    workers.all[1].liveness = SimpleNamespace(is_lost=True, client=None)
    workers.restart_lost()
    assert submitted == [Resources(cpus=3, gpus=1, own_process=True)] * 3


def test_a_worker_is_given_up_after_four_attempts_without_a_checkpoint_between_them():
    workers, client = workers_of([], SimpleNamespace(done=[])), SimpleNamespace(number=1)
    worker = workers.all[1]

    def attempts(count):
        for _ in range(count):
            worker.connect(client)
            workers.handle(client, None, ())

    for _ in range(3):
        attempts(MAX_RUNS - 1)
        worker.connect(client)
        workers.handle(client, {"checkpoint": True}, [bytes_of(1), torch.tensor([[0, 5]])])
        worker.liveness.disconnect()
    with pytest.raises(WorkerLostError, match=r"worker 1 was started 4 times, .* before its next checkpoint"):
        attempts(MAX_RUNS)


def test_a_checkpoint_that_cannot_be_stored_is_a_warning_and_does_not_count():
    def full(worker, data):
        raise OSError("no space left on device")

    workers, client = workers_of([], SimpleNamespace(done=[]), full), SimpleNamespace(number=1)
    workers.all[1].connect(client)
    with pytest.warns(UserWarning, match="no space left on device; training goes on"):
        workers.handle(client, {"checkpoint": True}, [bytes_of(1), torch.tensor([[0, 5]])])
    workers.handle(client, {"checkpoint": True}, [bytes_of(1), torch.tensor([[0, 5]])])  # warned once
    assert workers.all[1].saved_offsets == {}


def test_a_worker_that_sends_nothing_for_long_is_warned_of_once():
    now = [0.0]
    worker = Worker(3, None, lambda: now[0])
    for now[0] in (50.0, 500.0):
        worker.hear({"role": "worker"})
    worker.hear({"process": "4711 on node1"})
    for now[0] in (501.0, 503.5):
        worker.hear({"report": True})
    now[0] += 29
    worker.warn_if_silent()  # no warning: those of tests are errors
    now[0] += 2
    with pytest.warns(
        UserWarning, match="worker 3 has sent nothing for 31 s: its process, 4711 on node1, is stopped"
    ):
        worker.warn_if_silent()
    now[0] += 200
    worker.warn_if_silent()
