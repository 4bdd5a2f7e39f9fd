"""Laws 7 and 8: killed processes, exceptions in the model, Ctrl-C, a killed coordinator."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from compss_train import (
    BufferSpec,
    DistributedTrainer,
    DivergedError,
    EngineClosedError,
    Gradients,
    LocalEngine,
    Merge,
)
from compss_train.callbacks import Callback
from compss_train.exceptions import WorkerTraceback
from tests.engines import tasks
from tests.helpers.callbacks import CallAt
from tests.helpers.kill_fits import kill_fits
from tests.helpers.models import SGD, assert_same_bits, awkward_net, blocked, classification, mlp
from tests.helpers.processes import children, leftovers, session
from tests.helpers.shared_engine import result_of_process
from tests.helpers.small_fits import STILL, fit, trainer_of
from tests.helpers.waiting import hang, wait_until


class KillOnce:
    """A transform that kills its own process at one batch, in the middle of a round, the first time
    only.
    """

    def __init__(self, flag: Path, at: int, number: int = signal.SIGKILL) -> None:
        self.flag = flag
        self.at = at
        self.number = number
        self.seen = 0

    def __call__(self, x):
        self.seen += 1
        if self.seen == self.at and not self.flag.exists():
            self.flag.touch()
            os.kill(os.getpid(), self.number)
        return x


IN_BUFFERS = {"merge": Merge(every=3, unit="batches"), "buffer": BufferSpec("FIFO", 12)}


@pytest.mark.parametrize("options", [{}, {"merge": Merge(unit="blocks")}, IN_BUFFERS], ids=str)
def test_a_kill_in_a_round_changes_no_bits(shared_local, tmp_path, options):
    x, y = classification()
    results = []
    for flag in ("never", "killed"):
        if flag == "never":
            (tmp_path / flag).touch()
        trainer = trainer_of(
            shared_local, seed=1, optimizer=SGD, transform=KillOnce(tmp_path / flag, at=3)
        )
        results.append(trainer.fit(*blocked(x, y, 6), num_epochs=3, batch_size=4, **options))
    assert (tmp_path / "killed").exists()
    assert_same_bits(*results)


class Resize(Callback):
    """Changes the number of processes after every round."""

    def __init__(self, engine, sizes):
        self.engine = engine
        self.sizes = sizes

    def on_round_end(self, trainer, record):
        self.engine.resize(self.sizes[record["round"] % len(self.sizes)])


@pytest.mark.usefixtures("forked_processes")
def test_slots_that_join_and_leave_change_no_bit():
    x, y = classification()
    results = []
    with LocalEngine(1) as engine:
        for used, callbacks in (("serial", []), (engine, [Resize(engine, [3, 1, 2])])):
            trainer = trainer_of(used, 9, seed=1, optimizer=SGD)
            options = {"num_epochs": 6, "batch_size": 4, "progress": False}
            results.append(trainer.fit(*blocked(x, y, 9), callbacks=callbacks, **options))
        assert engine.processes == 2
    assert_same_bits(*results)


def test_a_stopped_workers_task_runs_elsewhere_with_the_same_bits(shared_local, tmp_path, capsys):
    x, y = classification()
    results = []
    (tmp_path / "never").touch()
    for flag in ("never", "stopped"):
        trainer = DistributedTrainer(3, engine=shared_local, seed=1, threads=1, worker_timeout=4.0)
        transform = KillOnce(tmp_path / flag, at=3, number=signal.SIGSTOP)
        trainer.build(awkward_net(), SGD, "cross_entropy", transform=transform)
        fit = trainer.fit(*blocked(x, y, 6), num_epochs=3, batch_size=4, progress=False)
        results.append(fit)
    assert (tmp_path / "stopped").exists()
    assert_same_bits(*results)
    worker = r"round 0 on worker \d has reported no batch for 4 s"
    ends = rf"{worker}.*: worker_timeout=4 ends its process \d+"
    assert re.search(ends, capsys.readouterr().err)


class Explosive(nn.Module):
    """Raises on a sample of 666, and hangs on one of 111."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x):
        if (x == 666).any():
            raise ArithmeticError("the forward pass met 666")
        if (x == 111).any():
            hang()
        return self.layer(x)


