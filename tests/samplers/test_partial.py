"""The partial shuffle: order, files, memory, and use in torch."""

import threading
from collections import Counter
from itertools import chain
from math import ceil

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils.data import DataLoader

from compss_train.buffers.storage import ColumnStorage
from compss_train.data.files import FileDataset
from compss_train.samplers import PartialShuffleSampler
from tests.samplers.numbered_files import (
    EPOCHS,
    REPLICAS,
    CountingReader,
    arrays_of,
    assert_threads_end,
    epoch_of,
    expected_order,
    flat,
    names_of,
    sampler_of,
    samples,
    samples_of_rank,
    write_files,
)
from tests.samplers.sampler_cases import cases, some


@given(**cases, num_replicas=REPLICAS, epoch=EPOCHS)
@some
def test_all_ranks_together_return_every_sample_once_and_equally_many(
    sizes, options, file_buffer, num_replicas, epoch
):
    options |= {"num_replicas": num_replicas, "file_buffer": file_buffer}
    ranks = [sampler_of(sizes, rank=rank, **options) for rank in range(num_replicas)]
    given_batches = [epoch_of(rank, epoch) for rank in ranks]
    length = ceil(sum(sizes) / num_replicas)
    for rank, batches in zip(ranks, given_batches, strict=True):
        assert (rank.num_samples, rank.total_size) == (length, sum(sizes))
        assert len(rank) == rank.num_batches == len(batches) == ceil(length / options["batch_size"])
        assert {len(batch) for batch in batches[:-1]} <= {options["batch_size"]}
        assert len(flat(batches)) == len(set(flat(batches))) == length
    times = Counter(chain.from_iterable(map(flat, given_batches)))
    assert sorted(times) == list(range(sum(sizes)))
    assert times.total() - len(times) <= num_replicas - 1


@given(**cases, num_replicas=REPLICAS, epoch=EPOCHS, data=st.data())
@some
def test_the_order_is_that_of_samples_mixed_one_after_another(
    sizes, options, file_buffer, num_replicas, epoch, data
):
    rank = data.draw(st.integers(0, num_replicas - 1))
    sampler = sampler_of(sizes, num_replicas=num_replicas, rank=rank, file_buffer=file_buffer, **options)
    sampler.set_epoch(epoch)
    batches = list(sampler)
    order = flat(samples(batches))
    assert order == expected_order(sampler, sizes, epoch)
    whole = arrays_of(0, sum(sizes))
    for batch in batches:
        assert list(batch) == ["x", "y"]
        np.testing.assert_array_equal(batch["y"], whole["y"][batch["x"]], strict=True)


@given(**cases, epochs=st.lists(EPOCHS, min_size=1, max_size=4))
@some
def test_an_epoch_is_the_same_whatever_was_iterated_before(sizes, options, file_buffer, epochs):
    fresh = {epoch: epoch_of(sampler_of(sizes, file_buffer=3, **options), epoch) for epoch in epochs}
    sampler = sampler_of(sizes, file_buffer=file_buffer, **options)
    for epoch in epochs:
        assert epoch_of(sampler, epoch) == fresh[epoch]
        next(iter(sampler))  # one that is left
        assert samples(sampler) == fresh[epoch]


def test_two_iterations_at_a_time_do_not_disturb_each_other():
    sampler = sampler_of([5] * 6, batch_size=4, shuffle_buffer=7, pools=2)
    alone = samples(sampler)
    for ones, others in zip(*map(iter, (sampler, sampler)), strict=True):
        assert ones["x"].tolist() == others["x"].tolist() == alone.pop(0)
    assert not alone


