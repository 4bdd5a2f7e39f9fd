"""Batches, with a buffer and without: every sample once a pass, whenever workers merge."""

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import nn

from compss_train import BlockedTensor, BufferSpec, FileDataset, Merge, PartialShuffle, SerialEngine
from compss_train.callbacks import Checkpoint, WorkerCallback
from compss_train.worker import source
from tests.helpers.cases import each_value
from tests.helpers.models import MODES, assert_same_bits, awkward_net, blocked, mlp
from tests.helpers.plain_loop import OPTIMIZERS, plain_loop
from tests.helpers.small_fits import STILL, X, Y, combined, fit, trainer_of

BATCHES = {"merge": Merge(unit="batches")}
FIFO = BufferSpec("FIFO", 16)
FIRO = BufferSpec("FIRO", 24, threshold=9)
BUFFERS = [FIFO, FIRO, BufferSpec("FIRO", 57, threshold=9, passes=2)]
SEEN = []
STILLNESS = {"optimizer": "sgd", "lr": 1e-9}


class Noting(WorkerCallback):
    """Notes which samples are in the workers' batches: a sample is its number."""

    def on_batch_start(self, context):
        SEEN.append((context.worker, context.x[:, 0].int().tolist()))


def batches_of(x, workers=1, **options):
    """Return the batches of each worker of a fit, one after the other, and the trainer."""
    SEEN.clear()
    trainer = trainer_of(
        workers=workers, net=lambda: nn.Linear(1, 1), optimizer=STILLNESS, loss="mse", metric=None
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as that of more workers than blocks
        fit(trainer, Noting(), data=(x,), **options)
    batches = [[] for _ in range(workers)]
    for worker, batch in SEEN:
        batches[worker].append(batch)
    return batches, trainer


def numbers(samples, blocks):
    return BlockedTensor.from_array(
        np.arange(samples, dtype=np.float32)[:, None], (min(samples, blocks), 1)
    )


def flat(batches):
    return list(itertools.chain(*batches))


batchings = st.builds(lambda size: {"batch_size": size}, st.integers(1, 9)) | st.builds(
    lambda number: {"num_batches_per_worker": number}, st.integers(1, 3)
)
# Room for the largest batch, from one sample to sixty, and for all samples of several passes.
buffers = (
    st.none()
    | st.builds(BufferSpec, st.just("FIFO"), st.integers(60, 80))
    | st.builds(
        BufferSpec,
        st.just("FIRO"),
        st.integers(60, 80),
        st.integers(0, 30),
        passes=st.integers(1, 3),
    )
)
merges = st.builds(Merge, every=st.integers(0, 2)) | st.builds(
    Merge, every=st.integers(1, 9), unit=st.sampled_from(["blocks", "batches"])
)


@given(
    samples=st.integers(1, 60),
    blocks=st.integers(1, 6),
    workers=st.integers(1, 4),
    shuffle=st.sampled_from(["blocks", "total", None, PartialShuffle(11)]),
    rows_too=st.booleans(),
    batching=batchings,
    buffer=buffers,
    merge=merges,
    epochs=st.integers(1, 2),
)
def test_every_pass_has_every_sample_once(
    samples, blocks, workers, shuffle, rows_too, batching, buffer, merge, epochs
):
    x = numbers(samples, blocks)
    assume(batching.get("num_batches_per_worker", 1) <= min(x.sizes))
    assume(not isinstance(shuffle, PartialShuffle) or (rows_too and buffer is None))
    options = {"num_epochs": epochs, "shuffle": shuffle, "shuffle_block_data": rows_too, **batching}
    made, trainer = batches_of(x, workers, buffer=buffer, merge=merge, **options)
    passes = buffer.passes if buffer else 1
    every_sample = list(range(samples))
    assert sorted(flat(flat(made))) == sorted(every_sample * epochs * passes)
    # A record that has all of an epoch counts what was given.
    counted = passes if merge.unit == "batches" else 1
    assert sum(record["samples"] for record in trainer.history) == samples * epochs * counted
    emptied = buffer and merge.unit == "blocks"  # the buffer, with each round
    if workers == 1 and not emptied:
        for single in np.split(np.array(flat(made[0])), epochs * passes):
            assert sorted(single) == every_sample
            assert list(single) == every_sample or shuffle or rows_too or buffer
    for batches in made:
        sizes = {len(batch) for batch in batches}
        if "batch_size" in batching:
            assert all(1 <= size <= batching["batch_size"] for size in sizes)
        if buffer and epochs == 1 and not emptied:
            assert not sizes or max(sizes) - min(sizes) <= 1  # whatever the blocks
    if buffer and buffer.kind == "FIFO":
        without, _ = batches_of(x, workers, merge=merge, **options)
        assert list(map(flat, made)) == list(map(flat, without))
    # Whose pools end with the round.
    if merge.unit == "batches" and not isinstance(shuffle, PartialShuffle):
        rarely, _ = batches_of(x, workers, buffer=buffer, **options)
        assert made == rarely


@pytest.mark.parametrize("kind", ["FIRO", "Reservoir"])
def test_reads_of_any_size_give_the_same(kind, tmp_path, monkeypatch):
    x = numbers(60, 4)
    paths = [tmp_path / f"{number}.npy" for number in range(4)]
    for path, block in zip(paths, x.blocks(), strict=True):
        np.save(path, block)
    options = {"num_epochs": 1, "batch_size": 5, "buffer": BufferSpec(kind, 20)}
    (expected,), _ = batches_of(x, **options)
    for chunk in (1, 20, 2**22):
        monkeypatch.setattr(source, "_MEMORY_CHUNK", chunk)
        monkeypatch.setattr(source, "_FILE_CHUNK", chunk)
        in_torch = BlockedTensor([[torch.from_numpy(block)] for block in x.blocks()])
        for data in (x, in_torch, BlockedTensor.from_files(paths)):
            (made,), _ = batches_of(data, **options)
            assert made == expected if kind == "FIRO" else set(flat(made)) == set(range(60))


@pytest.mark.parametrize("merge", ["synchronous", "commutative", Merge(every=4, unit="batches")])
@pytest.mark.parametrize(
    "buffer", [BufferSpec("Reservoir", 16), BufferSpec("BatchReservoir", 16)], ids=str
)
def test_a_reservoir_trains_every_sample_at_least_once(engine, buffer, merge):
    trainer = trainer_of(engine, workers=2, net=mlp)
    fit(trainer, num_epochs=2, batch_size=4, buffer=buffer, merge=merge)
    assert sum(record["samples"] for record in trainer.history) == 2 * 57
    assert (
        sum(worker["samples"] for record in trainer.history for worker in record["workers"])
        >= 2 * 57
    )
    made, _ = batches_of(
        numbers(57, 7), workers=2, num_epochs=1, batch_size=4, buffer=buffer, merge=merge
    )
    assert set(flat(flat(made))) == set(range(57))


def test_a_queue_gives_every_engine_the_same_bits(engine):
    if isinstance(engine, SerialEngine):
        pytest.skip("the others are compared with the serial engine")
    for buffer, shuffle, mode in zip(BUFFERS, ("blocks", "total", None), MODES[1:], strict=True):
        ours = trainer_of(engine)
        theirs = trainer_of()
        for trainer in (ours, theirs):
            fit(trainer, batch_size=4, buffer=buffer, shuffle=shuffle, **mode)
        assert_same_bits(ours.get_parameters(), theirs.get_parameters())
        assert [record["loss"] for record in ours.history] == [
            record["loss"] for record in theirs.history
        ]


def test_a_fifo_on_one_worker_is_the_plain_loop(engine):
    trainer = trainer_of(engine, 1, seed=3)
    ours = fit(
        trainer,
        data=blocked(X[:54], Y[:54], 4),
        batch_size=7,
        buffer=BufferSpec("FIFO", 10),
        **STILL,
    )
    # Eight batches of six and seven, whatever the blocks.
    assert_same_bits(
        ours, plain_loop(awkward_net(), OPTIMIZERS[1][1], X[:54], Y[:54], 1, 8, 3, seed=3)
    )


@pytest.mark.parametrize(
    ("buffer", "shuffle"), each_value([None, *BUFFERS], ["blocks", "total"]), ids=str
)
def test_one_worker_learns_the_same_however_often_it_merges(shuffle, buffer):
    expected = fit(trainer_of(workers=1), shuffle=shuffle, buffer=buffer)
    for merge in (Merge(every=3, unit="batches"), Merge(every=0)):
        trainer = trainer_of(workers=1)
        assert_same_bits(fit(trainer, shuffle=shuffle, buffer=buffer, merge=merge), expected)
        assert [state.sample_buffer for state in trainer.snapshot().workers] == [None]


def test_other_workers_cannot_resume_inside_an_epoch_with_buffers(tmp_path):
    options = combined(BATCHES, buffer=FIRO, merge=Merge(every=5))
    trainer = trainer_of(workers=2)
    fit(trainer, Checkpoint(tmp_path, keep=99), **options)
    epochs = [record["epoch"] for record in trainer.history]
    inside, at_the_end = (tmp_path / f"round-{n:06}" for n in (0, epochs.index(2) - 1))
    with pytest.raises(
        ValueError, match=("by 2 workers, whose buffers hold samples of it, so 3 cannot resume")
    ):
        fit(trainer_of(workers=3), resume=inside, **options)
    with pytest.warns(UserWarning, match="num_workers was 2, and is 3"):
        fit(trainer_of(workers=3), resume=at_the_end, **options)


@pytest.mark.parametrize("buffer", [None, *BUFFERS], ids=str)
def test_files_that_are_skipped_leave_the_others(tmp_path, buffer):
    for number in range(5):
        np.savez(tmp_path / f"{number}.npz", x=X[number::5], y=Y[number::5])
    files = FileDataset(f"{tmp_path}/*.npz", on_bad_file="skip")
    (tmp_path / "3.npz").write_bytes(b"nothing")
    for every in (1, 2):
        trainer = trainer_of(workers=2, net=mlp)  # the last batch may be of one sample
        with pytest.warns(UserWarning, match="skipped"):
            fit(
                trainer,
                data=(files,),
                num_epochs=2,
                buffer=buffer,
                **combined(BATCHES, merge=Merge(every=every)),
            )
        trained = sum(record["samples"] for record in trainer.history)
        assert trained == sum(w["samples"] for r in trainer.history for w in r["workers"])
        assert trained == 2 * (57 - 11) * (buffer.passes if buffer else 1)


@pytest.mark.parametrize("merge", ["commutative", "parameter_server"])
@pytest.mark.parametrize("buffer", [None, FIRO], ids=str)
def test_workers_that_do_not_wait_train_every_sample_once(merge, buffer):
    trainer = trainer_of(workers=3)
    fit(trainer, buffer=buffer, num_epochs=2, **combined(BATCHES, merge=Merge(merge, every=2)))
    assert sum(record["samples"] for record in trainer.history) == 2 * len(X)


TWICE = BufferSpec("FIRO", 14, passes=2)
UNITS = ("epochs", "batches")


@pytest.mark.parametrize(
    ("options", "error", "name"),
    [
        ({"buffer": "FIRO", "batch_size": 4}, TypeError, "buffer='FIRO'"),
        ({"buffer": BufferSpec("FIRO", 24), "batch_size": 25}, ValueError, "capacity 24"),
        (
            {"buffer": BufferSpec("FIRO", 24), "num_batches_per_worker": 1},
            ValueError,
            ("capacity 24"),
        ),
        *(
            ({"buffer": TWICE, "merge": Merge(unit=unit), "batch_size": 4}, ValueError, "passes=2")
            for unit in UNITS
        ),
    ],
    ids=str,
)
def test_what_a_buffer_cannot_do_is_an_error(options, error, name, raises):
    trainer = trainer_of(workers=2)
    with raises(error, name):
        trainer.fit(X, Y, num_epochs=1, **options)
    assert trainer.history == []
