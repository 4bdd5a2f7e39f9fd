"""The partial shuffle: order, files, memory, and use in torch."""

from collections import Counter
from itertools import chain
from math import ceil
from unittest import mock

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import assume, example, given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from compss_train.data.files import FileDataset
from compss_train.data.order import block_order
from compss_train.samplers import PartialShuffleSampler
from tests.samplers import numbered_files as numbered
from tests.samplers.numbered_files import cases


@given(**cases, num_replicas=numbered.REPLICAS, epoch=numbered.EPOCHS, drop_last=st.booleans())
@example([5], {"shuffle": False, "seed": 0, "batch_size": 2}, 1, 3, 0, True)
def test_all_ranks_together_return_every_sample_once_and_equally_many(
    sizes, options, file_buffer, num_replicas, epoch, drop_last
):
    """With ``drop_last``, all but a tail of the order of the files."""
    assume(not drop_last or sum(sizes) >= num_replicas)
    options |= {"num_replicas": num_replicas, "file_buffer": file_buffer, "drop_last": drop_last}
    ranks = [numbered.sampler_of(sizes, rank=rank, **options) for rank in range(num_replicas)]
    given_batches = [numbered.epoch_of(rank, epoch) for rank in ranks]
    length = sum(sizes) // num_replicas if drop_last else ceil(sum(sizes) / num_replicas)
    for rank, batches in zip(ranks, given_batches, strict=True):
        assert (rank.num_samples, rank.total_size) == (length, sum(sizes))
        assert len(rank) == rank.num_batches == len(batches) == ceil(length / options["batch_size"])
        assert {len(batch) for batch in batches[:-1]} <= {options["batch_size"]}
        assert len(numbered.flat(batches)) == len(set(numbered.flat(batches))) == length
    times = Counter(chain.from_iterable(map(numbered.flat, given_batches)))
    if drop_last:
        files = (
            block_order(options["seed"], epoch, len(sizes))
            if options["shuffle"]
            else range(len(sizes))
        )
        order = [*chain.from_iterable(range(*numbered.bounds_of(sizes)[file]) for file in files)]
        assert times == Counter(order[: length * num_replicas])
    else:
        assert sorted(times) == list(range(sum(sizes)))
        assert times.total() - len(times) <= num_replicas - 1


@given(**cases, num_replicas=numbered.REPLICAS, epoch=numbered.EPOCHS, data=st.data())
def test_the_order_is_that_of_samples_mixed_one_after_another(
    sizes, options, file_buffer, num_replicas, epoch, data
):
    rank = data.draw(st.integers(0, num_replicas - 1))
    sampler = numbered.sampler_of(
        sizes, num_replicas=num_replicas, rank=rank, file_buffer=file_buffer, **options
    )
    sampler.set_epoch(epoch)
    with mock.patch(
        "compss_train.samplers.mixing._REFILL", data.draw(st.sampled_from([1, 3, 1024]))
    ):
        batches = list(sampler)
    order = numbered.flat(numbered.samples(batches))
    assert order == numbered.expected_order(sampler, sizes, epoch)
    whole = numbered.arrays_of(0, sum(sizes))
    for batch in batches:
        assert list(batch) == ["x", "y"]
        np.testing.assert_array_equal(batch["y"], whole["y"][batch["x"]], strict=True)


@given(**cases, epochs=st.lists(numbered.EPOCHS, min_size=1, max_size=4))
def test_an_epoch_is_the_same_whatever_was_iterated_before(sizes, options, file_buffer, epochs):
    fresh = {
        epoch: numbered.epoch_of(numbered.sampler_of(sizes, file_buffer=3, **options), epoch)
        for epoch in epochs
    }
    sampler = numbered.sampler_of(sizes, file_buffer=file_buffer, **options)
    for epoch in epochs:
        assert numbered.epoch_of(sampler, epoch) == fresh[epoch]
        next(iter(sampler))  # one that is left
        assert numbered.samples(sampler) == fresh[epoch]


