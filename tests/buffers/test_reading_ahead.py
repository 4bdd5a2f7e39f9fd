"""Reading ahead: order, bounds, exceptions, and the end of threads."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.buffers import FIFO, FIRO, Reservoir
from compss_train.buffers.reading_ahead import ReadAhead, batches_through
from tests.buffers.kinds import assert_threads_end, until_waiting
from tests.helpers.waiting import LIMIT


@given(
    items=st.lists(st.integers(), max_size=30),
    threads=st.integers(1, 4),
    ahead=st.integers(0, 4),
)
def test_every_item_is_loaded_once_and_in_order(items, threads, ahead):
    loaded = list(ReadAhead(items, lambda item: item * 2, threads=threads, depth=threads + ahead))
    assert loaded == [item * 2 for item in items]
    assert_threads_end()


@pytest.mark.parametrize("threads", [1, 3])
def test_it_never_runs_further_ahead_than_its_depth(threads):
    lock = threading.Lock()
    started = 0
    taken = 0
    furthest = 0
    reached = threading.Event()

    def load(item):
        nonlocal started, furthest
        with lock:
            started += 1
            furthest = max(furthest, started - taken)
            if started == 4:
                reached.set()
        return item

    with ReadAhead(range(40), load, threads=threads, depth=4) as loaded:
        assert reached.wait(LIMIT)  # it does run ahead without being asked
        for _ in range(40):
            with lock:
                taken += 1  # before the result is taken, which lets the next one start
            next(loaded)
    assert furthest <= 5
    assert started == 40


def test_an_exception_comes_in_place_of_its_result():
    def load(item):
        if item == 3:
            raise OSError("file 3 cannot be read")
        return item

    loaded = ReadAhead(range(10), load, threads=2, depth=8)
    assert [next(loaded) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="file 3 cannot be read") as caught:
        next(loaded)
    assert "load" in [entry.name for entry in caught.traceback]
    assert next(loaded, "nothing") == "nothing"
    assert_threads_end()


def test_closing_ends_waiting_threads_and_drops_what_is_read():
    reading = threading.Event()
    gate = threading.Event()

    def load(item):
        if item == 2:
            reading.set()
            assert gate.wait(LIMIT)
        return item

    loaded = ReadAhead(range(100), load, threads=2, depth=5)
    assert reading.wait(LIMIT)
    opener = threading.Timer(0.05, gate.set)  # while close waits for the read
    opener.start()
    loaded.close()
    opener.join()
    assert_threads_end()
    assert next(loaded, "nothing") == "nothing"


CHUNKS = [list(range(start, start + 7)) for start in range(0, 70, 7)]


@pytest.mark.parametrize("buffer", [FIFO(20), FIRO(20, 5, seed=0)], ids=["FIFO", "FIRO"])
def test_each_sample_passes_through_a_queue_once(buffer):
    batches = list(batches_through(buffer, CHUNKS, 8))
    got = [sample for batch in batches for sample in batch]
    assert sorted(got) == list(range(70))
    assert (got == list(range(70))) is isinstance(buffer, FIFO)
    assert [len(batch) for batch in batches] == [8] * 8 + [6]
    assert_threads_end()


def test_an_exception_of_the_chunks_surfaces_in_the_training_loop():
    def chunks():
        yield [1, 2, 3]
        raise OSError("the store went away")

    with pytest.raises(OSError, match="the store went away"):
        for _ in batches_through(Reservoir(10, 1, seed=0), chunks(), 2):
            pass
    assert_threads_end()


def test_a_training_loop_that_is_left_ends_the_filling():
    buffer = FIFO(6)
    endless = ReadAhead(iter(lambda: [1, 2, 3], None), lambda chunk: chunk)
    batches = batches_through(buffer, endless, 2)
    assert next(batches) == [1, 2]
    until_waiting(buffer)  # for room
    batches.close()
    assert_threads_end()
