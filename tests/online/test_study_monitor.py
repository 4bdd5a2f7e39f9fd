"""The state that a study writes beside its checkpoints, for ``compss-train watch``."""

import os
import socket

import numpy as np
import pytest

from compss_train import SampleSender
from compss_train.callbacks import Callback, Checkpoint
from compss_train.exceptions import SimulationError
from compss_train.online import study_monitor
from compss_train.reports.study_state import STUDY_FILE, StudyState, read_study_state
from tests.buffers.kinds import Thread
from tests.helpers.waiting import text_of, wait_until
from tests.online.fits import FIFO, build_trainer, online, split_range
from tests.online.simulations import (
    COUNTING_SGD,
    CountingNet,
    OneHotSimulation,
    free_port,
    one_hot,
    raise_error,
    sum_loss,
    wait_for_file,
)

SAMPLES = 120
INPUTS = split_range(SAMPLES, 10)
FAILING = 110
TOKEN = "ours alone"


class Waits:
    """One simulation says its process, and waits before a sample until the file is there. The next
    one begins once it waits; the last one waits, too, and fails.
    """

    def __init__(self, at, path):
        self.at = at
        self.path = path

    def __call__(self, number):
        process = self.path.parent / "process"
        if number == self.at:
            process.write_text(str(os.getpid()))
            wait_for_file(self.path)
        elif number == self.at + 5:
            text_of(process)
        elif number == FAILING:
            wait_for_file(self.path)
            raise_error()


class Watches(Callback):
    """Reads the state at each record, as another program would; lets simulations go on."""

    def __init__(self, folder, path, stop=None):
        self.folder = folder
        self.path = path
        self.stop = stop
        self.states = []

    def on_round_end(self, trainer, record):
        if (self.folder / STUDY_FILE).exists():
            state = read_study_state(self.folder)
            self.states.append(state)
            is_listed = any(simulation["simulation"] == 5 for simulation in state.simulations)
            if is_listed and self._waits():
                if self.stop is None:
                    self.path.touch()
                elif self.stop == "fail":
                    raise ArithmeticError("not today")
                elif trainer.state_id is not None:
                    trainer.stop(self.stop)

    def _waits(self):
        process = self.path.parent / "process"
        return process.exists() and process.read_text() != ""


def run(local, folder, stop=None, inputs=INPUTS, **options):
    trainer = build_trainer(local, 2, CountingNet(SAMPLES), COUNTING_SGD, sum_loss, seed=0)
    path = folder / f"goes-on-{stop}"
    watches = Watches(folder / "saves", path, stop)
    simulate = OneHotSimulation(SAMPLES, Waits(55, path))
    given = {
        "callbacks": [watches, Checkpoint(folder / "saves")],
        "checkpoint_every": 0.01,
        "count": 2,
        "retries": 0,
        "resume": True,
        "buffer": FIFO,
        **options,
    }
    try:
        online(trainer, simulate, inputs, **given)
    finally:
        path.touch()
    return trainer, watches.states


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(study_monitor, "_INTERVAL", 0.0)
    monkeypatch.setattr(study_monitor, "_PAUSES", 0)


def test_a_study_says_what_runs_where_also_when_it_was_stopped_and_goes_on(local, tmp_path):
    trainer, states = run(local, tmp_path, stop="enough")
    for state in states:
        assert sum(state.inputs.values()) == len(INPUTS)
        assert state.inputs["running"] == len(state.simulations) <= 2
        assert (state.node, state.process) == (socket.gethostname(), os.getpid())
        assert state.state == state.present_state == "running"
        assert not state.is_stale
        assert state.resumed_from is None
        assert [worker["worker"] for worker in state.workers] == [0, 1]
    (waiting,) = (row for row in states[-1].simulations if row["simulation"] == 5)
    assert waiting["input"] == "range(50, 60)"
    assert waiting["node"] == socket.gethostname()
    assert str(waiting["process"]) == (tmp_path / "process").read_text()
    assert waiting["failures"] == 0
    assert waiting["seconds"] >= 0
    processes = {worker["process"] for worker in states[-1].workers}
    assert len(processes) == 2
    assert None not in processes
    ended = read_study_state(tmp_path / "saves")
    assert ended.state == "stopped: enough"
    assert ended.simulations == ended.workers == []

    with pytest.warns(UserWarning, match="given up|skipped"):
        trainer, states = run(local, tmp_path)
    assert states[0].resumed_from == trainer.resumed_from.name
    assert states[0].inputs["done"] > 0
    ended = read_study_state(tmp_path / "saves")
    assert ended.state == "complete"
    assert ended.inputs == {"running": 0, "done": 11, "failed": 1, "awaited": 0}
    assert ended.received == SAMPLES - 10
    assert ended.failed == ["simulation 11 of input range(110, 120)"]
    assert any(state.trained_per_second for state in states)


