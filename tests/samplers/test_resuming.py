"""A partial shuffle is resumed after an interruption."""

import copy
import json
import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from compss_train.data.files import FileDataset
from compss_train.samplers import PartialShuffleSampler
from tests.samplers import numbered_files as numbered
from tests.samplers.numbered_files import cases


@given(**cases, num_replicas=st.integers(1, 3), epoch=numbered.EPOCHS)
@settings(max_examples=5)
def test_it_continues_with_exactly_the_batches_that_remain(
    sizes, options, file_buffer, num_replicas, epoch
):
    options |= {"num_replicas": num_replicas, "rank": num_replicas - 1, "file_buffer": file_buffer}
    sampler = numbered.sampler_of(sizes, **options)
    whole = numbered.epoch_of(sampler, epoch)
    next_one = numbered.epoch_of(sampler, epoch + 1)
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
        positioned = numbered.sampler_of(sizes, **options)
        positioned.set_epoch(epoch)
        positioned.find_ckpt_position(step)
        assert positioned.state_dict() == state
        assert numbered.samples(positioned) == whole[step:]
        next(iteration, None)


def test_a_resumed_epoch_reads_no_finished_file():
    sizes = [4] * 12
    names = numbered.names_of(sizes)
    sampler = numbered.sampler_of(sizes, batch_size=4, shuffle_buffer=6, pools=2)
    whole = numbered.epoch_of(sampler)
    for step in range(len(whole) + 1):
        reader = numbered.CountingReader()
        resumed = numbered.sampler_of(
            sizes, reader=reader, batch_size=4, shuffle_buffer=6, pools=2, file_buffer=1
        )
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
def test_a_copy_of_a_sampler_returns_the_same_remaining_batches(
    sizes, options, file_buffer, epoch, step, copied
):
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


SIZES = [4] * 7 + [2]
LOADERS = {
    "in this process": {},
    "one process": {"num_workers": 1, "prefetch_factor": 1},
    "two processes": {"num_workers": 2},
    "more ahead than there are batches": {"num_workers": 2, "prefetch_factor": 9},
    "processes that stay": {"num_workers": 2, "persistent_workers": True},
    "pinned": {"num_workers": 2, "pin_memory": True},
}


def loader_of(sampler, kind=DataLoader, **options):
    return kind(sampler.files, sampler=sampler, batch_size=None, **options)


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_what_a_loader_fetches_ahead_is_not_lost(options):
    sampler = numbered.sampler_of(SIZES, batch_size=3, pools=2)
    whole = numbered.samples(sampler)
    sampler.find_ckpt_position(1)
    loader = loader_of(sampler, **options)
    for count, batch in enumerate(loader, 1):
        assert batch["x"].tolist() == whole[count]
        resumed = numbered.sampler_of(SIZES, batch_size=3, pools=2)
        resumed.load_state_dict(sampler.state_dict())
        assert numbered.samples(resumed) == whole[count + 1 :]
    assert sampler.state_dict()["step"] == len(whole)
    for _batch in loader:
        break
    assert sampler.state_dict()["step"] == 1  # after the loop, too, which has left the loader
    sampler.set_epoch(1)
    assert sampler.state_dict()["step"] == 0


def test_skipped_batches_that_a_loader_fetches_ahead_are_counted():
    reader = numbered.CountingReader(bad=numbered.names_of(SIZES)[2:4])
    options = {"reader": reader, "on_bad_file": "skip", "batch_size": 2, "shuffle": False}
    sampler = numbered.sampler_of(SIZES, **options)
    steps = [
        (batch["x"][0].item(), sampler.state_dict()["step"])
        for batch in loader_of(sampler, num_workers=2)
    ]
    assert steps == [(2 * (step - 1), step) for step in range(1, 16) if step not in (5, 6, 7, 8)]


class Wrapped:
    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        yield from self.sampler


UNCERTAIN = {
    "any order": lambda sampler: loader_of(sampler, num_workers=2, in_order=False),
    "wrapped": lambda sampler: DataLoader(
        sampler.files, sampler=Wrapped(sampler), batch_size=None, num_workers=2
    ),
}


@pytest.mark.parametrize("make", UNCERTAIN.values(), ids=UNCERTAIN)
def test_a_number_that_nobody_knows_is_asked_for(make):
    sampler = numbered.sampler_of(SIZES, batch_size=3)
    iteration = iter(make(sampler))
    next(iteration)
    with pytest.warns(
        UserWarning, match=r"has 5 batches, as many as were requested.*state_dict\(step=\.\.\.\)"
    ):
        sampler.state_dict()
    assert sampler.state_dict(step=1)["step"] == 1
    with pytest.raises(ValueError, match="step=11: an epoch has 10 batches"):
        sampler.state_dict(step=11)


@pytest.mark.filterwarnings("ignore:.set_vital. is deprecated")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_at_its_place(workers):
    def made():
        sampler = numbered.sampler_of(SIZES, batch_size=3, pools=2)
        return sampler, loader_of(sampler, StatefulDataLoader, num_workers=workers)

    sampler, loader = made()
    whole = numbered.samples(sampler)
    for count, _batch in enumerate(loader, 1):
        assert sampler.state_dict()["step"] == count
        if count in (1, 4):
            _, other = made()
            other.load_state_dict(loader.state_dict())
            assert numbered.samples(other) == whole[count:]