@pytest.mark.usefixtures("forked_processes")
def test_an_exception_in_the_model_ends_everything():
    x, y = classification(samples=120)
    # The first worker hangs in its second batch, the second one raises in its third.
    x[1], x[62] = 111, 666
    processes = children()
    files = leftovers(os.getpid())
    trainer = trainer_of("local", 2, seed=1, net=Explosive, optimizer=SGD)
    with pytest.raises(ArithmeticError, match="the forward pass met 666") as caught:
        trainer.fit(
            *blocked(x, y, 2),
            num_epochs=50,
            batch_size=1,
            shuffle=None,
            shuffle_block_data=False,
            progress=False,
        )
    assert isinstance(caught.value.__cause__, WorkerTraceback)
    assert "in forward" in str(caught.value.__cause__)
    assert any(
        "batch of x with shape (1, 6) and dtype float32" in note for note in caught.value.__notes__
    )
    wait_until(lambda: not [p for p in children() if p not in processes and p.is_running()])
    assert leftovers(os.getpid()) == files


def test_the_serial_engine_leaves_exceptions_and_threads_alone():
    x, y = classification()
    x[3] = 666
    threads = torch.get_num_threads()
    trainer = DistributedTrainer(2, engine="serial", seed=1, threads=threads + 1)
    trainer.build(Explosive(), SGD, "cross_entropy")
    state = torch.get_rng_state()
    with pytest.raises(ArithmeticError) as caught:
        trainer.fit(x, y, num_epochs=1, batch_size=30, **STILL)
    assert caught.value.__cause__ is None
    assert caught.traceback[-1].name == "forward"
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


X, Y = classification()
EMBEDDING = nn.Sequential(nn.Embedding(3, 4), nn.Flatten(), nn.Linear(4, 3))
NORM = nn.Sequential(nn.Linear(X.shape[1], 4), nn.BatchNorm1d(4), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("net", "data", "error", "message", "note"),
    [
        (
            mlp(),
            (X, Y + 1),
            IndexError,
            "Target 3 is out of bounds",
            ("go from 1 to 3: classes are numbered from 0"),
        ),
        (
            mlp(),
            (X, Y - 1),
            IndexError,
            "Target -1 is out of bounds",
            r"leaves them out with torch.nn.CrossEntropyLoss\(ignore_index=-1\)",
        ),
        (EMBEDDING, (np.full((6, 1), 7), Y[:6]), IndexError, None, r"\A((?!classes)[\s\S])*\Z"),
        (
            mlp(),
            (X[:, 1:], Y),
            RuntimeError,
            "cannot be multiplied",
            "^[^\n]*went through a network with float32 parameters.(\n|$)",
        ),
        (
            NORM,
            (X[:1], Y[:1]),
            ValueError,
            "more than 1 value per channel",
            "BatchNorm needs two samples in each",
        ),
        (
            mlp(),
            (X,),
            ValueError,
            "do not match outputs",
            r"\nThere is no y, so x is its own target\.$",
        ),
    ],
    ids=["classes", "unknown classes", "embedding", "shapes", "one sample", "no targets"],
)
def test_errors_of_the_network_are_explained(engine, net, data, error, message, note):
    trainer = trainer_of(engine, workers=1, net=lambda: net, optimizer=SGD)
    with pytest.raises(error, match=message) as caught:
        trainer.evaluate(X) if len(data) == 1 else fit(
            trainer, data=data, num_epochs=1, batch_size=60
        )
    assert re.search(note, "\n".join(caught.value.__notes__)), caught.value.__notes__


