"""fit_online without failures: equality with a plain loop, each sample trained on, ends, pairs,
further fits.
"""

import itertools
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import BufferSpec, Merge, SimulationError
from compss_train.online.reports import Reports
from tests.helpers.models import (
    ADAM,
    SGD,
    assert_close,
    assert_same_bits,
    awkward_net,
    classification,
    mlp,
)
from tests.helpers.tolerances import adam_error, sgd_error
from tests.online.fits import FIFO, batches_of, build_trainer, fit_online, plain_loop
from tests.online.simulations import (
    COUNTING_SGD,
    CountingNet,
    EndlessSimulation,
    OneHotSimulation,
    TouchFile,
    free_port,
    pairing,
    sample_counts,
    simulate_rows,
    slow_copy,
    sum_loss,
)

# One worker and one simulator equal the plain loop

PLAIN = {
    "momentum": (SGD, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": (ADAM, lambda p: torch.optim.Adam(p, lr=0.01)),
}


@pytest.mark.parametrize(
    ("name", "merge_every"), [("momentum", 1), ("adam", 3), ("momentum", 1000)]
)
def test_one_worker_and_one_simulator_equal_the_plain_loop(local, name, merge_every):
    x, y = classification(samples=60)
    spec, plain = PLAIN[name]
    trainer = build_trainer(local, 1, awkward_net(), spec)
    inputs = [(x[:20], y[:20]), (x[20:33], y[20:33]), (x[33:], y[33:])]
    ours = fit_online(trainer, simulate_rows, inputs, every=merge_every)
    assert_same_bits(ours, plain_loop(awkward_net(), plain, batches_of(7, x, y)))
    assert_same_bits(ours, trainer.get_parameters())


def test_double_precision_equals_the_plain_loop_up_to_rounding(local):
    x, y = classification(samples=40)
    x = x.astype(np.float64)
    y = y[:, None].astype(np.float64)
    net = mlp(outputs=1).double()
    trainer = build_trainer(local, 1, net, ADAM, "mse")
    ours = fit_online(trainer, simulate_rows, [(x, y)])
    plain = plain_loop(net, PLAIN["adam"][1], batches_of(7, x, y), nn.functional.mse_loss)
    assert_close(ours, plain, adam_error(np.float64, 6, 0.01, samples=7))


def test_a_steps_batch_is_a_tuple_without_y_too(local):
    """As in ``fit``: the step of a critic gets all samples of a batch, not one."""
    x, _ = classification(samples=21)

    def step(model, batch, context):
        (real,) = batch
        return {"loss": model(real).mean(), "rows": len(batch[0])}

    trainer = build_trainer(local, 1, mlp(outputs=1), loss=None, training_step=step)
    fit_online(trainer, simulate_rows, [(x,)])
    assert {record["rows"] for record in trainer.history} == {7}


def test_samples_of_another_dtype_are_converted_and_warnings_of_workers_arrive(local):
    x, y = classification(samples=40)
    net = nn.Sequential(mlp(), nn.Softmax(dim=1))
    trainer = build_trainer(local, 1, net, loss="cross_entropy")
    with pytest.warns(UserWarning, match="float64 becomes|outputs of the network") as warned:
        ours = fit_online(trainer, simulate_rows, [(x.astype(np.float64), y)])
    beginnings = sorted(str(warning.message)[:23] for warning in warned)
    assert beginnings == ["float64 becomes float32", "the outputs of the netw"]
    assert_same_bits(ours, plain_loop(net, PLAIN["momentum"][1], batches_of(7, x, y)))


def test_an_outer_optimizer_steps_with_each_merge(local):
    """v = 0.9 v + g, w = w - 0.7 (g + 0.9 v), with the worker's step as the gradient g = 0.1 ∇."""
    x, y = classification(samples=42)
    net = mlp()
    trainer = build_trainer(local, 1, net, {"optimizer": "sgd", "lr": 0.1})
    outer = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}
    ours = fit_online(trainer, simulate_rows, [(x, y)], outer_optimizer=outer)
    textbook = plain_loop(
        net,
        lambda parameters: torch.optim.SGD(parameters, lr=0.07, momentum=0.9, nesterov=True),
        batches_of(7, x, y),
    )
    assert_close(ours, textbook, sgd_error(np.float32, 2 * 6, 0.07 * 1.9, samples=7, momentum=0.9))


