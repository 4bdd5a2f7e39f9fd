"""fit_online: the laws of training while simulations run, where nothing goes wrong."""

import copy
import itertools
import json
import subprocess
import sys
import textwrap
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassConfusionMatrix, MulticlassF1Score

from compss_train import BufferSpec, DistributedTrainer, NotBuiltError
from compss_train.callbacks import Callback, JsonLines
from compss_train.engines.this_machine import intra_op_threads
from compss_train.exceptions import TrainingEndedError
from compss_train.online import SampleSender
from tests.models import ADAM, SGD, assert_close, assert_same_bits, awkward_net, classification, mlp, state_arrays
from tests.online.simulations import (
    COUNTING,
    Counter,
    Hots,
    counts,
    free_port,
    one_hot,
    rows_of,
    tallied,
    tally,
    total,
    wait_for,
)

FIFO = BufferSpec("FIFO", 16)


def built(engine, workers, net, optimizer=SGD, loss="cross_entropy", metric=None, seed=3):
    trainer = DistributedTrainer(workers, engine=engine, seed=seed, threads=1)
    trainer.build(net, optimizer, loss, metric)
    return trainer


def online(trainer, simulate, inputs, **options):
    """Fit with what matters little."""
    given = {"buffer": FIFO, "batch_size": 7, "num_simulators": 1, "merge_every_batches": 1, "record_every": 0.02}
    return trainer.fit_online(simulate, inputs, **(given | options))


def plain_loop(net, optimizer, batches, loss=nn.functional.cross_entropy, seed=3):
    """Train as anybody would on batches of (x, y)."""
    net = copy.deepcopy(net)
    optimizer = optimizer(net.parameters())
    with intra_op_threads(1):
        torch.manual_seed(seed)
        for x, y in batches:
            optimizer.zero_grad()
            output = net(x)
            loss(output, x if y is None else y).backward()
            optimizer.step()
    return state_arrays(net)


def cut(size, *arrays):
    """Return batches of so many samples of the arrays."""
    tensors = [torch.from_numpy(array) for array in arrays]
    for start in range(0, len(arrays[0]), size):
        parts = [tensor[start : start + size].clone() for tensor in tensors]
        yield parts[0], parts[1] if len(parts) > 1 else None


# 1: one worker and one simulator are the plain loop

PLAIN = {
    "momentum": (SGD, lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9)),
    "adam": (ADAM, lambda p: torch.optim.Adam(p, lr=0.01)),
}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("merge_every", [1, 3, 1000])
def test_one_worker_and_one_simulator_are_the_plain_loop(local, name, merge_every):
    x, y = classification(samples=60)
    spec, plain = PLAIN[name]
    trainer = built(local, 1, awkward_net(), spec)
    inputs = [(x[:20], y[:20]), (x[20:33], y[20:33]), (x[33:], y[33:])]
    ours = online(trainer, rows_of, inputs, merge_every_batches=merge_every)
    assert_same_bits(ours, plain_loop(awkward_net(), plain, cut(7, x, y)))
    assert_same_bits(ours, trainer.get_parameters())


@pytest.mark.parametrize("merge_every", [1, 1000])
def test_double_precision_is_the_plain_loop_but_for_the_last_bits(local, merge_every):
    x, y = classification(samples=40)
    x, y = x.astype(np.float64), y[:, None].astype(np.float64)
    net = mlp(outputs=1).double()
    trainer = built(local, 1, net, ADAM, "mse")
    ours = online(trainer, rows_of, [(x, y)], merge_every_batches=merge_every)
    assert_close(ours, plain_loop(net, PLAIN["adam"][1], cut(7, x, y), nn.functional.mse_loss), 1e-15)


def test_samples_without_y_are_their_own_targets(local):
    x, _ = classification(samples=30)
    net = mlp(outputs=6)
    ours = online(built(local, 1, net, SGD, "mse"), rows_of, [(x,)], batch_size=4)
    assert_same_bits(ours, plain_loop(net, PLAIN["momentum"][1], cut(4, x), nn.functional.mse_loss))


