"""The tasks that train: what they return depends on nothing but their arguments, and they change
none of them.
"""

import copy
import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from torch import nn

from compss_train._utils.nested import leaves
from compss_train.data.block_passes import BlockPass
from compss_train.model.devices import RandomState, random_state
from compss_train.model.optimizers import net_optimizer
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.weighted_mean import PartialSum, partial_sum
from compss_train.worker.state import WorkerState
from compss_train.worker.train import train_group, train_worker
from compss_train.worker.work import Work
from tests.helpers.models import ADAM, assert_same_bits, awkward_net, classification, state_arrays
from tests.worker.assignments import job_of

X, Y = classification(samples=60)
WORKERS = 4


def spec_of(loss=nn.functional.cross_entropy):
    torch.manual_seed(5)
    net = awkward_net()
    return TrainingSpec(net=net, optimizer=net_optimizer(ADAM, net), loss=loss)


def works(*workers):
    """Return the work of these workers of a group, each on one of the blocks 0 to 3."""
    blocks = tuple(range(WORKERS))
    return [
        Work((BlockPass(each, 0, 15),), worker=each, index_in_group=each, blocks=blocks)
        for each in workers
    ]


def arguments(spec, *workers):
    states = tuple(WorkerState(None, 10 + worker) for worker in range(WORKERS))
    blocks = [*np.split(X, WORKERS), *np.split(Y, WORKERS)]
    job = job_of(4, spec=spec, row_seed=3, seed=3)
    return job, state_arrays(spec.net), states, blocks, works(*workers)


def encoded(states):
    """Return all that states hold, as values to compare."""
    parts = [leaves([state.optimizer, state.batches, *of_random(state.random)]) for state in states]
    return [
        [np.asarray(leaf).tobytes() if hasattr(leaf, "dtype") else leaf for leaf in part]
        for part in parts
    ]


def of_random(state):
    return [state] if isinstance(state, int) else [state.cpu, state.numpy, state.python]


def test_a_group_is_the_sum_of_its_workers_whatever_else_the_task_trains():
    spec = spec_of()
    total, after = train_group(*arguments(spec, 0, 1, 2, 3))
    alone = [train_worker(*arguments(spec, worker)) for worker in range(WORKERS)]
    expected = partial_sum(
        [PartialSum.of_worker(one, 15, n) for n, (one, _, _) in enumerate(alone)]
    )
    assert_same_bits(total.values, expected.values)
    assert total.count == 60
    assert [part.loss for part in total.measured] == [own.loss for _, _, (own,) in alone]
    assert encoded(after) == encoded(states[worker] for worker, (_, states, _) in enumerate(alone))


def test_a_task_that_runs_again_gives_the_same_bits_and_changes_no_argument():
    given = arguments(spec_of(), 1, 2)
    before = copy.deepcopy(given[1:])
    first, again = (train_group(*given, None, None, True) for _ in range(2))
    assert_same_bits(first[0].values, again[0].values)
    assert encoded(first[1]) == encoded(again[1])
    assert [part.planned_samples for part in first[2]] == [15, 15]
    assert_same_bits(before[0], given[1])
    assert encoded(before[1]) == encoded(given[2])
    assert all(np.array_equal(old, new) for old, new in zip(before[2], given[3], strict=True))


def test_a_worker_that_has_nothing_to_do_keeps_its_state():
    given = arguments(spec_of(), 1, 3)
    _, after = train_group(*given)
    assert after[0] is given[2][0]
    assert after[2] is given[2][2]


def failing(output, target):
    raise RuntimeError("no loss today")


@pytest.mark.parametrize("task", [train_group, train_worker])
@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, failing])
def test_the_random_numbers_of_the_caller_stay(task, loss):
    given = arguments(spec_of(loss), 2)
    with random_state(4, "cpu"):
        before = RandomState.capture("cpu")
        with (
            pytest.raises(RuntimeError, match="no loss today") if loss is failing else nullcontext()
        ):
            task(*given)
        assert RandomState.capture("cpu").is_same(before)
        drawn = torch.rand(1).item(), np.random.random(), random.random()
    with random_state(4, "cpu"):
        assert drawn == (torch.rand(1).item(), np.random.random(), random.random())


def test_only_one_worker_can_be_trained_apart():
    with pytest.raises(ValueError, match="too many values"):
        train_worker(*arguments(spec_of(), 0, 1))
