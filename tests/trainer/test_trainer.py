"""Laws 5 and 6, and what the trainer offers besides fitting."""

import functools
import json
import warnings
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, Merge, SerialEngine
from compss_train._utils.validation import warn_once
from compss_train.callbacks import Callback
from compss_train.engines import nodes
from compss_train.integrations.dislib import EncapsulatedFunctionsDistributedPytorch
from tests.helpers.callbacks import CallAt
from tests.helpers.cases import each_value
from tests.helpers.models import (
    FITS,
    MODES,
    SGD,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
)
from tests.helpers.processes import children
from tests.helpers.small_fits import X, Y, fit, trainer_of
from tests.helpers.tolerances import loss_error, output_error
from tests.helpers.waiting import wait_until


def built(engine="serial", workers=2, optimizer=SGD, **options):
    return trainer_of(engine, workers, optimizer=optimizer, **options)


def test_every_engine_gives_the_same_bits_in_every_synchronous_mode(engine):
    if isinstance(engine, SerialEngine):
        pytest.skip("the others are compared with the serial engine")
    ways = [(1, "blocks"), (2, "total"), (2, None), (5, "blocks"), (5, "total"), (5, None)]
    for number, (workers, shuffle) in enumerate(ways):
        mode = MODES[number % 4]
        options = {
            "batch_size": 4,
            "shuffle": shuffle,
            "shuffle_block_data": number % 3 > 0,
            **mode,
        }
        here = trainer_of("serial", workers)
        there = trainer_of(engine, workers)
        assert_same_bits(fit(here, **options), fit(there, **options))
        assert [(r["loss"], r["accuracy"]) for r in here.history] == [
            (r["loss"], r["accuracy"]) for r in there.history
        ]


@pytest.mark.parametrize("shuffle", ["blocks", "total", None])
def test_a_seed_decides_the_bits(engine, shuffle):
    first, again, other = (fit(built(engine, seed=seed), shuffle=shuffle) for seed in (1, 1, 2))
    assert_same_bits(first, again)
    assert first["0.weight"].tobytes() != other["0.weight"].tobytes()
    drawn, differently = (built(engine, seed=None) for _ in range(2))
    assert drawn.seed != differently.seed
    assert_same_bits(
        fit(drawn, shuffle=shuffle), fit(built(engine, seed=drawn.seed), shuffle=shuffle)
    )


