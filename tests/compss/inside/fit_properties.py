"""Properties of fits inside an application, on the real runtime."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from compss_train import (
    BadFileError,
    BufferSpec,
    DistributedTrainer,
    FileDataset,
    Merge,
    PartialShuffle,
    SerialEngine,
)
from compss_train.engines import CompssEngine, engine_class
from tests.helpers.models import ADAM, MODES, assert_close, assert_same_bits, awkward_net, blocked, classification
from tests.helpers.tolerances import largest, sum_error


def fitted(engine, workers, data=None, **options):
    x, y = classification(samples=57)
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy", "accuracy")
    parameters = trainer.fit(*(data or blocked(x, y, 7)), batch_size=4, **options)
    for record in trainer.history:
        trained = sum(worker["samples"] for worker in record["workers"])
        assert trained >= record["samples"] or "skipped" in record
    return parameters, [(record["loss"], record["accuracy"]) for record in trainer.history]


def test_auto_is_the_compss_engine_here():
    assert engine_class("auto") is CompssEngine


@pytest.mark.parametrize("shuffle", ["blocks", "total", None])
def test_every_synchronous_mode_has_the_bits_of_the_serial_engine(shuffle):
    for mode, rows in itertools.product(MODES, [True, False]):
        options = {"num_epochs": 3, "shuffle": shuffle, "shuffle_block_data": rows, **mode}
        ours, measured = fitted("auto", 3, **options)
        theirs, expected = fitted(SerialEngine(), 3, **options)
        assert_same_bits(ours, theirs)
        assert measured == expected


@pytest.mark.parametrize("buffer", [BufferSpec("FIFO", 16), BufferSpec("FIRO", 24, threshold=9)])
def test_queues_as_buffers_have_the_bits_of_the_serial_engine(buffer):
    for shuffle, mode in itertools.product(["blocks", "total"], MODES[:3:2]):
        options = {"num_epochs": 2, "shuffle": shuffle, "buffer": buffer, **mode}
        assert_same_bits(fitted("auto", 3, **options)[0], fitted(SerialEngine(), 3, **options)[0])


NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


@pytest.mark.parametrize(
    "options",
    [
        {"merge": "auto", "shuffle": "total"},
        {"merge": Merge(outer_optimizer=NESTEROV, optimizer_state="average", averaging="ema")},
        {
            "merge": Merge(
                every=lambda epoch: 1 + epoch,
                unit="batches",
                outer_optimizer=lambda parameters: torch.optim.Adam(parameters, lr=0.01),
                optimizer_state="average",
            ),
            "buffer": BufferSpec("FIRO", 24, threshold=9),
        },
        {"merge": Merge(every=2, unit="batches", outer_optimizer=NESTEROV, dtype="int8")},
    ],
    ids=["auto", "outer", "batches", "int8"],
)
def test_learning_as_one_has_the_bits_of_the_serial_engine(options):
    ours, measured = fitted("auto", 3, num_epochs=2, **options)
    theirs, expected = fitted(SerialEngine(), 3, num_epochs=2, **options)
    assert_same_bits(ours, theirs)
    assert measured == expected


@pytest.mark.parametrize("merge", ["commutative", "parameter_server"])
def test_one_workers_outer_optimizer_is_the_same_in_every_merge(merge):
    stepping = Merge(outer_optimizer={"optimizer": "sgd", "lr": 1.0})
    ours, _ = fitted("auto", 1, num_epochs=2, merge=replace(stepping, kind=merge))
    theirs, _ = fitted(SerialEngine(), 1, num_epochs=2, merge=stepping)
    assert_close(ours, theirs, sum_error(np.float32, 4, largest(theirs)))


@pytest.fixture
def folder(tmp_path):
    x, y = classification(samples=57)
    for number, rows in enumerate(np.array_split(np.arange(57), 7)):
        np.savez(tmp_path / f"{number}.npz", x=x[rows], y=y[rows])
    return tmp_path


def test_the_bits_are_those_of_the_serial_engine_with_files(folder, monkeypatch):
    monkeypatch.chdir(folder)
    files = FileDataset("*.npz")
    for mode in MODES:
        whole, mixed = (
            {"shuffle": "blocks", **mode},
            {**mode, "shuffle": PartialShuffle(9, pools=2)},
        )
        assert_same_bits(
            fitted("auto", 3, num_epochs=2, **whole)[0], fitted("auto", 3, (files,), num_epochs=2, **whole)[0]
        )
        ours, measured = fitted("auto", 3, (files,), num_epochs=2, **mixed)
        theirs, expected = fitted(SerialEngine(), 3, (files,), num_epochs=2, **mixed)
        assert_same_bits(ours, theirs)
        assert measured == expected


def test_corrupt_files_are_skipped_or_named(folder):
    files = {choice: FileDataset(f"{folder}/*.npz", on_bad_file=choice) for choice in ("skip", "raise")}
    content = bytearray((folder / "3.npz").read_bytes())
    content[300] ^= 255
    (folder / "3.npz").write_bytes(content)
    options = {"shuffle": PartialShuffle(57), "num_epochs": 1}
    with pytest.warns(UserWarning, match=r"skipped .*3\.npz is corrupt"):
        fitted("auto", 1, (files["skip"],), **options)
    with pytest.raises(BadFileError, match=r"3\.npz is corrupt"):
        fitted("auto", 2, (files["raise"],), **options)


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_reservoirs_train_every_sample(merge):
    _, measured = fitted("auto", 2, num_epochs=2, merge=merge, buffer=BufferSpec("Reservoir", 16))
    assert len(measured) == 2


def test_one_commutative_merge_is_the_average_of_synchronous_workers():
    options = {"num_epochs": 1, "shuffle": None}
    commutative, _ = fitted("auto", 3, merge="commutative", **options)
    assert_close(commutative, fitted("auto", 3, **options)[0], sum_error(np.float32, 2 * 3, largest(commutative)))


def test_one_worker_at_a_server_trains_as_a_plain_loop():
    for mode in MODES[::3]:
        served = replace(mode["merge"], kind="parameter_server")
        assert_same_bits(
            fitted("auto", 1, num_epochs=2, merge=served)[0], fitted("auto", 1, num_epochs=2, **mode)[0]
        )


def test_a_merge_at_a_server_averages_synchronous_workers():
    options = {"num_epochs": 1, "shuffle": None}
    served, _ = fitted("auto", 3, merge="parameter_server", **options)
    assert_close(served, fitted("auto", 3, **options)[0], sum_error(np.float32, 2 * 3, largest(served)))


def test_a_tree_of_averages_has_the_serial_engines_bits():
    x, y = classification(samples=70)

    def parameters(engine):
        trainer = DistributedTrainer(20, engine=engine, seed=0, threads=1)
        trainer.build(awkward_net(), ADAM, "cross_entropy")
        return trainer.fit(*blocked(x, y, 20), num_epochs=2, batch_size=4)

    assert_same_bits(parameters("auto"), parameters(SerialEngine()))
