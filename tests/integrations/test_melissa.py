"""make_buffer: parameters of each type, and errors that name them."""

import pytest

from compss_train.buffers import FIFO, FIRO, BatchReservoir, Reservoir, SimPairedReservoir
from compss_train.integrations.melissa import BufferType, make_buffer
from tests.buffers.kinds import make

NEEDED = {
    BufferType.FIFO: {},
    BufferType.FIRO: {"per_server_watermark": 2},
    BufferType.Reservoir: {"per_server_watermark": 2},
    BufferType.BatchReservoir: {"per_server_watermark": 2, "batch_size": 3},
    BufferType.SimPairedReservoir: {"per_server_watermark": 2, "sweep_size": 4, "nb_time_steps": 5},
}
CLASSES = (FIFO, FIRO, Reservoir, BatchReservoir, SimPairedReservoir)


@pytest.mark.parametrize("kind", BufferType)
def test_each_type_is_made_from_what_it_needs(kind):
    for name in (kind, kind.name, kind.name.lower()):
        buffer = make_buffer(9, name, **NEEDED[kind])
        assert type(buffer) is CLASSES[kind.value]
        assert buffer.capacity == 9
        assert buffer.threshold == NEEDED[kind].get("per_server_watermark", 0)


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, needed in NEEDED.items() for name in needed])
def test_a_parameter_that_is_missing_is_named(kind, name):
    given = {parameter: value for parameter, value in NEEDED[kind].items() if parameter != name}
    with pytest.raises(ValueError, match=f"^{kind.name} requires {name}, which was not given"):
        make_buffer(9, kind, **given)


def test_all_parameters_that_are_missing_are_named():
    with pytest.raises(ValueError, match="per_server_watermark and sweep_size and nb_time_steps, which were not"):
        make_buffer(9, BufferType.SimPairedReservoir)


def test_parameters_have_the_positions_of_the_interface_that_they_follow():
    assert type(make_buffer(9)) is FIFO
    batches = make_buffer(9, BufferType.BatchReservoir, 2, None, 3)
    assert (batches.threshold, batches.batch_size) == (2, 3)
    paired = make_buffer(9, BufferType.SimPairedReservoir, 2, None, None, 4, 5, 2)
    assert (paired.sweep_size, paired.nb_time_steps) == (4, 5)
    assert make_buffer(9, BufferType.FIRO, 2, 3)._remaining_passes == 3


def test_parameters_that_a_type_does_not_use_are_ignored():
    everything = NEEDED[BufferType.BatchReservoir] | NEEDED[BufferType.SimPairedReservoir] | {"pseudo_epochs": 2}
    for kind in BufferType:
        assert type(make_buffer(9, kind, **everything)) is CLASSES[kind.value]


@pytest.mark.parametrize("kind", ["LIFO", "", 0, None, FIFO])
def test_another_type_is_refused_with_a_list_of_types(kind):
    with pytest.raises(ValueError, match=r"choose one of BufferType\.FIFO, .*BufferType\.SimPairedReservoir"):
        make_buffer(9, kind)


@pytest.mark.parametrize("kind", BufferType)
@pytest.mark.parametrize("capacity", [0, -1, 2.0, True, "9", None])
def test_the_capacity_is_a_count(kind, capacity):
    with pytest.raises(ValueError, match=r"buffer_size=.*give an integer of at least 1"):
        make_buffer(capacity, kind, **NEEDED[kind])


@pytest.mark.parametrize("kind", ["FIRO", "Reservoir", "BatchReservoir", "SimPairedReservoir"])
def test_a_threshold_that_can_never_be_reached_is_refused(kind):
    with pytest.raises(ValueError, match=r"threshold=10, capacity=9: .* give a threshold of at most the capacity"):
        make(kind, 9, 10)
    for threshold in (-1, 1.5, True):
        with pytest.raises(ValueError, match=f"per_server_watermark={threshold}: give an integer of at least 0"):
            make(kind, 9, threshold)
    assert make(kind, 9, 9).threshold == 9


@pytest.mark.parametrize(
    ("kind", "parameter", "value"),
    [
        ("BatchReservoir", "batch_size", 0),
        ("BatchReservoir", "batch_size", 10),
        ("SimPairedReservoir", "sweep_size", 0),
        ("SimPairedReservoir", "nb_time_steps", 1),
        ("SimPairedReservoir", "comm_size", 0),
        ("FIRO", "pseudo_epochs", 0),
        ("FIFO", "seed", -1),
        ("FIFO", "seed", 2**63),
    ],
)
def test_values_out_of_range_are_named(kind, parameter, value):
    with pytest.raises(ValueError, match=f"{parameter}={value}"):
        make_buffer(9, kind, **NEEDED[BufferType[kind]] | {parameter: value})


def test_pairs_need_room_for_two():
    with pytest.raises(ValueError, match="capacity=1: a pair needs a capacity of at least 2"):
        make("SimPairedReservoir", 1)
