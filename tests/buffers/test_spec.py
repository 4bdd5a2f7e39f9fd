"""Buffer specifications: valid and invalid parameters, and limits."""

import pytest

from compss_train import BufferSpec
from compss_train.buffers import FIFO, FIRO, BatchReservoir, Reservoir, SimPairedReservoir


@pytest.mark.parametrize("kind", [FIFO, FIRO, Reservoir, BatchReservoir])
def test_a_spec_makes_the_buffer_that_it_names_in_any_case(kind):
    for name in (kind.__name__, kind.__name__.lower(), kind.__name__.upper()):
        buffer = BufferSpec(name, 40).make(batch_size=5, seed=1)
        assert type(buffer) is kind
        assert buffer.capacity == 40
        assert buffer.threshold == (0 if kind is FIFO else 20)
    assert kind is FIFO or BufferSpec(kind.__name__, 40, 7).make(5, 1).threshold == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lifo", 10), "'lifo': choose one of FIFO"),
        ((1, 10), "1: choose one of"),
        (("firo", 0), "capacity=0"),
        (("firo", 10, 11), r"threshold=11: .* from 0 to 10, the capacity"),
        (("firo", 10, -1), "threshold=-1"),
        (("reservoir", 10, 2.5), r"threshold=2\.5"),
        (("fifo", 10, 3), "threshold=3: a FIFO has no threshold"),
        (("simpairedreservoir", 10), "a SimPairedReservoir requires sweep_size="),
        (("simpairedreservoir", 10, 5, 3), "a SimPairedReservoir requires nb_time_steps="),
        (("simpairedreservoir", 10, 5, 0, 4), "sweep_size=0: give an integer of at least 1"),
        (("simpairedreservoir", 10, 5, 3, 1), "nb_time_steps=1: give an integer of at least 2"),
        (("simpairedreservoir", 10, 11, 3, 4), "threshold=11"),
        (("reservoir", 10, 5, 3), "sweep_size=3: a Reservoir has no sweep_size; remove it"),
        (("fifo", 10, None, None, 4), "nb_time_steps=4: a FIFO has no nb_time_steps"),
        (("fifo", 10, None, None, None, 2), "passes=2: a FIFO has no passes"),
        (("firo", 10, None, None, None, 0), "passes=0: give an integer of at least 1"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_an_error_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        BufferSpec(*arguments)


@pytest.mark.parametrize("name", ["SimPairedReservoir", "simpairedreservoir"])
def test_a_spec_of_pairs_makes_a_buffer_for_a_sweep_of_simulations(name):
    spec = BufferSpec(name, 40, sweep_size=3, nb_time_steps=5)
    buffer = spec.make(batch_size=5, seed=1)
    assert type(buffer) is SimPairedReservoir
    assert (buffer.capacity, buffer.threshold, buffer.sweep_size, buffer.nb_time_steps) == (40, 20, 3, 5)
    assert BufferSpec(name, 40, 7, sweep_size=3, nb_time_steps=5).make(5, 1).threshold == 7
    assert spec.pairs
    assert not spec.draws_in_step
    assert [BufferSpec(kind, 4).pairs for kind in ("fifo", "firo", "reservoir", "batchreservoir")] == [False] * 4


def test_limits_keep_what_pairs_need():
    spec = BufferSpec("SimPairedReservoir", 400, 10, sweep_size=3, nb_time_steps=5)
    limited = spec.limited(15, 8)
    assert (limited.capacity, limited.needed, limited.sweep_size, limited.nb_time_steps) == (18, 10, 3, 5)
    spec.check(400)
    with pytest.raises(ValueError, match="a batch of 401 samples cannot come from"):
        spec.check(401)


@pytest.mark.parametrize("passes", [1, 3])
def test_passes_reach_the_buffer_and_need_room_for_all_samples(passes):
    spec = BufferSpec("FIRO", 10, 4, passes=passes)
    assert spec.passes == spec.make(5, 1).passes == passes
    assert spec.put_counts([4, 3]) == ([7] * 6 if passes == 3 else [4, 7])
    spec.check_samples(10)
    if passes == 3:
        with pytest.raises(ValueError, match=r"passes=3: .* up to 11, and has capacity=10; give capacity=11"):
            spec.check_samples(11)
    else:
        spec.check_samples(11)