@dataclass(frozen=True)
class Kept:
    """A transform that keeps the batches that it sees, in files: it runs in the worker."""

    folder: Path

    def __call__(self, x):
        torch.save(x, self.folder / f"{len(list(self.folder.iterdir()))}.pt")
        return x.reshape(len(x), -1)[:, :1].float()

    def batches(self):
        return [torch.load(self.folder / f"{number}.pt") for number in range(len(list(self.folder.iterdir())))]


def awkward_samples(which):
    """Samples in every form that a solver may have them in."""
    for number in range(4):
        x = np.arange(24, dtype=np.float32).reshape(2, 3, 4) + number
        x = {
            "strided": x.transpose(2, 0, 1)[::2],
            "backwards": x[:, ::-1],
            "read-only": np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
            "tensor": torch.from_numpy(x.copy()).requires_grad_().permute(1, 0, 2),
            "half": x.astype(np.float16),
            "bytes": x.astype(np.uint8),
            "truth": x > 10,
            "number": float(number),
            "list": x.tolist(),
            "large": np.broadcast_to(x[..., None], (2, 3, 4, 70000)),
            "scalar": x[0, 0, 0],
        }[which]
        yield (x, np.float32(number)) if number % 2 else (number, x, np.float32(number))  # a step does no harm
        if isinstance(x, np.ndarray) and x.flags.writeable:
            x[:] = 0  # solvers reuse their memory


@pytest.mark.parametrize(
    "which",
    ["strided", "backwards", "read-only", "tensor", "half", "bytes", "truth", "number", "list", "large", "scalar"],
)
def test_samples_arrive_as_they_are(local, tmp_path, which):
    kept = Kept(tmp_path)
    trainer = DistributedTrainer(1, engine=local, seed=0, threads=1)
    trainer.build(nn.Linear(1, 1), SGD, lambda output, target: output.mean(), transform=kept)
    online(trainer, awkward_samples, [which], batch_size=4)
    (batch,) = kept.batches()
    expected = [sample[-2] for sample in unspoilt(which)]
    assert batch.shape == (4, *np.shape(expected[0]))
    for ours, theirs in zip(batch, expected, strict=True):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)


def unspoilt(which):
    for sample in awkward_samples(which):
        x = sample[-2]
        copied = x.detach().clone() if isinstance(x, torch.Tensor) else torch.as_tensor(np.array(x))
        yield copied.float() if which in ("number", "list") else copied, None


# 2: every sample is trained on

KINDS = {"FIFO": FIFO, "FIRO": BufferSpec("FIRO", 24, threshold=9)}


@pytest.mark.parametrize("buffer", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(("workers", "simulators"), [(1, 3), (2, 1), (2, 2), (3, 1)])
def test_queues_train_each_sample_once(local, buffer, workers, simulators):
    numbers = [range(40), range(40, 41), (), range(41, 60), range(60, 101)]
    trainer = built(local, workers, Counter(101), COUNTING, total)
    parameters = online(
        trainer, Hots(101), numbers, buffer=buffer, num_simulators=simulators, merge_every_batches=2
    )
    assert counts(parameters, workers) == [1] * 101
    assert sum(record["samples"] for record in trainer.history) == 101
    last = trainer.history[-1]
    assert last["repetitions"] == [0, 101]
    assert (last["received"], last["buffer"], last["unseen"]) == (101, 0, 0)
    assert last["repetitions_mean"] == 1.0
    assert last["simulations"] == {"running": 0, "done": 5, "failed": 0}


@pytest.mark.parametrize("kind", ["Reservoir", "BatchReservoir"])
def test_reservoirs_train_each_sample_at_least_once(local, kind):
    trainer = built(local, 2, Counter(101), COUNTING, total)
    numbers = [range(40), range(40, 60), range(60, 101)]
    parameters = online(
        trainer, Hots(101), numbers, buffer=BufferSpec(kind, 12, threshold=5), num_simulators=2, batch_size=4
    )
    trained, last = counts(parameters, 2), trainer.history[-1]
    assert min(trained) >= 1
    assert last["repetitions"] == [trained.count(times) for times in range(max(trained) + 1)]
    assert sum(record["samples"] for record in trainer.history) == sum(trained)
    assert last["repetitions_mean"] == pytest.approx(sum(trained) / 101)


def test_simulations_without_samples_train_nothing(local):
    trainer = built(local, 2, Counter(5), COUNTING, total)
    assert counts(online(trainer, Hots(5), [(), ()]), 2) == [0] * 5
    assert [record["samples"] for record in trainer.history] == [0]
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}