def test_an_online_fit_ends_the_average_of_an_earlier_one(local):
    x, y = classification(samples=42)
    trainer = build_trainer(local, 1, mlp(), {"optimizer": "sgd", "lr": 0.1})
    trainer.fit(x, y, num_epochs=1, batch_size=7, merge=Merge(averaging="ema"), progress=False)
    fit_online(trainer, simulate_rows, [(x, y)])
    assert trainer.snapshot().merge == dict.fromkeys(("moments", "outer", "averaged"))
    with pytest.raises(ValueError, match="the last fit kept no average"):
        trainer.model(averaged=True)


def test_samples_without_y_are_their_own_targets(local):
    x, _ = classification(samples=30)
    net = mlp(outputs=6)
    ours = fit_online(build_trainer(local, 1, net, SGD, "mse"), simulate_rows, [(x,)], batch_size=4)
    assert_same_bits(
        ours, plain_loop(net, PLAIN["momentum"][1], batches_of(4, x), nn.functional.mse_loss)
    )


# Every sample is trained on

KINDS = {"FIFO": FIFO, "FIRO": BufferSpec("FIRO", 24, threshold=9)}


@pytest.mark.parametrize(
    ("buffer", "workers", "simulators", "transform"),
    [(KINDS["FIFO"], 1, 3, None), (KINDS["FIRO"], 2, 2, slow_copy), (KINDS["FIFO"], 3, 1, None)],
)
def test_queues_train_each_sample_once(local, buffer, workers, simulators, transform):
    numbers = [range(40), range(40, 41), (), range(41, 60), range(60, 101)]
    trainer = build_trainer(
        local, workers, CountingNet(101), COUNTING_SGD, sum_loss, transform=transform
    )
    parameters = fit_online(
        trainer, OneHotSimulation(101), numbers, buffer=buffer, count=simulators, every=2
    )
    assert sample_counts(parameters, workers) == [1] * 101
    assert sum(record["samples"] for record in trainer.history) == 101
    last = trainer.history[-1]
    assert last["repetitions"] == [0, 101]
    assert (last["received"], last["buffer"], last["unseen"]) == (101, 0, 0)
    assert last["repetitions_mean"] == 1.0
    assert last["simulations"] == {"running": 0, "done": 5, "failed": 0}


@pytest.mark.parametrize(
    ("kind", "transform"), [("Reservoir", slow_copy), ("BatchReservoir", None)]
)
def test_reservoirs_train_each_sample_at_least_once(local, kind, transform):
    trainer = build_trainer(local, 2, CountingNet(101), COUNTING_SGD, sum_loss, transform=transform)
    numbers = [range(40), range(40, 60), range(60, 101)]
    parameters = fit_online(
        trainer,
        OneHotSimulation(101),
        numbers,
        buffer=BufferSpec(kind, 12, threshold=5),
        count=2,
        batch_size=4,
    )
    trained = sample_counts(parameters, 2)
    last = trainer.history[-1]
    assert min(trained) >= 1
    assert last["repetitions"] == [trained.count(times) for times in range(max(trained) + 1)]
    assert sum(record["samples"] for record in trainer.history) == sum(trained)
    assert last["repetitions_mean"] == pytest.approx(sum(trained) / 101)


