"""Folders of checkpoints: the latest is found, an older good one suggested, and other files are
left alone.
"""

import os
import random
import socket
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from compss_train.model.devices import RandomState, random_state
from compss_train.training.checkpoints import (
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    read_checkpoint,
    write_checkpoint,
)
from compss_train.training.snapshot import Snapshot
from compss_train.worker.state import WorkerState
from tests.training.checkpoints.trees import assert_same


@pytest.fixture
def folder(tmp_path):
    for number in (2, 10, 9, 1_000_000):
        write_checkpoint(checkpoint_path(tmp_path, number), {"number": number})
    return tmp_path


FOREIGN = [
    "round-5",
    "round-0000005",
    "round-abc",
    "best",
    ".round-000001",
    "round-000001.bak",
    "round-000003.d",
]


@pytest.fixture
def foreign(folder):
    """Add files and folders of the user to the folder of checkpoints; return their names."""
    for name in FOREIGN:
        (folder / name).mkdir()
        (folder / name / "mine").touch()
    (folder / "round-000004").touch()
    (folder / "notes.txt").touch()
    return {*FOREIGN, "round-000004", "notes.txt"}


def test_checkpoints_are_listed_by_number(folder, foreign):
    checkpoints = list_checkpoints(folder)
    assert list(checkpoints) == [2, 9, 10, 1_000_000]
    assert [path.name for path in checkpoints.values()] == [
        "round-000002",
        "round-000009",
        "round-000010",
        "round-1000000",
    ]
    assert list_checkpoints(folder / "nowhere") == list_checkpoints(folder / "notes.txt") == {}


def test_pruning_removes_leftovers_of_dead_processes_of_this_machine(folder):
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    host = socket.gethostname()
    living = os.getppid()
    gone = [f".round-000011.{host}.{dead.pid}.new", f".round-000002.{host}.{dead.pid}.old"]
    kept = [
        f".round-000011.{host}.{living}.new",
        f".round-000011.other.{host}.x.new",
        f".round-1.x.{dead.pid}.new",
    ]
    for name in (*gone, *kept):
        (folder / name).mkdir()
        (folder / name / "state.json").touch()
    before = list_checkpoints(folder)
    prune_checkpoints(folder, before)
    assert list_checkpoints(folder) == before
    assert {name for name in os.listdir(folder) if name.startswith(".")} == set(kept)


EMPTY = Snapshot(
    parameters={},
    workers=(),
    epoch=0,
    history=[],
    setting={},
    progress=None,
    callbacks={},
    schedule={},
)


def round_trip(snapshot, folder):
    write_checkpoint(folder / "it", snapshot.to_dict())
    return Snapshot.from_dict(read_checkpoint(folder / "it"), folder)


def drawn():
    return (
        torch.rand(3).tolist(),
        np.random.normal(size=3).tolist(),
        random.gauss(0, 1),
        random.random(),
    )


def test_random_generators_are_restored(tmp_path):
    with random_state(5, "cpu"):
        drawn()  # an odd number of normals: numpy and Python keep the other one of each pair
        state = RandomState.capture("cpu")
        expected = drawn()
    assert state.python[2] is not None
    assert state.numpy["has_gauss"]
    back = (
        round_trip(replace(EMPTY, workers=(WorkerState(None, state),)), tmp_path).workers[0].random
    )
    with random_state(back, "cpu"):
        assert drawn() == expected


def test_seeds_and_gpu_states_are_restored(tmp_path):
    with random_state(5, "cpu"):
        on_gpu = replace(RandomState.capture("cpu"), gpu=torch.arange(16, dtype=torch.uint8))
    workers = (
        WorkerState(None, 2**63 - 1),
        WorkerState({"state": {0: {"step": torch.tensor(1.0)}}}, on_gpu),
    )
    back = round_trip(replace(EMPTY, workers=workers), tmp_path).workers
    assert back[0] == workers[0]
    assert_same(back[1].optimizer, workers[1].optimizer)
    assert torch.equal(back[1].random.gpu, on_gpu.gpu)
    with random_state(back[1].random, "cpu"):  # a worker of a GPU continues on a CPU
        assert torch.equal(RandomState.capture("cpu").cpu, on_gpu.cpu)
