"""What buffers take of this machine's memory, and what they refuse."""

import numpy as np
import pytest

from compss_train.buffers import FIFO, storage
from compss_train.buffers.samples import SampleBatch
from compss_train.buffers.storage import SampleStore, check_fits
from tests.buffers.kinds import ALL, make

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
