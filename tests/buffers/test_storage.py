"""What buffers take of this machine's memory, and what they refuse."""

import weakref

import numpy as np
import pytest
import torch

from compss_train.buffers import FIFO, storage
from compss_train.buffers.row_storage import LARGE_BYTES
from compss_train.buffers.samples import SampleBatch
from compss_train.buffers.storage import SampleStore, check_fits
from tests.buffers.kinds import ALL, drain, make, numbers, sample

MANY = 2**24


def resident_bytes():
    """Return the memory of this process that is in use."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * storage.os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", ALL)
def test_slots_without_samples_take_no_memory(kind):
    before = resident_bytes()
    buffer = make(kind, MANY)
    assert resident_bytes() - before < 8 * MANY / 4
    assert buffer.capacity == MANY


def test_each_free_slot_is_taken_once():
    store = SampleStore(7, pin_memory=False)
    incoming = SampleBatch.from_batch([np.zeros(1)] * 7)
    store.check(incoming)
    taken = [store.put(incoming, 0, number) for number in (2, 1)]
    assert sorted(np.concatenate(taken)) == [0, 1, 2]
    store.remove(taken[0])
    slots = np.concatenate([store.put(incoming, 0, 3), taken[1], store.put(incoming, 0, 3)])
    assert sorted(slots) == [*range(7)]
    assert store.num_free == 0


def test_a_buffer_beyond_memory_is_an_error(monkeypatch):
    monkeypatch.setattr(storage, "_machine_bytes", lambda: 10_000)
    with pytest.raises(MemoryError, match="capacity=1000: so many samples, whatever their size,"):
        FIFO(1000)
    buffer = FIFO(10)
    with pytest.raises(MemoryError, match="capacity=10: so many samples of 8,000 bytes need") as no:
        buffer.put(np.zeros(1000))
    assert "capacity=1 at most" in str(no.value)
    check_fits(1, 8000)


def test_only_large_rows_that_are_handed_over_are_kept_as_they_are():
    buffer = FIFO(10)
    kept = {"x": torch.arange(2.0)[:, None], "y": torch.zeros(2, LARGE_BYTES // 4)}
    copied = {name: column.clone() for name, column in kept.items()}
    buffer.put_many(kept, copy=False)
    buffer.put_many(copied)
    for column in (*kept.values(), *copied.values()):
        column += 7
    got = [buffer.get_batch(2) for _ in range(2)]
    assert [batch["x"].tolist() for batch in got] == [[[0], [1]]] * 2
    assert [batch["y"].unique().tolist() for batch in got] == [[7], [0]]


def test_memory_of_large_copies_is_used_again_for_other_samples():
    """What gets returned before stays as it was."""
    buffer = FIFO(4)
    column = torch.zeros(1, LARGE_BYTES // 4)
    buffer.put_many({"x": column.clone(), "y": torch.zeros(1)}, copy=False)
    got = [buffer.get_batch(1)]
    for number in range(1, 12):
        buffer.put_many({"x": column + number, "y": torch.full((1,), float(number))})
        if number % 3 == 0:
            got.append(buffer.get_batch(3))
    buffer.signal_reception_over()
    got.append(buffer.get_batch(4))
    assert torch.cat([batch["x"][:, -1] for batch in got]).tolist() == [*range(12)]
    assert torch.cat([batch["y"] for batch in got]).tolist() == [*range(12)]


def test_an_empty_buffer_of_large_samples_has_no_keys():
    buffer = FIFO(3)
    keys = torch.arange(4).reshape(2, 2)
    buffer.put_many({"key": keys, "y": torch.zeros(2, LARGE_BYTES // 4)}, copy=False)
    assert buffer.keys("key").tolist() == [[0, 1], [2, 3]]
    buffer.get_batch(2)
    assert buffer.keys("key").shape == (0, 2)
    assert buffer.keys("key").dtype == np.int64


def test_what_is_kept_is_freed_with_its_sample():
    buffer = FIFO(10)
    memory = np.zeros((1, LARGE_BYTES), np.uint8)
    freed = weakref.ref(memory)
    buffer.put_many(memory, copy=False)
    del memory
    assert freed() is not None
    assert buffer.get()[0] == 0
    assert freed() is None


def test_samples_are_counted_in_bytes_of_all_their_parts(monkeypatch):
    monkeypatch.setattr(storage, "_machine_bytes", lambda: 10 * LARGE_BYTES)
    columns = (np.zeros((1, LARGE_BYTES), np.uint8), np.zeros((1, 8)))
    FIFO(9).put_many(columns, copy=False)
    for copy in (False, True):
        with pytest.raises(MemoryError, match=f"samples of {LARGE_BYTES + 64:,} bytes need"):
            FIFO(10).put_many(columns, copy=copy)


@pytest.mark.parametrize("kind", ALL)
def test_large_samples_are_saved_and_leave_no_sample_behind(kind):
    buffer = make(kind, 4)
    for number in range(4):
        data = np.full(LARGE_BYTES, number, np.uint8)
        buffer.put_many([sample(buffer, number, data)], copy=False)
    again = make(kind, 4)
    again.load_state_dict(buffer.state_dict())
    for held in (buffer, again):
        held.signal_reception_over()
        got = drain(lambda held=held: held.get_batch(2))
        values = sorted(int(value) for batch in got for value in numbers(batch))
        assert set(values) == {0, 1, 2, 3}
        assert held.state_dict()["samples"] == []
