"""The drop-in samplers: the same samples grouped by file, with the original's constructor."""

import inspect

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.samplers import (
    DistributedSamplerViaLocallyShuffle,
    DistributedSamplerViaLocallyShuffleV2,
    PartialShuffleSampler,
)
from tests.samplers import numbered_files as numbered

KINDS = {DistributedSamplerViaLocallyShuffle: 1, DistributedSamplerViaLocallyShuffleV2: 2}
kinds = st.sampled_from(list(KINDS))
OPTIONS = st.fixed_dictionaries(
    {
        "shuffle_buffer": st.none() | st.integers(1, 15),
        "batch_size": st.integers(1, 9),
        "shuffle": st.booleans(),
        "file_buffer": st.sampled_from([1, 3]),
        "num_replicas": numbered.REPLICAS,
    }
)


def by_file(sampler):
    sampler.set_epoch(0)
    return [
        [(name, part["x"].tolist()) for part, name in zip(b[0], b[2], strict=True)] for b in sampler
    ]


@given(kind=kinds, sizes=numbered.SIZES, options=OPTIONS, epoch=numbered.EPOCHS)
def test_batches_are_the_partial_shuffles_by_file(kind, sizes, options, epoch):
    options |= {"rank": options["num_replicas"] - 1}
    batches = numbered.epoch_of(
        numbered.sampler_of(sizes, pools=KINDS[kind], seed=0, **options), epoch
    )
    sampler = numbered.sampler_of(sizes, kind, **options)
    sampler.set_epoch(epoch)
    apart = list(sampler)
    whole = numbered.arrays_of(0, sum(sizes))
    bounds = dict(zip(numbered.names_of(sizes), numbered.bounds_of(sizes), strict=True))
    for (parts, nothing, files), batch in zip(apart, batches, strict=True):
        assert nothing is None
        assert len(files) == len(set(files)) == len(parts)
        wanted = {}  # files in the order of their first samples, their samples as they come
        for sample in batch:
            name = next(name for name, (start, stop) in bounds.items() if start <= sample < stop)
            wanted.setdefault(name, []).append(sample)
        assert list(wanted) == files
        assert [part["x"].tolist() for part in parts] == list(wanted.values())
        for part in parts:
            assert list(part) == ["x", "y"]
            np.testing.assert_array_equal(part["y"], whole["y"][part["x"]], strict=True)


@given(kind=kinds, sizes=numbered.SIZES, options=OPTIONS)
def test_its_length_is_in_samples_and_steps_are_batches(kind, sizes, options):
    sampler = numbered.sampler_of(sizes, kind, **options, rank=0)
    whole = by_file(sampler)
    assert (
        len(sampler)
        == sampler.num_samples
        == sum(len(rows) for batch in whole for _, rows in batch)
    )
    assert len(whole) == sampler.num_batches
    for step in range(len(whole) + 1):
        sampler.find_ckpt_position(step)
        state = sampler.state_dict()
        resumed = numbered.sampler_of(sizes, kind, **options, rank=0)
        resumed.load_state_dict(state)
        assert by_file(sampler) == by_file(resumed) == whole[step:]
    with pytest.raises(ValueError, match=f"step={len(whole) + 1}"):
        sampler.find_ckpt_position(len(whole) + 1)


@pytest.mark.parametrize("kind", KINDS)
def test_it_takes_the_arguments_of_the_original(kind):
    names = (
        "dataset reader num_replicas rank shuffle shuffle_buffer total_size batch_size "
        "file_buffer debug files_len"
    )
    assert list(inspect.signature(kind).parameters) == [
        *names.split(),
        "seed",
        "drop_last",
        "pools",
    ]
    files = numbered.names_of([4, 5, 3])
    lengths = dict(zip(files, [4, 5, 3], strict=True))
    reader = numbered.CountingReader()
    dataset = FileDataset(files, reader)
    sampler = kind(dataset, reader, 2, 1, False, 3, 12, 4, 1, True, lengths)
    named = kind(dataset, num_replicas=2, rank=1, shuffle=False, batch_size=4)
    assert by_file(sampler) == by_file(named)
    assert [rows for batch in by_file(sampler) for _, rows in batch] == [[6, 7, 8], [9], [10, 11]]
    assert (sampler.pools.size, sampler.pools.number) == (3, KINDS[kind])
    assert isinstance(sampler, PartialShuffleSampler)
    with pytest.raises(ValueError, match="total_size=11"):
        kind(dataset, reader, 2, 1, True, 3, 11)


def test_the_sampler_with_two_pools_refuses_another_number():
    for pools in (1, 2):
        with pytest.raises(TypeError, match="multiple values for keyword argument 'pools'"):
            DistributedSamplerViaLocallyShuffleV2(
                FileDataset(numbered.names_of([3]), numbered.CountingReader()), pools=pools
            )