def test_seeds_and_epochs_differ_and_so_do_ranks_with_the_same_row_range():
    orders = [epoch_of(sampler_of([20] * 5, seed=seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(str, orders))) == 4
    # The order within a partition depends on its origin.
    shuffled = [sampler_of([50, 50], num_replicas=2, rank=rank) for rank in (0, 1)]
    shuffles = [np.argsort(flat(epoch_of(sampler))).tolist() for sampler in shuffled]
    assert shuffles[0] != shuffles[1]


def test_files_come_in_another_order_every_epoch_and_all_orders_are_as_likely():
    sampler = sampler_of([1, 1, 1, 1], file_buffer=1, shuffle_buffer=1)
    counts = Counter(tuple(flat(epoch_of(sampler, epoch))) for epoch in range(720))
    assert len(counts) == 24
    assert chisquare(list(counts.values())).pvalue > 0.001


def test_by_default_a_pool_has_the_size_of_the_largest_file():
    for pools in (1, 2):
        assert sampler_of([3, 9, 4], pools=pools).pools.size == 9
    assert epoch_of(sampler_of([3, 9, 4])) == epoch_of(sampler_of([3, 9, 4], shuffle_buffer=9))


@given(**cases)
@some
def test_without_a_shuffle_samples_come_in_the_order_of_the_files(sizes, options, file_buffer):
    sampler = sampler_of(sizes, file_buffer=file_buffer, **{**options, "shuffle": False})
    assert flat(epoch_of(sampler)) == flat(epoch_of(sampler, 3)) == list(range(sum(sizes)))


def readers_of_ranks(sizes, num_replicas, epoch=0, **options):
    """Return the files that each rank read in an epoch."""
    for rank in range(num_replicas):
        reader = CountingReader()
        sampler = sampler_of(sizes, reader=reader, num_replicas=num_replicas, rank=rank, **options)
        epoch_of(sampler, epoch)
        yield sampler, reader


@given(**cases, num_replicas=REPLICAS, epoch=EPOCHS)
@example(sizes=[10], options={"shuffle": False}, file_buffer=1, num_replicas=3, epoch=0)  # both its ends
@some
def test_a_rank_opens_a_file_once_for_each_of_its_row_ranges(sizes, options, file_buffer, num_replicas, epoch):
    for sampler, reader in readers_of_ranks(sizes, num_replicas, epoch, file_buffer=file_buffer, **options):
        files = [part.file for part in samples_of_rank(sampler, sizes, epoch)[0]]
        assert Counter(reader.opened) == Counter(names_of(sizes)[file] for file in files)
        assert sampler.reads.files == len(reader.opened)


def test_one_file_at_a_time_is_read_without_a_thread_and_not_before_it_is_needed():
    reader = CountingReader()
    sampler = sampler_of([4] * 9, reader=reader, file_buffer=1, batch_size=2)
    assert [len(reader.opened) for _ in sampler] == [1 + batch // 2 for batch in range(18)]
    assert reader.threads == {threading.current_thread()}
    assert sampler.reads.most_held == 1
    assert sampler.reads.ahead == 0


def test_files_are_let_go_of_at_the_end_and_when_an_iteration_is_left():
    for file_buffer in (1, 3):
        reader = CountingReader()
        sampler = sampler_of([4] * 9, reader=reader, file_buffer=file_buffer)
        for _ in range(3):
            list(sampler)
            next(iter(sampler))
            assert_threads_end()
            assert not any(array() is not None for array in reader._arrays)


@given(**cases)
@some
def test_batches_stay_as_they_are_and_changing_one_changes_no_other(sizes, options, file_buffer):
    sampler = sampler_of(sizes, file_buffer=file_buffer, **options)
    batches = list(sampler)
    before = samples(batches)
    changed = []
    for batch in chain(sampler, sampler):
        changed.append(batch["x"].tolist())
        batch["x"][:] = -1
        batch["y"][:] = -1
    assert samples(batches) == before
    assert changed == before * 2


def test_the_memory_of_the_pools_serves_again_in_the_next_epoch(monkeypatch):
    made = []

    def storage(capacity, template):
        made.append(capacity)
        return ColumnStorage(capacity, template)

    monkeypatch.setattr("compss_train.samplers.mixing.ColumnStorage", storage)
    sampler = sampler_of([4] * 9, shuffle_buffer=6, pools=2)
    for epoch in range(3):
        epoch_of(sampler, epoch)
    assert made == [12]


def test_a_data_loader_returns_tensors(tmp_path):
    dataset = FileDataset(write_files(tmp_path, [5, 7, 3]))
    sampler = PartialShuffleSampler(dataset, batch_size=4, pools=2)
    loader = DataLoader(dataset, sampler=sampler, batch_size=None)
    assert len(loader) == 4
    for epoch in range(2):
        alone = PartialShuffleSampler(dataset, batch_size=4, pools=2)
        sampler.set_epoch(epoch)
        alone.set_epoch(epoch)
        for batch, arrays in zip(loader, alone, strict=True):
            assert all(isinstance(rows, torch.Tensor) for rows in batch.values())
            np.testing.assert_array_equal(batch["x"].numpy(), arrays["x"], strict=True)
            np.testing.assert_array_equal(batch["y"].numpy(), arrays["y"], strict=True)


def test_tensors_come_as_tensors_and_only_the_keys_that_were_asked_for(tmp_path):
    names = [str(tmp_path / f"{number}.pt") for number in range(3)]
    for number, name in enumerate(names):
        x = torch.arange(4) + 4 * number
        torch.save({"x": x, "z": x.bfloat16()[:, None], "other": x}, name)
    batches = list(PartialShuffleSampler(FileDataset(names, keys=["z", "x"]), batch_size=5))
    assert sorted(torch.cat([batch["x"] for batch in batches]).tolist()) == list(range(12))
    for batch in batches:
        assert list(batch) == ["z", "x"]
        assert torch.equal(batch["z"], batch["x"].bfloat16()[:, None])


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_in_a_process_group_it_has_the_rank_of_the_process(monkeypatch):
    sampler = sampler_of([5] * 4)
    assert (sampler.num_replicas, sampler.rank) == (1, 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    assert epoch_of(sampler_of([5] * 4)) == epoch_of(sampler_of([5] * 4, num_replicas=3, rank=2))
    assert sampler_of([5] * 4, rank=1).rank == 1
    assert sampler_of([5] * 4, num_replicas=5).rank == 2
    with pytest.raises(ValueError, match="rank=2, num_replicas=2"):
        sampler_of([5] * 4, num_replicas=2)
