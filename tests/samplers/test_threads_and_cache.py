"""Reading threads and a cache: the same batches, each file read once, and the next epoch's files in time."""

import os
import tempfile
import threading
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.data.readers import NpzReader
from compss_train.samplers import (
    DistributedSamplerViaLocallyShuffle,
    DistributedSamplerViaLocallyShuffleV2,
    PartialShuffleSampler,
)
from compss_train.samplers.loader import FileLoader
from tests.samplers.numbered_files import (
    LAYOUT,
    REPLICAS,
    CountingReader,
    assert_threads_end,
    epoch_of,
    flat,
    names_of,
    sampler_of,
    samples,
    write_files,
)
from tests.samplers.sampler_cases import cases, some
from tests.samplers.test_loader import read_all, wait_for, whole

THREADS = st.integers(1, 4)


def cached_loader(sizes, file_buffer, reader, folder, threads=1, upcoming=()):
    dataset = FileDataset(names_of(sizes), reader, threads=threads, cache=folder)
    assert dataset.layout == LAYOUT
    reader.opened.clear()
    return FileLoader(dataset.part(range(len(sizes)), upcoming=upcoming), file_buffer)


@given(**cases, threads=THREADS, num_replicas=REPLICAS, limit=st.sampled_from([None, 1, 5000, 10_000]))
@some
def test_order_and_bits_are_the_same(sizes, options, file_buffer, threads, num_replicas, limit):
    options |= {"num_replicas": num_replicas, "rank": num_replicas - 1}
    plain = sampler_of(sizes, **options)
    with tempfile.TemporaryDirectory() as folder:
        reading = {"threads": threads, "cache": folder, "cache_bytes": limit}
        sampler = sampler_of(sizes, file_buffer=max(file_buffer, threads + 1), **reading, **options)
        for epoch in range(3):
            plain.set_epoch(epoch)
            sampler.set_epoch(epoch)
            for ours, theirs in zip(sampler, plain, strict=True):
                assert list(ours) == list(theirs)
                for key, array in theirs.items():
                    np.testing.assert_array_equal(ours[key], array, strict=True)
        assert 1 <= sampler.reads.most_held <= max(file_buffer, threads + 1)
    assert_threads_end()


@given(**cases, threads=THREADS, epochs=st.integers(1, 3))
@some
def test_each_file_is_read_once_in_all_epochs(sizes, options, file_buffer, threads, epochs):
    reader = CountingReader()
    with tempfile.TemporaryDirectory() as folder:
        dataset = FileDataset(names_of(sizes), reader, threads=threads, cache=folder)
        sampler = PartialShuffleSampler(dataset, file_buffer=max(file_buffer, threads + 1), **options)
        for epoch in range(epochs):
            assert sorted(flat(epoch_of(sampler, epoch))) == list(range(sum(sizes)))
        assert Counter(reader.opened) == Counter(names_of(sizes))
        assert sampler.reads.cached == sampler.reads.files - len(sizes) + 1  # the first was read in the constructor
        again = PartialShuffleSampler(FileDataset(names_of(sizes), CountingReader(), cache=folder), **options)
        assert flat(samples(again)) == flat(epoch_of(sampler))
        assert again.reads.cached == again.reads.files


@given(**cases, threads=THREADS)
@some
def test_the_arrays_of_no_more_files_than_the_buffer_says_are_in_memory(sizes, options, file_buffer, threads):
    reader, file_buffer = CountingReader(), max(file_buffer, threads + 1)
    epoch_of(sampler_of(sizes, reader=reader, file_buffer=file_buffer, threads=threads, **options))
    assert 1 <= reader.most_alive <= file_buffer


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_as_many_files_as_threads_are_read_at_the_same_time(threads):
    plain, together = CountingReader(), threading.Barrier(threads)

    def reader(filename, get_data=False):
        if get_data:
            together.wait(10)  # until all threads are reading
        return plain(filename, get_data)

    dataset = FileDataset(names_of([3] * 8), reader, threads=threads)
    dataset.layout = LAYOUT
    loader = FileLoader(dataset.part(range(8)), file_buffer=threads + 1)
    assert flat(read_all(loader, whole([3] * 8))) == list(range(24))
    assert len(plain.threads) == threads
    assert_threads_end()


def test_the_files_of_the_next_epoch_come_while_the_last_rows_are_in_use(tmp_path):
    sizes, reader = [3] * 8, CountingReader()
    loader = cached_loader(sizes, 3, reader, tmp_path, upcoming=range(2, 8))
    with loader.open(whole(sizes)[:2], range(2, 8)) as arrays:
        assert flat(rows["x"].tolist() for rows in arrays) == list(range(6))
        wait_for(lambda: len(os.listdir(loader._part.cache.folder)) == 5)  # with the lock
    assert_threads_end()
    assert reader.opened == names_of(sizes)[1:4]  # the first is there, and only two are read ahead
    assert loader.reads.files == 2
    with loader.open(whole(sizes)[2:4]) as arrays:
        assert flat(rows["x"].tolist() for rows in arrays) == list(range(6, 12))
    assert len(reader.opened) == 3


def test_upcoming_files_that_are_bad_are_no_error_yet(tmp_path):
    sizes = [3] * 4
    names = names_of(sizes)
    loader = cached_loader(sizes, 4, CountingReader([names[2]]), tmp_path, upcoming=range(4))
    with loader.open(whole(sizes)[:2], [2, 3]) as arrays:
        assert len(list(arrays)) == 2
        wait_for(lambda: len(os.listdir(loader._part.cache.folder)) == 4)
    assert not loader.skipped


class Listing:
    def __init__(self, files):
        self.files = files


def test_samplers_take_them_for_lists_of_files_and_data_sets_have_their_own(tmp_path):
    names = write_files(tmp_path, [4, 4, 4])
    dataset = FileDataset(names, threads=2, cache=tmp_path / "cache")
    options = {"threads": 3, "cache": tmp_path / "cache", "cache_bytes": 10**6}
    for kind in (PartialShuffleSampler, DistributedSamplerViaLocallyShuffle, DistributedSamplerViaLocallyShuffleV2):
        assert kind(dataset)._files is dataset
        sampler = kind(Listing(names), **options)
        assert (sampler._files.threads, sampler._files.cache.max_bytes) == (3, 10**6)
        assert len(list(sampler)) == len(list(kind(dataset)))
    for name, value in {**options, "files_len": {}, "reader": NpzReader()}.items():
        with pytest.raises(
            ValueError, match=rf"{name}= is an option of the files: give FileDataset\(files, {name}="
        ):
            PartialShuffleSampler(dataset, **{name: value})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads=0: give an integer of at least 1"),
        ({"threads": 4, "file_buffer": 4}, "file_buffer=4: .*file_buffer of at least 5, or at most 3 threads"),
        ({"threads": 2, "file_buffer": 1}, "threads=2, file_buffer=1: .*at least 3, or at most 1 threads"),
        ({"cache_bytes": 100}, "cache_bytes=100: name a cache"),
        ({"cache": "memory", "cache_bytes": 0}, "cache_bytes=0"),
    ],
    ids=str,
)
def test_wrong_numbers_are_errors(options, message):
    with pytest.raises(ValueError, match=message):
        sampler_of([4, 5], **options)
