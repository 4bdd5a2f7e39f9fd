"""Merging by way of a parameter server: the laws of commutative merging, and a server that ends
with the fit.
"""

import os
import signal
import threading
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import Merge, parameter_server
from compss_train.model.commutative_updates import apply_delta
from compss_train.model.training_spec import TensorNames
from compss_train.parameter_server import LocalParameterServer
from compss_train.worker.server_exchange import Exchange
from tests.helpers.callbacks import InterruptAt
from tests.helpers.models import (
    ADAM,
    MODES,
    assert_close,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
)
from tests.helpers.processes import children
from tests.helpers.small_fits import combined, fit, fitted, trainer_of
from tests.helpers.tolerances import largest, sum_error
from tests.helpers.waiting import wait_until

SERVED = {"merge": "parameter_server"}


@pytest.fixture(autouse=True)
def _no_server_is_left():
    yield
    assert [
        thread.name for thread in threading.enumerate() if thread.name.startswith("parameter")
    ] == []


@pytest.mark.parametrize("mode", MODES)
def test_one_worker_is_the_plain_loop(engine, mode):
    """Synchronous merging with one worker is; tests/test_trainer.py compares that with a loop."""
    x, y = classification(samples=57)
    options = {"optimizer": ADAM, "num_epochs": 3, "batch_size": 4, **mode}
    ours, plain = (
        fitted(engine, 1, *blocked(x, y, 5), net=awkward_net(), **combined(options, merge=merge))
        for merge in ("parameter_server", "synchronous")
    )
    assert_same_bits(ours, plain)


def published(*versions, statistics=("v",), workers=3):
    server = LocalParameterServer()
    exchange = Exchange.of(versions[0], TensorNames((), frozenset(statistics)), workers)
    exchange.publish(server, versions[0])
    return server, exchange


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_order_of_arrival_changes_nothing(order):
    """As commutative merging does, with whose updates it is compared; statistics and integers
    too.
    """
    random = np.random.default_rng(1)
    base, *trained = (
        {
            "w": random.normal(size=50).astype(np.float32),
            "z": random.normal(size=5).astype(np.complex64),
            "v": random.uniform(size=4).astype(np.float32),
            "n": np.array(random.integers(100)),
            "mask": random.uniform(size=3) > 0.5,
        }
        for _ in range(4)
    )
    server, exchange = published(base)
    expected = base
    with server:
        for worker in order:
            exchange.push_change(server, worker, base, trained[worker], (worker + 1) / 6)
        ours = exchange.pull(server)
    for worker in range(3):
        expected = apply_delta(
            expected, base, trained[worker], count=worker + 1, total=6, buffers={"v"}
        )
    assert {name: array.dtype for name, array in ours.items()} == {
        n: a.dtype for n, a in base.items()
    }
    rounding = sum_error(
        np.float32, 2 * 3, max(np.abs(v[n]).max() for v in (base, *trained) for n in "wzv")
    )
    assert_close({**ours, "n": 0, "mask": 0}, {**expected, "n": 0, "mask": 0}, rounding)
    assert ours["n"] == max(version["n"] for version in trained)
    assert (ours["mask"] == np.any([version["mask"] for version in trained], axis=0)).all()


def test_a_process_killed_after_its_push_is_not_counted_twice(shared_local, tmp_path, monkeypatch):
    """Its task runs again, as the same client: the server knows what it has had from it."""
    x, y = classification()
    options = combined(SERVED, num_epochs=2, batch_size=5, merge=Merge(every=0))
    expected = fitted(shared_local, 3, *blocked(x, y, 6), net=awkward_net(), **options)
    monkeypatch.setattr(
        "compss_train.training.schedules.server.Exchange", exchange_that_dies(tmp_path / "killed")
    )
    # In another order: where a mean lies half way between two floats, that decides which.
    ours = fitted(shared_local, 3, *blocked(x, y, 6), net=awkward_net(), **options)
    assert_close(ours, expected, sum_error(np.float32, 2 * 3, largest(expected)))
    assert (tmp_path / "killed").exists()


def exchange_that_dies(flag):
    class Dies(Exchange):  # local, so that it travels to the workers by value
        def pull(self, server):
            pulled = Exchange.pull(self, server)
            if not flag.exists():
                flag.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return pulled

    return Dies


def test_a_fit_that_fails_ends_the_server(monkeypatch):
    """In its second round or before its first, with the parameters of the last one."""
    ours, short = (trainer_of(workers=2, net=mlp) for _ in range(2))
    with pytest.raises(KeyboardInterrupt):
        fit(ours, InterruptAt(1), **SERVED)
    assert_same_bits(ours.get_parameters(), fit(short, num_epochs=1, **SERVED))

    def refuse(*_):
        raise ArithmeticError("nothing is published today")

    monkeypatch.setattr(Exchange, "publish", refuse)
    with pytest.raises(ArithmeticError, match="today"):
        fit(ours, **SERVED)


NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


@pytest.mark.parametrize("order", [(0, 1, 0), (1, 0, 0)])
def test_the_server_steps_with_each_change_as_a_gradient(order):
    random = np.random.default_rng(1)
    base, *trained = ({"w": random.normal(size=50), "v": random.uniform(size=4)} for _ in range(3))
    exchange = Exchange.of(base, TensorNames(("w",), frozenset("v")), 2, stepped=True)
    weight = nn.Parameter(torch.from_numpy(base["w"].copy()))
    sgd = torch.optim.SGD([weight], lr=0.7, momentum=0.9, nesterov=True)
    with LocalParameterServer(NESTEROV) as server, LocalParameterServer() as plain:
        for each in (server, plain):
            exchange.publish(each, base)
        for worker in order:
            exchange.push_change(server, worker, base, trained[worker], 0.5)
            exchange.push_change(plain, worker, base, trained[worker], 0.5)
            weight.grad = torch.from_numpy(0.5 * (base["w"] - trained[worker]["w"]))
            sgd.step()
        ours = exchange.pull(server)
        added = exchange.pull(plain)
    assert ours["w"].tobytes() == weight.detach().numpy().tobytes()
    assert ours["v"].tobytes() == added["v"].tobytes()


def test_a_fit_where_waiting_stops_threads_serves_apart(monkeypatch, shared_local):
    """The outer optimizer may be a function of this program."""
    monkeypatch.setattr(
        type(shared_local), "traits", replace(shared_local.traits, interruptible=False)
    )
    monkeypatch.setattr(parameter_server, "serve", None)
    before = children()
    outer = partial(torch.optim.SGD, lr=0.7, momentum=0.9, nesterov=True)
    merge = Merge("parameter_server", outer_optimizer=lambda parameters: outer(parameters))
    apart = fit(trainer_of(shared_local, workers=1), num_epochs=2, merge=merge)
    wait_until(lambda: set(children()) <= set(before))
    monkeypatch.undo()
    merge = Merge("parameter_server", outer_optimizer=NESTEROV)
    assert_same_bits(apart, fit(trainer_of(workers=1), num_epochs=2, merge=merge))
