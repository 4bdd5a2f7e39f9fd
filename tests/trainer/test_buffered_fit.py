"""fit(buffer=...): the laws of the core hold where samples pass through a buffer."""

import functools
import threading

import numpy as np
import pytest
import torch

from compss_train import BufferSpec, Merge, SerialEngine
from tests.helpers.models import MODES, assert_same_bits, awkward_net, blocked, classification
from tests.helpers.plain_loop import OPTIMIZERS, plain_loop
from tests.helpers.small_fits import trainer_of

QUEUES = [BufferSpec("FIFO", 16), BufferSpec("FIRO", 24, threshold=9)]
RESERVOIRS = [BufferSpec("Reservoir", 16), BufferSpec("BatchReservoir", 16)]


def fitted(engine, workers, buffer, **options):
    x, y = classification(samples=57)
    trainer = trainer_of(engine, workers)
    parameters = trainer.fit(*blocked(x, y, 7), buffer=buffer, **{"num_epochs": 3, "batch_size": 4, **options})
    return parameters, trainer.history


@functools.cache
def reference(queue, mode, shuffle):
    """Return what the serial engine makes of a queue and a mode, by their numbers."""
    return fitted(SerialEngine(), 3, QUEUES[queue], shuffle=shuffle, **MODES[mode])


@pytest.mark.parametrize("queue", [0, 1], ids=["FIFO", "FIRO"])
@pytest.mark.parametrize("shuffle", ["blocks", "total", None])
def test_a_queue_gives_every_engine_the_same_bits(engine, queue, shuffle):
    for number, mode in enumerate(MODES):
        ours, history = fitted(engine, 3, QUEUES[queue], shuffle=shuffle, **mode)
        theirs, expected = reference(queue, number, shuffle)
        assert_same_bits(ours, theirs)
        assert [record["loss"] for record in history] == [record["loss"] for record in expected]
        trained = sum(worker["samples"] for record in history for worker in record["workers"])
        assert trained == 3 * 57


def test_a_fifo_on_one_worker_is_the_plain_loop(engine):
    x, y = classification(samples=60)
    trainer = trainer_of(engine, 1, seed=3)
    ours = trainer.fit(
        *blocked(x, y, 4),
        num_epochs=3,
        batch_size=7,
        shuffle=None,
        shuffle_block_data=False,
        buffer=BufferSpec("FIFO", 10),
    )
    # Nine batches of six and seven, whatever the blocks.
    assert_same_bits(ours, plain_loop(awkward_net(), OPTIMIZERS[1][1], x, y, 1, 9, 3, seed=3))


@pytest.mark.parametrize("buffer", QUEUES, ids=["FIFO", "FIRO"])
def test_how_often_it_merges_changes_nothing_for_one_worker(engine, buffer):
    each, seldom = (fitted(engine, 1, buffer, merge=Merge(every=every))[0] for every in (1, 0))
    assert_same_bits(each, seldom)


@pytest.mark.parametrize("buffer", RESERVOIRS, ids=lambda spec: spec.kind)
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_a_reservoir_trains_every_sample_at_least_once_an_epoch(engine, buffer, merge):
    _, history = fitted(engine, 2, buffer, merge=merge, num_epochs=2)
    for record in history:
        assert record["samples"] == 57
        assert sum(worker["samples"] for worker in record["workers"]) >= 57
        assert np.isfinite(record["loss"])


@pytest.mark.parametrize("merge_unit", ["epochs", "blocks", "batches"])
def test_passes_have_the_same_bits_on_every_engine(engine, merge_unit):
    buffer = BufferSpec("FIRO", 57, threshold=9, passes=3)
    unit = {"merge": Merge(every=1 if merge_unit == "epochs" else 4, unit=merge_unit)}
    ours, history = fitted(engine, 2, buffer, num_epochs=2, **unit)
    assert sum(worker["samples"] for record in history for worker in record["workers"]) == 2 * 3 * 57
    assert_same_bits(ours, fitted("serial", 2, buffer, num_epochs=2, **unit)[0])


@pytest.mark.parametrize("number", [1, 3])
def test_a_given_number_of_batches_is_that_of_blocks(number):
    counted = []

    class Counting(torch.optim.SGD):
        def step(self, closure=None):
            counted.append(1)
            return super().step(closure)

    x, y = classification(samples=57)
    trainer = trainer_of(workers=2, optimizer={"optimizer": Counting, "lr": 0.01})
    options = {"num_epochs": 2, "num_batches_per_worker": number}
    trainer.fit(*blocked(x, y, 7), buffer=BufferSpec("FIFO", 57), **options)
    assert len(counted) == 2 * 7 * number


def test_what_cannot_be_is_an_error_before_anything_starts():
    x, y = classification()
    trainer = trainer_of(workers=2)
    with pytest.raises(TypeError, match=r"buffer='FIRO': give a BufferSpec, such as"):
        trainer.fit(x, y, num_epochs=1, batch_size=4, buffer="FIRO")
    for options, batch in (({"batch_size": 25}, 25), ({"num_batches_per_worker": 1}, 30)):
        with pytest.raises(ValueError, match=f"a batch of {batch} samples cannot come from a FIRO of capacity 24"):
            trainer.fit(x, y, num_epochs=1, buffer=BufferSpec("FIRO", 24), **options)
    for merge_unit in ("epochs", "batches"):  # a block for each of two workers
        options = {
            "buffer": BufferSpec("FIRO", 14, passes=2),
            "merge": Merge(unit=merge_unit),
            "batch_size": 4,
        }
        with pytest.raises(ValueError, match=r"passes=2: .* up to 30, and has capacity=14; give capacity=30"):
            trainer.fit(x, y, num_epochs=1, **options)
    assert trainer.history == []


@pytest.mark.parametrize("kind", ["FIRO", "Reservoir"])
@pytest.mark.parametrize("merge", ["synchronous", "commutative"])
def test_an_exception_in_the_network_ends_the_reading(kind, merge):
    class Failing(torch.nn.Linear):
        calls = 0

        def forward(self, x):
            self.calls += 1
            if self.calls == 3:
                raise RuntimeError("this batch is not for me")
            return super().forward(x)

    x, y = classification(samples=57)
    trainer = trainer_of(workers=1, net=lambda: Failing(6, 3))
    with pytest.raises(RuntimeError, match="this batch is not for me"):
        trainer.fit(*blocked(x, y, 3), num_epochs=1, batch_size=4, merge=merge, buffer=BufferSpec(kind, 16))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith(("read-ahead", "fill"))]