@pytest.mark.parametrize("kind", ["Reservoir", "BatchReservoir"])
def test_a_limit_of_repetitions_holds_until_the_simulations_have_ended(local, tmp_path, kind):
    """The worker waits for the simulation, which goes on when that was reported; the records have
    the seconds.
    """
    waited = tmp_path / "waited"
    capacity = 20
    reported = []
    add = Reports.add
    options = {"buffer": BufferSpec(kind, capacity, threshold=4, max_repeats=2), "batch_size": 4}
    trainer = build_trainer(local, 1, CountingNet(60), COUNTING_SGD, sum_loss)
    simulate = OneHotSimulation(60, TouchFile(30, until=waited))

    def add_and_touch(reports, worker, report, *statistics):
        add(reports, worker, report, *statistics)
        reported.append(report.waited)
        if sum(reported) > 0.2:
            waited.touch()

    with patch.object(Reports, "add", add_and_touch):
        fit_online(trainer, simulate, [range(30), range(30, 60)], **options)
    assert sum(record["waited"] for record in trainer.history) == pytest.approx(sum(reported))
    for record in trainer.history:
        running = record["simulations"]["done"] < 2
        assert record["repetitions_mean"] * record["received"] <= 2 * record["received"] + (
            0 if running else capacity
        )
    assert min(sample_counts(trainer.get_parameters(), 1)) >= 1


def test_simulations_without_samples_train_nothing_and_are_an_error(local):
    trainer = build_trainer(local, 2, CountingNet(5), COUNTING_SGD, sum_loss)
    with pytest.raises(
        SimulationError, match=("2 simulations have ended, and none has sent a sample")
    ):
        fit_online(trainer, OneHotSimulation(5), [(), ()])
    assert sample_counts(trainer.get_parameters(), 2) == [0] * 5
    assert [record["samples"] for record in trainer.history] == [0]
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


def test_a_threshold_above_all_samples_is_named_at_the_end(local):
    options = {"buffer": BufferSpec("Reservoir", 16, threshold=11), "batch_size": 5}
    trainer = build_trainer(local, 2, CountingNet(20), COUNTING_SGD, sum_loss)
    received = "10 samples, fewer than the threshold of its buffer, 11"
    words = f"a worker has received {received}: it has trained only after"
    with pytest.warns(UserWarning, match=words):
        params = fit_online(trainer, OneHotSimulation(20), [range(20)], **options)
    assert min(sample_counts(params, 2)) >= 1


# Maximum number of batches


@pytest.mark.parametrize(("kind", "transform"), [("FIFO", slow_copy), ("Reservoir", None)])
def test_max_batches_ends_everything(local, tmp_path, kind, transform):
    trainer = build_trainer(local, 2, CountingNet(10), COUNTING_SGD, sum_loss, transform=transform)
    options = {"buffer": BufferSpec(kind, 16), "count": 2, "batch_size": 4, "max_batches": 6}
    parameters = fit_online(trainer, EndlessSimulation(10, tmp_path), itertools.count(), **options)
    assert sum(sample_counts(parameters, 2)) == 2 * 6 * 4
    batches = [
        sum(record["workers"][worker]["batches"] for record in trainer.history)
        for worker in range(2)
    ]
    assert batches == [6, 6]
    if kind == "Reservoir":  # each fit counts its own batches
        fit_online(trainer, EndlessSimulation(10, tmp_path), itertools.count(), **options)
        assert sum(record["batches"] for record in trainer.history) == 24


# Pairs of time steps


def trajectory(simulation):
    for step in range(8):
        yield step, np.float32([simulation, step]), np.float32(simulation + 10 * step)


class PairNet(nn.Linear):
    def forward(self, x):
        earlier = x[:, :2]
        later = x[:, 3:5]
        assert torch.equal(earlier[:, 0], later[:, 0]), "pairs are of one simulation"
        assert (earlier[:, 1] < later[:, 1]).all(), "the earlier comes first"
        assert torch.equal(x[:, 2], earlier[:, 0] + 10 * earlier[:, 1])
        return super().forward(x)


