"""Reading threads, a cache and invalid files: the same batches, each file read at most once."""

import errno
import gc
import tempfile
import threading
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.data.order import RowRange
from compss_train.data.readers import NpzReader
from compss_train.samplers import (
    DistributedSamplerViaLocallyShuffle,
    DistributedSamplerViaLocallyShuffleV2,
    PartialShuffleSampler,
)
from compss_train.samplers.loader import FileLoader, FileReads
from tests.buffers.kinds import assert_threads_end, reading_threads
from tests.helpers.waiting import LIMIT, wait_until
from tests.samplers import numbered_files as numbered
from tests.samplers.numbered_files import BUFFERS, LAYOUT, cases, until_error

THREADS = st.integers(1, 4)


@given(
    **cases,
    threads=THREADS,
    num_replicas=numbered.REPLICAS,
    limit=st.sampled_from([None, 1, 5000, 10_000]),
)
def test_order_and_bits_are_the_same(sizes, options, file_buffer, threads, num_replicas, limit):
    options |= {"num_replicas": num_replicas, "rank": num_replicas - 1}
    plain = numbered.sampler_of(sizes, **options)
    with tempfile.TemporaryDirectory() as folder:
        reading = {"threads": threads, "cache": folder, "cache_bytes": limit}
        sampler = numbered.sampler_of(
            sizes, file_buffer=max(file_buffer, threads + 1), **reading, **options
        )
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
def test_each_file_is_read_once_in_all_epochs(sizes, options, file_buffer, threads, epochs):
    reader = numbered.CountingReader()
    with tempfile.TemporaryDirectory() as folder:
        dataset = FileDataset(numbered.names_of(sizes), reader, threads=threads, cache=folder)
        sampler = PartialShuffleSampler(
            dataset, file_buffer=max(file_buffer, threads + 1), **options
        )
        for epoch in range(epochs):
            assert sorted(numbered.flat(numbered.epoch_of(sampler, epoch))) == list(
                range(sum(sizes))
            )
        assert Counter(reader.opened) == Counter(numbered.names_of(sizes))
        # The first was read in the constructor.
        assert sampler.reads.cached == sampler.reads.files - len(sizes) + 1
        again = PartialShuffleSampler(
            FileDataset(numbered.names_of(sizes), numbered.CountingReader(), cache=folder),
            **options,
        )
        assert numbered.flat(numbered.samples(again)) == numbered.flat(numbered.epoch_of(sampler))
        assert again.reads.cached == again.reads.files


class Listing:
    def __init__(self, files):
        self.files = files


def test_samplers_take_them_for_files_and_data_sets_have_theirs(tmp_path):
    names = numbered.write_files(tmp_path, [4, 4, 4])
    dataset = FileDataset(names, threads=2, cache=tmp_path / "cache")
    for kind in (
        PartialShuffleSampler,
        DistributedSamplerViaLocallyShuffle,
        DistributedSamplerViaLocallyShuffleV2,
    ):
        assert kind(dataset).files is dataset
        assert len(list(kind(Listing(names)))) == len(list(kind(dataset)))
    for name, value in {"files_len": {}, "reader": NpzReader()}.items():
        with pytest.raises(
            ValueError,
            match=rf"{name}= is an option of the files: give FileDataset\(files, {name}=",
        ):
            PartialShuffleSampler(dataset, **{name: value})


def loader_of(sizes, file_buffer, reader=None, on_bad_file="raise", **options):
    dataset = FileDataset(
        numbered.names_of(sizes), reader or numbered.CountingReader(), on_bad_file=on_bad_file
    )
    dataset.layout = LAYOUT
    return FileLoader(dataset.part(range(len(sizes))), file_buffer, **options)


def whole(sizes):
    return [RowRange(file, 0, size) for file, size in enumerate(sizes)]


def test_it_counts_what_was_there_and_what_it_waited(monkeypatch):
    """The first file takes three seconds from the moment when it is waited for."""
    reader = numbered.CountingReader()
    waits = threading.Event()
    now = [0.0]

    def clock():
        waits.set()
        return now[0]

    def read(filename, get_data=False):
        if get_data and filename.startswith("numbers://0-"):
            assert waits.wait(LIMIT)
            now[0] = 3.0
        return reader(filename, get_data)

    monkeypatch.setattr("compss_train.samplers.loader.time", SimpleNamespace(perf_counter=clock))
    loader = loader_of([2, 3, 4], 4, read)
    with loader.open(whole([2, 3, 4])) as arrays:
        next(arrays)
        assert loader.reads.ahead == 0
        wait_until(lambda: len(reader.opened) == 3 and not reading_threads())
        assert len(list(arrays)) == 2
    counted = {
        "files": 3,
        "cached": 0,
        "ahead": 2,
        "seconds_waited": 3.0,
        "most_held": loader.reads.most_held,
    }
    assert vars(loader.reads) == counted
    assert vars(FileReads()) == {
        "files": 0,
        "cached": 0,
        "ahead": 0,
        "seconds_waited": 0.0,
        "most_held": 0,
    }


