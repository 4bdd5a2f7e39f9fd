"""make_buffer: parameters of each type, and errors that name them."""

import pytest

from compss_train import buffers
from compss_train.integrations.melissa import (
    FIFO,
    FIRO,
    BatchReservoir,
    BufferType,
    Reservoir,
    SimPairedReservoir,
    make_buffer,
)

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
        assert isinstance(buffer, getattr(buffers, kind.name))
        assert buffer.capacity == 9
        assert buffer.threshold == NEEDED[kind].get("per_server_watermark", 0)


def test_parameters_have_the_positions_of_the_interface_that_they_follow():
    assert type(make_buffer(9)) is FIFO
    batches = make_buffer(9, BufferType.BatchReservoir, 2, None, 3)
    assert (batches.threshold, batches.batch_size) == (2, 3)
    paired = make_buffer(9, BufferType.SimPairedReservoir, 2, None, None, 4, 5, 2)
    assert (paired.sweep_size, paired.nb_time_steps) == (4, 5)
    assert make_buffer(9, BufferType.FIRO, 2, 3).passes == 3


PAIRED = BufferType.SimPairedReservoir
WRONG = [
    *(
        (kind, {name: None}, f"{kind.name} requires {name}")
        for kind, needed in NEEDED.items()
        for name in needed
    ),
    (
        PAIRED,
        dict.fromkeys(NEEDED[PAIRED]),
        ("per_server_watermark and sweep_size and nb_time_steps"),
    ),
    *((kind, {"per_server_watermark": 10}, "threshold=10") for kind in list(BufferType)[1:]),
    *(
        (BufferType.FIRO, {name: value}, f"{name}={value!r}")
        for name, values in (
            ("buffer_size", (0, -1, 2.0, True, "9", None)),
            ("per_server_watermark", (-1, 1.5, True)),
            ("pseudo_epochs", (0,)),
            ("seed", (-1,)),
        )
        for value in values
    ),
    (BufferType.FIFO, {"seed": 2**63}, f"seed={2**63}"),
    (BufferType.BatchReservoir, {"batch_size": 0}, "batch_size=0"),
    (BufferType.BatchReservoir, {"batch_size": 10}, "batch_size=10"),
    *((PAIRED, {name: 0}, f"{name}=0") for name in ("sweep_size", "nb_time_steps")),
    (PAIRED, {"buffer_size": 1, "per_server_watermark": 1}, "capacity=1"),
    *((kind, {}, "buffer_t=") for kind in ("LIFO", "", 0, None, FIFO)),
]


@pytest.mark.parametrize(("kind", "changes", "name"), WRONG)
def test_wrong_parameters_are_named(kind, changes, name, raises):
    with raises(ValueError, name):
        make_buffer(**{"buffer_size": 9, "buffer_t": kind, **NEEDED.get(kind, {}), **changes})
