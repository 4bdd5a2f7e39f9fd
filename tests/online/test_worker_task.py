"""What workers send to the coordinator: checkpoints and pickled values."""

import numpy as np
import pytest
import torch

from compss_train.engines.base import Failure
from compss_train.model.random_state import RandomState
from compss_train.online.worker_task import WorkerCheckpoint, pickle_to_tensor, unpickle_tensor
from compss_train.online.workers import CheckpointStore
from compss_train.training.worker.train import WorkerState
from tests.buffers.kinds import ALL, Thread, make, put_some
from tests.online.bare_connections import connection_pair


@pytest.mark.parametrize("kind", ALL)
def test_a_worker_checkpoint_round_trips(kind):
    buffer, net = make(kind, 12), torch.nn.Linear(3, 2)
    put_some(buffer, range(9))
    if kind != "SimPairedReservoir":
        buffer.get_batch(2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    checkpoint = WorkerCheckpoint(
        WorkerState(optimizer.state_dict(), RandomState.capture("cpu")), buffer.state_dict(), {0: 3, 9: 1}, 17
    )
    with CheckpointStore() as store:
        store.store(3, pickle_to_tensor(checkpoint))
        [data] = store.load(3)
    back = unpickle_tensor(data)
    assert (back.offsets, back.batches) == ({0: 3, 9: 1}, 17)
    expected, other = checkpoint.state.optimizer["state"], back.state.optimizer["state"]
    assert all(torch.equal(expected[n][key], other[n][key]) for n in expected for key in expected[n])
    assert back.state.optimizer["param_groups"] == checkpoint.state.optimizer["param_groups"]
    restored = make(kind, 12, seed=5)
    restored.load_state_dict(back.buffer)
    assert repr(restored.state_dict()) == repr(buffer.state_dict())
    for each in (buffer, restored):
        each.signal_reception_over()
    assert repr(restored.get_batch(3)) == repr(buffer.get_batch(3))


def test_a_checkpoint_without_optimizer_round_trips():
    back = unpickle_tensor(
        pickle_to_tensor(WorkerCheckpoint(WorkerState(None, 3), make("FIFO", 2).state_dict(), {}, 0))
    )
    assert (back.state, back.offsets, back.batches) == (WorkerState(None, 3), {}, 0)


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
def test_pickled_tensors_round_trip(value):
    data = pickle_to_tensor(value)
    assert (data.dtype, data.dim(), data.is_contiguous()) == (torch.uint8, 1, True)
    with connection_pair() as (one, other):
        sending = Thread(one.send, {}, [data])
        back = unpickle_tensor(other.receive()[1][0])
        sending.result()
    if isinstance(value, Failure):
        assert isinstance(back.exception(), ZeroDivisionError)
        assert str(back.exception()) == "oh"
    else:
        assert repr(back) == repr(value)
    pickle_to_tensor(value)[:] = 0  # does not share memory with the value
    assert repr(unpickle_tensor(data)) == repr(back)
