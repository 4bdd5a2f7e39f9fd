import numpy as np
import pytest
import torch

from compss_train.engines.base import Failure
from compss_train.model.random_state import RandomState
from compss_train.online.control import packed, unpacked
from compss_train.online.job import Saved
from compss_train.online.workers import Checkpoints
from compss_train.training.worker.train import WorkerState
from tests.buffers.kinds import ALL, Thread, make, put_some
from tests.online.parts import pair


def bytes_of(*values):
    return torch.tensor(values, dtype=torch.uint8)


def of(kept, worker):
    return [tensor.tolist() for tensor in kept.of(worker)]


def test_what_was_kept_last_of_each_worker_is_given_back():
    with Checkpoints() as kept:
        assert of(kept, 0) == []
        for saved in ([1, 2, 3], [], [255] * 100_000, [7]):
            kept.keep(0, bytes_of(*saved))
            assert of(kept, 0) == [saved]
        kept.keep(11, bytes_of(9))
        kept.keep(1, bytes_of(8))
        assert [of(kept, worker) for worker in (0, 1, 2, 11)] == [[[7]], [[8]], [], [[9]]]
        given = kept.of(0)[0]
        given[0] = 0
        assert of(kept, 0) == [[7]]


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(monkeypatch):
    class Full:
        def numpy(self):
            return self

        def tofile(self, path):
            path.write_bytes(b"ha")
            raise OSError("no space")

    with Checkpoints() as kept:
        kept.keep(0, bytes_of(1, 2))
        with pytest.raises(OSError, match="no space"):
            kept.keep(0, Full())
        assert of(kept, 0) == [[1, 2]]


def test_closing_removes_the_files_and_may_be_done_again():
    kept = Checkpoints()
    kept.keep(0, bytes_of(1))
    folder = kept._folder
    assert list(folder.iterdir())
    kept.close()
    kept.close()
    assert not folder.exists()
    other = Checkpoints()
    folder = other._folder
    del other
    assert not folder.exists()


@pytest.mark.parametrize("kind", ALL)
def test_a_worker_that_is_kept_comes_back_as_it_was(kind):
    buffer, net = make(kind, 12), torch.nn.Linear(3, 2)
    put_some(buffer, range(9))
    if kind != "SimPairedReservoir":
        buffer.get_batch(2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    saved = Saved(
        WorkerState(optimizer.state_dict(), RandomState.now("cpu")), buffer.state_dict(), {0: 3, 9: 1}, 17
    )
    with Checkpoints() as kept:
        kept.keep(3, packed(saved))
        [data] = kept.of(3)
    back = unpacked(data)
    assert (back.received, back.batches) == ({0: 3, 9: 1}, 17)
    expected, other = saved.state.optimizer["state"], back.state.optimizer["state"]
    assert all(torch.equal(expected[n][key], other[n][key]) for n in expected for key in expected[n])
    assert back.state.optimizer["param_groups"] == saved.state.optimizer["param_groups"]
    restored = make(kind, 12, seed=5)
    restored.load_state_dict(back.buffer)
    assert repr(restored.state_dict()) == repr(buffer.state_dict())
    for each in (buffer, restored):
        each.signal_reception_over()
    assert repr(restored.get_batch(3)) == repr(buffer.get_batch(3))


def test_a_new_worker_without_an_optimizer_can_be_kept():
    back = unpacked(packed(Saved(WorkerState(None, 3), make("FIFO", 2).state_dict(), {}, 0)))
    assert (back.state, back.received, back.batches) == (WorkerState(None, 3), {}, 0)


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, 2.5, "ü"], "b": {0: (b"x", True)}},
        {"large": np.arange(300_000.0), "none": np.zeros((0, 2)), "bfloat16": torch.ones(3, dtype=torch.bfloat16)},
        [np.asfortranarray(np.arange(6).reshape(2, 3)), torch.arange(6).reshape(2, 3).T, np.arange(9)[::-2]],
        Failure.of(ZeroDivisionError("oh")),
    ],
    ids=["none", "plain", "arrays", "layouts", "failure"],
)
def test_what_is_packed_comes_back_as_it_was(value):
    parcel = packed(value)
    assert (parcel.dtype, parcel.dim(), parcel.is_contiguous()) == (torch.uint8, 1, True)
    with pair() as (one, other):
        sending = Thread(one.send, {}, [parcel])
        back = unpacked(other.receive()[1][0])
        sending.result()
    if isinstance(value, Failure):
        assert isinstance(back.exception(), ZeroDivisionError)
        assert str(back.exception()) == "oh"
    else:
        assert repr(back) == repr(value)
    packed(value)[:] = 0  # memory of its own
    assert repr(unpacked(parcel)) == repr(back)
