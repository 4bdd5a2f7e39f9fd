"""``check_fit`` finds what ``fit`` would find, and changes nothing."""

import random
import re

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    DistributedTrainer,
    DivergedError,
    FileDataset,
    Gradients,
    Merge,
    PartialShuffle,
    write_files,
)
from compss_train.callbacks import Checkpoint, JsonLines
from tests.helpers.models import ADAM, assert_same_bits, awkward_net, blocked, classification, mlp
from tests.helpers.serial_engines import NoTasks

X, Y = classification()
FIT = {"num_epochs": 2, "batch_size": 7}


def trainer_of(net=None, *, engine=None, workers=2, **build):
    trainer = DistributedTrainer(workers, engine=engine or NoTasks(), seed=0, threads=1)
    trainer.build(net or awkward_net(), ADAM, "cross_entropy", "accuracy", **build)
    return trainer


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"shuffle": "total"},
        {"shuffle": PartialShuffle(9, pools=2)},
        {"merge": Merge("commutative", rule="halving")},
        {"validation_data": (X, Y), "sample_weight": np.ones(len(X))},
    ],
)
def test_a_good_fit_passes_and_nothing_changes(tmp_path, options):
    trainer = trainer_of()
    before = trainer.get_parameters()
    torch_state, numpy_state, python_state = torch.get_rng_state(), np.random.get_state()[1], random.getstate()
    writers = [Checkpoint(tmp_path / "checkpoints"), JsonLines(tmp_path / "history.jsonl")]
    trainer.check_fit(*blocked(X, Y, 4), **FIT, callbacks=writers, **options)
    assert_same_bits(trainer.get_parameters(), before)
    assert (trainer.history, trainer.configuration["fit"], list(tmp_path.iterdir())) == ([], None, [])
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)
    assert random.getstate() == python_state


def test_a_fit_after_it_has_the_same_bits():
    def schedule(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    checked, plain = (trainer_of(engine="serial", schedule=schedule) for _ in range(2))
    checked.check_fit(*blocked(X, Y, 4), **FIT)
    checked.fit(*blocked(X, Y, 4), **FIT)
    checked.check_fit(*blocked(X, Y, 4), **FIT)
    plain.fit(*blocked(X, Y, 4), **FIT)
    assert_same_bits(checked.fit(*blocked(X, Y, 4), **FIT), plain.fit(*blocked(X, Y, 4), **FIT))


def error_of(call, *args, **options):
    with pytest.raises(Exception) as caught:
        call(*args, **options)
    return type(caught.value), str(caught.value)


@pytest.mark.parametrize(
    ("net", "x", "y"),
    [
        (mlp(inputs=5), X, Y),
        (mlp(outputs=2), X, Y),
        (mlp(), X, Y.astype(np.float32)),
        (mlp(), X.astype(np.float64), Y),
    ],
)
def test_a_network_for_other_data_is_the_fits_error(net, x, y):
    trainer = trainer_of(net, engine="serial", workers=1)
    expected = error_of(trainer.fit, x, y, **FIT, shuffle=None, shuffle_block_data=False)
    assert error_of(trainer_of(net, workers=1).check_fit, x, y, **FIT) == expected


def test_a_nan_loss_is_found_unless_batches_are_skipped():
    bad = np.full_like(X, np.nan)
    with pytest.raises(DivergedError, match="the loss became nan in the first batch; lower the learning rate"):
        trainer_of().check_fit(bad, Y, **FIT)
    trainer_of(gradients=Gradients(on_nan="skip")).check_fit(bad, Y, **FIT)


def test_no_batch_is_trained_for_gpus(monkeypatch):
    monkeypatch.setattr(NoTasks, "check_gpus", staticmethod(lambda num_gpu: None))
    trainer_of(mlp(inputs=5), num_gpu=1).check_fit(X, Y, **FIT)


def test_warnings_of_the_fit_point_to_the_call():
    with pytest.warns(UserWarning, match="5 workers share 3 blocks") as caught:
        trainer_of(workers=5).check_fit(*blocked(X, Y, 3), **FIT)
    assert [warning.filename for warning in caught] == [__file__]


def test_unknown_and_missing_arguments_are_named():
    with pytest.raises(TypeError, match="unexpected keyword argument 'epochs'"):
        trainer_of().check_fit(X, Y, **FIT, epochs=3)
    with pytest.raises(TypeError, match="missing a required argument: 'num_epochs'"):
        trainer_of().check_fit(X, Y, batch_size=3)


def test_a_checkpoint_is_checked_and_not_loaded(tmp_path):
    whole = trainer_of(engine="serial")
    whole.fit(*blocked(X, Y, 4), **FIT, callbacks=[Checkpoint(tmp_path)])
    again = trainer_of()
    before = again.get_parameters()
    again.check_fit(*blocked(X, Y, 4), num_epochs=3, batch_size=7, resume=tmp_path)
    assert_same_bits(again.get_parameters(), before)
    assert (again.history, again.resumed_from) == ([], None)
    with pytest.raises(ValueError, match=re.escape("checkpoint of another network")):
        trainer_of(mlp()).check_fit(*blocked(X, Y, 4), **FIT, resume=tmp_path)


def test_a_skipped_file_leaves_the_next_to_be_tried(tmp_path):
    files = write_files(tmp_path, {"x": X, "y": Y}, rows=20)
    dataset = FileDataset(files, y="y", on_bad_file="skip")
    with open(files[0], "r+b") as file:
        file.truncate(200)
    with pytest.warns(UserWarning, match="skipped .* cannot be read"):
        trainer_of().check_fit(dataset, **FIT)
    with (
        pytest.warns(UserWarning, match="skipped .* cannot be read"),
        pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"),
    ):
        trainer_of(nn.Linear(4, 3)).check_fit(dataset, **FIT)
