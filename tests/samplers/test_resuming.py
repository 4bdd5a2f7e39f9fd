"""A partial shuffle is resumed after an interruption."""

import copy
import json
import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.samplers import PartialShuffleSampler
from tests.samplers import numbered_files as numbered
from tests.samplers.numbered_files import cases


@given(**cases, num_replicas=st.integers(1, 3), epoch=numbered.EPOCHS)
@settings(max_examples=5)
def test_it_continues_with_exactly_the_batches_that_remain(sizes, options, file_buffer, num_replicas, epoch):
    options |= {"num_replicas": num_replicas, "rank": num_replicas - 1, "file_buffer": file_buffer}
    sampler = numbered.sampler_of(sizes, **options)
    whole, next_one = numbered.epoch_of(sampler, epoch), numbered.epoch_of(sampler, epoch + 1)
    sampler.set_epoch(epoch)
    iteration = iter(sampler)
    for step in range(len(whole) + 1):
        state = json.loads(json.dumps(sampler.state_dict()))
        resumed = numbered.sampler_of(sizes, **options)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        assert (resumed.epoch, numbered.samples(resumed)) == (epoch, whole[step:])
        assert resumed.state_dict() == {**state, "step": len(whole)}
        assert numbered.samples(resumed) == whole
        assert numbered.epoch_of(resumed, epoch + 1) == next_one
        found = numbered.sampler_of(sizes, **options)
        found.set_epoch(epoch)
        found.find_ckpt_position(step)
        assert found.state_dict() == state
        assert numbered.samples(found) == whole[step:]
        next(iteration, None)


def test_a_resumed_epoch_reads_no_finished_file():
    sizes = [4] * 12
    names = numbered.names_of(sizes)
    sampler = numbered.sampler_of(sizes, batch_size=4, shuffle_buffer=6, pools=2)
    whole = numbered.epoch_of(sampler)
    for step in range(len(whole) + 1):
        reader = numbered.CountingReader()
        resumed = numbered.sampler_of(sizes, reader=reader, batch_size=4, shuffle_buffer=6, pools=2, file_buffer=1)
        resumed.find_ckpt_position(step)
        assert numbered.samples(resumed) == whole[step:]
        wanted = {names[sample // 4] for sample in numbered.flat(whole[step:])}
        assert Counter(reader.opened) == Counter(wanted)


OTHERS = [
    {"seed": 1},
    {"batch_size": 4},
    {"shuffle": False},
    {"shuffle_buffer": 6},
    {"pools": 2},
    {"rank": 1},
    {"num_replicas": 3},
    {"drop_last": True},
    {"sizes": [4, 4, 5, 7]},
    {"sizes": [4, 5, 4]},
    {"order": [1, 0, 2, 3]},
]


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_the_state_of_another_order_is_an_error(other, tmp_path):
    def made(sizes=(4, 5, 4, 7), order=(), **options):
        names = numbered.write_files(tmp_path, sizes)
        names = [names[number] for number in order] or names
        options = {"num_replicas": 2, "rank": 0, "batch_size": 3, "shuffle_buffer": 5, **options}
        return PartialShuffleSampler(FileDataset(names), **options)

    state = made().state_dict()
    made(file_buffer=1, debug=True).load_state_dict(state)  # these are of no consequence
    with pytest.raises(ValueError, match="the state is of a sampler with another order"):
        made(**other).load_state_dict(state)


@pytest.mark.parametrize(
    "wrong", [{"epoch": -1}, {"step": -1}, {"step": 8}, {"step": 1.0}, {"epoch": "1"}], ids=str
)
def test_a_state_out_of_range_changes_nothing(wrong):
    sampler = numbered.sampler_of([4] * 5, batch_size=3)
    state = sampler.state_dict()
    with pytest.raises(ValueError, match=next(iter(wrong))):
        sampler.load_state_dict({**state, "epoch": 2, "step": 1, **wrong})
    assert sampler.state_dict() == state


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda sampler: pickle.loads(pickle.dumps(sampler))}


@pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)
@given(**cases, epoch=numbered.EPOCHS, step=st.integers(0, 3))
def test_a_copy_of_a_sampler_returns_the_same_remaining_batches(sizes, options, file_buffer, epoch, step, copied):
    whole = numbered.epoch_of(numbered.sampler_of(sizes, **options), epoch)
    sampler = numbered.sampler_of(sizes, file_buffer=file_buffer, **options)
    sampler.set_epoch(epoch)
    sampler.find_ckpt_position(min(step, len(whole)))
    other = copied(sampler)
    assert other.state_dict() == sampler.state_dict()
    assert numbered.samples(other) == whole[step:]
    assert numbered.samples(other) == whole
    assert sampler.state_dict()["step"] == min(step, len(whole))  # they go on each for itself
    assert numbered.samples(sampler) == whole[step:]