def test_predictions_before_a_fit_are_told_of_once():
    """A network may come with its parameters; what sets them later counts as a fit."""
    for call in (lambda trainer: trainer.predict(X), lambda trainer: trainer.evaluate(X, Y)):
        untrained, fitted, given = (trainer_of() for _ in range(3))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit(fitted, CallAt("fit_start", call), num_epochs=1)
            given.set_parameters(fitted.get_parameters())
            for trainer in (fitted, given):
                call(trainer)
        with pytest.warns(
            UserWarning, match=("that the network was built with, as no fit, restore")
        ) as told:
            call(untrained)
        assert told[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call(untrained)
        warn_once.cache_clear()


class Counting:
    """A transform that notes the samples it sees, in files: it runs inside the workers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        assert x.dtype == torch.int32
        name = f"{torch.rand(()).item()}-{x[0, 0].item()}"
        (self.folder / f"{name}-{len(list(self.folder.iterdir()))}.json").write_text(
            json.dumps(x[:, 0].tolist())
        )
        return x.float() / 100

    def counts(self) -> Counter:
        return Counter(s for file in self.folder.iterdir() for s in json.loads(file.read_text()))


@pytest.mark.parametrize("name", FITS)
def test_every_fit_trains_on_every_sample_once_an_epoch(engine, tmp_path, name):
    x = np.arange(43, dtype=np.int32).repeat(6).reshape(43, 6)
    counting = Counting(tmp_path)
    trainer = built(engine, 3, net=mlp, transform=counting)
    parameters = getattr(trainer, name)(*blocked(x, np.arange(43) % 3, 5), 3, 4)
    assert counting.counts() == dict.fromkeys(range(43), 4)
    assert list(parameters) == list(mlp().state_dict())
    assert all(np.isfinite(array).all() for array in parameters.values())
    assert sum(record["samples"] for record in trainer.history) == 4 * 43
    # By default.
    assert len(trainer.history) == (1 if "asynchronous" in name and "n_epochs" in name else 4)


@pytest.mark.parametrize(
    ("merge", "share_of_loss", "accuracy"),
    [
        ("synchronous", 0.5, 0.85),
        # A worker may have trained in all epochs before the other has in its first: of 250 orders
        # of arrival the worst left 0.51 of the loss, and an accuracy of 0.67.
        ("commutative", 0.8, 0.5),
        ("parameter_server", 0.8, 0.5),
    ],
)
def test_fits_learn_on_every_engine_however_workers_merge(engine, merge, share_of_loss, accuracy):
    x, y = classification(samples=200)
    trainer = built(engine, net=mlp)
    before = trainer.evaluate(x, y)
    fit(trainer, data=blocked(x, y, 4), num_batches_per_worker=5, num_epochs=6, merge=merge)
    after = trainer.evaluate(x, y)
    assert after["loss"] < share_of_loss * before["loss"]
    assert after["accuracy"] > accuracy
    assert len(trainer.history) == 6


def test_two_fits_are_one_of_all_their_epochs(engine):
    whole, parts = (trainer_of(engine, 3) for _ in range(2))
    expected = fit(whole, num_epochs=5, shuffle="total")
    fit(parts, num_epochs=2, shuffle="total")
    assert_same_bits(fit(parts, num_epochs=3, shuffle="total"), expected)
    keys = ("round", "epoch", "loss")
    assert [[r[k] for k in keys] for r in parts.history] == [
        [r[k] for k in keys] for r in whole.history
    ]


def test_fits_at_the_same_time_share_an_engine(shared_local):
    def trainers(engine):
        rates = 0.01, 0.03, 0.1, 0.3
        return [trainer_of(engine, 1, optimizer={"optimizer": "sgd", "lr": lr}) for lr in rates]

    with ThreadPoolExecutor(2) as threads:
        together = list(threads.map(fit, trainers(shared_local)))
    for ours, alone in zip(together, trainers("serial"), strict=True):
        assert_same_bits(ours, fit(alone))


def test_evaluate_and_predict_agree_with_the_model(engine):
    trainer = built(engine, 3)
    fit(trainer, blocks=4)
    model = trainer.model().eval()
    with torch.no_grad():
        outputs = model(torch.from_numpy(X))
    targets = torch.from_numpy(Y)
    predicted = trainer.predict(BlockedTensor.from_array(X, (7, 1)))
    np.testing.assert_allclose(predicted, outputs, rtol=0, atol=output_error(model, X))
    measured = trainer.evaluate(*blocked(X, Y, 7), batch_size=4)
    loss = nn.functional.cross_entropy(outputs, targets).item()
    assert measured["loss"] == pytest.approx(loss, abs=loss_error(np.float32, len(X)))
    assert measured["accuracy"] == pytest.approx(
        (outputs.argmax(1) == targets).float().mean().item()
    )


def test_parameters_go_out_and_in(engine):
    trainer = built(engine)
    other = built(engine, seed=9)
    returned = fit(trainer)
    assert_same_bits(returned, trainer.get_parameters())
    returned["0.weight"][:] = 0
    assert trainer.get_parameters()["0.weight"].any()
    other.set_parameters(trainer.get_parameters())
    assert_same_bits(other.get_parameters(), trainer.get_parameters())
    assert other.evaluate(X, Y) == trainer.evaluate(X, Y)
    with pytest.raises(ValueError, match="are missing in the parameters"):
        other.set_parameters({})


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_validation_is_the_evaluation_after_each_round(engine, merge):
    x, y = classification(samples=20)
    trainer = built(engine)
    fit(trainer, merge=merge, validation_data=(x, y))
    assert all({"val_loss", "val_accuracy"} <= set(record) for record in trainer.history)
    last = trainer.evaluate(x, y)
    assert trainer.history[-1]["val_loss"] == pytest.approx(
        last["loss"], abs=loss_error(np.float32, 20)
    )
    assert len({record["val_loss"] for record in trainer.history}) == 3


def test_without_targets_a_batch_is_its_own(engine):
    trainer = trainer_of(engine, 2, net=lambda: mlp(6, 6), loss="mse", metric="mae")
    fit(trainer, data=(X,), num_epochs=20)
    assert trainer.history[-1]["loss"] < trainer.history[0]["loss"]
    with torch.no_grad():
        expected = nn.functional.mse_loss(trainer.model()(torch.from_numpy(X)), torch.from_numpy(X))
    assert trainer.evaluate(X)["loss"] == pytest.approx(
        expected.item(), abs=loss_error(np.float32, X.size)
    )


class Foreign:
    def __init__(self, array, rows):
        self.tensors = [[block] for block in np.array_split(array, rows)]


FORMS = {
    "torch": lambda folder, array: BlockedTensor.from_array(torch.from_numpy(array), (4, 1)),
    "mapped": lambda folder, array: BlockedTensor.from_array(mapped(folder, array), (4, 1)),
    "a grid, row by row": lambda folder, array: BlockedTensor.from_array(array, (2, 2)),
    "anything with a grid of tensors": lambda folder, array: Foreign(array, 4),
}


def mapped(folder, array):
    np.save(folder / f"{array.dtype}.npy", array)
    return np.load(folder / f"{array.dtype}.npy", mmap_mode="r")


@functools.cache
def of_arrays(shuffle):
    return fit(built(), data=blocked(*classification(), 4), shuffle=shuffle)


@pytest.mark.parametrize(("form", "shuffle"), each_value(list(FORMS), ["total", None]))
def test_other_forms_of_blocks_train_as_arrays_do(engine, tmp_path, form, shuffle):
    x, y = classification()
    expected = of_arrays(shuffle)
    blocks, targets = (FORMS[form](tmp_path, array) for array in (x, y))
    for _ in range(2):  # the second time, the blocks have been published before
        assert_same_bits(fit(built(engine), data=(blocks, targets), shuffle=shuffle), expected)
    if isinstance(blocks, BlockedTensor):
        np.testing.assert_array_equal(blocks.collect(), x)
        np.testing.assert_array_equal(targets.collect(), y)
        assert type(blocks.tensors[0][0]) is {"mapped": np.memmap, "torch": torch.Tensor}.get(
            form, np.ndarray
        )


def test_own_engines_start_when_needed_and_again_after_close(monkeypatch, forked_processes):
    monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "local")
    before = children()

    def processes():
        return [process for process in children() if process not in before and process.is_running()]

    with DistributedTrainer(1, seed=0) as trainer:
        trainer.build(mlp(), SGD, "cross_entropy")
        assert not processes()
        fit(trainer)
        assert processes()
        trainer.close()
        wait_until(lambda: not processes())
        assert set(trainer.evaluate(X, Y)) == {"loss"}
    wait_until(lambda: not processes())


def test_the_default_workers_are_those_that_run_together(monkeypatch):
    monkeypatch.setattr(
        nodes, "cpu_count", lambda only_physical_cores=False: 4 if only_physical_cores else 8
    )
    trainer = DistributedTrainer(engine="local")
    assert (trainer.num_workers, trainer.threads) == (4, 2)
    assert DistributedTrainer(engine="serial", threads=2).num_workers == 2
    assert DistributedTrainer(engine="serial", threads=9).num_workers == 1
    assert DistributedTrainer(engine=SerialEngine()).num_workers == 1
    assert EncapsulatedFunctionsDistributedPytorch().num_workers == 10
    with pytest.raises(ValueError, match="threads=0: give an integer"):
        DistributedTrainer(threads=0)
    with pytest.raises(
        ValueError, match=(f"num_workers={10**20}: give at most 100000, and no more than samples")
    ):
        DistributedTrainer(10**20, engine="serial")


def test_history_says_who_trained_what(engine):
    x, y = classification(samples=50)
    trainer = built(engine)
    fit(trainer, data=blocked(x, y, 5), shuffle=None)
    record = trainer.history[1]
    assert (record["round"], record["epoch"], record["samples"]) == (1, 2, 50)
    assert [(w["worker"], w["samples"]) for w in record["workers"]] == [(0, 30), (1, 20)]
    mean = sum(w["loss"] * w["samples"] for w in record["workers"]) / 50
    assert record["loss"] == pytest.approx(mean)
    assert record["seconds"] > 0
    assert record["samples_per_second"] == pytest.approx(50 / record["seconds"])
    json.dumps(trainer.history)


def test_callbacks_see_the_parameters_of_their_round(engine):
    seen = []

    class Looking(Callback):
        def on_round_end(self, trainer, record):
            evaluated = trainer.evaluate(X, Y)
            seen.append((trainer.get_parameters(), evaluated["loss"], trainer.predict(X)))

    fit(built(engine), Looking())
    for rounds, (parameters, loss, outputs) in enumerate(seen, 1):
        alone = built(engine)
        assert_same_bits(fit(alone, num_epochs=rounds), parameters)
        assert alone.evaluate(X, Y)["loss"] == loss
        np.testing.assert_array_equal(alone.predict(X), outputs)


@pytest.mark.parametrize("shuffle", [None, "total"])
def test_changes_in_place_do_not_reach_the_blocks(engine, shuffle):
    x, y = classification(samples=3000)
    results = []
    for every in (1, 0):
        trainer = built(engine, 1, net=mlp, transform=lambda batch: batch.mul_(0.5))
        data = blocked(x, y.astype(np.uint8), 2)
        options = {
            "num_epochs": 2,
            "batch_size": 500,
            "shuffle": shuffle,
            "shuffle_block_data": False,
        }
        results.append(fit(trainer, data=data, merge=Merge(every=every), **options))
        assert trainer.evaluate(*data) == trainer.evaluate(*data)
        np.testing.assert_array_equal(trainer.predict(data[0]), trainer.predict(data[0]))
        np.testing.assert_array_equal(data[0].collect(), x)
        assert (data[0].dtype, data[1].dtype) == (np.float32, np.uint8)
    assert_same_bits(*results)


def test_a_summary_says_what_is_trained():
    net = awkward_net()
    net[4].weight = nn.Parameter(net[4].weight.detach(), requires_grad=False)
    trainer = trainer_of(net=lambda: net)
    table = trainer.summary()
    kinds = {name: kind for name, *_, kind in table.rows}
    assert kinds["0.weight"] == kinds["1.bias"] == "trained"
    assert kinds["1.running_mean"] == kinds["1.num_batches_tracked"] == "buffer"
    assert kinds["4.weight"] == "frozen"
    assert str(table).splitlines()[-1] == (
        "192 parameters, 144 of them trained; 0.000904 MB in each worker's copy"
    )


def test_a_model_that_leaves_is_in_evaluation_mode_and_predicts_the_same():
    x, y = X, Y
    net = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.5), nn.Linear(16, 3))
    for given in (net.train(), net.eval()):
        trainer = trainer_of(net=lambda given=given: given)
        trainer.fit(x, y, num_epochs=2, batch_size=10, merge=Merge(averaging="ema"), progress=False)
        for averaged in (False, True):
            left = trainer.model(averaged=averaged)
            assert not any(module.training for module in left.modules())
            with torch.no_grad():
                outputs = left(torch.from_numpy(x)).numpy()
            predicted = trainer.predict(x, averaged=averaged)
            np.testing.assert_allclose(outputs, predicted, rtol=1e-5, atol=1e-6)
            loss = nn.functional.cross_entropy(torch.from_numpy(outputs), torch.from_numpy(y))
            evaluated = trainer.evaluate(x, y, averaged=averaged)["loss"]
            np.testing.assert_allclose(evaluated, loss, rtol=1e-5)
        assert net.training == given.training


def test_saves_hold_the_average_if_it_is_asked_for(tmp_path):
    x, y = X, Y
    trainer = trainer_of()
    trainer.fit(x, y, num_epochs=3, batch_size=10, merge=Merge(averaging="ema"), progress=False)
    trainer.save(tmp_path / "average.npz", averaged=True)
    with np.load(tmp_path / "average.npz") as saved:
        assert_same_bits(dict(saved), trainer.get_parameters(averaged=True))
