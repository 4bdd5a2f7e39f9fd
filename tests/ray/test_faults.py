"""Processes and nodes that are lost, hang, join and leave: a retry each, and no bit."""

import gc
import signal
from pathlib import Path

import pytest
import ray
import torch
from ray._raylet import GcsClient
from ray.core.generated.autoscaler_pb2 import DRAIN_NODE_REASON_PREEMPTION
from ray.exceptions import OutOfMemoryError
from torch import nn

from compss_train import DistributedTrainer, WorkerLostError
from compss_train.callbacks import Callback
from compss_train.engines.ray import submitter
from compss_train.engines.ray.value import lost_error
from tests.engines import tasks
from tests.helpers.callbacks import CallAt
from tests.helpers.models import ADAM, assert_same_bits, awkward_net, classification
from tests.helpers.small_fits import fit, trainer_of
from tests.trainer.test_faults import KillOnce

pytestmark = pytest.mark.slow  # nodes that start and die take minutes on a busy machine


def wide():
    """A network whose parameters and states are in the stores of nodes, not in messages."""
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(6, 4096), nn.ReLU(), nn.Linear(4096, 3))


class Noting:
    """A transform that notes the nodes that it runs on."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, x):
        (self.folder / ray.get_runtime_context().get_node_id()).touch()
        return x


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_process_that_is_killed_or_hangs_costs_no_bit(shared_ray, tmp_path, number):
    x, y = classification()
    results = []
    for flag in ("never", "done"):
        if flag == "never":
            (tmp_path / flag).touch()
        transform = KillOnce(tmp_path / flag, 3, number)
        trainer = DistributedTrainer(3, engine=shared_ray, seed=0, threads=1, worker_timeout=2.0)
        trainer.build(awkward_net(), ADAM, "cross_entropy", transform=transform)
        results.append(fit(trainer, data=(x, y)))
    assert (tmp_path / "done").exists()
    assert_same_bits(*results)


def test_a_task_whose_process_always_dies_is_one_clear_error(shared_ray):
    with pytest.raises(
        WorkerLostError, match=("Ray lost task 'die', and cannot make it again, after 4 attempts")
    ):
        shared_ray.fetch([shared_ray.submit(tasks.die)])


def test_an_end_for_lack_of_memory_names_the_task_and_its_memory():
    text = (
        "Memory on the node was 0.98 GB used / 1.00 GB limit Object store memory usage: [- "
        "objects spillable: 0"
    )
    error = lost_error("task 'map_chunk'", OutOfMemoryError(text))
    assert str(error).startswith("task 'map_chunk' was ended by Ray's memory monitor")
    assert "0.98 GB used / 1.00 GB limit. Use smaller blocks" in str(error)


def keep_every(seconds, monkeypatch):
    monkeypatch.setattr(submitter, "KEEP_SECONDS", seconds)
    monkeypatch.setattr(submitter, "KEEP_SHARE", 1e9)
    monkeypatch.setattr(submitter, "KEEP_CALLS_A_NODE", 0)


def check_bits(engine, folder, *callbacks):
    ours, theirs = (trainer_of(each, 6, net=wide) for each in (engine, "serial"))
    ours.build(wide(), ADAM, "cross_entropy", "accuracy", transform=Noting(folder))
    fit(ours, *callbacks, num_epochs=6)
    fit(theirs, num_epochs=6)
    assert_same_bits(ours.get_parameters(), theirs.get_parameters())


def test_a_node_that_joins_works_and_its_loss_costs_no_bit(
    ray_cluster, shared_ray, third_node, tmp_path, monkeypatch
):
    """Its values are made again from the first round on, as none is kept."""
    keep_every(1e6, monkeypatch)

    def lose(_):
        assert (tmp_path / third_node.node_id).exists()
        ray_cluster.remove_node(third_node, allow_graceful=False)

    check_bits(shared_ray, tmp_path, CallAt("round_end", lose, 2))


def test_a_node_that_is_drained_gets_no_more_tasks(
    ray_cluster, shared_ray, third_node, tmp_path, monkeypatch
):
    keep_every(0.0, monkeypatch)
    note = tmp_path / third_node.node_id

    def drain(_):
        client = GcsClient(address=ray_cluster.address)
        assert client.drain_node(third_node.node_id, DRAIN_NODE_REASON_PREEMPTION, "a test", 0)[0]

    # The next round has been submitted by then.
    gone = CallAt("round_end", lambda _: note.unlink(), 3)
    check_bits(shared_ray, tmp_path, CallAt("round_end", drain, 1), gone)
    assert not note.exists()


class Counting(Callback):
    """Counts the objects of Ray that the coordinator has references to, after each round."""

    def __init__(self, counts):
        self.counts = counts

    def on_round_end(self, trainer, record):
        gc.collect()
        worker = ray._private.worker.global_worker.core_worker  # noqa: SLF001 (there is nothing public for it)
        self.counts.append(len(worker.get_all_reference_counts()))


@pytest.mark.parametrize("reason", ["many rounds", "long rounds"])
def test_rounds_leave_no_references_behind(shared_ray, monkeypatch, reason):
    keep_every(0.0, monkeypatch)
    if reason == "long rounds":  # as none is shorter than the least pause, which is 0 here
        monkeypatch.setattr(submitter, "KEEP_CALLS_A_NODE", 10**9)
        monkeypatch.setattr(submitter, "FIRST_KEEP_SECONDS", 0.0)
    counts = []
    fit(trainer_of(shared_ray, net=wide), Counting(counts), num_epochs=40)
    assert max(counts[-15:]) <= max(counts[5:20]) + 3
