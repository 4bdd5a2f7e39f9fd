"""A snapshot comes back from a file with all that workers go on from."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch

from compss_train.model.devices import RandomState, random_state
from compss_train.training.checkpoints import read_checkpoint, write_checkpoint
from compss_train.training.training_state import Snapshot
from compss_train.worker.state import WorkerState
from tests.helpers.callbacks import InterruptAt
from tests.helpers.small_fits import fit, trainer_of
from tests.training.checkpoints.trees import assert_same

EMPTY = Snapshot(
    parameters={}, workers=(), epoch=0, history=[], setting={}, progress=None, callbacks={}, schedule={}
)


def round_trip(snapshot, folder):
    write_checkpoint(folder / "it", snapshot.to_dict())
    return Snapshot.from_dict(read_checkpoint(folder / "it"))


def drawn():
    return torch.rand(3).tolist(), np.random.normal(size=3).tolist(), random.gauss(0, 1), random.random()


def test_random_generators_are_restored(tmp_path):
    with random_state(5, "cpu"):
        drawn()  # an odd number of normals: numpy and Python keep the other one of each pair
        state = RandomState.capture("cpu")
        expected = drawn()
    assert state.python[2] is not None
    assert state.numpy["has_gauss"]
    back = round_trip(replace(EMPTY, workers=(WorkerState(None, state),)), tmp_path).workers[0].random
    with random_state(back, "cpu"):
        assert drawn() == expected


def test_seeds_and_gpu_states_are_restored(tmp_path):
    with random_state(5, "cpu"):
        on_gpu = replace(RandomState.capture("cpu"), cuda=torch.arange(16, dtype=torch.uint8))
    workers = (WorkerState(None, 2**63 - 1), WorkerState({"state": {0: {"step": torch.tensor(1.0)}}}, on_gpu))
    back = round_trip(replace(EMPTY, workers=workers), tmp_path).workers
    assert back[0] == workers[0]
    assert_same(back[1].optimizer, workers[1].optimizer)
    assert torch.equal(back[1].random.cuda, on_gpu.cuda)
    with random_state(back[1].random, "cpu"):  # a worker of a GPU continues on a CPU
        assert torch.equal(RandomState.capture("cpu").cpu, on_gpu.cpu)


def test_the_snapshot_of_a_restored_trainer_is_the_same(tmp_path):
    trainer, restored = trainer_of(), trainer_of(seed=None)
    with pytest.raises(KeyboardInterrupt):
        fit(trainer, InterruptAt(1))
    fit(trainer)
    write_checkpoint(tmp_path / "it", trainer.snapshot().to_dict())
    restored.restore(tmp_path / "it")
    assert_same(restored.snapshot().to_dict(), trainer.snapshot().to_dict())
