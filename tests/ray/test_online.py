"""Training while simulations run on two nodes: long tasks find the coordinator, and those that die
run again.

Workers merge through the parameter server in the coordinator, from other nodes, too.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy as NodeAffinity

from compss_train import BufferSpec
from compss_train.callbacks import Callback
from compss_train.training.checkpoints import read_latest_checkpoint
from tests.helpers.waiting import wait_until
from tests.online.fits import build_trainer, fit_and_count, fit_online, split_range
from tests.online.simulations import (
    COUNTING_SGD,
    CountingNet,
    Fault,
    OneHotSimulation,
    TouchFile,
    kill_process,
    one_hot,
    sample_counts,
    sum_loss,
)
from tests.online.solvers.compiled import compiled, mpirun, solver
from tests.online.test_resuming import SAMPLES, Noted, StopAt, begun_of_complete_ones, run_life


def test_queues_of_two_workers_train_each_sample_once(shared_ray):
    numbers = [range(40), range(40, 41), (), range(41, 60), range(60, 101)]
    trainer = build_trainer(shared_ray, 2, CountingNet(101), COUNTING_SGD, sum_loss)
    parameters = fit_online(
        trainer, OneHotSimulation(101), numbers, buffer=BufferSpec("FIFO", 16), count=2, every=2
    )
    assert sample_counts(parameters, 2) == [1] * 101
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 5, "failed": 0}


def sample(number, step, fields):
    np.testing.assert_array_equal(fields["u"], np.repeat([step, 10.0 + step], 4))
    return one_hot(6 * number + step, 18), np.float32(0)


def test_a_solver_with_two_ranks_of_which_one_is_killed_loses_no_sample(shared_ray, tmp_path):
    command = [
        *mpirun(2, compiled("mpicc", "faulty.c", flags=("-DWITH_MPI",))),
        "killed",
        str(tmp_path / "flag"),
        "{}",
    ]
    with pytest.warns(UserWarning, match="ChildProcessError: mpirun"):
        _, trained = fit_and_count(shared_ray, CountingNet(18), solver(command, sample), range(3))
    assert trained == [1] * 18


@dataclass(frozen=True)
class NoteNode:
    """Creates a file with the name of the node that it runs on."""

    folder: Path

    def __call__(self, _):
        (self.folder / ray.get_runtime_context().get_node_id()).touch()


@ray.remote(num_cpus=1)
class Occupant:
    """Takes a core."""


class Lose(Callback):
    """Ends a node when a worker has trained there, and then what has kept tasks from others."""

    def __init__(self, cluster, node, folder, occupants=()):
        self.cluster = cluster
        self.node = node
        self.folder = folder
        self.occupants = occupants

    def on_round_end(self, trainer, record):
        if (self.folder / self.node.node_id).exists() and not (self.folder / "lost").exists():
            self.cluster.remove_node(self.node, allow_graceful=False)
            for occupant in self.occupants:
                ray.kill(occupant)
            (self.folder / "lost").touch()


@pytest.mark.slow  # nodes that start and die take minutes on a busy machine
def test_the_loss_of_a_node_with_a_worker_loses_no_sample(
    ray_cluster, shared_ray, third_node, tmp_path
):
    """The last simulation waits for the loss."""
    trainer, trained = fit_and_count(
        shared_ray,
        CountingNet(80, NoteNode(tmp_path)),
        OneHotSimulation(80, TouchFile(70, until=tmp_path / "lost")),
        split_range(80, 10),
        workers=3,
        checkpoint_every=0.05,
        callbacks=[Lose(ray_cluster, third_node, tmp_path)],
    )
    assert (tmp_path / "lost").exists()
    assert min(trained) >= 1
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 8, "failed": 0}


@pytest.mark.slow  # two fits, whose processes import torch
def test_a_worker_that_is_killed_in_a_resumed_study_goes_on(shared_ray, tmp_path):
    fault = Fault(115, kill_process, tmp_path)
    options = {"workers": 2, "count": 2, "net": CountingNet(SAMPLES, fault)}
    assert not run_life(shared_ray, tmp_path, stop=StopAt(40), **options)[1]
    assert not fault.count
    trainer, ended = run_life(shared_ray, tmp_path, **options)
    assert ended
    assert fault.count == 1
    assert min(sample_counts(trainer.get_parameters(), 2)) >= 1
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 12, "failed": 0}


@pytest.mark.slow  # nodes that start and die take minutes on a busy machine
def test_the_loss_of_a_node_in_a_resumed_study_loses_no_sample(
    ray_cluster, shared_ray, third_node, tmp_path
):
    """What the save has is neither simulated nor trained again. The last simulation waits for the
    loss.
    """
    notes = tmp_path / "nodes"
    notes.mkdir()
    options = {
        "workers": 3,
        "buffer": BufferSpec("FIRO", 16, threshold=4),
        "net": CountingNet(SAMPLES, NoteNode(notes)),
    }
    assert not run_life(shared_ray, tmp_path, stop=StopAt(60, "stop"), **options)[1]
    begun = begun_of_complete_ones(tmp_path)
    before = sample_counts(read_latest_checkpoint(tmp_path / "saves")[1]["parameters"], 3)
    assert begun
    assert any(before)
    for note in notes.iterdir():
        note.unlink()
    others = [
        node["NodeID"]
        for node in ray.nodes()
        if node["Alive"] and node["NodeID"] != third_node.node_id
    ]
    occupants = [
        Occupant.options(scheduling_strategy=NodeAffinity(node, soft=False)).remote()
        for node in others
    ]
    wait_until(lambda: ray.available_resources().get("CPU") == 4)  # all for this study
    trainer, ended = run_life(
        shared_ray,
        tmp_path,
        stop=Lose(ray_cluster, third_node, notes, occupants),
        simulate=Noted(tmp_path, TouchFile(115, until=notes / "lost")),
        **options,
    )
    assert ended
    assert (notes / "lost").exists()
    counts = sample_counts(trainer.get_parameters(), 3)
    assert min(counts) >= 1
    assert {now for now, then in zip(counts, before, strict=True) if then} == {1}
    assert begun.items() <= begun_of_complete_ones(tmp_path).items()
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 12, "failed": 0}
