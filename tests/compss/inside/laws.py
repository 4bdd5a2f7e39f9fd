"""Laws that hold inside an application, on the real runtime."""

import itertools

import pytest

from compss_train import BufferSpec, DistributedTrainer, SerialEngine
from compss_train.engines import CompssEngine, engine_class
from tests.models import ADAM, MODES, assert_close, assert_same_bits, awkward_net, blocked, classification


def fitted(engine, workers, **options):
    x, y = classification(samples=57)
    trainer = DistributedTrainer(workers, engine=engine, seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy", "accuracy")
    parameters = trainer.fit(*blocked(x, y, 7), batch_size=4, **options)
    for record in trainer.history:
        assert sum(worker["samples"] for worker in record["workers"]) >= record["samples"]
    return parameters, [(record["loss"], record["accuracy"]) for record in trainer.history]


def test_auto_is_the_compss_engine_here():
    assert engine_class("auto") is CompssEngine


@pytest.mark.parametrize("shuffle", ["blocks", "total", None])
def test_the_bits_are_those_of_the_serial_engine_in_every_synchronous_mode(shuffle):
    for mode, rows in itertools.product(MODES, [True, False]):
        options = {"num_epochs": 3, "shuffle": shuffle, "shuffle_block_data": rows, **mode}
        ours, measured = fitted("auto", 3, **options)
        theirs, expected = fitted(SerialEngine(), 3, **options)
        assert_same_bits(ours, theirs)
        assert measured == expected


@pytest.mark.parametrize("buffer", [BufferSpec("FIFO", 16), BufferSpec("FIRO", 24, threshold=9)])
def test_so_they_are_where_samples_pass_through_a_queue(buffer):
    for shuffle, mode in itertools.product(["blocks", "total"], MODES[:3:2]):
        options = {"num_epochs": 2, "shuffle": shuffle, "buffer": buffer, **mode}
        assert_same_bits(fitted("auto", 3, **options)[0], fitted(SerialEngine(), 3, **options)[0])


@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_reservoirs_train_every_sample(merge):
    _, measured = fitted("auto", 2, num_epochs=2, merge=merge, buffer=BufferSpec("Reservoir", 16))
    assert len(measured) == 2


def test_one_merge_of_commutative_workers_is_the_average_of_synchronous_ones():
    options = {"num_epochs": 1, "shuffle": None}
    commutative, _ = fitted("auto", 3, merge="commutative", **options)
    assert_close(commutative, fitted("auto", 3, **options)[0])


def test_a_tree_of_averages_gives_the_bits_of_the_serial_engine():
    x, y = classification(samples=70)

    def parameters(engine):
        trainer = DistributedTrainer(20, engine=engine, seed=0, threads=1)
        trainer.build(awkward_net(), ADAM, "cross_entropy")
        return trainer.fit(*blocked(x, y, 20), num_epochs=2, batch_size=4)

    assert_same_bits(parameters("auto"), parameters(SerialEngine()))