# 3: an end that is asked for


@dataclass(frozen=True)
class Endless:
    """Counts the samples that it gives in a file."""

    samples: int
    folder: Path

    def __call__(self, first):
        for number in itertools.count(first):
            tally(self.folder / "produced")
            yield one_hot(number % self.samples, self.samples), np.float32(0)


@pytest.mark.parametrize("kind", ["FIFO", "FIRO", "Reservoir", "BatchReservoir"])
def test_max_batches_ends_everything(local, tmp_path, kind):
    trainer = built(local, 2, Counter(10), COUNTING, total)
    options = {"buffer": BufferSpec(kind, 16), "num_simulators": 2, "batch_size": 4, "max_batches": 6}
    parameters = online(trainer, Endless(10, tmp_path), itertools.count(), **options)
    assert sum(counts(parameters, 2)) == 2 * 6 * 4
    batches = [sum(record["workers"][worker]["batches"] for record in trainer.history) for worker in range(2)]
    assert batches == [6, 6]
    if kind == "Reservoir":  # the numbers of batches begin anew
        online(trainer, Endless(10, tmp_path), itertools.count(), **options)
        assert sum(record["batches"] for record in trainer.history) == 24


def test_max_batches_ends_simulations_of_which_each_is_short(local):
    trainer = built(local, 1, Counter(10), COUNTING, total)
    parameters = online(
        trainer, Hots(10), ([number % 10] for number in itertools.count()), batch_size=5, max_batches=4
    )
    assert counts(parameters, 1) == [2] * 10


def test_max_batches_that_never_come_do_no_harm(local):
    trainer = built(local, 2, Counter(10), COUNTING, total)
    parameters = online(trainer, Hots(10), [range(10)], batch_size=5, max_batches=400)
    assert counts(parameters, 2) == [1] * 10


# 4: pairs


def trajectory(simulation):
    for step in range(8):
        yield step, np.float32([simulation, step]), np.float32(simulation + 10 * step)


class PairNet(nn.Linear):
    def forward(self, x):
        earlier, later = x[:, :2], x[:, 3:5]
        assert torch.equal(earlier[:, 0], later[:, 0]), "pairs are of one simulation"
        assert (earlier[:, 1] < later[:, 1]).all(), "the earlier comes first"
        assert torch.equal(x[:, 2], earlier[:, 0] + 10 * earlier[:, 1])
        return super().forward(x)


def pairing(earlier, later):
    assert torch.equal(torch.from_numpy(earlier.step), earlier.data[0][:, 1].long())
    x = torch.cat([earlier.data[0], earlier.data[1][:, None], later.data[0]], 1)
    return x, later.data[1]


def test_pairs_are_of_one_simulation(local):
    trainer = built(local, 2, PairNet(5, 1), SGD, lambda output, target: output.mean() * 0)
    buffer = BufferSpec("SimPairedReservoir", 20, threshold=3, sweep_size=6, nb_time_steps=8)
    online(trainer, trajectory, range(6), buffer=buffer, num_simulators=2, batch_size=4, pairing=pairing)
    last = trainer.history[-1]
    assert last["received"] == 48
    assert sum(last["repetitions"][1:]) == 48
    assert sum(record["samples"] for record in trainer.history) >= 24


# 5: fits go on from each other