@pytest.mark.parametrize("file_buffer", [1, 3])
def test_no_file_is_skipped_for_an_error_of_the_machine(file_buffer):
    names = numbered.names_of([3] * 5)
    reader = numbered.CountingReader()

    def full(filename, get_data=False):
        if get_data and filename == names[2]:
            raise OSError(errno.ENFILE, "too many open files")
        return reader(filename, get_data)

    loader = loader_of([3] * 5, file_buffer, full, on_bad_file="skip")
    with loader.open(whole([3] * 5)) as arrays:
        assert [next(arrays).arrays["x"][0] for _ in range(2)] == [0, 3]
        with pytest.raises(OSError, match="too many open files") as caught:
            next(arrays)
    assert caught.value.__notes__ == [f"while reading {names[2]}"]
    assert not loader.skipped
    assert_threads_end()


@given(
    sizes=st.lists(st.integers(1, 12), min_size=2, max_size=7),
    options=numbered.OPTIONS,
    file_buffer=BUFFERS,
    data=st.data(),
)
def test_a_broken_file_is_an_error_once_it_is_needed(sizes, options, file_buffer, data):
    bad = data.draw(st.integers(0, len(sizes) - 1))
    name = numbered.names_of(sizes)[bad]
    whole = numbered.epoch_of(numbered.sampler_of(sizes, **options))
    sampler = numbered.sampler_of(
        sizes, reader=numbered.CountingReader([name]), file_buffer=file_buffer, **options
    )
    _, samples_in_order = numbered.samples_of_rank(sampler, sizes, 0)
    first = samples_in_order.index(sum(sizes[:bad]))
    size, number = (
        (sampler.pools.size, sampler.pools.number) if sampler.shuffle else (sampler.batch_size, 1)
    )
    drawn = max(0, first // size - number + 1) * size  # before the pools have room for it
    given_batches, error = until_error(sampler)
    assert (error.file, error.reason) == (name, "cannot be read: OSError: the disk is gone")
    assert given_batches == whole[: drawn // sampler.batch_size]
    assert sampler.state_dict()["step"] == len(given_batches)
    assert_threads_end()


@given(**cases, bad=st.sets(st.integers(0, 6)), num_replicas=st.integers(1, 3))
def test_invalid_files_are_skipped_on_request_without_other_changes(
    sizes, options, file_buffer, bad, num_replicas
):
    names = {numbered.names_of(sizes)[file] for file in bad if file < len(sizes)}
    place = {"num_replicas": num_replicas, "rank": num_replicas - 1}
    whole = numbered.epoch_of(numbered.sampler_of(sizes, **options, **place))

    def made():
        reader = numbered.CountingReader(names)
        return numbered.sampler_of(
            sizes, reader=reader, on_bad_file="skip", file_buffer=file_buffer, **options, **place
        )

    missing = {
        sample
        for name in names
        for sample in range(*map(int, name[len("numbers://") :].split("-")))
    }
    wanted = [[sample for sample in batch if sample not in missing] for batch in whole]
    sampler = made()
    if num_replicas > 1 and not all(wanted):  # the ranks would not be in step any longer
        for _ in range(2):
            got, error = until_error(sampler, ValueError)
            assert got == wanted[: wanted.index([])]
            assert (
                f"rank {sampler.rank} could read no sample of batch {len(got)}, unlike the other"
            ) in str(error)
            assert any(name in str(error) for name in names)  # more of them may be met meanwhile
            assert set(sampler.skipped) <= names
        assert_threads_end()
        return
    for _ in range(2):
        assert numbered.samples(sampler) == [batch for batch in wanted if batch]
    files = {
        numbered.names_of(sizes)[part.file]
        for part in numbered.samples_of_rank(sampler, sizes, 0)[0]
    }
    assert set(sampler.skipped) == names & files
    assert len(sampler) == len(whole)
    assert sampler.state_dict()["step"] == len(whole)
    for step in range(len(whole) + 1):
        resumed = made()
        resumed.find_ckpt_position(step)
        assert numbered.samples(resumed) == [batch for batch in wanted[step:] if batch]
    iteration = iter(sampler)
    resumed = made()
    for _ in iteration:
        resumed.load_state_dict(sampler.state_dict())
        assert numbered.samples(resumed) == [
            batch for batch in wanted[sampler.state_dict()["step"] :] if batch
        ]


def left_by_break(sampler):
    for _ in sampler:
        break


def left_with_the_sampler(sampler):
    held = [iter(sampler), sampler]
    next(held[0])
    held.append(held)  # only the garbage collector finds it


@pytest.mark.parametrize("leave", [left_by_break, left_with_the_sampler])
def test_an_iteration_that_is_left_leaves_no_thread(leave):
    reader = numbered.CountingReader()
    leave(numbered.sampler_of([2] * 200, reader=reader, file_buffer=3))
    gc.collect()
    assert_threads_end()
    assert len(reader.opened) <= 4
