"""Batches, most by way of a buffer: which samples, in what order, and what is held at each draw."""

import threading
from dataclasses import replace
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train.buffers import FIRO, BufferSpec
from compss_train.data import BlockedTensor
from compss_train.data.block_passes import Draws
from compss_train.data.order import Batching
from compss_train.data.partitioning import RoundPlan
from compss_train.training.data_source import DataSource
from compss_train.training.fit_options import FitOptions
from compss_train.worker import source
from compss_train.worker.batches import draw_in_step, placed_batches
from compss_train.worker.source import source_of
from compss_train.worker.work import Work
from tests.worker.assignments import DEALT

BATCHINGS = st.one_of(st.builds(Batching, size=st.integers(1, 9)), st.builds(Batching, number=st.integers(1, 3)))


def data(samples, blocks, as_arrays=False):
    x = np.arange(samples * 2, dtype=np.uint8).reshape(-1, 2)
    y = torch.arange(samples).to(torch.bfloat16)
    blocks = (min(samples, blocks), 1)
    return BlockedTensor.from_array(x if as_arrays else torch.from_numpy(x), blocks), BlockedTensor.from_array(
        y, blocks
    )


def works(x, workers, batching, spec, shuffle="blocks", shuffle_seed=4, epochs=1):
    starts = tuple(np.cumsum([0, *x.sizes[:-1]]).tolist())
    for round_ in RoundPlan(x.sizes, workers, epochs, 4, shuffle=shuffle, merge_every=epochs).rounds():
        for share in round_.assignments:
            numbers = tuple(range(len(x.sizes)))
            options = FitOptions(
                num_epochs=epochs,
                num_batches_per_worker=batching.number,
                batch_size=batching.size,
                shuffle_block_data=shuffle_seed is not None,
                buffer=spec,
            )
            yield Work(share, replace(options.reading(DataSource(x=x), 4), blocks=numbers, starts=starts))


def trained(work, x, y):
    made = []
    source = source_of(work, [*x.blocks(), *y.blocks()])
    for _, (batch_x, batch_y, weight, _) in placed_batches(work, source, "cpu"):
        assert (batch_x.dtype, batch_y.dtype, weight) == (torch.uint8, torch.bfloat16, None)
        assert torch.equal(batch_x[:, 0], (batch_y * 2).to(torch.uint8))
        made.append(batch_y.int().tolist())
    return made


@given(
    **DEALT,
    batching=BATCHINGS,
    kind=st.sampled_from([None, "FIFO", "FIRO"]),
    room=st.integers(0, 20),
    threshold=st.integers(0, 30),
    epochs=st.integers(1, 2),
    chunk=st.sampled_from([1, 7, 2**22]),
    as_arrays=st.booleans(),
)
def test_batches_hold_each_sample_once_an_epoch(
    samples, blocks, workers, shuffle, shuffle_seed, batching, kind, room, threshold, epochs, chunk, as_arrays
):
    x, y = data(samples, blocks, as_arrays)
    # Room for the largest batch, from one sample to sixty.
    spec = kind and BufferSpec(kind, 60 + room, **({"threshold": threshold} if kind == "FIRO" else {}))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "_MEMORY_CHUNK", chunk)
        everything = []
        for work in works(x, workers, batching, spec, shuffle, shuffle_seed, epochs):
            made = trained(work, x, y)
            if spec is not None:
                check_sizes(work, [len(batch) for batch in made])
            elif batching.size is not None:
                assert all(1 <= len(batch) <= batching.size for batch in made)
            everything += [sample for batch in made for sample in batch]
    in_order = list(range(samples)) * epochs
    assert sorted(everything) == sorted(in_order)
    if shuffle is shuffle_seed is None and workers == 1 and kind != "FIRO":
        assert everything == in_order


