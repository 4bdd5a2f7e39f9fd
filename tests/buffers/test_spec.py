import pytest

from compss_train import BufferSpec, BufferType
from compss_train.buffers import FIFO, FIRO, BatchReservoir, Reservoir


@pytest.mark.parametrize("kind", [FIFO, FIRO, Reservoir, BatchReservoir])
def test_a_spec_makes_the_buffer_that_it_names_in_any_case(kind):
    for name in (BufferType[kind.__name__], kind.__name__, kind.__name__.lower(), kind.__name__.upper()):
        buffer = BufferSpec(name, 40).make(batch_size=5, seed=1)
        assert type(buffer) is kind
        assert buffer.capacity == 40
        assert buffer.threshold == (0 if kind is FIFO else 20)
    assert kind is FIFO or BufferSpec(kind.__name__, 40, 7).make(5, 1).threshold == 7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("lifo", 10), "'lifo': choose one of BufferType.FIFO"),
        ((1, 10), "1: choose one of"),
        (("firo", 0), "size=0"),
        (("firo", 10, 10), r"threshold=10: .* from 0 to 9"),
        (("firo", 10, -1), "threshold=-1"),
        (("reservoir", 10, 2.5), r"threshold=2\.5"),
        (("fifo", 10, 3), "threshold=3: a FIFO has none"),
        (("simpairedreservoir", 10), "pairs time steps of simulations"),
    ],
    ids=str,
)
def test_what_cannot_be_made_is_an_error_at_once(arguments, message):
    with pytest.raises(ValueError, match=message):
        BufferSpec(*arguments)


def test_batches_that_can_never_be_had_are_an_error():
    BufferSpec("firo", 10, 4).check(6)
    BufferSpec("reservoir", 10, 9).check(10)
    for spec, batch in ((BufferSpec("firo", 10, 4), 7), (BufferSpec("batchreservoir", 10, 4), 11)):
        with pytest.raises(ValueError, match=f"a batch of {batch} samples cannot come from"):
            spec.check(batch)
