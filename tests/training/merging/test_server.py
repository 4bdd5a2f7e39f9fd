"""Merging by way of a parameter server: the laws of commutative merging, and a server that ends with the fit."""

import os
import signal
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BlockedTensor, DistributedTrainer, DivergedError, Merge, parameter_server
from compss_train.callbacks import Callback
from compss_train.model import parameters as params
from compss_train.model.training_spec import TensorNames
from compss_train.parameter_server import LocalParameterServer, serve_apart
from compss_train.worker.server_exchange import Exchange
from tests.helpers.models import (
    ADAM,
    MODES,
    SGD,
    assert_close,
    assert_same_bits,
    awkward_net,
    blocked,
    classification,
    mlp,
)
from tests.helpers.processes import children
from tests.helpers.small_fits import STILL, combined, fit, fitted, trainer_of
from tests.helpers.tolerances import largest, sgd_error, sum_error

SERVED = {"merge": "parameter_server"}


@pytest.fixture(autouse=True)
def _no_server_is_left():
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("parameter")] == []


@pytest.mark.parametrize("net", [mlp, awkward_net])
@pytest.mark.parametrize("mode", MODES)
def test_one_worker_is_the_plain_loop(engine, net, mode):
    """Synchronous merging with one worker is; tests/test_trainer.py compares that with a loop."""
    x, y = classification(samples=57)
    options = {"optimizer": ADAM, "num_epochs": 3, "batch_size": 4, **mode}
    ours, plain = (
        fitted(engine, 1, *blocked(x, y, 5), net=net(), **combined(options, merge=merge))
        for merge in ("parameter_server", "synchronous")
    )
    assert_same_bits(ours, plain)


@pytest.mark.parametrize("net", [mlp, awkward_net])
@pytest.mark.parametrize("workers", [2, 3])
def test_one_merge_at_the_end_is_the_mean_by_samples(engine, net, workers):
    x, y = classification(samples=64)
    options = {"optimizer": SGD, "num_epochs": 3, "batch_size": 4, "merge": Merge(every=0), "shuffle": "total"}
    ours, mean = (
        fitted(engine, workers, *blocked(x, y, 7), net=net(), **combined(options, merge=merge))
        for merge in ("parameter_server", "synchronous")
    )
    assert_close(ours, mean, sum_error(np.float32, 2 * workers, largest(mean)))  # versions of the same bits, merged


@pytest.mark.parametrize("workers", [2, 3])
def test_one_batch_each_is_one_step_on_the_joint_batch(engine, workers):
    x, y = classification(samples=workers * 20)
    apart = fitted(engine, workers, *blocked(x, y, workers), num_epochs=1, batch_size=20, **SERVED, **STILL)
    joint = fitted(engine, 1, *blocked(x, y, 1), num_epochs=1, num_batches_per_worker=1, **STILL)
    assert_close(apart, joint, sgd_error(np.float32, 2, 0.1, samples=workers * 20))  # a step, and a merge


def test_a_worker_without_samples_has_no_vote(engine):
    x, y = classification()
    options = combined(SERVED, STILL, num_epochs=2, batch_size=10, merge=Merge(every=0), net=awkward_net())
    two = fitted(engine, 2, *blocked(x, y, 2), **options)
    with pytest.warns(UserWarning, match="3 have nothing to train"):
        five = fitted(engine, 5, *blocked(x, y, 2), **options)
    assert_same_bits(two, five)


def published(*versions, statistics=("v",), workers=3):
    server = LocalParameterServer()
    exchange = Exchange.of(versions[0], TensorNames((), frozenset(statistics)), workers)
    exchange.publish(server, versions[0])
    return server, exchange


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_order_of_arrival_changes_nothing(order):
    """As commutative merging does, with whose updates it is compared; statistics and integers too."""
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
        expected = params.apply_delta(expected, base, trained[worker], worker + 1, 6, {"v"})
    assert {name: array.dtype for name, array in ours.items()} == {n: a.dtype for n, a in base.items()}
    rounding = sum_error(np.float32, 2 * 3, max(np.abs(v[n]).max() for v in (base, *trained) for n in "wzv"))
    assert_close({**ours, "n": 0, "mask": 0}, {**expected, "n": 0, "mask": 0}, rounding)
    assert ours["n"] == max(version["n"] for version in trained)
    assert (ours["mask"] == np.any([version["mask"] for version in trained], axis=0)).all()


