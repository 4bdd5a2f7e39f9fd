"""A checkpoint that an early version wrote, with other names of modules, is resumed as one of today.

``fixtures/early_checkpoints`` has the first two of the four rounds that ``fit`` below trains: a callback stopped
the fit after the second. The loss is stored there as ``compss_train.losses.cross_entropy``.
"""

import json
import re
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer
from compss_train.callbacks import Checkpoint, EarlyStopping
from compss_train.training.checkpoints import storage
from tests.helpers.callbacks import CallAt
from tests.helpers.models import SGD, assert_close, assert_same_bits
from tests.helpers.tolerances import sgd_error

FIXTURE = Path(__file__).parent / "fixtures" / "early_checkpoints"
LAST = "round-000001"
VERSIONS = re.compile(r".* not bit for bit as without interruption: ((torch|numpy) was [^;]*(; |$))+")


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Callbacks know their folder by the name that it was given."""
    shutil.copytree(FIXTURE, tmp_path / "checkpoints")
    monkeypatch.chdir(tmp_path)


def build():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    trainer = DistributedTrainer(2, engine="serial", seed=7, threads=1)
    trainer.build(net, SGD, "cross_entropy", "accuracy", class_weight=[1.0, 2.0])
    return trainer


def fit(trainer, folder, *callbacks, **options):
    """Train four rounds; return the callback that saves, and the one that may stop."""
    x = (np.arange(48 * 3).reshape(48, 3) % 7 / 7).astype(np.float32)
    y = (np.arange(48) % 2).astype(np.int64)
    saving, stopping = Checkpoint(folder, best="val_loss"), EarlyStopping("val_loss", patience=9)
    data = BlockedTensor.from_array(x, (4, 1)), BlockedTensor.from_array(y, (4, 1))
    options = {"num_epochs": 4, "batch_size": 6, "validation_data": (x, y), "progress": False, **options}
    trainer.fit(*data, callbacks=[saving, stopping, *callbacks], **options)
    return saving, stopping


def resume(*callbacks):
    """Resume from the checkpoints; the only differences that may be reported are in the versions of libraries."""
    trainer = build()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        made = fit(trainer, "checkpoints", *callbacks, resume=True)
    assert [str(each.message) for each in caught if not VERSIONS.fullmatch(str(each.message))] == []
    return trainer, *made


def test_parameters_and_states_are_those_of_the_file():
    restored = {}

    def look(trainer):
        restored.update(trainer.get_parameters())
        states = [worker.optimizer["state"] for worker in trainer.snapshot().workers]
        restored["momentum"] = [state[0]["momentum_buffer"] for state in states]

    resume(CallAt("fit_start", look))
    arrays = safetensors.numpy.load_file(FIXTURE / LAST / "arrays.safetensors")
    names = [name for name in arrays if name.startswith("parameters/")]
    ours = {name: restored[name.removeprefix("parameters/")] for name in names}
    assert_same_bits(ours, {name: arrays[name] for name in names})
    for worker, momentum in enumerate(restored["momentum"]):
        saved = arrays[f"workers/{worker}/optimizer/state/0/momentum_buffer"]
        assert momentum.numpy().tobytes() == saved.tobytes()


def test_it_goes_on_with_the_next_round_and_the_callbacks_go_on_as_well():
    seen = []
    trainer, saving, stopping = resume(CallAt("round_start", lambda trainer: seen.append(len(trainer.history)), 2))
    state = json.loads((FIXTURE / LAST / "state.json").read_text())["state"]
    assert seen == [2]
    assert [record["round"] for record in trainer.history] == [0, 1, 2, 3]
    assert list(trainer.history[:2]) == state["history"]
    losses = [record["val_loss"] for record in trainer.history]
    assert stopping.best_round == saving.best_round == int(np.argmin(losses))
    assert stopping.state_dict()["waited"] == 3 - stopping.best_round
    assert set(storage.list_checkpoints("checkpoints")) >= {saving.best_round, 3}


def test_it_ends_as_a_fit_that_was_not_interrupted():
    resumed, whole = resume()[0], build()
    fit(whole, "others")
    # Other machines train the first two rounds with other bits: 4 rounds of 4 steps.
    rounding = sgd_error(np.float32, 16, SGD["lr"], samples=6, momentum=SGD["momentum"])
    assert_close(resumed.get_parameters(), whole.get_parameters(), rounding)
    assert [record["samples"] for record in resumed.history] == [record["samples"] for record in whole.history]
