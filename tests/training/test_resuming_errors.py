"""What cannot be resumed, or saved, is an error that says so before anything is trained."""

import errno
import os
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BadCheckpointError, BufferSpec, DistributedTrainer, Merge, PartialShuffle
from compss_train.callbacks import Callback, Checkpoint
from compss_train.model import saved_state
from compss_train.training import checkpoints as storage
from tests.helpers.models import ADAM, MODES, SGD, assert_same_bits, awkward_net, blocked, mlp
from tests.helpers.small_fits import RefusingTransform, X, Y, assert_alike, fit, numbers_of, trainer_of
from tests.training.checkpoints.trees import assert_same

BLOCKS = MODES[3]
pytestmark = pytest.mark.filterwarnings(
    r"ignore:.*transform was None, and is <tests\.helpers\.small_fits\.RefusingTransform"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints of a fit of three rounds."""
    folder = tmp_path_factory.mktemp("whole")
    fit(trainer_of(), Checkpoint(folder, keep=3))
    return folder


@pytest.fixture
def own(folder, tmp_path):
    """The same, to be spoilt."""
    for path in storage.list_checkpoints(folder).values():
        storage.write_checkpoint(tmp_path / "own" / path.name, storage.read_checkpoint(path))
    return tmp_path / "own"


def refusing(**options):
    return trainer_of(transform=RefusingTransform(), **options)


def assert_refused(trainer, error, message, *callbacks, **options):
    """The fit is an error, nothing is trained for it, and the trainer is what it was."""
    before, seed = trainer.get_parameters(), trainer.seed
    with pytest.raises(error, match=message) as caught:
        fit(trainer, *callbacks, **options)
    assert_same_bits(trainer.get_parameters(), before)
    assert (trainer.history, trainer.seed, trainer.stopped) == ([], seed, None)
    return caught.value


def test_what_refuses_does(folder):
    for resume in ({}, {"resume": folder / "round-000001"}):
        with pytest.raises(AssertionError, match="trained on"):
            fit(refusing(), **resume)


class Renamed(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = awkward_net()

    def forward(self, x):
        return self.body(x)


NETWORKS = {
    "wider": (
        lambda: mlp(6, 4),
        "it has no '2.weight'; it has no '2.bias'; it has '1.weight', which the network lacks; .* and 3 more",
    ),
    "other shape": (
        lambda: nn.Sequential(nn.Linear(6, 16), *list(awkward_net())[1:4], nn.Linear(16, 4, bias=False)),
        r"4.weight was float32 \(3, 16\), and is float32 \(4, 16\)$",
    ),
    "double": (lambda: awkward_net().double(), r"0.weight was float32 \(16, 6\), and is float64 \(16, 6\); "),
    "longer": (lambda: nn.Sequential(*awkward_net(), nn.Linear(3, 3)), "it has no '5.weight'; it has no '5.bias'$"),
    "renamed": (Renamed, "it has no 'body.0.weight'; "),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_another_network(folder, name):
    net, message = NETWORKS[name]
    message = f"round-000002 is the checkpoint of another network: .*{message}"
    assert_refused(refusing(net=net), ValueError, message, resume=folder)
    trainer = refusing(net=net)
    with pytest.raises(ValueError, match=message):
        trainer.restore(folder)
    assert trainer.history == []


def test_another_optimizer(folder):
    message = "round-000002 has the states of Adam, but the optimizer is SGD; build with the same optimizer"
    assert_refused(refusing(optimizer=SGD), ValueError, message, resume=folder)
    with pytest.raises(ValueError, match=message):
        refusing(optimizer=SGD).restore(folder)


OPTIONS = {
    "num_batches_per_worker": (2, "batch_size was 6, and is None; num_batches_per_worker was None, and is 2"),
    "batch_size": (5, "batch_size was 6, and is 5"),
    "merge": (
        Merge("commutative", every=2, unit="blocks", optimizer_state="reset"),
        "merge.kind was synchronous, and is commutative; merge.every was 1, and is 2; "
        "merge.unit was epochs, and is blocks; merge.optimizer_state was keep, and is reset",
    ),
    "shuffle": ("total", "shuffle was blocks, and is total"),
    "shuffle_block_data": (False, "shuffle_block_data was True, and is False"),
    "buffer": (BufferSpec("FIFO", 16), r"buffer was None, and is BufferSpec\(.*FIFO.*16.*\)"),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_each_other_option_is_named_with_both_values(folder, name):
    value, told = OPTIONS[name]
    parts = "".join(f"(?=.*{part})" for part in told.split("; "))
    message = rf"^{parts}{re.escape(str(folder))}/round-000002 is the checkpoint of another fit: .*trainer.restore$"
    assert_refused(refusing(), ValueError, message, resume=folder, **{name: value})


def test_all_other_options_are_named_at_once(folder):
    message = "merge.kind was synchronous, and is commutative; merge.rule was weighted, and is halving"
    assert_refused(refusing(), ValueError, message, resume=folder, merge=Merge("commutative", rule="halving"))


OBJECTIVES = {
    "loss": ({"loss": "soft_cross_entropy"}, {}, r"loss was \S*cross_entropy, and is \S*categorical_cross_entropy"),
    "classes": ({"class_weight": [1, 2, 3]}, {}, r"class_weight was None, and is \(1.0, 2.0, 3.0\)"),
    "samples": ({}, {"sample_weight": np.ones(57)}, "sample_weight was None, and is given"),
}


@pytest.mark.parametrize("name", OBJECTIVES)
def test_what_is_minimised_has_to_be_the_same(folder, name):
    built, fitted, message = OBJECTIVES[name]
    trainer = DistributedTrainer(3, engine="serial", seed=0, threads=1)
    given = {"loss": "cross_entropy", "metric": "accuracy", **built}
    trainer.build(awkward_net(), ADAM, transform=RefusingTransform(), **given)
    assert_refused(trainer, ValueError, f"of another fit: {message}", resume=folder, **fitted)
    trainer.restore(folder)


@pytest.mark.parametrize("part", [0, 1])
def test_other_values_of_the_same_sizes_are_warned_of(folder, part):
    x, y = blocked(X, Y, 7)
    data = [(x, y), (blocked(X + 1, Y, 7)[0], blocked(X, 2 - Y, 7)[1])]
    chosen = [data[1][n] if n == part else data[0][n] for n in (0, 1)]
    with pytest.warns(UserWarning, match="its data had other values than these, or another order"):
        fit(trainer_of(), data=chosen, resume=folder / "round-000001")


def test_what_changes_no_number_may_be_another(tmp_path):
    options = {"shuffle": PartialShuffle(), "num_epochs": 2}
    whole, again = trainer_of(), trainer_of()
    fit(whole, Checkpoint(tmp_path, keep=2), **options)
    fit(again, resume=tmp_path / "round-000000", **options)
    assert_alike(again, whole)
    told = r"shuffle was PartialShuffle\(pool_size=None, pools=1\), and is PartialShuffle\(pool_size=11, pools=2\)"
    changed = {**options, "shuffle": PartialShuffle(11, pools=2)}
    assert_refused(refusing(), ValueError, told, resume=tmp_path, **changed)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ((X[:50], Y[:50], 7), "its data are 57 samples in 7 blocks, and these 50 samples in 7 blocks"),
        (
            (X, Y, 6),
            "its data are 57 samples in 7 blocks, and these 57 samples in 6 blocks .split them into 7, as by",
        ),
        ((X, Y, [10, 7, 8, 8, 8, 8, 8]), "block 0 had 9 samples, and has 10; block 1 had 8 samples, and has 7"),
    ],
)
def test_other_data(folder, data, told):
    x, y, blocks = data
    given = blocked(x, y, blocks) if isinstance(blocks, int) else tuple(_in_sizes(a, blocks) for a in (x, y))
    assert_refused(refusing(), ValueError, told, data=given, resume=folder)


def _in_sizes(array, sizes):
    from compss_train import BlockedTensor

    parts = torch.from_numpy(array).split(sizes)
    return BlockedTensor([[part.numpy()] for part in parts])


def test_another_seed(folder):
    message = "round-000002 is of a fit with seed=0, and this trainer has seed=5"
    assert_refused(refusing(seed=5), ValueError, message, resume=folder)
    with pytest.raises(ValueError, match=message):
        refusing(seed=5).restore(folder)


def test_where_no_fit_was_saved_there_is_none_to_resume(tmp_path):
    trainer = trainer_of()
    storage.write_checkpoint(tmp_path / "round-000000", trainer.snapshot().to_dict())
    assert_refused(refusing(), ValueError, "was not written during fit, .* use trainer.restore", resume=tmp_path)
    trainer.restore(tmp_path)


def test_resume_is_true_or_a_folder(tmp_path):
    assert_refused(refusing(), ValueError, "takes the folder of a Checkpoint .* and there is none", resume=True)
    for value in (1, 0, [tmp_path], 2.5):
        assert_refused(refusing(), TypeError, f"^resume={re.escape(repr(value))}: give a folder", resume=value)


def test_resume_true_begins_where_there_is_nothing_yet(tmp_path):
    whole, first = trainer_of(), trainer_of()
    fit(whole)
    fit(first, Checkpoint(tmp_path / "new" / "folder"), resume=True)
    assert_alike(first, whole)
    assert first.resumed_from is None


def damage(path: Path) -> None:
    file = path / saved_state.ARRAYS
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)


@pytest.mark.parametrize("by_name", [False, True])
def test_the_newest_good_checkpoint_leads_to_the_same_end(own, folder, by_name):
    damage(own / "round-000002")
    message = "round-000002 cannot be used: .* is damaged.*; using .*round-000001 instead"
    again, whole, restored = trainer_of(), trainer_of(), trainer_of()
    with pytest.warns(UserWarning, match=message):
        restored.restore(own)
    assert len(restored.history) == 2
    with pytest.warns(UserWarning, match=message):
        fit(again, Checkpoint(own, keep=3), resume=own if by_name else True)
    assert again.resumed_from == own / "round-000001"
    whole.restore(folder)
    assert_alike(again, whole)
    assert list(storage.list_checkpoints(own)) == [0, 1, 2]
    storage.read_checkpoint(own / "round-000002")  # the damaged one has been replaced


def test_a_checkpoint_of_another_version(own, monkeypatch):
    monkeypatch.setattr(saved_state, "VERSION", 99)
    message = "its format has version 3, and this compss_train reads version 99"
    assert_refused(refusing(), BadCheckpointError, message, resume=own)


def test_a_folder_with_checkpoints_of_another_run(own):
    names = sorted(os.listdir(own))
    message = rf"{own} has checkpoints of another run, or .* \(round 2\); give fit resume=True"
    assert_refused(refusing(), FileExistsError, message, Checkpoint(own))
    assert sorted(os.listdir(own)) == names
    whole, over = trainer_of(), trainer_of()
    fit(whole, num_epochs=1)
    fit(over, Checkpoint(own, overwrite=True), num_epochs=1)
    assert_alike(over, whole)
    assert sorted(os.listdir(own)) == ["round-000000"]


def test_resuming_into_a_folder_of_another_run(own, folder):
    other = own.with_name("other")
    fit(trainer_of(), Checkpoint(other, keep=3), num_epochs=2)
    names = sorted(os.listdir(other))
    for resume in (folder, folder / "round-000001"):
        with pytest.raises(FileExistsError, match="has checkpoints of another run"):
            fit(refusing(), Checkpoint(other), resume=resume)
    assert sorted(os.listdir(other)) == names
    again = trainer_of()
    callback = Checkpoint(other, best="loss", overwrite=True)
    fit(again, callback, resume=folder / "round-000001")
    assert sorted(os.listdir(other)) == ["round-000002"]
    assert callback.best_round == 2
    again.restore(other, best=True)


def test_a_copy_of_the_checkpoints_is_of_the_same_run(own, folder):
    again, whole = trainer_of(), trainer_of()
    fit(again, Checkpoint(own), resume=folder / "round-000001")
    whole.restore(folder)
    assert_alike(again, whole)
    assert sorted(os.listdir(own)) == ["round-000001", "round-000002"]


def test_a_folder_with_later_rounds_of_the_same_run(own):
    trainer = trainer_of()
    trainer.restore(own / "round-000001")
    with pytest.raises(FileExistsError, match=r"or of later rounds of this one \(round 2\)"):
        fit(trainer, Checkpoint(own), num_epochs=1)
    fit(trainer, Checkpoint(own, keep=9, overwrite=True), num_epochs=1)
    assert sorted(os.listdir(own)) == ["round-000000", "round-000001", "round-000002"]


def test_folders_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path / "file", tmp_path / "file" / "inside", Path("/proc/compss_train"), Path("/proc/self")):
        error = assert_refused(refusing(), OSError, re.escape(str(place)), Checkpoint(place))
        assert error.__notes__[0].startswith("Raised in the callback Checkpoint, by its on_fit_start")


def test_a_disk_without_room_for_a_checkpoint(tmp_path, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    assert_refused(refusing(), OSError, f"{tmp_path} has no space for a checkpoint of about", Checkpoint(tmp_path))
    assert os.listdir(tmp_path) == []


class Full(Callback):
    """Fills the disk after a round."""

    def __init__(self, monkeypatch, call, number):
        self.monkeypatch, self.call, self.number = monkeypatch, call, number

    def on_round_end(self, trainer, record):
        def full(*args, **options):
            raise OSError(errno.ENOSPC, "No space left on device")

        if record["round"] == self.number:
            self.monkeypatch.setattr(self.call, full)


@pytest.mark.parametrize("call", ["compss_train.model.saved_state.save_file", "os.fsync"])
def test_a_disk_that_fills_up_during_a_fit(tmp_path, monkeypatch, call):
    trainer, first, whole = trainer_of(), trainer_of(), trainer_of()
    with pytest.raises(OSError, match="No space left") as caught:
        fit(trainer, Checkpoint(tmp_path), Full(monkeypatch, call, 1))
    assert caught.value.__notes__ == ["Raised in the callback Checkpoint, by its on_round_end."]
    monkeypatch.undo()
    assert os.listdir(tmp_path) == ["round-000000"]
    fit(first, num_epochs=2)
    assert_same_bits(trainer.get_parameters(), first.get_parameters())
    assert_same(numbers_of(list(trainer.history)), numbers_of(list(first.history)))
    fit(whole)
    again = trainer_of()
    fit(again, Checkpoint(tmp_path), resume=True)
    assert_alike(again, whole)


def test_restore_before_build_and_in_a_fit(folder):
    with pytest.raises(RuntimeError, match="no network yet"):
        DistributedTrainer(2, engine="serial").restore(folder)
    calls = {
        "restore": lambda trainer: trainer.restore(folder),
        "build": lambda trainer: trainer.build(mlp(), SGD, "cross_entropy"),
        "fit": fit,
    }
    for hook in ("on_fit_start", "on_round_end", "on_fit_end"):
        for name, call in calls.items():
            callback = Callback()
            setattr(callback, hook, lambda trainer, *_, call=call: call(trainer))
            trainer = trainer_of()
            with pytest.raises(RuntimeError, match=f"{name} was called during a fit"):
                fit(trainer, callback)
            assert [record["round"] for record in trainer.history] == [0, 1, 2][: len(trainer.history)]


def test_without_a_best_one_there_is_none_to_restore(own):
    with pytest.raises(ValueError, match="records no best round"):
        trainer_of().restore(own, best=True)