def test_fits_go_on_from_each_other(local):
    x, y = classification(samples=84)
    trainer = built(local, 1, awkward_net(), ADAM)
    online(trainer, rows_of, [(x[:21], y[:21])])
    numbers = len(trainer.history)
    online(trainer, rows_of, [(x[21:42], y[21:42])])
    trainer.fit(x[42:63], y[42:63], num_epochs=1, batch_size=7, shuffle=None, shuffle_block_data=False)
    ours = online(trainer, rows_of, [(x[63:], y[63:])])
    assert_same_bits(ours, plain_loop(awkward_net(), PLAIN["adam"][1], cut(7, x, y)))
    assert numbers < len(trainer.history)
    assert [record["round"] for record in trainer.history] == list(range(len(trainer.history)))
    epochs = [record["epoch"] for record in trainer.history]
    assert epochs == sorted(epochs)
    assert epochs[-1] == 1
    assert sum(record["samples"] for record in trainer.history) == 84


def test_an_optimizer_that_is_reset_forgets(local):
    x, y = classification(samples=42)
    trainer = built(local, 1, mlp())
    online(trainer, rows_of, [(x[:21], y[:21])])
    ours = online(trainer, rows_of, [(x[21:], y[21:])], optimizer_state="reset")
    halves = built(local, 1, trainer.model())
    halves.set_parameters(plain_loop(mlp(), PLAIN["momentum"][1], cut(7, x[:21], y[:21])))
    assert_same_bits(ours, online(halves, rows_of, [(x[21:], y[21:])]))


# 6 and 7: records, validation and callbacks


class Watching(Callback):
    """Asks the trainer for what a callback may have, and for what it may not."""

    def __init__(self):
        self.told, self.parameters, self.refused, self.threads = [], [], [], set()

    def on_fit_start(self, trainer, total_samples):
        self.told.append(("start", total_samples))

    def on_round_end(self, trainer, record):
        assert trainer.history[-1] is record
        self.told.append(("round", record["round"]))
        self.parameters.append(trainer.get_parameters())
        self.threads.add(threading.current_thread())
        for forbidden in (
            lambda: online(trainer, rows_of, [0]),
            lambda: trainer.build(mlp(), SGD, "cross_entropy"),
            lambda: trainer.set_parameters(self.parameters[-1]),
        ):
            with pytest.raises(RuntimeError, match="during a fit") as caught:
                forbidden()
            self.refused.append(caught.value)

    def on_fit_end(self, trainer):
        self.told.append(("end", trainer.get_parameters()))


def test_validation_and_callbacks(local, tmp_path):
    x, y = classification(samples=119)
    watching, lines = Watching(), JsonLines(tmp_path / "lines")
    trainer = built(local, 1, awkward_net(), metric="accuracy")
    ours = online(
        trainer,
        rows_of,
        [(x[:50], y[:50]), (x[50:], y[50:])],
        record_every=0.001,
        validation_data=(x[:33], y[:33]),
        callbacks=[watching, lines],
    )
    assert watching.threads == {threading.current_thread()}
    assert watching.told[0] == ("start", None)
    assert [number for what, number in watching.told[1:-1]] == list(range(len(trainer.history)))
    assert watching.told[-1][0] == "end"
    assert_same_bits(watching.told[-1][1], ours)
    assert_same_bits(watching.parameters[-1], ours)
    assert len(watching.refused) == 3 * len(trainer.history)
    last, evaluated = trainer.history[-1], trainer.evaluate(x[:33], y[:33])
    assert (last["val_loss"], last["val_accuracy"]) == (evaluated["loss"], evaluated["accuracy"])
    assert all(np.isfinite(record["val_loss"]) for record in trainer.history)
    assert last["val_loss"] < trainer.history[0]["val_loss"]
    assert str([json.loads(line) for line in lines.path.read_text().splitlines()]) == str(trainer.history)