def test_a_fit_that_fails_says_why(local, tmp_path):
    with pytest.raises(ArithmeticError):
        run(local, tmp_path, stop="fail")
    assert read_study_state(tmp_path / "saves").state == "failed: ArithmeticError: not today"


class FailsAtTheEnd(Callback):
    """Reads the state when training has ended, and raises."""

    def __init__(self, folder):
        self.folder = folder
        self.seen = []

    def on_fit_end(self, trainer):
        self.seen.append(read_study_state(self.folder).state)
        raise ArithmeticError("no sum")


def test_a_study_whose_callback_fails_at_the_end_is_not_complete(local, tmp_path):
    folder = tmp_path / "saves"
    fails = FailsAtTheEnd(folder)
    with pytest.raises(ArithmeticError):
        run(local, tmp_path, inputs=INPUTS[:5], callbacks=[Checkpoint(folder), fails])
    assert fails.seen == ["running"]
    assert read_study_state(folder).state == "failed: ArithmeticError: no sum"


def test_a_disk_that_fails_ends_no_fit(local, tmp_path, monkeypatch):
    def write(self, folder):
        raise OSError(28, "No space left on device", str(folder))

    monkeypatch.setattr(StudyState, "write", write)
    (tmp_path / "goes-on-None").touch()
    with pytest.warns(UserWarning, match="does not see this study any more") as warned:
        run(local, tmp_path, inputs=INPUTS[:11])
    assert sum("does not see" in str(warning.message) for warning in warned) == 1


def test_studies_without_a_checkpoint_or_with_endless_inputs(local, tmp_path):
    (tmp_path / "goes-on-None").touch()
    run(local, tmp_path, callbacks=(), resume=False, checkpoint_every=None, max_batches=2)
    assert not [*tmp_path.rglob(STUDY_FILE)]
    trainer = build_trainer(local, 1, CountingNet(SAMPLES), COUNTING_SGD, sum_loss, seed=0)
    watches = Watches(tmp_path / "saves", tmp_path / "path")
    online(
        trainer,
        OneHotSimulation(SAMPLES),
        iter(INPUTS),
        callbacks=[watches, Checkpoint(tmp_path / "saves")],
    )
    assert watches.states[0].inputs["awaited"] is None
    assert read_study_state(tmp_path / "saves").inputs["awaited"] == 0


def test_other_programs_that_send_are_named(local, tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    trainer = build_trainer(local, 1, CountingNet(SAMPLES), COUNTING_SGD, sum_loss, seed=0)
    states = []

    def sees_sender():
        if (tmp_path / STUDY_FILE).exists():
            states.append(read_study_state(tmp_path))
        return bool(states and states[-1].senders)

    def send():
        with SampleSender(address, TOKEN, name="solver 1") as sender:
            sender.send(one_hot(0, SAMPLES), np.float32(0))
            wait_until(sees_sender)

    thread = Thread(send)
    online(
        trainer,
        None,
        (),
        senders=1,
        address=address,
        token=TOKEN,
        callbacks=[Checkpoint(tmp_path)],
    )
    thread.join()
    assert states[-1].senders == [
        {"name": "solver 1", "node": socket.gethostname(), "process": os.getpid()}
    ]
    assert states[-1].inputs == {"running": 1, "done": 0, "failed": 0, "awaited": 0}


def test_a_study_that_could_not_run_at_all_says_so(local, tmp_path):
    trainer = build_trainer(local, 1, CountingNet(SAMPLES), COUNTING_SGD, sum_loss, seed=0)
    with pytest.raises(SimulationError), pytest.warns(UserWarning, match="failed"):
        online(
            trainer,
            OneHotSimulation(SAMPLES, Waits(-1, tmp_path)),
            [range(FAILING, FAILING + 2)] * 3,
            callbacks=[Checkpoint(tmp_path / "saves")],
            retries=0,
        )
    assert read_study_state(tmp_path / "saves").state.startswith("failed: SimulationError")
