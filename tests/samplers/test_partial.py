"""``PartialShuffleSampler``: every sample once, in an order that can be gone on with anywhere, in little memory."""

import copy
import gc
import json
import pickle
import threading
from collections import Counter
from contextlib import suppress
from itertools import chain
from math import ceil

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch.utils.data import DataLoader

from compss_train.buffers.storage import ColumnStorage
from compss_train.data.files import FileDataset
from compss_train.data.readers import NpzReader
from compss_train.exceptions import BadFileError
from compss_train.samplers import PartialShuffleSampler
from tests.samplers.files import (
    EPOCHS,
    OPTIONS,
    REPLICAS,
    SIZES,
    CountingReader,
    arrays_of,
    assert_threads_end,
    epoch_of,
    expected_order,
    flat,
    names_of,
    reading_threads,
    sampler_of,
    samples,
    share_of,
    write_files,
)

BUFFERS = st.sampled_from([1, 1, 2, 4])
cases = {"sizes": SIZES, "options": OPTIONS, "file_buffer": BUFFERS}
some = settings(max_examples=25, deadline=None)


@given(**cases, num_replicas=REPLICAS, epoch=EPOCHS)
@some
def test_all_ranks_together_give_every_sample_once_and_equally_many(
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


def test_seeds_and_epochs_differ_and_so_do_ranks_with_the_same_stretch():
    orders = [epoch_of(sampler_of([20] * 5, seed=seed), epoch) for seed in (0, 1) for epoch in (0, 1)]
    assert len(set(map(str, orders))) == 4
    # The order within a share is each place's own.
    shuffled = [sampler_of([50, 50], num_replicas=2, rank=rank) for rank in (0, 1)]
    shuffles = [np.argsort(flat(epoch_of(sampler))).tolist() for sampler in shuffled]
    assert shuffles[0] != shuffles[1]


def test_files_come_in_another_order_every_epoch_and_all_orders_are_as_likely():
    sampler = sampler_of([1, 1, 1, 1], file_buffer=1, shuffle_buffer=1)
    counts = Counter(tuple(flat(epoch_of(sampler, epoch))) for epoch in range(720))
    assert len(counts) == 24
    assert chisquare(list(counts.values())).pvalue > 0.001


@pytest.mark.parametrize("pools", [1, 2])
def test_a_pool_for_all_is_a_uniform_permutation(pools):
    sampler = sampler_of([3, 1], shuffle_buffer=4, pools=pools, file_buffer=1)
    counts = Counter(tuple(flat(epoch_of(sampler, epoch))) for epoch in range(720))
    assert len(counts) == 24
    assert chisquare(list(counts.values())).pvalue > 0.001


def test_two_pools_carry_samples_further_than_one_and_a_pool_for_all_furthest():
    sizes = [50] * 40

    def distance(**options):
        sampler = sampler_of(sizes, **options)
        place = {sample: number for number, sample in enumerate(share_of(sampler, sizes, 0)[1])}
        return np.mean([abs(place[sample] - number) for number, sample in enumerate(flat(epoch_of(sampler)))])

    one, two, full = distance(), distance(pools=2), distance(shuffle_buffer=2000)
    assert one == pytest.approx(50 / 3, rel=0.1)
    assert 2 * one < two < full
    assert full == pytest.approx(2000 / 3, rel=0.1)


def test_by_default_a_pool_has_the_size_of_the_largest_file():
    for pools in (1, 2):
        assert sampler_of([3, 9, 4], pools=pools).pools.size == 9
    assert epoch_of(sampler_of([3, 9, 4])) == epoch_of(sampler_of([3, 9, 4], shuffle_buffer=9))


@given(**cases)
@some
def test_without_a_shuffle_samples_come_in_the_order_of_the_files(sizes, options, file_buffer):
    sampler = sampler_of(sizes, file_buffer=file_buffer, **{**options, "shuffle": False})
    assert flat(epoch_of(sampler)) == flat(epoch_of(sampler, 3)) == list(range(sum(sizes)))


# Going on after an interruption


@given(**cases, num_replicas=st.integers(1, 3), epoch=EPOCHS)
@some
def test_it_goes_on_after_any_step_with_exactly_the_batches_that_remain(
    sizes, options, file_buffer, num_replicas, epoch
):
    options |= {"num_replicas": num_replicas, "rank": num_replicas - 1, "file_buffer": file_buffer}
    sampler = sampler_of(sizes, **options)
    whole, next_one = epoch_of(sampler, epoch), epoch_of(sampler, epoch + 1)
    sampler.set_epoch(epoch)
    iteration = iter(sampler)
    for step in range(len(whole) + 1):
        state = json.loads(json.dumps(sampler.state_dict()))
        resumed = sampler_of(sizes, **options)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert (resumed.epoch, samples(resumed)) == (epoch, whole[step:])
        assert resumed.state_dict() == {**state, "step": len(whole)}
        assert samples(resumed) == whole
        assert epoch_of(resumed, epoch + 1) == next_one
        found = sampler_of(sizes, **options)
        found.set_epoch(epoch)
        found.find_ckpt_position(step)
        assert found.state_dict() == state
        assert samples(found) == whole[step:]
        next(iteration, None)


def test_what_goes_on_reads_each_file_at_most_once_and_none_that_are_done():
    sizes = [4] * 12
    names = names_of(sizes)
    sampler = sampler_of(sizes, batch_size=4, shuffle_buffer=6, pools=2)
    whole = epoch_of(sampler)
    for step in range(len(whole) + 1):
        reader = CountingReader()
        resumed = sampler_of(sizes, reader=reader, batch_size=4, shuffle_buffer=6, pools=2, file_buffer=1)
        resumed.find_ckpt_position(step)
        assert samples(resumed) == whole[step:]
        wanted = {names[sample // 4] for sample in flat(whole[step:])}
        assert Counter(reader.opened) == Counter(wanted)


def test_an_iteration_that_is_left_says_where_it_was_and_the_next_one_is_whole():
    sampler = sampler_of([4] * 5, batch_size=3)
    whole = epoch_of(sampler)
    sampler.set_epoch(1)
    sampler.set_epoch(0)
    for _, _ in zip(range(3), sampler, strict=False):
        pass
    assert sampler.state_dict()["step"] in (3, 4)  # zip takes one more
    assert samples(sampler) == whole


def test_the_same_epoch_again_keeps_the_position_and_another_one_begins_anew():
    sampler = sampler_of([4] * 5, batch_size=3)
    whole, other = epoch_of(sampler), epoch_of(sampler, 1)
    sampler.set_epoch(0)
    sampler.find_ckpt_position(2)
    sampler.set_epoch(0)
    assert sampler.state_dict()["step"] == 2
    assert samples(sampler) == whole[2:]
    sampler.find_ckpt_position(2)
    sampler.set_epoch(1)
    assert sampler.state_dict()["step"] == 0
    assert samples(sampler) == other


OTHERS = [
    {"seed": 1},
    {"batch_size": 4},
    {"shuffle": False},
    {"shuffle_buffer": 6},
    {"pools": 2},
    {"rank": 1},
    {"num_replicas": 3},
    {"sizes": [4, 4, 5, 7]},
    {"sizes": [4, 5, 4]},
    {"order": [1, 0, 2, 3]},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_the_state_of_a_sampler_with_another_order_is_an_error(other, tmp_path):
    def made(sizes=(4, 5, 4, 7), order=(), **options):
        names = write_files(tmp_path, sizes)
        names = [names[number] for number in order] or names
        options = {"num_replicas": 2, "rank": 0, "batch_size": 3, "shuffle_buffer": 5, **options}
        return PartialShuffleSampler(FileDataset(names), **options)

    state = made().state_dict()
    made(file_buffer=1, debug=True).load_state_dict(state)  # these are of no consequence
    with pytest.raises(ValueError, match="the state is of a sampler with another order"):
        made(**other).load_state_dict(state)


def test_files_may_have_moved_to_another_folder(tmp_path):
    for folder in ("here", "there"):
        (tmp_path / folder).mkdir()
    here, there = (FileDataset(write_files(tmp_path / folder, [3, 4])) for folder in ("here", "there"))
    state = PartialShuffleSampler(here).state_dict()
    PartialShuffleSampler(there).load_state_dict({**state, "step": 6})


@pytest.mark.parametrize(
    "wrong", [{"epoch": -1}, {"step": -1}, {"step": 8}, {"step": 1.0}, {"epoch": "1"}], ids=str
)
def test_a_state_that_is_out_of_range_is_an_error_and_changes_nothing(wrong):
    sampler = sampler_of([4] * 5, batch_size=3)
    state = sampler.state_dict()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        sampler.load_state_dict({**state, "epoch": 2, "step": 1, **wrong})
    assert sampler.state_dict() == state


@pytest.mark.parametrize("kind", [int, np.int64])
def test_states_are_plain_whatever_kind_of_integers_there_were(kind):
    names = {name: kind(4) for name in names_of([4] * 5)}
    numbers = {"shuffle_buffer": 4, "batch_size": 3, "pools": 2, "seed": 5, "num_replicas": 2, "rank": 1}
    dataset = FileDataset(list(names), CountingReader(), names)
    sampler = PartialShuffleSampler(dataset, **{name: kind(number) for name, number in numbers.items()})
    sampler.set_epoch(kind(3))
    sampler.find_ckpt_position(kind(2))
    state = json.loads(json.dumps(sampler.state_dict()))
    plain = sampler_of([4] * 5, **numbers)
    plain.load_state_dict(state)
    assert samples(plain) == samples(sampler)


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda sampler: pickle.loads(pickle.dumps(sampler))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@given(**cases, epoch=EPOCHS, step=st.integers(0, 3))
@settings(max_examples=15, deadline=None)
def test_a_copy_of_a_sampler_gives_the_same_batches_from_where_it_was(
    sizes, options, file_buffer, epoch, step, copied
):
    whole = epoch_of(sampler_of(sizes, **options), epoch)
    sampler = sampler_of(sizes, file_buffer=file_buffer, **options)
    sampler.set_epoch(epoch)
    sampler.find_ckpt_position(min(step, len(whole)))
    other = copied(sampler)
    assert other.state_dict() == sampler.state_dict()
    assert samples(other) == whole[step:]
    assert samples(other) == whole
    assert sampler.state_dict()["step"] == min(step, len(whole))  # they go on each for itself
    assert samples(sampler) == whole[step:]


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@pytest.mark.parametrize("pools", [1, 2])
def test_so_does_one_of_a_sampler_that_has_been_iterated(copied, pools):
    sampler = sampler_of([4, 5, 6], batch_size=3, shuffle_buffer=4, pools=pools)
    whole = epoch_of(sampler)
    assert samples(copied(sampler)) == whole
    next(iteration := iter(sampler))
    assert samples(copied(sampler)) == whole
    assert samples(iteration) == whole[1:]


# Files and memory


def readers_of_ranks(sizes, num_replicas, epoch=0, **options):
    """Return what each rank read in an epoch."""
    for rank in range(num_replicas):
        reader = CountingReader()
        sampler = sampler_of(sizes, reader=reader, num_replicas=num_replicas, rank=rank, **options)
        epoch_of(sampler, epoch)
        yield sampler, reader


@given(**cases, num_replicas=REPLICAS, epoch=EPOCHS)
@example(sizes=[10], options={"shuffle": False}, file_buffer=1, num_replicas=3, epoch=0)  # both its ends
@some
def test_a_rank_opens_each_file_of_its_share_once_an_epoch(sizes, options, file_buffer, num_replicas, epoch):
    for sampler, reader in readers_of_ranks(sizes, num_replicas, epoch, file_buffer=file_buffer, **options):
        files = {part.file for part in share_of(sampler, sizes, epoch)[0]}
        assert Counter(reader.opened) == Counter({names_of(sizes)[file] for file in files})
        assert sampler.reads.files == len(reader.opened)


@given(**cases, num_replicas=st.integers(1, 3))
@some
def test_the_arrays_of_no_more_files_than_the_buffer_says_are_in_memory(sizes, options, file_buffer, num_replicas):
    for _, reader in readers_of_ranks(sizes, num_replicas, file_buffer=file_buffer, **options):
        assert 1 <= reader.most_alive <= file_buffer


@given(**cases, epochs=st.integers(1, 3))
@example(sizes=[1, 1], options={}, file_buffer=1, epochs=2)
@some
def test_no_more_files_count_as_held_than_the_buffer_says_in_any_epoch(sizes, options, file_buffer, epochs):
    sampler = sampler_of(sizes, file_buffer=file_buffer, **options)
    for epoch in range(epochs):
        epoch_of(sampler, epoch)
        next(iter(sampler))
    assert 1 <= sampler.reads.most_held <= file_buffer


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

    monkeypatch.setattr("compss_train.samplers.slots.ColumnStorage", storage)
    sampler = sampler_of([4] * 9, shuffle_buffer=6, pools=2)
    for epoch in range(3):
        epoch_of(sampler, epoch)
    assert made == [12]


# In torch


def test_a_data_loader_gives_tensors(tmp_path):
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


def test_without_a_process_group_there_is_one_rank():
    sampler = sampler_of([5] * 4)
    assert (sampler.num_replicas, sampler.rank) == (1, 0)


# What it is given


class Listing:
    """Somebody else's dataset."""

    def __init__(self, files):
        self.files = files
        self.resets = 0

    def reset(self):
        self.resets += 1


def test_any_dataset_that_lists_files_does_and_is_reset_every_epoch(tmp_path):
    listing = Listing(tuple(write_files(tmp_path, [5, 7, 3])))
    sampler = PartialShuffleSampler(listing, batch_size=4, shuffle_buffer=6)
    expected = PartialShuffleSampler(FileDataset(listing.files), batch_size=4, shuffle_buffer=6)
    assert listing.resets == 0
    for epoch in range(3):
        assert epoch_of(sampler, epoch) == epoch_of(expected, epoch)
        assert listing.resets == epoch + 1
    del Listing.reset  # which is no duty
    assert epoch_of(sampler) == epoch_of(expected)


def test_a_dataset_with_a_reader_or_lengths_of_its_own_is_as_one_given_them():
    names, lengths = names_of([5, 7, 3]), dict(zip(names_of([5, 7, 3]), [5, 7, 3], strict=True))
    expected = epoch_of(sampler_of([5, 7, 3], batch_size=4))
    broken, reader = CountingReader(names), CountingReader()
    dataset = FileDataset(names, broken, keys=["x"])
    for options in ({"reader": reader}, {"reader": reader, "files_len": lengths}):
        batches = list(PartialShuffleSampler(dataset, batch_size=4, **options))
        assert samples(batches) == expected
        assert list(batches[0]) == ["x"]
        foreign = PartialShuffleSampler(Listing(names), batch_size=4, **options)
        assert samples(foreign) == expected
    sampler = PartialShuffleSampler(FileDataset(names, reader), batch_size=4, files_len=lengths)
    assert samples(sampler) == expected


@pytest.mark.parametrize("built_in", [False, True])
def test_a_dataset_with_its_own_reader_is_not_counted_again(tmp_path, built_in):
    counted, reader = [], NpzReader()

    def own(filename, get_data=False):
        if not get_data:
            counted.append(filename)
        return NpzReader()(filename, get_data)

    dataset = FileDataset(write_files(tmp_path, [5, 7, 3]), reader if built_in else own)
    expected = epoch_of(PartialShuffleSampler(dataset, batch_size=4))
    counted.clear()
    again = PartialShuffleSampler(dataset, reader if built_in else own, batch_size=4)
    assert again._files is dataset
    assert epoch_of(again) == expected
    assert counted == []


def test_nor_is_one_with_a_method_for_a_reader():
    class Store:
        asked = 0

        def read(self, filename, get_data=False):
            self.asked += not get_data
            return CountingReader()(filename, get_data)

    store = Store()
    dataset = FileDataset(names_of([5, 7, 3]), store.read)
    PartialShuffleSampler(dataset, store.read)
    assert store.asked == 3


@pytest.mark.parametrize(
    "options",
    [{}, {"files_len": {"part-000.npz": 3}}, {"reader": NpzReader()}],
    ids=lambda options: next(iter(options), "alone"),
)
def test_a_dataset_of_relative_names_is_read_where_it_was_made_whatever_else_is_given(
    tmp_path, monkeypatch, options
):
    for folder, sizes in {"here": [3], "there": [3, 3]}.items():
        (tmp_path / folder).mkdir()
        write_files(tmp_path / folder, sizes)
    (tmp_path / "there" / "part-001.npz").rename(tmp_path / "there" / "part-000.npz")
    monkeypatch.chdir(tmp_path / "here")
    dataset = FileDataset("part-*.npz")
    monkeypatch.chdir(tmp_path / "there")
    assert sorted(flat(samples(PartialShuffleSampler(dataset, **options)))) == [0, 1, 2]


def test_lengths_that_are_given_save_opening_files_and_wrong_ones_are_found():
    names, counted = names_of([5, 7, 3]), []

    def reader(filename, get_data=False):
        if not get_data:
            counted.append(filename)
        return CountingReader()(filename, get_data)

    lengths = {names[0]: 5, names[1]: 7, names[2]: 3}
    assert PartialShuffleSampler(Listing(names), reader, files_len=lengths).num_samples == 15
    assert len(counted) <= 1
    for wrong in ({**lengths, names[2]: 4}, {**lengths, names[0]: 4}):
        with pytest.raises(BadFileError, match=r"has \d samples"):
            list(PartialShuffleSampler(Listing(names), reader, files_len=wrong))
    with pytest.raises(ValueError, match="files_len has no number of samples"):
        PartialShuffleSampler(Listing(names), reader, files_len={names[0]: 5})


def test_a_total_that_is_right_is_of_no_consequence_and_a_wrong_one_is_an_error():
    assert epoch_of(sampler_of([4, 5], total_size=9)) == epoch_of(sampler_of([4, 5]))
    for wrong in (8, 10, 0):
        with pytest.raises(ValueError, match=f"total_size={wrong}, but the 2 files hold 9 samples"):
            sampler_of([4, 5], total_size=wrong)


def test_a_total_counts_skipped_files_too_so_that_it_cannot_be_checked(tmp_path):
    names = write_files(tmp_path, [4, 5])
    (tmp_path / "part-000.npz").write_bytes(b"")
    with pytest.warns(UserWarning, match=r"part-000\.npz is empty"):
        dataset = FileDataset(names, on_bad_file="skip")
    sampler = PartialShuffleSampler(dataset, total_size=9)
    assert sampler.num_samples == 5
    assert list(sampler.skipped) == [names[0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"file_buffer": 0}, "file_buffer=0"),
        ({"pools": 3}, "pools=3: choose 1 or 2"),
        ({"pools": 0}, "pools=0"),
        ({"shuffle_buffer": 0}, "shuffle_buffer=0"),
        ({"shuffle_buffer": -1, "shuffle": False}, "shuffle_buffer=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"shuffle": 2}, "shuffle=2"),
        ({"num_replicas": 0}, "num_replicas=0"),
        ({"rank": 1}, "rank=1, num_replicas=1: give a rank from 0 to 0"),
        ({"num_replicas": 3, "rank": 3}, "rank=3, num_replicas=3: give a rank from 0 to 2"),
        ({"num_replicas": 3, "rank": -1}, "rank=-1"),
    ],
    ids=str,
)
def test_wrong_numbers_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        sampler_of([4, 5], **options)


def test_wrong_epochs_and_steps_are_errors_and_change_nothing():
    sampler = sampler_of([4, 5], batch_size=2)
    sampler.find_ckpt_position(5)
    for wrong in (-1, 6, 1.0, True):
        with pytest.raises(ValueError, match=f"step={wrong}"):
            sampler.find_ckpt_position(wrong)
    for wrong in (-1, 1.0, None):
        with pytest.raises(ValueError, match=f"epoch={wrong}"):
            sampler.set_epoch(wrong)
    assert (sampler.epoch, sampler.state_dict()["step"], list(sampler)) == (0, 5, [])


def test_what_lists_no_files_is_an_error_that_says_what_to_give():
    with pytest.raises(TypeError, match=r"a list lists no files in \.files; give FileDataset\(files\)"):
        PartialShuffleSampler([1, 2])


# Files that differ

ODD = ["dtype", "shape", "arrays"]


def with_odd_file(odd, how):
    """Return a reader of files of which one is not like the others, and the list of what it reads."""
    plain, read = CountingReader(), []

    def reader(filename, get_data=False):
        if not get_data:
            return plain(filename)
        read.append(filename)
        arrays, number = plain(filename, True)
        if filename == odd:
            x = arrays["x"]
            arrays["x"] = {"dtype": x.astype(np.float32), "shape": x[:, None], "arrays": x}[how]
            if how == "arrays":
                del arrays["y"]
        return arrays, number

    return reader, read


@given(
    sizes=st.lists(st.integers(1, 6), min_size=2, max_size=6),
    num_replicas=st.integers(1, 4),
    epoch=EPOCHS,
    how=st.sampled_from(ODD),
    data=st.data(),
)
@some
def test_a_file_that_is_not_like_the_first_is_named_by_whichever_ranks_read_it_and_stops_no_other(
    sizes, num_replicas, epoch, how, data
):
    names = names_of(sizes)
    odd = names[data.draw(st.integers(1, len(sizes) - 1))]
    for rank in range(num_replicas):
        reader, read = with_odd_file(odd, how)
        sampler = PartialShuffleSampler(FileDataset(names, reader), None, num_replicas, rank)
        assert read == names[:1]  # so that every rank knows what files must hold
        sampler.set_epoch(epoch)
        files = {names[part.file] for part in share_of(sampler, sizes, epoch)[0]}
        if odd not in files:
            assert len(list(sampler)) == len(sampler)
            continue
        _, error = until_error(sampler)
        assert error.file == odd
        assert f"but {names[0]} " in error.reason


def test_the_first_file_that_can_be_read_says_what_the_others_must_hold():
    names, broken = names_of([3] * 4), CountingReader(names_of([3] * 4)[:2])
    with pytest.raises(BadFileError, match=f"^{names[0]} cannot be read: OSError: the disk is gone"):
        PartialShuffleSampler(FileDataset(names, broken))
    broken.opened.clear()
    sampler = PartialShuffleSampler(FileDataset(names, broken, on_bad_file="skip"))
    assert broken.opened == names[:3]
    assert sorted(flat(samples(sampler))) == list(range(6, 12))
    assert set(sampler.skipped) == set(names[:2])


def test_making_a_sampler_reads_no_file_of_which_the_header_tells_what_is_in_it(tmp_path, monkeypatch):
    dataset = FileDataset(write_files(tmp_path, [3, 4]))
    monkeypatch.setattr(NpzReader, "read", lambda *args: pytest.fail("it was read"))
    PartialShuffleSampler(dataset)


# Bad files


def until_error(sampler, kind=BadFileError):
    """Return the samples of the batches that come before an error, and the error."""
    got = []
    try:
        for batch in sampler:
            got.append(batch["x"].tolist())
    except kind as error:
        return got, error
    raise AssertionError("there was no error")


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=7),
    options=OPTIONS,
    file_buffer=BUFFERS,
    data=st.data(),
)
@some
def test_a_file_that_breaks_is_an_error_once_its_rows_go_into_the_pools_and_no_earlier(
    sizes, options, file_buffer, data
):
    bad = data.draw(st.integers(0, len(sizes) - 1))
    name = names_of(sizes)[bad]
    whole = epoch_of(sampler_of(sizes, **options))
    sampler = sampler_of(sizes, reader=CountingReader([name]), file_buffer=file_buffer, **options)
    _, share = share_of(sampler, sizes, 0)
    first = share.index(sum(sizes[:bad]))
    size, number = (sampler.pools.size, sampler.pools.number) if sampler.shuffle else (sampler.batch_size, 1)
    drawn = max(0, first // size - number + 1) * size  # before the pools have room for it
    given_batches, error = until_error(sampler)
    assert (error.file, error.reason) == (name, "cannot be read: OSError: the disk is gone")
    assert given_batches == whole[: drawn // sampler.batch_size]
    assert sampler.state_dict()["step"] == len(given_batches)
    assert_threads_end()


def test_after_an_error_it_goes_on_once_the_file_is_there_again():
    reader = CountingReader([names_of([4] * 6)[5]])
    sampler = sampler_of([4] * 6, reader=reader, batch_size=3, shuffle=False)
    got, _ = until_error(sampler)
    assert len(got) == 6
    reader.bad.clear()
    sampler.find_ckpt_position(len(got))
    assert flat(got + samples(sampler)) == list(range(24))
    assert flat(samples(sampler)) == list(range(24))


def test_a_file_that_is_cut_short_after_the_sampler_was_made_is_named(tmp_path):
    names = write_files(tmp_path, [50, 50, 50])
    sampler = PartialShuffleSampler(FileDataset(names), batch_size=10)
    content = (tmp_path / "part-001.npz").read_bytes()
    (tmp_path / "part-001.npz").write_bytes(content[: len(content) // 2])
    with pytest.raises(BadFileError, match=r"part-001\.npz"):
        list(sampler)
    assert_threads_end()


@given(**cases, bad=st.sets(st.integers(0, 6)), num_replicas=st.integers(1, 3))
@some
def test_bad_files_are_left_out_where_that_is_asked_for_and_all_else_is_as_it_was(
    sizes, options, file_buffer, bad, num_replicas
):
    names = {names_of(sizes)[file] for file in bad if file < len(sizes)}
    place = {"num_replicas": num_replicas, "rank": num_replicas - 1}
    whole = epoch_of(sampler_of(sizes, **options, **place))

    def made():
        reader = CountingReader(names)
        return sampler_of(sizes, reader=reader, on_bad_file="skip", file_buffer=file_buffer, **options, **place)

    missing = {sample for name in names for sample in range(*map(int, name[len("numbers://") :].split("-")))}
    wanted = [[sample for sample in batch if sample not in missing] for batch in whole]
    sampler = made()
    if num_replicas > 1 and not all(wanted):  # the ranks would not be in step any longer
        for _ in range(2):
            got, error = until_error(sampler, ValueError)
            assert got == wanted[: wanted.index([])]
            assert f"rank {sampler.rank} could read nothing of batch {len(got)}, which the other" in str(error)
            assert all(name in str(error) for name in sampler.skipped)
            assert set(sampler.skipped) <= names
        assert_threads_end()
        return
    for _ in range(2):
        assert samples(sampler) == [batch for batch in wanted if batch]
    files = {names_of(sizes)[part.file] for part in share_of(sampler, sizes, 0)[0]}
    assert set(sampler.skipped) == names & files
    assert len(sampler) == len(whole)
    assert sampler.state_dict()["step"] == len(whole)
    for step in range(len(whole) + 1):
        resumed = made()
        resumed.find_ckpt_position(step)
        assert samples(resumed) == [batch for batch in wanted[step:] if batch]
    iteration, resumed = iter(sampler), made()
    for _ in iteration:
        resumed.load_state_dict(sampler.state_dict())
        assert samples(resumed) == [batch for batch in wanted[sampler.state_dict()["step"] :] if batch]


# Iterations that are left


def left_by_break(sampler):
    for _ in sampler:
        break


def left_by_closing(sampler):
    iteration = iter(sampler)
    next(iteration)
    iteration.close()


def left_by_deleting(sampler):
    iteration = iter(sampler)
    next(iteration)
    del iteration


def left_by_an_exception(sampler):
    with suppress(ZeroDivisionError):
        for _ in sampler:
            raise ZeroDivisionError


def left_with_the_sampler(sampler):
    held = [iter(sampler), sampler]
    next(held[0])
    held.append(held)  # only the garbage collector finds it


@pytest.mark.parametrize(
    "leave", [left_by_break, left_by_closing, left_by_deleting, left_by_an_exception, left_with_the_sampler]
)
def test_an_iteration_that_is_left_leaves_no_thread(leave):
    reader = CountingReader()
    leave(sampler_of([2] * 200, reader=reader, file_buffer=3))
    gc.collect()
    assert_threads_end()
    assert len(reader.opened) <= 4


def test_a_whole_epoch_leaves_no_thread_and_none_begins_before_the_first_batch_is_asked_for():
    sampler = sampler_of([2] * 20, file_buffer=3)
    iteration = iter(sampler)
    assert not reading_threads()
    assert len(list(iteration)) == 40
    assert_threads_end()
