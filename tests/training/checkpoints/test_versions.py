"""Checkpoints of earlier versions are read as if they were of this one; those of other versions are
refused.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

from compss_train import BadCheckpointError, DistributedTrainer, Merge
from compss_train._utils import __version__
from compss_train.callbacks import Checkpoint, EarlyStopping
from compss_train.model import saved_state
from compss_train.training.checkpoints import read_checkpoint, write_checkpoint
from tests.helpers.models import assert_close, assert_same_bits
from tests.helpers.tolerances import sgd_error

HERE = Path(__file__).parent
X = (np.arange(48, dtype=np.float32).reshape(12, 4) % 7 - 3) / 4
Y = np.arange(12) % 2


def trainer_of():
    torch.manual_seed(0)
    trainer = DistributedTrainer(2, engine="serial", seed=0, threads=1)
    optimizer = {"optimizer": "sgd", "lr": 0.1, "momentum": 0.9}
    trainer.build(torch.nn.Linear(4, 2), optimizer, "cross_entropy", "accuracy")
    return trainer


def fit(trainer, folder, **options):
    callbacks = [Checkpoint(folder), EarlyStopping("loss", patience=9)]
    trainer.fit(X, Y, num_epochs=4, batch_size=3, callbacks=callbacks, progress=False, **options)


def test_there_is_a_checkpoint_of_every_version_that_can_be_read():
    assert {path.name for path in HERE.glob("format-*")} == {
        f"format-{each}" for each in saved_state.UPGRADES
    }
    assert [*saved_state.UPGRADES, saved_state.VERSION] == [
        *range(min(saved_state.UPGRADES), saved_state.VERSION + 1)
    ]


@pytest.mark.parametrize("version", saved_state.UPGRADES)
def test_a_fit_of_an_earlier_version_is_restored_and_resumed(tmp_path, version):
    path = HERE / f"format-{version}" / "round-000002"
    whole = trainer_of()
    restored = trainer_of()
    resumed = trainer_of()
    assert json.loads((path / "state.json").read_text())["version"] == version
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", r".*not bit for bit as without interruption: (python|torch|numpy) was"
        )
        restored.restore(path)
        fit(resumed, tmp_path / "run", resume=path)
    fit(whole, tmp_path / "whole")
    assert_same_bits(restored.get_parameters(), read_checkpoint(path)["parameters"])
    assert [len(trainer.history) for trainer in (whole, restored, resumed)] == [4, 3, 4]
    assert restored.history == resumed.history[:3] == read_checkpoint(path)["history"]
    names = ("round", "epoch", "samples", "merge")
    assert [[each[name] for name in names] for each in resumed.history] == [
        [each[name] for name in names] for each in whole.history
    ]
    # One seed shuffles alike; 2 batches an epoch and worker, of 3 samples.
    error = sgd_error(np.float32, 8, 0.1, samples=3, momentum=0.9)
    assert_close(resumed.get_parameters(), whole.get_parameters(), error)
    now = read_checkpoint(tmp_path / "run" / "round-000003")
    assert now["history"] == resumed.history
    assert (
        json.loads((tmp_path / "run" / "round-000003" / "state.json").read_text())["version"]
        == saved_state.VERSION
    )


def refusal_of(path):
    with pytest.raises(BadCheckpointError) as caught:
        read_checkpoint(path)
    assert not caught.value.damaged
    return caught.value.reason


def test_versions_that_cannot_be_read_are_refused_by_name(tmp_path, monkeypatch):
    reads = f"this compss_train {__version__} reads versions 4 to {saved_state.VERSION}"
    with monkeypatch.context() as patch:
        patch.setattr(saved_state, "VERSION", 99)
        patch.setattr(saved_state, "__version__", "7.8.9")
        write_checkpoint(tmp_path / "newer", {"new": 1})
        patch.setattr(saved_state, "VERSION", 3)
        write_checkpoint(tmp_path / "older", {"new": 1})
    wrote = "compss_train 7.8.9 wrote it in version 99 of the format"
    assert refusal_of(tmp_path / "newer") == (
        f"{wrote}, and {reads}: install that release, or a later one"
    )
    assert refusal_of(tmp_path / "older").endswith(f"{reads}: resume it with that release")
    with pytest.raises(BadCheckpointError, match="install that release"):
        trainer_of().restore(tmp_path / "newer")


def test_a_state_passes_through_all_upgrades(tmp_path, monkeypatch):
    write_checkpoint(tmp_path / "it", {"passed": []})
    first = saved_state.VERSION
    passing = {
        number: lambda state, number=number: {"passed": [*state["passed"], number]}
        for number in range(first, first + 3)
    }
    monkeypatch.setattr(saved_state, "VERSION", first + 3)
    monkeypatch.setattr(saved_state, "UPGRADES", {**saved_state.UPGRADES, **passing})
    assert read_checkpoint(tmp_path / "it") == {"passed": [*passing]}


ALL_KEPT = Merge(
    outer_optimizer={"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True},
    optimizer_state="average",
    averaging="ema",
)


def test_what_merges_kept_by_numbers_is_resumed_by_names(tmp_path):
    path = HERE / "format-5" / "all-that-merges-keep" / "round-000002"
    whole = trainer_of()
    resumed = trainer_of()
    fit(whole, tmp_path / "whole", merge=ALL_KEPT)
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", r".*not bit for bit as without interruption: (python|torch|numpy) was"
        )
        fit(resumed, tmp_path / "run", merge=ALL_KEPT, resume=path)
    before = read_checkpoint(tmp_path / "whole" / "round-000003")["merge"]
    after = read_checkpoint(tmp_path / "run" / "round-000003")["merge"]
    assert {*before["moments"]} == {*after["moments"]}
    assert {*after["moments"]} == {(name, "momentum_buffer") for name in ("weight", "bias")}
    assert {*before["outer"]["state"]} == {*after["outer"]["state"]} == {"weight", "bias"}
    error = 10 * sgd_error(np.float32, 8, 0.1, samples=3, momentum=0.9)
    assert_close(resumed.get_parameters(), whole.get_parameters(), error)