@pytest.mark.parametrize(
    ("optimizer", "gradients"),
    [
        ({"optimizer": "adam", "lr": 0.1}, None),
        ({"optimizer": "sgd", "lr": 0.1, "weight_decay": 0.1}, None),
        (SGD, Gradients(clip_norm=1.0)),
        (SGD, Gradients(clip_value=1.0)),
        (SGD, Gradients(clip_adaptive=0.1)),
    ],
    ids=["adam", "weight decay", "norm", "value", "adaptive"],
)
def test_what_sparse_gradients_allow_is_said(optimizer, gradients):
    net = nn.Sequential(nn.EmbeddingBag(3, 3, sparse=True))
    trainer = trainer_of(
        "serial", workers=1, net=lambda: net, optimizer=optimizer, gradients=gradients
    )
    with pytest.raises((RuntimeError, NotImplementedError)) as caught:
        fit(trainer, data=(Y[:, None], Y), num_epochs=1, batch_size=60)
    assert "For anything else leave sparse=True out." in caught.value.__notes__[-1]


ONE_HOT = torch.eye(3, dtype=torch.int64)[Y]


@pytest.mark.parametrize(
    ("loss", "y", "hint"),
    [
        (nn.CrossEntropyLoss(), Y.astype(np.float32), r"give y\.long\(\)\.$"),
        (nn.CrossEntropyLoss(), Y[:, None], r"give y\.squeeze\(1\)\.$"),
        (nn.CrossEntropyLoss(), Y[:, None].astype(float), r"give y\.squeeze\(1\)\.long\(\)\.$"),
        (nn.CrossEntropyLoss(), ONE_HOT, r"give y\.float\(\), or class numbers, y\.argmax\(1\)\.$"),
        (nn.NLLLoss(), Y.astype(float), r"give y\.long\(\)\.$"),
        ("cross_entropy", Y.astype(np.float32), r"such as y\.long\(\), or one-hot"),
    ],
)
def test_errors_of_labels_say_how_to_convert_them(loss, y, hint):
    trainer = DistributedTrainer(1, engine="serial")
    trainer.build(nn.Sequential(mlp(), nn.LogSoftmax(1)), SGD, loss)
    with pytest.raises((RuntimeError, ValueError)) as caught:
        trainer.evaluate(X, y)
    said = [str(caught.value), *caught.value.__notes__]
    assert any(re.search(hint, each) for each in said), said


def test_errors_of_other_losses_and_targets_have_no_hint_on_labels():
    for loss, y in (
        (nn.MSELoss(), Y.astype(np.float32)),
        (nn.CrossEntropyLoss(), ONE_HOT[:, :2].float()),
    ):
        trainer = DistributedTrainer(1, engine="serial")
        trainer.build(mlp(), SGD, loss)
        with pytest.raises((RuntimeError, ValueError)) as caught:
            trainer.evaluate(X, y)
        assert not re.search(
            "long|squeeze|argmax", "".join([str(caught.value), *caught.value.__notes__])
        )


@pytest.mark.parametrize("merge", ["synchronous", "commutative", "parameter_server"])
@pytest.mark.parametrize("ahead", [0, 2])
def test_a_loss_that_turns_nan_names_round_and_worker(ahead, merge):
    x, y = classification()
    bad = x.copy()
    bad[:30] = np.nan
    trainer = trainer_of(workers=2, net=mlp, optimizer=SGD)
    options = {"batch_size": 5, "shuffle": None, "merge": merge}
    if ahead:
        fit(trainer, data=blocked(x, y, 2), num_epochs=ahead, **options)
    good = trainer.get_parameters()
    with pytest.raises(
        DivergedError, match=(f"loss became nan in round {ahead} on worker 0; lower the")
    ):
        fit(trainer, data=blocked(bad, y, 2), num_epochs=1, **options)
    assert_same_bits(trainer.get_parameters(), good)