def test_pairs_come_from_one_simulation(local):
    trainer = build_trainer(local, 2, PairNet(5, 1), SGD, lambda output, target: output.mean() * 0)
    buffer = BufferSpec("SimPairedReservoir", 20, threshold=3, sweep_size=6, nb_time_steps=8)
    fit_online(trainer, trajectory, range(6), buffer=buffer, count=2, batch_size=4, pairing=pairing)
    last = trainer.history[-1]
    assert last["received"] == 48
    assert sum(last["repetitions"][1:]) == 48
    assert sum(record["samples"] for record in trainer.history) >= 24
    with pytest.raises(ValueError, match="sweep_size=6: the study has 7 simulations"):
        fit_online(trainer, trajectory, range(7), buffer=buffer, batch_size=4, pairing=pairing)


def test_simulations_do_not_take_the_numbers_of_senders(local):
    """One whose number a sender has would send nothing: the sender's samples would be taken for its
    own.
    """
    trainer = build_trainer(local, 1, PairNet(5, 1), SGD, lambda output, target: output.mean() * 0)
    buffer = BufferSpec("SimPairedReservoir", 20, threshold=3, sweep_size=3, nb_time_steps=8)
    given = {"senders": 1, "address": f"tcp://127.0.0.1:{free_port()}", "token": "ours alone"}
    with pytest.raises(
        ValueError, match=("sweep_size=3: inputs= has more than 2 simulations beside senders=1")
    ):
        fit_online(
            trainer,
            trajectory,
            iter(range(3)),
            buffer=buffer,
            pairing=pairing,
            max_time=15.0,
            **given,
        )


# Several fits of one trainer


def test_fits_continue_from_each_other(local):
    x, y = classification(samples=84)
    trainer = build_trainer(local, 1, awkward_net(), ADAM)
    fit_online(trainer, simulate_rows, [(x[:21], y[:21])])
    numbers = len(trainer.history)
    fit_online(trainer, simulate_rows, [(x[21:42], y[21:42])])
    trainer.fit(
        x[42:63], y[42:63], num_epochs=1, batch_size=7, shuffle=None, shuffle_block_data=False
    )
    ours = fit_online(trainer, simulate_rows, [(x[63:], y[63:])])
    assert_same_bits(ours, plain_loop(awkward_net(), PLAIN["adam"][1], batches_of(7, x, y)))
    assert numbers < len(trainer.history)
    assert [record["round"] for record in trainer.history] == list(range(len(trainer.history)))
    assert [record["epoch"] for record in trainer.history if "epoch" in record] == [1]
    assert sum(record["samples"] for record in trainer.history) == 84


def test_a_fit_continues_with_the_averaged_state_of_the_optimizers_of_the_last_one(local):
    x, y = classification(samples=42)
    trainer = build_trainer(local, 1, mlp(), ADAM)
    in_order = {"batch_size": 7, "shuffle": None, "shuffle_block_data": False}
    trainer.fit(x[:21], y[:21], num_epochs=1, merge=Merge(optimizer_state="average"), **in_order)
    ours = fit_online(trainer, simulate_rows, [(x[21:], y[21:])])
    assert_same_bits(ours, plain_loop(mlp(), PLAIN["adam"][1], batches_of(7, x, y)))


def test_a_reset_optimizer_starts_without_state(local):
    x, y = classification(samples=42)
    trainer = build_trainer(local, 1, mlp())
    fit_online(trainer, simulate_rows, [(x[:21], y[:21])])
    ours = fit_online(trainer, simulate_rows, [(x[21:], y[21:])], optimizer_state="reset")
    halves = build_trainer(local, 1, trainer.model())
    halves.set_parameters(plain_loop(mlp(), PLAIN["momentum"][1], batches_of(7, x[:21], y[:21])))
    assert_same_bits(ours, fit_online(halves, simulate_rows, [(x[21:], y[21:])]))