def check_sizes(work, sizes):
    for epoch in sorted({block_pass.epoch for block_pass in work.block_passes}):
        block_passes = [block_pass for block_pass in work.block_passes if block_pass.epoch == epoch]
        expected = sum(block_pass.size for block_pass in block_passes)
        number = next(n for n in range(len(sizes) + 1) if sum(sizes[:n]) == expected)
        own, sizes = sizes[:number], sizes[number:]
        assert max(own) - min(own) <= 1
        if work.reading.batching.size:
            assert max(own) <= work.reading.batching.size
            assert number == -(-expected // work.reading.batching.size)
        else:
            assert number == min(expected, work.reading.batching.number * len(block_passes))
    assert not sizes


@pytest.mark.parametrize("kind", ["Reservoir", "BatchReservoir"])
@pytest.mark.parametrize("shuffle", ["blocks", "total"])
def test_reservoirs_give_every_sample(kind, shuffle):
    x, y = data(60, 5)
    for work in works(x, 2, Batching(size=4), BufferSpec(kind, 12), shuffle):
        expected = {sample for batch in trained(without_buffer(work), x, y) for sample in batch}
        got = [sample for batch in trained(work, x, y) for sample in batch]
        assert set(got) == expected


def without_buffer(work):
    return work._replace(reading=replace(work.reading, buffer=None))


def test_a_fifo_only_moves_the_borders_of_batches():
    x, y = data(50, 4)
    (plain,) = works(x, 1, Batching(size=7), None)
    (queued,) = works(x, 1, Batching(size=7), BufferSpec("FIFO", 10))
    order = [sample for batch in trained(plain, x, y) for sample in batch]
    assert [sample for batch in trained(queued, x, y) for sample in batch] == order


@pytest.mark.parametrize("chunk", [1, 5, 2**22])
def test_draws_do_not_depend_on_the_size_of_reads(chunk, monkeypatch):
    x, y = data(60, 4)
    (work,) = works(x, 1, Batching(size=5), BufferSpec("FIRO", 20))
    expected = trained(work, x, y)
    monkeypatch.setattr(source, "_MEMORY_CHUNK", chunk)
    assert trained(work, x, y) == expected


@pytest.mark.parametrize("kind", ["FIRO", "Reservoir"])
def test_blocks_on_file_are_read_ahead_and_give_the_same(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(source, "_FILE_CHUNK", 40)
    threads, (x, y) = set(), data(60, 4, as_arrays=True)
    paths = [tmp_path / f"{number}.npy" for number in range(4)]
    for path, block in zip(paths, x.blocks(), strict=True):
        np.save(path, block)
    mapped = BlockedTensor.from_files(paths)
    taken = source._taken
    monkeypatch.setattr(
        source, "_taken", lambda *args: (threads.add(threading.current_thread().name), taken(*args))[1]
    )
    (work,) = works(x, 1, Batching(size=5), BufferSpec(kind, 20))
    ours = trained(work, mapped, y)
    assert threads == {"read-ahead-0"}
    if kind == "FIRO":
        assert ours == trained(work, x, y)
    else:
        assert {sample for batch in ours for sample in batch} == set(range(60))


def test_a_chunk_counts_the_bytes_of_x_and_y(monkeypatch):
    x = BlockedTensor.from_array(np.zeros((40, 1), np.uint8), (2, 1))
    y = BlockedTensor.from_array(np.zeros((40, 9), np.uint8), (2, 1))
    (work,) = works(x, 1, Batching(size=5), BufferSpec("FIFO", 20))
    monkeypatch.setattr(source, "_MEMORY_CHUNK", 50)
    with source_of(work, [*x.blocks(), *y.blocks()]).chunks(work.block_passes) as chunks:
        assert [len(rows) for rows, _ in chunks] == [5] * 8


def test_batches_of_a_firo_mix_blocks():
    x, y = data(60, 6)
    (plain,) = works(x, 1, Batching(size=10), None, shuffle=None)
    (mixed,) = works(x, 1, Batching(size=10), BufferSpec("FIRO", 40, 30), shuffle=None)

    def blocks_a_batch(work):
        return [len({sample // 10 for sample in batch}) for batch in trained(work, x, y)]

    assert blocks_a_batch(plain) == [1] * 6
    assert min(blocks_a_batch(mixed)) >= 3


def test_epochs_do_not_mix_and_differ():
    x, y = data(60, 4)
    (work,) = works(x, 1, Batching(size=10), BufferSpec("FIRO", 40), epochs=2)
    made = [sample for batch in trained(work, x, y) for sample in batch]
    assert sorted(made[:60]) == sorted(made[60:]) == list(range(60))
    assert made[:60] != made[60:]


@pytest.mark.parametrize("shuffle", ["blocks", "total"])
@pytest.mark.parametrize("batching", [Batching(size=7), Batching(number=2)])
def test_each_pass_has_all_samples_in_equal_batches(shuffle, batching):
    x, y = data(50, 5)
    once, thrice = (BufferSpec("FIRO", 30, 10, passes=passes) for passes in (1, 3))
    pairs = zip(*(works(x, 2, batching, spec, shuffle, epochs=2) for spec in (once, thrice)), strict=True)
    for plain, repeated in pairs:
        expected, made = trained(plain, x, y), trained(repeated, x, y)
        epoch = expected[: len(expected) // 2]
        assert [len(batch) for batch in made[: 3 * len(epoch)]] == 3 * [len(batch) for batch in epoch]
        passes = [made[start : start + len(epoch)] for start in range(0, 3 * len(epoch), len(epoch))]
        for batches_of_pass in passes:
            assert sorted(chain(*batches_of_pass)) == sorted(chain(*epoch))
        assert passes[0] != passes[1] != passes[2]


@given(
    size=st.integers(1, 6),
    number=st.integers(1, 20),
    threshold=st.integers(0, 15),
    more=st.integers(0, 12),
    chunk=st.integers(1, 30),
)
def test_draws_begin_at_the_threshold_and_the_buffer_fills(size, number, threshold, more, chunk):
    total, capacity = size * number, max(threshold, size) + more
    chunks = [(torch.arange(start, min(start + chunk, total)),) for start in range(0, total, chunk)]
    buffer = Spying(capacity, threshold, seed=0)
    sizes = (size,) * number
    puts = tuple(BufferSpec("FIRO", capacity, threshold).put_counts(sizes))
    draws = Draws(epoch=0, origin=0, total=total, largest=size, sizes=sizes, puts=puts)
    got = torch.cat([batch[0] for batch in draw_in_step(buffer, chunks, draws)])
    assert sorted(got.tolist()) == list(range(total))
    # At each draw one batch more is held than at the one before, as far as there is room and there are samples.
    first = max(threshold, size)
    assert buffer.held == [min(first + size * n, capacity, total - size * n) for n in range(number)]


class Spying(FIRO):
    """Remembers how many samples are held at each draw."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.held = []

    def get_batch(self, *arguments, **options):
        self.held.append(len(self))
        return super().get_batch(*arguments, **options)
