"""What cannot be resumed, or saved, is an error that says so before anything is trained."""

import errno
import os
import re
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    BadCheckpointError,
    BlockedTensor,
    BufferSpec,
    FileDataset,
    Merge,
    PartialShuffle,
)
from compss_train.callbacks import Callback, Checkpoint
from compss_train.model import saved_state
from compss_train.training import checkpoints as storage
from compss_train.training import resume_checks
from compss_train.training.snapshot import Checkpoint as StoredCheckpoint
from compss_train.training.snapshot import Snapshot
from tests.helpers.models import SGD, assert_same_bits, awkward_net, blocked, mlp
from tests.helpers.small_fits import RefusingTransform, X, Y, assert_alike, fit, trainer_of

pytestmark = pytest.mark.filterwarnings(
    r"ignore:.*transform was None, and is tests\.helpers\.small_fits\.RefusingTransform"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Checkpoints of a fit of three rounds."""
    folder = tmp_path_factory.mktemp("whole")
    fit(trainer_of(), Checkpoint(folder, keep=3))
    return folder


@pytest.fixture
def copied(folder, tmp_path):
    """The same, to be spoilt."""
    for path in storage.list_checkpoints(folder).values():
        storage.write_checkpoint(tmp_path / "copied" / path.name, storage.read_checkpoint(path))
    return tmp_path / "copied"


def refusing(**options):
    return trainer_of(transform=RefusingTransform(), **options)


def assert_refused(trainer, error, message, *callbacks, **options):
    """The fit is an error, nothing is trained for it, and the trainer is what it was."""
    before = trainer.get_parameters()
    seed = trainer.seed
    with pytest.raises(error, match=message) as caught:
        fit(trainer, *callbacks, **options)
    assert_same_bits(trainer.get_parameters(), before)
    assert (trainer.history, trainer.seed, trainer.stopped) == ([], seed, None)
    return caught.value


def test_no_option_of_a_fit_falls_through_a_checkpoint_that_lacks_it(folder):
    """As one of an earlier version lacks an option that is new: it means the default."""
    path, content = storage.read_latest_checkpoint(folder, warn=False)
    snapshot = Snapshot.from_dict(content, path)
    options = snapshot.progress.options
    assert {
        "merge.every",
        "merge.averaging_unit",
        "batch_size",
        "shuffle",
        "loss",
        "class_weight",
    } <= {*options}
    no_buffers = SimpleNamespace(carries_buffers=False)

    def lacking(name):
        without = {other: value for other, value in options.items() if other != name}
        progress = replace(snapshot.progress, options=without)
        return StoredCheckpoint(path, replace(snapshot, progress=progress))

    for name in {*options, "a new one"} - {*resume_checks.CHANGEABLE_OPTIONS}:
        planned = replace(snapshot.progress, options={**options, name: "another"})
        with pytest.raises(ValueError, match=f"{re.escape(name)} was .*, and is another"):
            resume_checks.check_same_fit(lacking(name), planned, no_buffers, 3)
    # Of this fit's value.
    for name in ("merge.every", "merge.averaging_unit", "shuffle", "buffer", "class_weight"):
        resume_checks.check_same_fit(lacking(name), snapshot.progress, no_buffers, 3)


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


def split(array, sizes):
    return BlockedTensor([[part.numpy()] for part in torch.from_numpy(array).split(sizes)])


def other_shape():
    return nn.Sequential(nn.Linear(6, 16), *list(awkward_net())[1:4], nn.Linear(16, 4, bias=False))


OTHER_TRAINERS = {
    "wider": (
        {"net": lambda: mlp(6, 4)},
        "another network: .*it has no '2.weight'; it has no '2.bias'; it has '1.weight', which "
        "the network lacks; .* and 3 more",
    ),
    "other shape": (
        {"net": other_shape},
        r"network: .*4.weight was float32 \(3, 16\), and is float32 \(4, 16\)$",
    ),
    "double": (
        {"net": lambda: awkward_net().double()},
        r"another network: .*0.weight was float32 \(16, 6\), and is float64 \(16, 6\); ",
    ),
    "longer": (
        {"net": lambda: nn.Sequential(*awkward_net(), nn.Linear(3, 3))},
        "another network: .*it has no '5.weight'; it has no '5.bias'$",
    ),
    "renamed": ({"net": Renamed}, "another network: .*it has no 'body.0.weight'; "),
    "optimizer": (
        {"optimizer": SGD},
        (
            "round-000002 has the states of Adam, but the optimizer is SGD; build with the same "
            "optimizer"
        ),
    ),
    "seed": ({"seed": 5}, "round-000002 is of a fit with seed=0, and this trainer has seed=5"),
}


@pytest.mark.parametrize("name", OTHER_TRAINERS)
def test_a_checkpoint_of_another_trainer_is_refused(folder, name):
    build, message = OTHER_TRAINERS[name]
    assert_refused(refusing(**build), ValueError, message, resume=folder)
    trainer = refusing(**build)
    with pytest.raises(ValueError, match=message):
        trainer.restore(folder)
    assert trainer.history == []


def dropping():
    net = awkward_net()
    net[3].p = 0.5
    return net


OTHER_FITS = {
    "batches": (
        {"num_batches_per_worker": 2},
        "batch_size was 6, and is None; num_batches_per_worker was None, and is 2",
    ),
    "batch size": ({"batch_size": 5}, "batch_size was 6, and is 5"),
    "merge": (
        {"merge": Merge("commutative", every=2, unit="blocks", optimizer_state="reset")},
        "merge.kind was synchronous, and is commutative; merge.every was 1, and is 2; "
        "merge.unit was epochs, and is blocks; merge.optimizer_state was keep, and is reset",
    ),
    "rule": (
        {"merge": Merge("commutative", rule="halving")},
        ("merge.rule was weighted, and is halving"),
    ),
    "shuffle": ({"shuffle": "total"}, "shuffle was blocks, and is total"),
    "rows": ({"shuffle_block_data": False}, "shuffle_block_data was True, and is False"),
    "buffer": (
        {"buffer": BufferSpec("FIFO", 16)},
        r"buffer was None, and is BufferSpec\(.*FIFO.*16.*\)",
    ),
    "weights": ({"sample_weight": np.ones(57)}, "sample_weight was None, and is given"),
    "loss": (
        {"loss": "soft_cross_entropy"},
        r"loss was \S*cross_entropy, and is \S*categorical_cross_entropy",
    ),
    "argument": (
        {"loss": nn.CrossEntropyLoss(label_smoothing=0.3)},
        r"loss was \S*cross_entropy, and is \S*Loss",
    ),
    "dropout": ({"net": dropping}, "net.3.p was 0.3, and is 0.5"),
    "classes": ({"class_weight": [1, 2, 3]}, r"class_weight was None, and is \(1.0, 2.0, 3.0\)"),
}


@pytest.mark.parametrize("name", OTHER_FITS)
def test_all_that_differs_is_named_with_both_values(folder, name):
    options, told = OTHER_FITS[name]
    build = {key: options[key] for key in options if key in ("loss", "net", "class_weight")}
    fitted = {key: options[key] for key in options if key not in build}
    parts = "".join(f"(?=.*{part})" for part in told.split("; "))
    checkpoint = re.escape(f"{folder}/round-000002")
    message = rf"^{parts}{checkpoint} is the checkpoint of another fit: .*trainer.restore$"
    assert_refused(refusing(**build), ValueError, message, resume=folder, **fitted)
    refusing(**build).restore(folder)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            blocked(X[:50], Y[:50], 7),
            "its data are 57 samples in 7 blocks, and these 50 samples in 7 blocks",
        ),
        (
            blocked(X, Y, 6),
            "its data are 57 samples in 7 blocks, and these 57 samples in 6 blocks .split them "
            "into 7, as by",
        ),
        (
            [split(array, [10, 7, 8, 8, 8, 8, 8]) for array in (X, Y)],
            "block 0 had 9 samples, and has 10; block 1 had 8 samples, and has 7",
        ),
    ],
    ids=["samples", "blocks", "sizes"],
)
def test_other_data(folder, data, told):
    assert_refused(refusing(), ValueError, told, data=data, resume=folder)


def test_a_pool_that_changes_no_number_may_be_another(tmp_path):
    options = {"shuffle": PartialShuffle(), "num_epochs": 2}
    fit(trainer_of(), Checkpoint(tmp_path, keep=2), **options)
    before = re.escape("PartialShuffle(pool_size=None, pools=1)")
    after = re.escape("PartialShuffle(pool_size=11, pools=2)")
    told = f"shuffle was {before}, and is {after}"
    changed = {**options, "shuffle": PartialShuffle(11, pools=2)}
    assert_refused(refusing(), ValueError, told, resume=tmp_path, **changed)


def test_places_without_a_checkpoint_to_resume_from(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "file", str(tmp_path)):
        assert_refused(refusing(), FileNotFoundError, f"no checkpoint in {place}; ", resume=place)
        with pytest.raises(FileNotFoundError, match="no checkpoint in"):
            trainer_of().restore(place)
    assert_refused(
        refusing(),
        ValueError,
        ("takes the folder of a Checkpoint .* and there is none"),
        resume=True,
    )
    for value in (1, 0, [tmp_path], 2.5):
        assert_refused(refusing(), TypeError, "give a folder of checkpoints", resume=value)
    whole = trainer_of()
    first = trainer_of()
    never_fitted = trainer_of()
    storage.write_checkpoint(tmp_path / "round-000000", never_fitted.snapshot().to_dict())
    assert_refused(
        refusing(),
        ValueError,
        "was not written during fit, .* use trainer.restore",
        resume=tmp_path,
    )
    never_fitted.restore(tmp_path)
    fit(whole)
    # Which begins where there is nothing yet.
    fit(first, Checkpoint(tmp_path / "new" / "folder"), resume=True)
    assert_alike(first, whole)
    assert first.resumed_from is None


@pytest.mark.parametrize("part", [0, 1])
def test_other_values_of_the_same_sizes_are_warned_of(folder, part):
    x, y = blocked(X, Y, 7)
    data = [(x, y), (blocked(X + 1, Y, 7)[0], blocked(X, 2 - Y, 7)[1])]
    chosen = [data[1][n] if n == part else data[0][n] for n in (0, 1)]
    with pytest.warns(UserWarning, match="its data had other values than these, or another order"):
        fit(trainer_of(), data=chosen, resume=folder / "round-000001")


@pytest.mark.parametrize("save", [np.save, lambda path, x: np.savez(path, x=x)], ids=["npy", "npz"])
def test_files_written_anew_between_a_kill_and_a_resume_are_warned_of(tmp_path, save):
    for number in range(3):
        save(tmp_path / f"{number}", X + number)
    data = (FileDataset(str(tmp_path / "*.np?"), y=None),)
    options = {"data": data, "batch_size": 10, "num_epochs": 2}
    trainer = partial(
        trainer_of, net=lambda: nn.Linear(X.shape[1], X.shape[1]), loss="mse", metric=None
    )
    fit(trainer(), Checkpoint(tmp_path / "run"), **options)
    with warnings.catch_warnings(action="error"):
        fit(trainer(), resume=tmp_path / "run" / "round-000000", **options)
    save(tmp_path / "1", -X)
    with pytest.warns(UserWarning, match="its data had other values than these, or another order"):
        fit(trainer(), resume=tmp_path / "run" / "round-000000", **options)


def test_a_memory_mapped_file_that_changes_during_a_fit_is_warned_of(tmp_path):
    class Changing(Callback):
        def on_round_end(self, trainer, record):
            with open(tmp_path / "x.npy", "r+b") as file:
                file.seek(-4, os.SEEK_END)
                file.write(bytes(4))

    np.save(tmp_path / "x.npy", X)
    data = (np.load(tmp_path / "x.npy", mmap_mode="r"), Y)
    fit(trainer_of(), data=data)
    with pytest.warns(
        UserWarning,
        match=r"x\.npy changed while it was in use: results are those of old and of new",
    ):
        fit(trainer_of(), Changing(), data=data)


def damage(path: Path) -> None:
    file = path / saved_state.ARRAYS
    whole = bytearray(file.read_bytes())
    whole[len(whole) // 2] ^= 1
    file.write_bytes(whole)


@pytest.mark.parametrize("by_name", [False, True])
def test_the_newest_good_checkpoint_leads_to_the_same_end(copied, folder, by_name):
    damage(copied / "round-000002")
    message = "round-000002 cannot be used: .* is damaged.*; using .*round-000001 instead"
    again = trainer_of()
    whole = trainer_of()
    restored = trainer_of()
    with pytest.warns(UserWarning, match=message):
        restored.restore(copied)
    assert len(restored.history) == 2
    with pytest.warns(UserWarning, match=message):
        fit(again, Checkpoint(copied, keep=3), resume=copied if by_name else True)
    assert again.resumed_from == copied / "round-000001"
    whole.restore(folder)
    assert_alike(again, whole)
    assert list(storage.list_checkpoints(copied)) == [0, 1, 2]
    storage.read_checkpoint(copied / "round-000002")  # the damaged one has been replaced


def test_checkpoints_that_cannot_be_used_name_a_good_one(copied, monkeypatch):
    path = copied / "round-000002"
    damage(path)
    for named, message in (
        (path, "cannot be used: .* is damaged"),
        (copied / "round-000003", ("cannot be used: .*")),
    ):
        error = assert_refused(
            refusing(), BadCheckpointError, f"{named.name} {message}", resume=named
        )
        assert error.good == copied / "round-000001"
        with pytest.raises(BadCheckpointError, match=r"round-000001 is valid: resume from it"):
            refusing().restore(named)
    message = (
        f"wrote it in version {saved_state.VERSION} of the format, and this compss_train .* reads "
        "versions 99 to 99: resume it with"
    )
    monkeypatch.setattr(saved_state, "VERSION", 99)
    monkeypatch.setattr(saved_state, "UPGRADES", {})
    assert_refused(refusing(), BadCheckpointError, message, resume=copied)
    monkeypatch.undo()
    for checkpoint in storage.list_checkpoints(copied).values():
        if checkpoint != path:
            damage(checkpoint)
    message = (
        "is damaged.*json, and all other checkpoints of the folder are damaged, too; "
        "begin a new fit"
    )
    for place in (copied, path):
        assert assert_refused(refusing(), BadCheckpointError, message, resume=place).good is None


@pytest.mark.parametrize("value", [-5, None, "x", [1]])
def test_a_good_checksum_of_other_content_is_an_error(copied, value):
    path = copied / "round-000002"
    storage.write_checkpoint(path, {**storage.read_checkpoint(path), "workers": value})
    message = "round-000002 cannot be used: its state is not that of a trainer: "
    assert_refused(refusing(), BadCheckpointError, message, resume=path)


def test_a_folder_with_checkpoints_of_another_run(copied):
    names = sorted(os.listdir(copied))
    message = (
        rf"{copied} has checkpoints of another run, or .* \(round 2\); call fit with resume=True"
    )
    assert_refused(refusing(), FileExistsError, message, Checkpoint(copied))
    assert sorted(os.listdir(copied)) == names
    whole = trainer_of()
    over = trainer_of()
    fit(whole, num_epochs=1)
    fit(over, Checkpoint(copied, overwrite=True), num_epochs=1)
    assert_alike(over, whole)
    assert sorted(os.listdir(copied)) == ["round-000000"]


def test_resuming_into_a_folder_of_another_run(copied, folder):
    other = copied.with_name("other")
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


def test_a_copy_of_the_checkpoints_is_of_the_same_run(copied, folder):
    again = trainer_of()
    whole = trainer_of()
    fit(again, Checkpoint(copied), resume=folder / "round-000001")
    whole.restore(folder)
    assert_alike(again, whole)
    assert sorted(os.listdir(copied)) == ["round-000001", "round-000002"]


def test_a_folder_with_later_rounds_of_the_same_run(copied):
    trainer = trainer_of()
    trainer.restore(copied / "round-000001")
    with pytest.raises(FileExistsError, match=r"or of later rounds of this one \(round 2\)"):
        fit(trainer, Checkpoint(copied), num_epochs=1)
    fit(trainer, Checkpoint(copied, keep=9, overwrite=True), num_epochs=1)
    assert sorted(os.listdir(copied)) == ["round-000000", "round-000001", "round-000002"]


def test_folders_that_cannot_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    for place in (
        tmp_path / "file",
        tmp_path / "file" / "inside",
        Path("/proc/compss_train"),
        Path("/proc/self"),
    ):
        error = assert_refused(refusing(), OSError, re.escape(str(place)), Checkpoint(place))
        assert error.__notes__[0].startswith(
            "Raised in the callback Checkpoint, by its on_fit_start"
        )
    (tmp_path / "file").unlink()
    for call, number, message in (  # users other than root are denied
        ("tempfile.TemporaryFile", errno.EACCES, "Permission denied"),
        ("os.posix_fallocate", errno.ENOSPC, "No space left"),
    ):
        monkeypatch.setattr(call, raising(OSError(number, os.strerror(number), str(tmp_path))))
        error = assert_refused(refusing(), OSError, message, Checkpoint(tmp_path))
        assert error.__notes__[0].startswith(f"A checkpoint in {tmp_path} needs about 0.")
        monkeypatch.undo()
        assert os.listdir(tmp_path) == []


def raising(error):
    def fail(*args, **options):
        raise error

    return fail


def test_what_would_change_the_trainer_is_refused_during_a_fit(folder):
    calls = {
        "restore": lambda trainer: trainer.restore(folder),
        "set_parameters": lambda trainer: trainer.set_parameters(trainer.get_parameters()),
        "build": lambda trainer: trainer.build(mlp(), SGD, "cross_entropy"),
        "fit": fit,
        "check_fit": lambda trainer: trainer.check_fit(X, Y, num_epochs=1, batch_size=6),
    }
    for hook in ("on_fit_start", "on_round_end", "on_fit_end"):
        for name, call in calls.items():
            callback = Callback()
            setattr(callback, hook, lambda trainer, *_, call=call: call(trainer))
            trainer = trainer_of()
            if (hook, name) in (
                ("on_fit_start", "set_parameters"),
                ("on_fit_end", "set_parameters"),
            ):
                continue  # it is between rounds that parameters cannot be set
            with pytest.raises(RuntimeError, match=f"{name} was called during a fit"):
                fit(trainer, callback)
            assert [record["round"] for record in trainer.history] == [0, 1, 2][
                : len(trainer.history)
            ]
