"""Options of the partial shuffle, and files that differ."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.data.readers import NpzReader
from compss_train.exceptions import BadFileError
from compss_train.samplers import PartialShuffleSampler
from tests.samplers import numbered_files as numbered
from tests.samplers.numbered_files import until_error


class Listing:
    """A data set of another library."""

    def __init__(self, files):
        self.files = files
        self.resets = 0

    def reset(self):
        self.resets += 1


@pytest.mark.parametrize("built_in", [False, True])
def test_a_dataset_with_its_own_reader_is_not_counted_again(tmp_path, built_in):
    counted = []
    reader = NpzReader()

    def own(filename, get_data=False):
        if not get_data:
            counted.append(filename)
        return NpzReader()(filename, get_data)

    dataset = FileDataset(numbered.write_files(tmp_path, [5, 7, 3]), reader if built_in else own)
    expected = numbered.epoch_of(PartialShuffleSampler(dataset, batch_size=4))
    counted.clear()
    again = PartialShuffleSampler(dataset, reader if built_in else own, batch_size=4)
    assert again.files is dataset
    assert numbered.epoch_of(again) == expected
    assert counted == []


def test_given_lengths_save_opening_files_or_are_found_wrong():
    names = numbered.names_of([5, 7, 3])
    counted = []

    def reader(filename, get_data=False):
        if not get_data:
            counted.append(filename)
        return numbered.CountingReader()(filename, get_data)

    lengths = {names[0]: 5, names[1]: 7, names[2]: 3}
    assert PartialShuffleSampler(Listing(names), reader, files_len=lengths).num_samples == 15
    assert len(counted) <= 1
    for wrong in ({**lengths, names[2]: 4}, {**lengths, names[0]: 4}):
        with pytest.raises(BadFileError, match=r"has \d samples"):
            list(PartialShuffleSampler(Listing(names), reader, files_len=wrong))
    with pytest.raises(ValueError, match="files_len lacks"):
        PartialShuffleSampler(Listing(names), reader, files_len={names[0]: 5})


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"batch_size": 2.0}, "batch_size=2.0"),
        ({"file_buffer": 0}, "file_buffer=0"),
        ({"pools": 3}, "pools=3"),
        ({"pools": 0}, "pools=0"),
        ({"shuffle_buffer": 0}, "shuffle_buffer=0"),
        ({"shuffle_buffer": -1, "shuffle": False}, "shuffle_buffer=-1"),
        ({"seed": -1}, "seed=-1"),
        ({"shuffle": 2}, "shuffle=2"),
        ({"num_replicas": 0}, "num_replicas=0"),
        ({"rank": 1}, "rank=1, num_replicas=1"),
        ({"num_replicas": 3, "rank": 3}, "rank=3, num_replicas=3"),
        ({"num_replicas": 3, "rank": -1}, "rank=-1"),
        (
            {"num_replicas": 10, "rank": 0, "drop_last": True},
            "num_replicas=10: 9 samples are fewer than one per rank",
        ),
        ({"drop_last": 1}, "drop_last=1"),
        ({"total_size": 8}, "total_size=8, but the 2 files hold 9 samples"),
        ({"threads": 0}, "threads=0"),
        ({"threads": 4, "file_buffer": 4}, "file_buffer=4"),
        ({"threads": 2, "file_buffer": 1}, "threads=2, file_buffer=1"),
        ({"cache_bytes": 100}, "cache_bytes=100: name a cache"),
        ({"cache": "memory", "cache_bytes": 0}, "cache_bytes=0"),
    ],
    ids=str,
)
def test_wrong_numbers_are_errors(options, name, raises):
    with raises(ValueError, name):
        numbered.sampler_of([4, 5], **options)


def test_wrong_epochs_and_steps_are_errors_and_change_nothing():
    sampler = numbered.sampler_of([4, 5], batch_size=2)
    sampler.find_ckpt_position(5)
    for wrong in (-1, 6, 1.0, True):
        with pytest.raises(ValueError, match=f"step={wrong}"):
            sampler.find_ckpt_position(wrong)
    for wrong in (-1, 1.0, None):
        with pytest.raises(ValueError, match=f"epoch={wrong}"):
            sampler.set_epoch(wrong)
    with pytest.raises(
        TypeError, match=r"a list has no list of files in \.files; give a FileDataset\(files\)"
    ):
        PartialShuffleSampler([1, 2])
    assert (sampler.epoch, sampler.state_dict()["step"], list(sampler)) == (0, 5, [])


ODD = ["dtype", "shape", "arrays"]


def with_odd_file(odd, how):
    """Return a reader of files of which one differs, and the list of files that it reads."""
    plain = numbered.CountingReader()
    read = []

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
    epoch=numbered.EPOCHS,
    how=st.sampled_from(ODD),
    data=st.data(),
)
def test_a_file_unlike_the_first_stops_its_ranks_only(sizes, num_replicas, epoch, how, data):
    names = numbered.names_of(sizes)
    odd = names[data.draw(st.integers(1, len(sizes) - 1))]
    for rank in range(num_replicas):
        reader, read = with_odd_file(odd, how)
        sampler = PartialShuffleSampler(FileDataset(names, reader), None, num_replicas, rank)
        assert read == names[:1]  # so that every rank knows what files must hold
        sampler.set_epoch(epoch)
        files = {names[part.file] for part in numbered.samples_of_rank(sampler, sizes, epoch)[0]}
        if odd not in files:
            assert len(list(sampler)) == len(sampler)
            continue
        _, error = until_error(sampler)
        assert error.file == odd
        assert f"but {names[0]} " in error.reason
