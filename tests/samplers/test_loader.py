"""Loading files ahead: order, number of files in memory, and errors."""

import errno
import gc
import logging
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.data.order import RowRange
from compss_train.samplers.loader import FileLoader, FileReads
from tests.samplers.numbered_files import (
    LAYOUT,
    SIZES,
    CountingReader,
    assert_threads_end,
    bounds_of,
    names_of,
    reading_threads,
)

BUFFERS = st.integers(1, 5)


def loader_of(sizes, file_buffer, reader=None, on_bad_file="raise", **options):
    dataset = FileDataset(names_of(sizes), reader or CountingReader(), on_bad_file=on_bad_file)
    dataset.layout = LAYOUT
    return FileLoader(dataset.part(range(len(sizes))), file_buffer, **options)


def whole(sizes):
    return [RowRange(file, 0, size) for file, size in enumerate(sizes)]


def read_all(loader, row_ranges):
    with loader.open(row_ranges) as arrays:
        return [None if rows is None else rows["x"].tolist() for rows in arrays]


def wait_for(condition):
    until = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < until, "it never came to be"
        time.sleep(0.001)


@given(sizes=SIZES, file_buffer=BUFFERS, data=st.data())
def test_it_yields_the_rows_of_each_range_in_turn(sizes, file_buffer, data):
    row_ranges = []
    for file in data.draw(st.permutations(range(len(sizes)))):
        start = data.draw(st.integers(0, sizes[file] - 1))
        row_ranges.append(RowRange(file, start, data.draw(st.integers(start + 1, sizes[file]))))
    loader = loader_of(sizes, file_buffer)
    firsts = [first for first, _ in bounds_of(sizes)]
    wanted = [list(range(firsts[part.file] + part.start, firsts[part.file] + part.stop)) for part in row_ranges]
    assert read_all(loader, row_ranges) == wanted
    assert loader.reads.files == len(sizes)
    assert_threads_end()


@given(sizes=SIZES, file_buffer=BUFFERS, epochs=st.integers(1, 3))
def test_no_more_files_are_in_memory_than_it_may_hold_in_any_epoch(sizes, file_buffer, epochs):
    reader = CountingReader()
    loader = loader_of(sizes, file_buffer, reader)
    for _ in range(epochs):
        with loader.open(whole(sizes)) as arrays:
            for rows in arrays:
                assert len(rows["x"])
                del rows
    assert 1 <= reader.most_alive <= loader.reads.most_held <= file_buffer


@pytest.mark.parametrize("file_buffer", [1, 2, 4])
def test_it_does_read_as_many_ahead_as_it_may(file_buffer):
    reader = CountingReader()
    loader = loader_of([3] * 8, file_buffer, reader)
    with loader.open(whole([3] * 8)) as arrays:
        first = next(arrays)
        wait_for(lambda: len(reader.opened) == file_buffer)
        assert first["x"].tolist() == [0, 1, 2]
        assert loader.reads.most_held == file_buffer
    assert len(reader.opened) == file_buffer  # and no more
    assert_threads_end()


def test_it_counts_what_was_there_and_how_long_the_rest_took():
    reader = CountingReader()
    slow = threading.Event()

    def read(filename, get_data=False):
        if get_data and filename.startswith("numbers://0-"):
            assert slow.wait(10)
        return reader(filename, get_data)

    loader = loader_of([2, 3, 4], 4, read)
    with loader.open(whole([2, 3, 4])) as arrays:
        threading.Timer(0.05, slow.set).start()
        next(arrays)
        assert loader.reads.ahead == 0
        assert 0.01 < loader.reads.seconds_waited < 10
        wait_for(lambda: len(reader.opened) == 3 and not reading_threads())
        waited = loader.reads.seconds_waited
        assert len(list(arrays)) == 2
    assert loader.reads.ahead == 2
    assert loader.reads.seconds_waited - waited < 0.5
    assert vars(loader.reads) == {
        "files": 3,
        "cached": 0,
        "ahead": 2,
        "seconds_waited": loader.reads.seconds_waited,
        "most_held": loader.reads.most_held,
    }
    assert vars(FileReads()) == {"files": 0, "cached": 0, "ahead": 0, "seconds_waited": 0.0, "most_held": 0}


@pytest.mark.parametrize("file_buffer", [1, 3])
def test_an_error_of_the_machine_is_raised_and_no_file_skipped_for_it(file_buffer):
    names, reader = names_of([3] * 5), CountingReader()

    def full(filename, get_data=False):
        if get_data and filename == names[2]:
            raise OSError(errno.ENFILE, "too many open files")
        return reader(filename, get_data)

    loader = loader_of([3] * 5, file_buffer, full, on_bad_file="skip")
    with loader.open(whole([3] * 5)) as arrays:
        assert [next(arrays)["x"][0] for _ in range(2)] == [0, 3]
        with pytest.raises(OSError, match="too many open files") as caught:
            next(arrays)
    assert caught.value.__notes__ == [f"while reading {names[2]}"]
    assert not loader.skipped
    assert_threads_end()


def test_what_is_left_early_ends_the_thread_and_reads_no_more():
    reader = CountingReader()
    loader = loader_of([3] * 50, 3, reader)
    with loader.open(whole([3] * 50)) as arrays:
        next(arrays)
    assert_threads_end()
    assert len(reader.opened) <= 3
    reading = loader.open(whole([3] * 50))
    next(reading.__enter__())
    del reading, arrays
    gc.collect()
    assert_threads_end()


@pytest.mark.parametrize(("debug", "level"), [(False, logging.DEBUG), (True, logging.INFO)])
def test_every_file_that_is_read_is_logged(caplog, debug, level):
    caplog.set_level(logging.DEBUG, "compss_train.samplers")
    read_all(loader_of([3, 4], 2, debug=debug), [RowRange(0, 1, 3), RowRange(1, 0, 4)])
    assert [record.getMessage() for record in caplog.records] == [
        "rows 1 to 3 of numbers://0-3",
        "rows 0 to 4 of numbers://3-7",
    ]
    assert {record.levelno for record in caplog.records} == {level}
