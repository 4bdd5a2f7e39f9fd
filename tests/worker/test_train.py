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
from compss_train.data.partitioning import BlockPass
from compss_train.engines.mapping import map_chunk
from compss_train.model.devices import RandomState, random_state
from compss_train.model.net_optimizers import net_optimizer
from compss_train.model.parts import Cut
from compss_train.model.training_spec import TrainingSpec
from compss_train.worker.merging.rules import Gathering, Mean
from compss_train.worker.merging.weighted_mean import partial_sum
from compss_train.worker.state import WorkerState
from compss_train.worker.train import training
from compss_train.worker.work import Work
from tests.helpers.models import ADAM, assert_same_bits, awkward_net, classification, state_arrays
from tests.worker.assignments import job_of

X, Y = classification(samples=60)
WORKERS = 4


def spec_of(loss=nn.functional.cross_entropy):
    torch.manual_seed(5)
    net = awkward_net()
    return TrainingSpec(net=net, optimizer=net_optimizer(ADAM, net), loss=loss)


def work_of(worker):
    """Return the work of a worker, on the block of its number."""
    return Work((BlockPass(worker, 0, 15),), worker=worker, blocks=tuple(range(WORKERS)))


def mapped(spec, *workers):
    """Return what a task that trains these workers returns: items, measurements, states."""
    return map_chunk(*arguments(spec, *workers))


def arguments(spec, *workers):
    states = [WorkerState(None, 10 + worker) for worker in workers]
    blocks = [*np.split(X, WORKERS), *np.split(Y, WORKERS)]
    parameters = state_arrays(spec.net)
    gathering = Gathering(Mean(), Cut.of(parameters, 1, inside=True))
    places = [(number, None) for number in range(len(workers))]
    works = [work_of(worker) for worker in workers]
    job = job_of(4, spec=spec, row_seed=3, seed=3)
    return training, gathering, 1, True, works, places, states, blocks, job, [parameters]


def encoded(states):
    """Return all that states hold, as values to compare."""
    parts = [leaves([state.optimizer, state.batches, *of_random(state.random)]) for state in states]
    return [
        [np.asarray(leaf).tobytes() if hasattr(leaf, "dtype") else leaf for leaf in part]
        for part in parts
    ]


def of_random(state):
    return [state] if isinstance(state, int) else [state.cpu, state.numpy, state.python]


def test_a_task_returns_the_sum_of_its_workers_whatever_else_it_trains():
    spec = spec_of()
    [total], measured, *after = mapped(spec, 0, 1, 2, 3)
    alone = [mapped(spec, worker) for worker in range(WORKERS)]
    expected = partial_sum([trained for [trained], _, _ in alone])
    assert_same_bits(total.fields["parameters"].values, expected.fields["parameters"].values)
    assert total.total == 60
    assert [part.loss for part in measured] == [part.loss for _, [part], _ in alone]
    assert encoded(after) == encoded(state for _, _, state in alone)


def test_a_task_that_runs_again_gives_the_same_bits_and_changes_no_argument():
    given = arguments(spec_of(), 1, 2)
    before = copy.deepcopy(given[4:])
    first, again = (map_chunk(*given) for _ in range(2))
    for old, new in zip(first[0], again[0], strict=True):
        assert_same_bits(old.fields["parameters"].values, new.fields["parameters"].values)
    assert encoded(first[2:]) == encoded(again[2:])
    assert [part.planned_samples for part in first[1]] == [15, 15]
    *_, states, blocks, _, [parameters] = given
    *_, states_before, blocks_before, _, [parameters_before] = before
    assert_same_bits(parameters_before, parameters)
    assert encoded(states_before) == encoded(states)
    assert all(np.array_equal(old, new) for old, new in zip(blocks_before, blocks, strict=True))


def failing(output, target):
    raise RuntimeError("no loss today")


@pytest.mark.parametrize("loss", [nn.functional.cross_entropy, failing])
def test_the_random_numbers_of_the_caller_stay(loss):
    given = arguments(spec_of(loss), 2)
    with random_state(4, "cpu"):
        before = RandomState.capture("cpu")
        with (
            pytest.raises(RuntimeError, match="no loss today") if loss is failing else nullcontext()
        ):
            map_chunk(*given)
        assert RandomState.capture("cpu").is_same(before)
        drawn = torch.rand(1).item(), np.random.random(), random.random()
    with random_state(4, "cpu"):
        assert drawn == (torch.rand(1).item(), np.random.random(), random.random())
