"""Buffers that are not in the state_dict belong to their worker, who keeps them from round to round."""

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import Merge, SerialEngine
from compss_train.worker.state import changed_buffers, restore_buffers
from tests.helpers.models import ADAM, assert_same_bits, blocked
from tests.helpers.plain_loop import plain_loop
from tests.helpers.small_fits import PLAIN_SGD, STILL, X, Y, combined, fit, trainer_of
from tests.training.test_resuming import every_round_resumed

ROUNDS = [{}, {"merge": Merge(every=2, unit="batches")}, {"merge": Merge(every=1, unit="blocks")}]
MERGES = [{}, {"merge": "commutative"}, {"merge": "parameter_server"}, {"merge": Merge(optimizer_state="reset")}]


class Smoothed(nn.Module):
    """Outputs depend on all batches that the worker has seen, by buffers that are made, replaced and changed."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.linear, self.inner = nn.Linear(6, 3), nn.Module()
        self.register_buffer("mean", torch.zeros(3), persistent=False)
        self.inner.register_buffer("calls", torch.tensor(0), persistent=False)
        self.inner.register_buffer("last", None, persistent=False)
        self.register_buffer("constant", torch.ones(2), persistent=False)
        self.alias = self.inner

    def forward(self, x):
        output = self.linear(x)
        if self.training:
            self.mean.lerp_(output.detach().mean(dim=0), 0.3)
            self.inner.calls += 1
            self.inner.last = output.detach()[:2].clone()
        return output + self.mean + 0.1 * self.inner.calls.sqrt() * torch.tensor([1.0, 0.0, 0.0])


@pytest.mark.parametrize("merge", MERGES, ids=str)
@pytest.mark.parametrize("way", ROUNDS, ids=str)
def test_one_worker_is_the_plain_loop(merge, way):
    trainer = trainer_of(workers=1, net=Smoothed, optimizer=PLAIN_SGD)
    data = blocked(X, Y, 3)
    ours = fit(trainer, data=data, num_batches_per_worker=4, num_epochs=3, **STILL, **combined(merge, way))
    assert_same_bits(ours, plain_loop(Smoothed(), lambda p: torch.optim.SGD(p, lr=0.1), X, Y, 3, 4, 3, seed=0))


def test_rounds_that_are_resumed_go_on_with_them(engine, tmp_path):
    every_round_resumed(
        tmp_path, lambda engine: trainer_of(engine, workers=2, net=Smoothed, optimizer=ADAM), engine=engine
    )


def test_a_second_fit_goes_on_with_them():
    once, twice = (trainer_of(workers=2, net=Smoothed) for _ in range(2))
    fit(once, num_epochs=4)
    fit(twice, num_epochs=1)
    fit(twice, num_epochs=3)
    assert_same_bits(once.get_parameters(), twice.get_parameters())


def test_only_what_has_changed_is_kept():
    before, net = Smoothed(), Smoothed()
    assert changed_buffers(net, before) is None
    net(torch.from_numpy(X))
    saved = changed_buffers(net, before)
    assert sorted(saved) == ["alias.calls", "alias.last", "inner.calls", "inner.last", "mean"]
    again = Smoothed()
    mean = again.mean
    restore_buffers(again, {**saved, "not there": torch.ones(1), "nor.there": torch.ones(1)}, "cpu")
    assert again.mean is mean
    assert changed_buffers(again, net) is None
    assert again.inner.last.data_ptr() != saved["inner.last"].data_ptr()
    assert sorted(again.state_dict()) == ["linear.bias", "linear.weight"]


def test_a_network_without_such_buffers_has_nothing_to_keep():
    engine = SerialEngine()
    trainer = trainer_of(engine)  # its BatchNorm has buffers in the state_dict
    fit(trainer)
    assert [state.buffers for state in trainer.snapshot().workers] == [None] * 3


def test_a_buffer_also_in_the_state_dict_is_merged():
    net = nn.BatchNorm1d(3)
    net.register_buffer("also", net.running_mean, persistent=False)
    before = nn.BatchNorm1d(3)
    before.register_buffer("also", before.running_mean, persistent=False)
    net(torch.from_numpy(np.ones((4, 3), np.float32)))
    assert changed_buffers(net, before) is None