def readers_of_ranks(sizes, num_replicas, epoch=0, **options):
    """Return the files that each rank read in an epoch."""
    for rank in range(num_replicas):
        reader = numbered.CountingReader()
        sampler = numbered.sampler_of(
            sizes, reader=reader, num_replicas=num_replicas, rank=rank, **options
        )
        numbered.epoch_of(sampler, epoch)
        yield sampler, reader


@given(**cases, num_replicas=numbered.REPLICAS, epoch=numbered.EPOCHS)
# Both its ends.
@example(sizes=[10], options={"shuffle": False}, file_buffer=1, num_replicas=3, epoch=0)
def test_a_rank_opens_a_file_once_a_row_range(sizes, options, file_buffer, num_replicas, epoch):
    for sampler, reader in readers_of_ranks(
        sizes, num_replicas, epoch, file_buffer=file_buffer, **options
    ):
        files = [part.file for part in numbered.samples_of_rank(sampler, sizes, epoch)[0]]
        assert Counter(reader.opened) == Counter(numbered.names_of(sizes)[file] for file in files)
        assert sampler.reads.files == len(reader.opened)


@given(**cases)
def test_changing_a_batch_changes_no_other(sizes, options, file_buffer):
    sampler = numbered.sampler_of(sizes, file_buffer=file_buffer, **options)
    batches = list(sampler)
    before = numbered.samples(batches)
    changed = []
    for batch in chain(sampler, sampler):
        changed.append(batch["x"].tolist())
        batch["x"][:] = -1
        batch["y"][:] = -1
    assert numbered.samples(batches) == before
    assert changed == before * 2


def test_a_data_loader_returns_tensors(tmp_path):
    dataset = FileDataset(numbered.write_files(tmp_path, [5, 7, 3]))
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


def columns_of(start, stop):
    x = torch.arange(start, stop)
    return {
        "x": x,
        "image": x.double()[:, None, None].expand(-1, 2, 3),
        "flag": (x % 2 == 0).numpy(),
        "complex": (x + 1j * x).to(torch.complex64),
        "half": x.bfloat16(),
        "nothing": np.empty((stop - start, 0), np.float32),
        "backwards": np.arange(stop - 1, start - 1, -1)[::-1],
        "by columns": np.asfortranarray(x.numpy()[:, None] * np.ones((1, 3))),
    }


def test_dtypes_shapes_and_layouts_come_back_as_they_were():
    def reader(filename, get_data=False):
        start, stop = map(int, filename.removeprefix("numbers://").split("-"))
        return (columns_of(start, stop), stop - start) if get_data else stop - start

    dataset = FileDataset(numbered.names_of([5, 9, 2, 6]), reader)
    whole = columns_of(0, 22)
    for size in (3, 7, 50):  # parts of pools, and several joined
        for batch in PartialShuffleSampler(dataset, shuffle_buffer=6, pools=2, batch_size=size):
            assert list(batch) == list(whole)
            for key, column in whole.items():
                expected = column[batch["x"].numpy()]
                assert type(batch[key]) is type(expected)
                torch.testing.assert_close(
                    *map(torch.as_tensor, (batch[key], expected)), rtol=0, atol=0
                )


@pytest.fixture
def process_group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("process_group")
def test_it_has_the_rank_of_the_process_group(monkeypatch):
    sampler = numbered.sampler_of([5] * 4)
    assert (sampler.num_replicas, sampler.rank) == (1, 0)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    monkeypatch.setattr(dist, "get_rank", lambda: 2)
    assert numbered.epoch_of(numbered.sampler_of([5] * 4)) == numbered.epoch_of(
        numbered.sampler_of([5] * 4, num_replicas=3, rank=2)
    )
    assert numbered.sampler_of([5] * 4, rank=1).rank == 1
    assert numbered.sampler_of([5] * 4, num_replicas=5).rank == 2
    with pytest.raises(ValueError, match="rank=2, num_replicas=2"):
        numbered.sampler_of([5] * 4, num_replicas=2)
