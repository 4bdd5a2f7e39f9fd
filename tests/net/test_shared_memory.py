"""Shared memory: arrays are read as they were written, and nothing else is opened or read."""

import fcntl
import mmap
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.net import MessageError, SharedMemory, arrays_in, map_memory, pack_arrays

SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
DTYPES = st.sampled_from(["f4", "f8", "i2", "bool", "c8"])


@pytest.fixture
def make_memory():
    """Make memory that is closed after the test."""
    made = []

    def make(*args):
        made.append(SharedMemory(*args))
        return made[-1]

    yield make
    for memory in made:
        memory.close()


@given(
    st.integers(2, 4),
    st.lists(st.tuples(SHAPES, DTYPES), min_size=1, max_size=3),
    st.lists(st.integers(0, 3), max_size=20),
)
def test_arrays_are_as_they_were_written_until_they_are_released(slots, layouts, releases):
    draw = np.random.default_rng(0)
    memory = SharedMemory(slots, 3 * 1024)
    try:
        mapped = map_memory(memory.offer)
    finally:
        memory.close()  # what is mapped stays
    waiting = []
    for count in releases:
        arrays = [np.asarray(8 * draw.normal(size=shape)).astype(dtype) for shape, dtype in layouts]
        descriptions, frames = pack_arrays(arrays)
        pieces = [[frame[: len(frame) // 2], frame[len(frame) // 2 :]] for frame in frames]
        start = memory.write(pieces)
        assert (start is None) == (len(waiting) == slots)
        if start is not None:
            waiting.append((start, descriptions, arrays))
        for place, written, expected in waiting:
            received = arrays_in(mapped, place, written)
            for array, original in zip(received, expected, strict=True):
                got = array.tensor().numpy()
                np.testing.assert_array_equal(got, original, strict=True)
        memory.released += len(waiting[:count])
        del waiting[:count]


def test_what_is_too_large_for_a_slot_is_not_written(make_memory):
    memory = make_memory(2, 128)
    assert memory.write([[bytes(65)], [bytes(65)]]) is None
    assert memory.write([[bytes(65)], [bytes(1)]]) is None
    assert memory.write([[bytes(64)], [bytes(1)]]) is not None


def test_its_file_is_closed_and_cannot_become_shorter(make_memory):
    memory = make_memory(2, 1000)
    file = memory.offer["file"]
    with pytest.raises(PermissionError):
        os.ftruncate(file, 10)
    memory.close()
    memory.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)


def test_a_system_without_it_is_an_error(monkeypatch):
    monkeypatch.delattr(os, "memfd_create")
    with pytest.raises(OSError, match="shared memory needs Linux"):
        SharedMemory(2, 1000)


def test_no_file_is_left_open_where_there_is_no_room(monkeypatch):
    def refuse(file, *_):
        opened.append(file)
        raise OSError("no room")

    opened = []
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(OSError, match="no room"):
        SharedMemory(2, 1000)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(opened[0])


@pytest.mark.parametrize("kind", ["no file", "no process", "file", "pipe", "unsealed", "empty"])
def test_other_files_are_not_mapped(make_memory, tmp_path, kind):
    offer = make_memory(2, 1000).offer
    key = bytes.fromhex(offer["key"])
    files = []
    if kind == "file":
        (tmp_path / "file").write_bytes(key * 100)
        files = [os.open(tmp_path / "file", os.O_RDWR)]
    elif kind == "pipe":
        files = list(os.pipe())
    elif kind in ("unsealed", "empty"):
        files = [os.memfd_create("other", os.MFD_ALLOW_SEALING)]
        if kind == "empty":
            fcntl.fcntl(files[0], fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
        else:
            os.write(files[0], key * 100)
    try:
        process = 2**22 + 1 if kind == "no process" else os.getpid()
        other = {**offer, "process": process, "file": files[0] if files else 10**6}
        assert map_memory(other) is None
    finally:
        for file in files:
            os.close(file)


@pytest.mark.parametrize("key", [b"", b"k", b"k" * 32])
def test_memory_with_another_key_is_not_mapped(make_memory, key):
    """Such as that of another process, whose number is that of the client in its container."""
    assert map_memory({**make_memory(2, 1000).offer, "key": key.hex()}) is None


@pytest.mark.parametrize(
    "offer", [None, {}, {"process": "a", "file": 3, "key": ""}, {"process": 1, "file": 3, "key": 5}]
)
def test_a_malformed_offer_is_an_error(offer):
    with pytest.raises(MessageError, match="malformed"):
        map_memory(offer)


@pytest.mark.parametrize(
    ("start", "shape"), [(-4, [1]), (None, [1]), (0.0, [1]), (93, [2]), (101, [0]), (0, [26])]
)
def test_arrays_outside_of_it_are_an_error(start, shape):
    memory = memoryview(mmap.mmap(-1, 100))
    words = f"do not lie at {start!r} in a memory of 100 bytes"
    with pytest.raises(MessageError, match=words):
        arrays_in(memory, start, [("float32", shape)])


@pytest.mark.parametrize(
    "descriptions", [None, [1], [("void", [1])], [("float32", [-1])], [("float32", [1.0])]]
)
def test_malformed_descriptions_are_an_error(descriptions):
    with pytest.raises(MessageError):
        arrays_in(memoryview(bytes(100)), 0, descriptions)
