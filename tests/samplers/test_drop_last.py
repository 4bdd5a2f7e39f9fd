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
from tests.samplers.numbered_files import EPOCHS, REPLICAS, bounds_of, epoch_of, flat, sampler_of
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


def test_fewer_samples_than_ranks_are_an_error():
    with pytest.raises(ValueError, match="drop_last=True, num_replicas=4: 3 samples are fewer than one per rank"):
        sampler_of([3], num_replicas=4, rank=0, drop_last=True)
    with pytest.raises(ValueError, match="drop_last=1"):
        sampler_of([3], drop_last=1)


def test_a_state_belongs_to_one_of_the_two_and_earlier_states_to_the_default():
    plain, dropping = (sampler_of([5], num_replicas=2, rank=0, drop_last=drop) for drop in (False, True))
    with pytest.raises(ValueError, match="drop_last"):
        dropping.load_state_dict(plain.state_dict())
    assert sampler_of([5], num_replicas=2, rank=0).state_dict() == plain.state_dict()