def test_statistics_are_means_of_what_workers_had_last_however_late_they_come():
    """One that is slow adds nothing against a base that is gone: the mean of positive numbers is positive."""
    start, tiny = {"v": np.full(2, 100, np.float32)}, {"v": np.full(2, 1e-9, np.float32)}
    server, exchange = published(start, workers=2)
    with server:
        assert_same_bits(exchange.pull(server), start)
        for _ in range(5):
            exchange.push_change(server, 0, start, tiny, 0.5)
        assert_same_bits(exchange.pull(server), tiny)
        exchange.push_change(server, 1, start, {"v": np.full(2, 3, np.float32)}, 0.25)
        np.testing.assert_allclose(exchange.pull(server)["v"], 1, rtol=sum_error(np.float32, 4))
        exchange.push_change(server, 1, start, {"v": np.full(2, np.nan, np.float32)}, 0.0)
        exchange.push_change(server, 1, start, tiny, 0.25)
        np.testing.assert_allclose(exchange.pull(server)["v"], 1e-9, rtol=sum_error(np.float32, 4))


def test_a_layer_is_a_key_and_the_first_layers_come_first():
    net = awkward_net()
    initial = params.from_module(net)
    calls = []

    class Noted(LocalParameterServer):
        def push(self, key, grads, priority=0):
            calls.append((key, len(grads), priority))
            super().push(key, grads, priority)

    exchange = Exchange.of(initial, TensorNames.of(net), 2)
    with Noted() as server:
        exchange.publish(server, initial)
        exchange.push_change(server, 0, initial, initial, 0.5)
        assert_same_bits(exchange.pull(server), initial)
    assert calls == [("0: weights", 2, 3), ("1: weights", 2, 2), ("4: weights", 1, 1), ("1: rows", 4, 2)]


@pytest.mark.parametrize("options", [{}, {"merge": Merge(unit="blocks")}])
def test_batch_norm_survives_many_workers_and_all_samples_are_trained(engine, options):
    x, y = classification(samples=320)
    trainer = DistributedTrainer(8, engine=engine, seed=0, threads=1)
    trainer.build(awkward_net(), ADAM, "cross_entropy")
    data = blocked(x / 100, y, 16)
    trained = trainer.fit(*data, num_epochs=2, batch_size=5, validation_data=data, **combined(SERVED, options))
    assert (trained["1.running_var"] > 0).all()
    assert trained["1.num_batches_tracked"] >= 2 * 320 / 5 / 8
    assert all(np.isfinite(record["val_loss"]) for record in trainer.history)
    assert sum(worker["samples"] for r in trainer.history for worker in r["workers"]) == 640
    measured = trainer.history[-1]["val_loss"]
    assert trainer.evaluate(*data)["loss"] == pytest.approx(measured, rel=sum_error(np.float32, 320))


def test_integer_buffers_take_the_maximum(engine):
    x, y = classification(samples=30)
    cuts = [slice(0, 10), slice(10, 30)]
    data = (BlockedTensor([[array[cut]] for cut in cuts]) for array in (x, y))
    merged = fitted(engine, 2, *data, net=awkward_net(), num_epochs=1, batch_size=5, **SERVED, **STILL)
    assert merged["1.num_batches_tracked"] == 4


def test_a_second_fit_goes_on_where_the_first_ended(engine):
    x, y = classification()
    trainer = DistributedTrainer(1, engine=engine, seed=0, threads=1)
    trainer.build(awkward_net(), SGD, "cross_entropy")
    for _ in range(2):
        trainer.fit(*blocked(x, y, 3), num_epochs=1, batch_size=5, **SERVED)
    once = fitted(engine, 1, *blocked(x, y, 3), net=awkward_net(), optimizer=SGD, num_epochs=2, batch_size=5)
    assert_same_bits(trainer.get_parameters(), once)


def test_nothing_is_left_in_the_engine(shared_local):
    def files():
        return {name for folder in shared_local._folders.paths for name in os.listdir(folder)}

    x, y = np.ones((100, 300), np.float32), np.zeros(100, np.int64)
    before = files()
    trainer = DistributedTrainer(2, engine=shared_local, seed=0, threads=1)
    trainer.build(nn.Linear(300, 200), SGD, "cross_entropy")
    for epochs in (1, 4):
        trainer.fit(*blocked(x, y, 4), num_epochs=epochs, batch_size=10, **SERVED)
    trainer.close()
    shared_local.fetch([shared_local.submit(len, "abc")])
    assert files() == before


def test_a_process_killed_after_its_push_is_not_counted_twice(shared_local, tmp_path, monkeypatch):
    """Its task runs again, as the same client: the server knows what it has had from it."""
    x, y = classification()
    options = combined(SERVED, num_epochs=2, batch_size=5, merge=Merge(every=0))
    expected = fitted(shared_local, 3, *blocked(x, y, 6), net=awkward_net(), **options)
    monkeypatch.setattr("compss_train.training.merging.server.Exchange", exchange_that_dies(tmp_path / "killed"))
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


