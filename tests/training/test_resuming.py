"""N rounds are the same bits as k rounds, an interruption, a resume and N - k rounds."""

import inspect
import warnings
from functools import partial

import numpy as np
import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from compss_train import (
    BufferSpec,
    FileDataset,
    Gradients,
    Merge,
    PartialShuffle,
    Samples,
    Schedule,
    SerialEngine,
)
from compss_train.callbacks import Checkpoint
from compss_train.training.checkpoints import list_checkpoints
from tests.helpers.cases import each_value
from tests.helpers.models import MODES, SGD, Smoothed, assert_same_bits, mlp
from tests.helpers.small_fits import X, Y, assert_alike, combined, fit, trainer_of
from tests.model.lr_schedule.schedulers import SCHEDULERS
from tests.model.test_train_transform import mixup
from tests.trainer.test_dataset_fits import Noisy, Stream
from tests.training.checkpoints.trees import assert_same
from tests.worker.test_plain_loop import WOLFE
from tests.worker.test_preparing import noisy_by_all

BLOCKS = {**MODES[3], "num_epochs": 2}
BATCHES = {"merge": Merge(every=3, unit="batches"), "num_epochs": 2}
IN_BUFFERS = {"buffer": BufferSpec("FIRO", 24, threshold=9), **BATCHES}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for number in range(5):
        np.savez(folder / f"{number}.npz", x=X[number::5], y=Y[number::5])
    return FileDataset(f"{folder}/*.npz")


def every_round_resumed(folder, build, *, engine="serial", data=None, **options):
    """Train without a break, then from every checkpoint on; all are alike. Returns the first one.

    Every other fit is resumed on the serial engine.
    """
    whole = build(engine)
    fit(whole, Checkpoint(folder, keep=99), data=data, **options)
    saved = list_checkpoints(folder)
    assert list(saved) == list(range(len(whole.history)))
    for number, path in enumerate(saved.values()):
        again = build(engine if number % 2 else "serial")
        fit(again, data=data, resume=path, **options)
        assert_alike(again, whole)
        assert again.resumed_from == path
    return whole


SHUFFLES = ["blocks", "total", PartialShuffle(), None]


@pytest.mark.parametrize(("mode", "shuffle"), each_value([*MODES[:3], BLOCKS], SHUFFLES), ids=str)
def test_resuming_after_any_round_gives_the_same_bits(tmp_path, mode, shuffle):
    every_round_resumed(tmp_path, trainer_of, shuffle=shuffle, **mode)


def test_on_every_engine(engine, tmp_path):
    if isinstance(engine, SerialEngine):
        pytest.skip("test_resuming_after_any_round_gives_the_same_bits has it")
    for number, mode in enumerate([*MODES[1:3], {"merge": Merge(every=2, unit="blocks")}]):
        options = {"shuffle": [PartialShuffle(), "blocks"][number % 2], **mode}
        whole = every_round_resumed(tmp_path / str(number), trainer_of, engine=engine, **options)
        without = trainer_of()
        fit(without, **options)
        assert_alike(whole, without)  # checkpoints change nothing


NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
EVERYTHING = {"merge": Merge(outer_optimizer=NESTEROV, optimizer_state="average", averaging="ema")}
BY_STEPS = Merge(averaging=0.9, averaging_unit="steps")
PLATEAU = partial(ReduceLROnPlateau, factor=0.5, patience=0, threshold=9.0)  # which every epoch is
VARIANTS = {
    "five workers": ({"workers": 5}, BLOCKS),
    "a plateau by blocks": ({"schedule": PLATEAU, "gradients": Gradients(accumulate=2)}, BLOCKS),
    "one cycle": ({"schedule": SCHEDULERS["one cycle"]}, {**MODES[1], "num_epochs": 5}),
    "several batches a step": ({"gradients": Gradients(clip_norm=0.5, accumulate=3)}, BLOCKS),
    "momentum reset": ({"optimizer": SGD}, combined(BLOCKS, merge=Merge(optimizer_state="reset"))),
    "passes in a total shuffle": (
        {},
        {"buffer": BufferSpec("FIRO", 57, threshold=9, passes=2), "shuffle": "total"},
    ),
    "pools": ({}, {**BLOCKS, "shuffle": PartialShuffle(11, pools=2)}),
    "all at once": (
        {"workers": 2, "optimizer": SGD, "schedule": Schedule(lambda epoch: 0.5**epoch, steps=3)},
        combined(
            IN_BUFFERS,
            merge=Merge(outer_optimizer={"optimizer": "sgd", "lr": 0.7}, optimizer_state="average"),
        ),
    ),
    "rarer merges": (
        {},
        {"merge": Merge(every=lambda epoch: 1 + epoch, unit="batches"), "num_epochs": 2},
    ),
    "merges after 1, 2 and 1 epochs": (
        {},
        {"merge": Merge(every=lambda epoch: 1 + epoch % 2), "num_epochs": 4},
    ),
    "validation": ({}, {"validation_data": (X[:20], Y[:20]), **BLOCKS}),
    "averaged by steps": ({"workers": 2}, combined(BATCHES, EVERYTHING, merge=BY_STEPS)),
    "nine workers in int8": ({"workers": 9}, combined(EVERYTHING, merge=Merge(dtype="int8"))),
    "one worker by arrival": (
        {"workers": 1},
        {"merge": Merge("commutative", outer_optimizer=NESTEROV)},
    ),
    "auto": ({}, {"merge": Merge("auto")}),
    "losses evaluated in steps": ({"net": mlp, "optimizer": WOLFE}, {}),
    "fp16": ({"net": mlp, "optimizer": SGD, "precision": "fp16"}, {"data": (30 * X, Y)}),
    "buffers of a worker's own": ({"net": Smoothed}, {}),
    "random transforms, merges by batches": ({"transform": noisy_by_all}, BATCHES),
    "augmentation of batches": (
        {"train_transform": mixup, "metric": None},
        {"shuffle": "total", **BATCHES},
    ),
    "samples that draw, merges by batches": ({}, {"data": (Noisy(),), **BATCHES}),
    "a stream that draws, merges by batches": (
        {},
        {"data": (Samples(Stream(noise=0.1), size=57),), **BATCHES},
    ),
    "no metric": ({"metric": None}, {}),
    "any seed": ({"seed": None}, {}),
}