@pytest.mark.parametrize("merge", ["commutative", "parameter_server"])
def test_nan_is_never_merged_into_the_parameters_of_others(shared_local, tmp_path, merge):
    """The bad block comes in the third round: what the first made is kept, also where workers do
    not wait.
    """

    def held(batch):
        return tasks.wait_for(tmp_path / "gate", batch) if batch.isnan().any() else batch

    x, y = classification()
    x[50:] = np.nan
    gate = CallAt("round_end", lambda trainer: (tmp_path / "gate").touch())
    trainer = trainer_of(shared_local, workers=2, net=mlp, optimizer=SGD, transform=held)
    initial = trainer.get_parameters()
    options = {
        "num_epochs": 1,
        "batch_size": 5,
        "merge": Merge(merge, unit="blocks"),
        "shuffle": None,
    }
    with pytest.raises(DivergedError, match="round 2 on worker 1"):
        fit(trainer, gate, data=blocked(x, y, 6), **options)
    kept = trainer.get_parameters()
    assert all(np.isfinite(array).all() for array in kept.values())
    assert (kept["0.weight"] != initial["0.weight"]).any()


@pytest.mark.usefixtures("forked_processes")
def test_an_engine_that_was_shut_down_is_an_error():
    engine = LocalEngine(1)
    trainer = trainer_of(engine, 1, seed=1, net=mlp, optimizer=SGD)
    engine.shutdown()
    x, y = classification()
    with pytest.raises(EngineClosedError, match="shut down"):
        trainer.fit(x, y, num_epochs=1, batch_size=5)


SCRIPT = textwrap.dedent(
    """
    import pathlib, sys
    import numpy as np
    from torch import nn
    from compss_train import BlockedTensor, DistributedTrainer

    # No main guard, and a network and a transform of __main__: users write scripts and notebooks
    # like this.
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2000, 10)

        def forward(self, x):
            return self.layer(x)

    def tell(x):
        if not pathlib.Path(sys.argv[1]).exists():
            print("training")
        pathlib.Path(sys.argv[1]).touch()
        return x

    x = BlockedTensor.from_array(np.ones((2000, 2000), np.float32), (4, 1))
    y = BlockedTensor.from_array(np.zeros(2000, np.int64), (4, 1))
    trainer = DistributedTrainer(1, engine="local", seed=0, threads=1)
    trainer.build(Net(), {"optimizer": "adam", "lr": 0.01}, "cross_entropy", transform=tell)
    trainer.fit(x, y, num_epochs=1, batch_size=100, progress=False)
    print("finished", trainer.history[-1]["samples"], flush=True)
    trainer.fit(x, y, num_epochs=10**6, batch_size=100, progress=False)
    """
)


@pytest.fixture
def start(tmp_path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Starts the script in a session of its own, which ends with the test however that ends."""
    script = tmp_path / "script.py"
    begun = []

    def begin() -> subprocess.Popen:
        script.write_text(SCRIPT)
        command = [sys.executable, str(script), str(tmp_path / "training")]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        pipes["env"] = {
            name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"
        }
        begun.append(subprocess.Popen(command, start_new_session=True, **pipes))
        return begun[-1]

    yield begin
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def test_a_script_without_a_main_guard_trains_and_ctrl_c_ends_all_of_it(start, tmp_path):
    process = start()
    assert [process.stdout.readline() for _ in range(2)] == ["training\n", "finished 2000\n"]
    (tmp_path / "training").unlink()
    wait_until((tmp_path / "training").exists)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the coordinator and all workers
    # The fit takes half an hour.
    wait_until(lambda: process.poll() is not None and not session(process.pid))
    out, err = process.communicate()
    assert process.returncode in (130, -signal.SIGINT)
    assert err.count("Traceback") == 1
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert out == "training\n"
    assert leftovers(process.pid) == []


def test_killed_three_times_on_processes_and_without(tmp_path):
    times, rounds = result_of_process(kill_fits, tmp_path, 1, 99, 3, 0.02)
    assert times == 3
    assert rounds > 1