def test_a_callback_that_raises_ends_the_server():
    class InterruptAt(Callback):
        def on_round_end(self, trainer, record):
            raise KeyboardInterrupt

    x, y = classification()
    trainer = DistributedTrainer(2, engine="serial", seed=1)
    trainer.build(mlp(), SGD, "cross_entropy")
    with pytest.raises(KeyboardInterrupt):
        trainer.fit(*blocked(x, y, 2), num_epochs=5, batch_size=20, callbacks=[InterruptAt()], **SERVED)
    options = {"optimizer": SGD, "seed": 1, "num_epochs": 1, "batch_size": 20, **SERVED}
    assert_same_bits(trainer.get_parameters(), fitted("serial", 2, *blocked(x, y, 2), **options))


def test_a_fit_that_ends_before_its_first_round_ends_the_server(monkeypatch):
    def refuse(self, server, parameters):
        raise ArithmeticError("nothing is published today")

    monkeypatch.setattr(Exchange, "publish", refuse)
    with pytest.raises(ArithmeticError, match="today"):
        fitted("serial", 1, *classification(), num_epochs=1, batch_size=20, **SERVED)


@pytest.mark.parametrize("ahead", [0, 2])
def test_a_loss_that_turns_nan_is_never_pushed(ahead):
    x, y = classification()
    bad = x.copy()
    bad[:30] = np.nan
    trainer = DistributedTrainer(2, engine="serial", seed=1)
    trainer.build(mlp(), SGD, "cross_entropy")
    if ahead:
        trainer.fit(*blocked(x, y, 2), num_epochs=ahead, batch_size=5, shuffle=None, **SERVED)
    good = trainer.get_parameters()
    with pytest.raises(DivergedError, match=f"loss became nan in round {ahead} on worker 0"):
        trainer.fit(*blocked(bad, y, 2), num_epochs=1, batch_size=5, shuffle=None, **SERVED)
    assert_same_bits(trainer.get_parameters(), good)


def test_an_exception_in_a_worker_ends_everything_and_what_complete_rounds_made_is_kept(shared_local):
    x, y = classification()
    x[50:] = np.nan  # the second worker's last block
    ends = shared_local.ends
    trainer = DistributedTrainer(2, engine=shared_local, seed=1, threads=1)
    trainer.build(mlp(), SGD, "cross_entropy")
    initial = trainer.get_parameters()
    options = {"num_epochs": 1, "batch_size": 5, "merge": Merge(unit="blocks"), "shuffle": None}
    with pytest.raises(DivergedError, match="round 2 on worker 1"):
        trainer.fit(*blocked(x, y, 6), **combined(options, SERVED))
    assert shared_local.ends == ends + 1
    kept = trainer.get_parameters()
    assert all(np.isfinite(array).all() for array in kept.values())
    assert (kept["0.weight"] != initial["0.weight"]).any()


NESTEROV = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_an_outer_learning_rate_of_1_without_momentum_has_the_bits_of_adding(mode):
    """The server works in double precision, where w - (-change) is w + change."""
    with_outer, without = trainer_of(), trainer_of()
    outer = {"optimizer": "sgd", "lr": 1.0}
    assert_same_bits(
        fit(with_outer, **combined(mode, SERVED, merge=Merge(outer_optimizer=outer))),
        fit(without, **combined(mode, SERVED)),
    )


def test_one_worker_with_an_outer_optimizer_is_synchronous():
    """One push a round; the server rounds to single precision when it is pulled, and not its own parameters."""
    x, y = classification(samples=60)
    options = {**STILL, "num_epochs": 2, "batch_size": 10, "merge": Merge(unit="batches", outer_optimizer=NESTEROV)}
    ours, theirs = (
        fitted("serial", 1, *blocked(x, y, 6), **combined(options, merge=merge))
        for merge in ("parameter_server", "synchronous")
    )
    assert_close(ours, theirs, sgd_error(np.float32, 2 * 12, 0.1 * 0.7 * 1.9, samples=10, momentum=0.9))


def test_weights_without_dimensions():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.scale = mlp(), nn.Parameter(torch.tensor(1.5))

        def forward(self, x):
            return self.inner(x) * self.scale

    by_server, synchronous = (
        fit(trainer_of(workers=1, net=Scaled), merge=merge) for merge in ("parameter_server", "synchronous")
    )
    assert_same_bits(by_server, synchronous)


@pytest.mark.filterwarnings("ignore:5 workers share 2 blocks")
def test_a_worker_without_samples_takes_no_outer_step():
    two, five = trainer_of(workers=2), trainer_of(workers=5)
    options = combined(SERVED, merge=Merge(outer_optimizer=NESTEROV), blocks=2, num_epochs=1)
    assert_same_bits(fit(two, **options), fit(five, **options))


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
        ours, added = exchange.pull(server), exchange.pull(plain)
    assert ours["w"].tobytes() == weight.detach().numpy().tobytes()
    assert ours["v"].tobytes() == added["v"].tobytes()