def test_what_is_in_a_record(local):
    x, y = classification(samples=60)
    trainer = built(local, 2, mlp(), metric="accuracy")
    online(trainer, rows_of, [(x[:30], y[:30]), (x[30:], y[30:])], batch_size=5, num_simulators=2)
    json.dumps(trainer.history)
    for record in trainer.history:
        names = "round epoch loss accuracy samples batches seconds samples_per_second batches_per_second"
        names += " fit_started ended received buffer unseen repetitions_mean simulations workers"
        assert list(record) == [*names.split(), *(["repetitions"] if record is trainer.history[-1] else [])]
        assert record["samples_per_second"] == pytest.approx(record["samples"] / record["seconds"])
        assert record["batches_per_second"] == pytest.approx(record["batches"] / record["seconds"])
        for name in ("samples", "batches", "received", "buffer"):
            assert sum(worker[name] for worker in record["workers"]) == record[name]
        assert [worker["worker"] for worker in record["workers"]] == [0, 1]
        assert record["received"] <= 60
    assert sum(record["samples"] for record in trainer.history) == 60
    mean = sum(r["loss"] * r["samples"] for r in trainer.history if r["samples"]) / 60
    assert 0 < mean < 5
    assert sum(worker["received"] for worker in trainer.history[-1]["workers"]) == 60


def test_metrics_that_accumulate_are_of_all_samples(local):
    """The table of each record counts what was trained since the one before."""
    x, y = classification(samples=60)
    metrics = {"table": MulticlassConfusionMatrix(num_classes=3), "f1": MulticlassF1Score(num_classes=3)}
    trainer = built(local, 2, mlp(), metric=metrics)
    validation = {"validation_data": (x[:20], y[:20])}
    online(trainer, rows_of, [(x[:30], y[:30]), (x[30:], y[30:])], batch_size=5, num_simulators=2, **validation)
    for record in trainer.history:
        of_workers = [np.array(worker["table"]) for worker in record["workers"] if worker["samples"]]
        np.testing.assert_array_equal(record["table"], sum(of_workers))
        assert (np.sum(record["table"]), np.sum(record["val_table"])) == (record["samples"], 20)
    assert sum(np.sum(record["table"]) for record in trainer.history) == 60
    assert trainer.history[-1]["val_f1"] == trainer.evaluate(x[:20], y[:20])["f1"]


def test_records_come_while_it_trains(local, tmp_path):
    """One is there before the simulation ends, which goes on until then."""

    class Release(Callback):
        def on_round_end(self, trainer, record):
            (tmp_path / "recorded").touch()
            self.running = getattr(self, "running", None) or record["simulations"]

    def simulate(_):
        until = time.monotonic() + 20
        while not (tmp_path / "recorded").exists() and time.monotonic() < until:
            yield one_hot(0, 10), np.float32(0)
            time.sleep(0.001)

    release = Release()
    trainer = built(local, 1, Counter(10), COUNTING, total)
    online(trainer, simulate, [0], batch_size=5, callbacks=[release])
    assert release.running == {"running": 1, "done": 0, "failed": 0}
    assert len(trainer.history) >= 2


# 8: what cannot be is an error before anything starts


def refused(engine, error, match, simulate=rows_of, inputs=(0,), net=mlp, **options):
    trainer = DistributedTrainer(1, engine=engine, seed=0, threads=1)
    if net is not None:
        trainer.build(net(), SGD, "cross_entropy")
    with pytest.raises(error, match=match):
        online(trainer, simulate, inputs, **options)
    assert trainer.history == []
    assert trainer._rounds is None


