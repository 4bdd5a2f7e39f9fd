"""Options of the partial shuffle, and files that differ."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.data.readers import NpzReader
from compss_train.exceptions import BadFileError
from compss_train.samplers import PartialShuffleSampler
from tests.samplers.numbered_files import (
    EPOCHS,
    CountingReader,
    epoch_of,
    flat,
    names_of,
    sampler_of,
    samples,
    samples_of_rank,
    write_files,
)
from tests.samplers.sampler_cases import some, until_error


class Listing:
    """A data set of another library."""

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


def test_a_list_of_files_may_come_with_a_reader_and_lengths():
    names, lengths = names_of([5, 7, 3]), dict(zip(names_of([5, 7, 3]), [5, 7, 3], strict=True))
    expected, reader = epoch_of(sampler_of([5, 7, 3], batch_size=4)), CountingReader()
    for options in ({"reader": reader}, {"reader": reader, "files_len": lengths}):
        assert samples(PartialShuffleSampler(Listing(names), batch_size=4, **options)) == expected


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
    with pytest.raises(ValueError, match="files_len lacks"):
        PartialShuffleSampler(Listing(names), reader, files_len={names[0]: 5})


def test_a_total_that_is_right_is_of_no_consequence_and_a_wrong_one_is_an_error():
    assert epoch_of(sampler_of([4, 5], total_size=9)) == epoch_of(sampler_of([4, 5]))
    for wrong in (8, 10, 0):
        with pytest.raises(ValueError, match=f"total_size={wrong}, but the 2 files hold 9 samples"):
            sampler_of([4, 5], total_size=wrong)


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
    with pytest.raises(TypeError, match=r"a list has no list of files in \.files; give a FileDataset\(files\)"):
        PartialShuffleSampler([1, 2])


ODD = ["dtype", "shape", "arrays"]


def with_odd_file(odd, how):
    """Return a reader of files of which one differs, and the list of files that it reads."""
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
        files = {names[part.file] for part in samples_of_rank(sampler, sizes, epoch)[0]}
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


def test_making_a_sampler_reads_no_file_whose_header_has_its_layout(tmp_path, monkeypatch):
    dataset = FileDataset(write_files(tmp_path, [3, 4]))
    monkeypatch.setattr(NpzReader, "read", lambda *args: pytest.fail("it was read"))
    PartialShuffleSampler(dataset)