def test_frozen_weights_are_not_stepped_and_statistics_and_integers_are_merged_as_without():
    def frozen():
        net = awkward_net()
        net[0].requires_grad_(False)
        return net

    outer = {"optimizer": "adam", "lr": 0.01, "weight_decay": 0.1}
    stepped, added = trainer_of(net=frozen), trainer_of(net=frozen)
    ours = fit(stepped, num_epochs=1, **combined(SERVED, merge=Merge(every=0, outer_optimizer=outer)))
    plain = fit(added, num_epochs=1, **combined(SERVED, merge=Merge(every=0)))
    for name in ("0.weight", "0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert ours[name].tobytes() == plain[name].tobytes()
    assert (ours["4.weight"] != plain["4.weight"]).all()


def test_frozen_weights_of_a_module_are_a_layer_of_their_own():
    parameters = params.from_module(awkward_net())
    names = TensorNames(("0.weight", "4.weight"), frozenset({"1.running_mean"}))
    layers = Exchange.of(parameters, names, 2, stepped=True).layers
    assert [(layer.name, layer.added, layer.stepped) for layer in layers[:2]] == [
        ("0", ("0.weight",), True),
        ("0: frozen", ("0.bias",), False),
    ]


@pytest.mark.parametrize("merge", ["parameter_server", "commutative"])
def test_an_outer_step_that_diverges_is_an_error(merge):
    outer = {"optimizer": "sgd", "lr": 1e38}
    with pytest.raises(DivergedError, match=r"outer_optimizer= made '\d\.\w+' NaN or infinite"):
        fit(trainer_of(optimizer={"optimizer": "sgd", "lr": 100.0}), merge=Merge(merge, outer_optimizer=outer))


def test_a_server_apart_has_an_outer_optimizer_that_is_a_function_of_this_program(monkeypatch, shared_local):
    monkeypatch.setattr(type(shared_local), "traits", replace(shared_local.traits, interruptible=False))
    monkeypatch.setattr(parameter_server, "serve", None)
    outer = lambda p: torch.optim.SGD(p, lr=0.7, momentum=0.9, nesterov=True)  # noqa: E731
    apart = fit(
        trainer_of(shared_local, workers=1), num_epochs=1, **combined(SERVED, merge=Merge(outer_optimizer=outer))
    )
    monkeypatch.undo()
    here = fit(trainer_of(workers=1), num_epochs=1, **combined(SERVED, merge=Merge(outer_optimizer=NESTEROV)))
    assert_same_bits(apart, here)


def test_a_server_does_not_grow_with_the_rounds(monkeypatch):
    servers = []
    serve = parameter_server.serve
    monkeypatch.setattr(
        parameter_server, "serve", lambda *args, **options: servers.append(serve(*args, **options)) or servers[-1]
    )
    fitted("serial", 2, *blocked(*classification(), 4), num_epochs=6, batch_size=5, **SERVED)
    named = [name for name in servers[0]._loop._clients if name.startswith(b"named")]
    assert len(named) == 2


def test_without_zeromq_nothing_starts(monkeypatch):
    for name in [name for name in sys.modules if name == "zmq" or name.startswith("zmq.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "compss_train.parameter_server.serving", raising=False)
    monkeypatch.setitem(sys.modules, "zmq", None)
    trainer = DistributedTrainer(2, engine="local", seed=0)
    trainer.build(mlp(), SGD, "cross_entropy")
    with pytest.raises(ModuleNotFoundError, match=r"serve needs ZeroMQ: pip install 'compss_train\[online\]'"):
        trainer.fit(*classification(), num_epochs=1, batch_size=5, **SERVED)
    assert trainer._workplace.engine is None


def test_halving_is_not_for_a_server():
    with pytest.raises(ValueError, match="rule='halving' belongs to Merge"):
        fitted(
            "serial",
            1,
            *classification(),
            num_epochs=1,
            batch_size=5,
            **combined(SERVED, merge=Merge(rule="halving")),
        )


def test_a_server_apart_that_cannot_listen_says_so():
    with pytest.raises(OSError, match=r"cannot listen at tcp://256\.0\.0\.1:1"):
        serve_apart("tcp://256.0.0.1:1")


def test_a_fit_where_waiting_stops_threads_serves_apart(monkeypatch, shared_local):
    monkeypatch.setattr(type(shared_local), "traits", replace(shared_local.traits, interruptible=False))
    monkeypatch.setattr(parameter_server, "serve", None)
    before = children()
    x, y = classification()
    ours = fitted(shared_local, 1, *blocked(x, y, 3), num_epochs=2, batch_size=5, **SERVED)
    assert_same_bits(ours, fitted(shared_local, 1, *blocked(x, y, 3), num_epochs=2, batch_size=5))
    assert set(children()) <= set(before)
