"""``drop_last`` means what it means in torch's DistributedSampler: ranks are even, and no sample is used twice."""

from collections import Counter
from itertools import chain
from math import ceil

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

from compss_train.data.order import block_order
from compss_train.samplers import (
    DistributedSamplerViaLocallyShuffle,
    DistributedSamplerViaLocallyShuffleV2,
    PartialShuffleSampler,
)
from tests.samplers.numbered_files import EPOCHS, REPLICAS, bounds_of, epoch_of, flat, sampler_of, samples
from tests.samplers.sampler_cases import cases, some

KINDS = [DistributedSamplerViaLocallyShuffle, DistributedSamplerViaLocallyShuffleV2]


def order_of_epoch(sizes, seed, epoch, shuffle):
    """Return all samples, file by file."""
    files = block_order(seed, epoch, len(sizes)) if shuffle else range(len(sizes))
    return list(chain.from_iterable(range(*bounds_of(sizes)[file]) for file in files))


@given(**cases, num_replicas=REPLICAS, epoch=EPOCHS)
@example(sizes=[5], options={"shuffle": False, "seed": 0, "batch_size": 2}, file_buffer=1, num_replicas=3, epoch=0)
@some
def test_ranks_are_even_and_together_have_each_sample_but_the_tail_once(
    sizes, options, file_buffer, num_replicas, epoch
):
    if sum(sizes) < num_replicas:
        return
    options |= {"num_replicas": num_replicas, "file_buffer": file_buffer}
    ranks = [sampler_of(sizes, rank=rank, drop_last=True, **options) for rank in range(num_replicas)]
    batches = [epoch_of(rank, epoch) for rank in ranks]
    share = sum(sizes) // num_replicas
    for rank, got in zip(ranks, batches, strict=True):
        assert [len(batch) for batch in got] == [len(batch) for batch in batches[0]]
        assert len(flat(got)) == rank.num_samples == share
        assert len(got) == rank.num_batches == len(rank) == ceil(share / options["batch_size"])
    kept = order_of_epoch(sizes, options["seed"], epoch, options["shuffle"])[: share * num_replicas]
    assert Counter(flat(flat(batches))) == Counter(kept)


@given(samples=st.integers(1, 40), num_replicas=REPLICAS, drop_last=st.booleans(), rank=st.integers(0, 4))
@some
def test_lengths_are_those_of_torch(samples, num_replicas, drop_last, rank):
    if rank >= num_replicas or (drop_last and samples < num_replicas):
        return
    place = {"num_replicas": num_replicas, "rank": rank, "shuffle": True, "seed": 3, "drop_last": drop_last}
    theirs = DistributedSampler(range(samples), **place)
    for kind in KINDS:
        ours = sampler_of([samples], kind, **place)
        assert len(ours) == ours.num_samples == len(theirs) == theirs.num_samples == len(list(theirs))
    batches = sampler_of([samples], PartialShuffleSampler, batch_size=4, **place)
    assert batches.num_samples == len(theirs)
    assert len(batches) == batches.num_batches == ceil(len(theirs) / 4)


def test_without_ranks_nothing_is_dropped_and_the_last_batch_may_be_smaller():
    plain, dropping = (sampler_of([5, 4], batch_size=4, drop_last=drop_last) for drop_last in (False, True))
    assert samples(dropping) == samples(plain)
    assert [len(batch) for batch in samples(dropping)] == [4, 4, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_the_drop_in_classes_take_the_names_of_torch(kind):
    plain, seeded = (sampler_of([5, 6], kind, shuffle=True, seed=seed, batch_size=3) for seed in (0, 7))
    orders = [[part["x"].tolist() for batch in sampler for part in batch[0]] for sampler in (plain, seeded)]
    assert orders[0] != orders[1]
    whole = sampler_of([5, 6], kind, num_replicas=2, rank=1, shuffle=False)
    cut = sampler_of([5, 6], kind, num_replicas=2, rank=1, shuffle=False, drop_last=True)
    assert [len(sampler) for sampler in (whole, cut)] == [6, 5]
    assert [part["x"].tolist() for batch in cut for part in batch[0]] == [[5], [6], [7], [8], [9]]
    positional = kind(cut.dataset, None, 2, 1, False, None, None, 1, 10, False, None, 0, True)
    assert len(positional) == 5


def test_fewer_samples_than_ranks_are_an_error():
    with pytest.raises(ValueError, match="drop_last=True, num_replicas=4: 3 samples are not one a rank; take drop"):
        sampler_of([3], num_replicas=4, rank=0, drop_last=True)
    with pytest.raises(ValueError, match="drop_last=1"):
        sampler_of([3], drop_last=1)


def test_a_state_belongs_to_one_of_the_two_and_earlier_states_to_the_default():
    plain, dropping = (sampler_of([5], num_replicas=2, rank=0, drop_last=drop) for drop in (False, True))
    with pytest.raises(ValueError, match="drop_last"):
        dropping.load_state_dict(plain.state_dict())
    assert sampler_of([5], num_replicas=2, rank=0).state_dict() == plain.state_dict()