@pytest.mark.filterwarnings("ignore:9 workers share 7 blocks")
@pytest.mark.filterwarnings("ignore:the workers keep the states of LBFGS")
@pytest.mark.parametrize("name", VARIANTS)
def test_whatever_is_trained_and_how(tmp_path, shared_local, name):
    """Without a break on the serial engine, and resumed on the local one."""
    build, options = VARIANTS[name]
    whole = trainer_of(**build)
    again = trainer_of(shared_local, **build)
    fit(whole, Checkpoint(tmp_path, keep=99), **options)
    saved = list(list_checkpoints(tmp_path).values())
    fit(again, resume=saved[len(saved) // 3], **options)
    assert_alike(again, whole)


@pytest.mark.parametrize(
    "options", [{"shuffle": PartialShuffle(11, pools=2)}, BATCHES, IN_BUFFERS], ids=str
)
def test_files(tmp_path, files, options):
    every_round_resumed(tmp_path, trainer_of, data=(files,), **options)


def test_files_that_cannot_be_read_are_left_out_again(tmp_path, files):
    for number in range(4):
        np.savez(tmp_path / f"{number}.npz", x=X[number::4], y=Y[number::4])
    bad = FileDataset(f"{tmp_path}/*.npz", on_bad_file="skip")
    assert sum(bad.sizes) == len(X)
    for number in (1, 2):
        (tmp_path / f"{number}.npz").write_bytes(b"bad")
    with pytest.warns(UserWarning, match="skipped"):
        whole = every_round_resumed(
            tmp_path / "folder", trainer_of, data=(bad,), shuffle=None, **BLOCKS
        )
    assert len(whole.history[-1]["skipped"]) == 2


def test_a_resumed_fit_that_had_ended_trains_nothing(tmp_path):
    whole = trainer_of()
    ended = fit(whole, Checkpoint(tmp_path))
    stamps = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")}
    for _ in range(2):
        again = trainer_of()
        assert_same_bits(fit(again, Checkpoint(tmp_path), resume=True), ended)
        assert_same(list(again.history), list(whole.history))
        assert_alike(again, whole)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*")} == stamps


def test_restored_a_trainer_is_as_it_was(tmp_path):
    whole = trainer_of()
    restored = trainer_of(seed=None)
    best = Checkpoint(tmp_path, keep=1, best="loss", mode="max")
    fit(whole, best)
    assert list(list_checkpoints(tmp_path)) == [0, 2]
    restored.restore(tmp_path)
    assert_alike(restored, whole)
    assert restored.seed == 0
    for trainer in (restored, whole):
        fit(trainer, num_epochs=1, shuffle="total")
    assert_alike(restored, whole)
    restored.restore(tmp_path, best=True)
    first = trainer_of()
    fit(first, num_epochs=1)
    assert_alike(restored, first)


@pytest.mark.parametrize(("shuffle", "now"), each_value(SHUFFLES, [1, 2, 5]))
def test_with_another_number_of_workers_it_says_what_changes(tmp_path, now, shuffle):
    fit(trainer_of(), Checkpoint(tmp_path, keep=9), shuffle=shuffle, **BLOCKS)
    again = trainer_of(workers=now)
    message = rf"not bit for bit as without interruption: num_workers was 3, and is {now}$"
    with pytest.warns(UserWarning, match=message) as caught:
        fit(again, resume=tmp_path / "round-000001", shuffle=shuffle, **BLOCKS)
    assert len(caught) == 1
    assert caught[0].filename == inspect.getfile(fit)
    assert sum(record["samples"] for record in again.history) == 2 * len(X)
    assert {len(record["workers"]) for record in again.history[2:]} <= {*range(1, now + 1)}


OTHERS = [
    (
        {"schedule": lambda epoch: 0.5**epoch, "gradients": Gradients(clip_norm=0.5)},
        r"schedule .*; clip_norm was ",
    ),
    ({"schedule": partial(ReduceLROnPlateau, factor=0.5)}, "schedule was None, and is .*"),
    ({"transform": torch.square}, "transform was None, and is .*square"),
    ({"memory_format": "channels_last"}, "memory_format was contiguous, and is channels_last$"),
    ({"threads": 2}, "threads was 1, and is 2$"),
    ({"optimizer": {"optimizer": "adam", "lr": 0.5}}, "lr was 0.01, and is 0.5$"),
]


@pytest.mark.parametrize(("options", "told"), OTHERS)
def test_what_changes_numbers_is_told_and_taken(tmp_path, options, told):
    fit(trainer_of(), Checkpoint(tmp_path), num_epochs=1)
    resumed = trainer_of(**options)
    restored = trainer_of(**options)
    with pytest.warns(
        UserWarning, match=rf"^the fit resumes from .*, but not bit for bit .*: {told}"
    ):
        fit(resumed, resume=tmp_path, num_epochs=2)
    with pytest.warns(
        UserWarning, match=rf"^fits continue from .*, but not bit for bit .*: {told}"
    ):
        restored.restore(tmp_path)
    fit(restored, num_epochs=1)
    assert_same_bits(resumed.get_parameters(), restored.get_parameters())
    assert len(resumed.history) == 2
    if "optimizer" in options:  # whose state_dict holds its options, too
        groups = [worker.optimizer["param_groups"][0] for worker in resumed.snapshot().workers]
        assert [(group["lr"], group["betas"]) for group in groups] == [(0.5, (0.9, 0.999))] * 3


@pytest.mark.parametrize(
    ("every", "told"),
    [(2, "after 1 of 2"), (0, "after 3 of 5"), (3, None), (lambda epoch: 2, ("after 1 of 2"))],
)
def test_a_last_round_that_was_cut_short_is_told_of(tmp_path, every, told):
    fit(trainer_of(), Checkpoint(tmp_path), merge=Merge(every=every), num_epochs=3)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fit(trainer_of(), resume=tmp_path, merge=Merge(every=every), num_epochs=5)
    warned = [str(warning.message) for warning in caught]
    assert len(warned) == (told is not None)
    assert all(text.endswith(f"its last merge was {told} epochs") for text in warned)


def test_arrays_are_cut_as_when_the_fit_began(tmp_path):
    counted = []
    for workers, epochs in ((2, 2), (3, 3), (1, 4)):
        trainer = trainer_of(workers=workers)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.fit(
                X, Y, num_epochs=epochs, batch_size=4, callbacks=[Checkpoint(tmp_path)], resume=True
            )
        counted.append([record["samples"] for record in trainer.history])
    assert counted == [[len(X)] * 2, [len(X)] * 3, [len(X)] * 4]