PAIRS = BufferSpec("SimPairedReservoir", 20, sweep_size=6, nb_time_steps=8)
WRONG = {
    "buffer name": (TypeError, r"give a BufferSpec, such as", {"buffer": "FIFO"}),
    "batch too large": (ValueError, "a batch of 17 samples cannot come from a FIFO of size 16", {"batch_size": 17}),
    "pairing missing": (ValueError, "pairing=None with a SimPairedReservoir", {"buffer": PAIRS}),
    "pairing too many": (ValueError, "belongs to a SimPairedReservoir", {"pairing": pairing}),
    "simulate": (TypeError, "give a function of an input", {"simulate": 3}),
    "lock": (TypeError, "cannot be pickled", {"simulate": threading.Lock().acquire}),
    "senders": (ValueError, "senders=1 need an address=", {"senders": 1}),
    "address": (ValueError, r"give tcp://HOST:PORT", {"senders": 1, "address": "localhost:5555"}),
    "star": (ValueError, r"give tcp://HOST:PORT", {"senders": 1, "address": "tcp://*:5555"}),
    "port": (ValueError, r"give tcp://HOST:PORT", {"senders": 1, "address": "tcp://127.0.0.1:65536"}),
    "no inputs": (ValueError, "inputs= is empty", {"inputs": []}),
    "inputs": (TypeError, "inputs=5: give a list or an iterator", {"inputs": 5}),
    "nobody": (ValueError, "nobody would send a sample", {"simulate": None, "num_simulators": 0}),
    "no simulators": (ValueError, "num_simulators=0", {"num_simulators": 0}),
    "no simulate": (ValueError, "simulate=None with num_simulators=1", {"simulate": None}),
    "batch size": (ValueError, "batch_size", {"batch_size": 0}),
    "merge": (ValueError, "merge_every_batches", {"merge_every_batches": 0}),
    "batches": (ValueError, "max_batches", {"max_batches": 0}),
    "record": (ValueError, "record_every", {"record_every": 0}),
    "checkpoint": (ValueError, "checkpoint_every", {"checkpoint_every": -1}),
    "timeout": (ValueError, "simulation_timeout", {"simulation_timeout": float("nan")}),
    "retries": (ValueError, "simulation_retries", {"simulation_retries": -1}),
    "optimizer": (ValueError, "optimizer_state", {"optimizer_state": "forget"}),
    "token": (ValueError, "token", {"senders": 1, "address": "tcp://127.0.0.1:5555", "token": ""}),
    "no token": (ValueError, "token", {"senders": 1, "address": "tcp://127.0.0.1:5555"}),
    "not built": (NotBuiltError, "call build", {"net": None}),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_an_error_before_anything_starts(local, what):
    error, match, options = WRONG[what]
    refused(local, error, match, **options)


def test_parameters_that_are_nan_are_an_error(local):
    def spoilt():
        net = mlp()
        with torch.no_grad():
            net[0].weight[0, 0] = torch.nan
        return net

    refused(local, ValueError, "NaN|nan|finite", net=spoilt)
    assert local.fetch([local.publish(3)]) == [3]  # it was not shut down


def test_the_serial_engine_cannot(recwarn):
    refused("serial", ValueError, "use engine='local'")


# 9: senders

SENDER = textwrap.dedent(
    """
    import sys
    import numpy as np
    from compss_train.online import SampleSender

    first, stop, samples, address, token = sys.argv[1:]
    with SampleSender(address, token, timeout=30) as sender:
        for number in range(int(first), int(stop)):
            x = np.zeros(int(samples), np.float32)
            x[number] = 1
            sender.send(x, 0.0)
    print("sent", sender.delivered)
    """
)


def test_other_programs_send_samples(local):
    """One begins before the fit does; a task of the fit simulates beside it."""
    address = f"tcp://127.0.0.1:{free_port()}"
    sender = subprocess.Popen(
        [sys.executable, "-c", SENDER, "0", "40", "50", address, "secret"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        trainer = built(local, 2, Counter(50), COUNTING, total)
        parameters = online(trainer, Hots(50), [range(40, 50)], senders=1, address=address, token="secret")
        assert sender.communicate(timeout=20) == ("sent 0\n", "")
        assert sender.returncode == 0
    finally:
        sender.kill()
        sender.wait()
    assert counts(parameters, 2) == [1] * 50


def test_only_senders(local):
    address, errors = f"tcp://127.0.0.1:{free_port()}", []

    def send():
        try:
            with pytest.raises(PermissionError, match="the token is not the one"):
                patient("wrong")
            with patient("secret") as sender:
                for number in range(12):
                    sender.send(torch.from_numpy(one_hot(number, 12)), 0.0)
        except BaseException as error:
            errors.append(error)

    def patient(token):
        return SampleSender(address, token, timeout=20)

    thread = threading.Thread(target=send)
    thread.start()
    trainer = built(local, 1, Counter(12), COUNTING, total)
    options = {"senders": 1, "address": address, "token": "secret", "num_simulators": 0}
    parameters = online(trainer, None, **options, inputs=())
    thread.join(20)
    assert errors == []
    assert counts(parameters, 1) == [1] * 12
    with pytest.raises(ConnectionRefusedError, match="start fit_online"):
        SampleSender(address, "secret", timeout=0.1)


def test_max_batches_tells_senders(local, tmp_path):
    address, ended = f"tcp://127.0.0.1:{free_port()}", []

    def send():
        try:
            with SampleSender(address, "secret", timeout=20) as sender:
                for number in itertools.count():
                    sender.send(one_hot(number % 12, 12), 0.0)
        except TrainingEndedError as error:
            ended.append(error)

    thread = threading.Thread(target=send)
    thread.start()
    trainer = built(local, 1, Counter(12), COUNTING, total)
    options = {"senders": 1, "address": address, "token": "secret", "num_simulators": 0, "inputs": ()}
    parameters = online(trainer, None, **options, batch_size=6, max_batches=4)
    thread.join(20)
    assert len(ended) == 1
    assert counts(parameters, 1) == [2] * 12


# Back-pressure, and what is left


class Slow(nn.Linear):
    """Trains no batch before a file is there."""

    def __init__(self, inputs, path):
        super().__init__(inputs, 1)
        self.path = path

    def forward(self, x):
        (self.path / "training").touch()
        wait_for(self.path / "go")
        return super().forward(x)


@dataclass(frozen=True)
class Large:
    """Endless samples of 100 kB."""

    folder: Path

    def __call__(self, _):
        while True:
            tally(self.folder / "produced")
            yield np.zeros(25_000, np.float32), np.float32(0)


def test_simulations_wait_for_training(local, tmp_path):
    done = threading.Event()

    def steady():
        """Until no more is produced, for a while in which much could be."""
        wait_for(tmp_path / "training")
        before = -1
        while before != (before := tallied(tmp_path / "produced")):
            time.sleep(0.6)
        (tmp_path / "steady").write_text(str(before))
        (tmp_path / "go").touch()
        done.set()

    watcher = threading.Thread(target=steady)
    watcher.start()
    trainer = built(local, 1, Slow(25_000, tmp_path), SGD, lambda output, target: output.mean())
    online(trainer, Large(tmp_path), itertools.count(), batch_size=4, max_batches=3, buffer=BufferSpec("FIFO", 8))
    assert done.wait(20)
    watcher.join()
    # A buffer, a batch, and 6 MB at most in the sockets of two sides.
    assert 12 <= int((tmp_path / "steady").read_text()) < 12 + 100


def test_nothing_is_left_of_a_fit(local, tmp_path):
    trainer = built(local, 1, Counter(10), COUNTING, total)

    def fits():
        online(trainer, Hots(10), [range(10)], batch_size=5)
        held_out = np.eye(10, dtype=np.float32), np.zeros(10, np.float32)
        online(trainer, Endless(10, tmp_path), itertools.count(), max_batches=2, validation_data=held_out)

    def state():
        me = psutil.Process()
        processes = [p for p in me.children(recursive=True) if "resource_tracker" not in " ".join(p.cmdline())]
        tcp = sum(len(process.net_connections("tcp")) for process in [me, *processes])
        files = [file for folder in local._folders.paths for file in Path(folder).rglob("*") if file.is_file()]
        return {
            "processes": sorted(process.pid for process in processes),
            "threads": sorted(thread.name for thread in threading.enumerate()),
            "files": len(files),
            "descriptors": me.num_fds(),
            "connections": tcp,
            "folders": len(list(Path("/tmp").glob("compss_train-online-*"))),
        }

    fits()
    before = settled(state)
    fits()
    fits()
    deadline = time.monotonic() + 5
    while (after := state()) != before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert after == before


def settled(state):
    before = None
    while before != (before := state()):
        time.sleep(0.2)
    return before
