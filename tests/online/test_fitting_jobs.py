"""fit_online with simulations that are jobs of their own."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import suppress

import numpy as np
import pytest
from torch import nn

from compss_train import BufferSpec, SampleSender
from compss_train.callbacks import Callback, Checkpoint
from compss_train.cli import main
from compss_train.exceptions import TrainingEndedError
from compss_train.online import study_monitor
from compss_train.online.job_journal import JOURNAL, read_journal
from compss_train.reports.study_state import STUDY_FILE, read_study_state
from tests.helpers.models import SGD
from tests.helpers.processes import ROOT, session
from tests.helpers.waiting import LIMIT, wait_until
from tests.online import job_program
from tests.online.fits import build_trainer, online, run_fit
from tests.online.job_queues import FakeQueue, job_threads
from tests.online.simulations import CountingNet, free_port, one_hot, sample_counts

SAMPLES = 40
INPUTS = [list(range(start, start + 5)) for start in range(0, SAMPLES, 5)]


class Jobs:
    """Jobs that send the samples of their inputs; the first run of some of them is killed."""

    def __init__(self, killed=(), timeout=60.0):
        self.timeout = timeout
        self.killed = set(killed)
        self._lock = threading.Lock()

    def __call__(self, job_id, variables):
        numbers = json.loads(variables["COMPSS_TRAIN_INPUT"])
        with self._lock:
            is_killed = numbers[0] in self.killed
            self.killed.discard(numbers[0])
        sender = sender_of(variables, timeout=self.timeout)
        try:
            for number in numbers[: 2 if is_killed else None]:
                sender.send(one_hot(number, SAMPLES), 0.0)
            if not is_killed:
                sender.close()
        finally:
            sender._stream.close()  # noqa: SLF001 - as a process that is killed does


def sender_of(variables, **options):
    """Return the sender of a job that has these environment variables."""
    return SampleSender(
        variables["COMPSS_TRAIN_ADDRESS"],
        variables["COMPSS_TRAIN_TOKEN"],
        variables["COMPSS_TRAIN_NAME"],
        **options,
    )


def send_input(job_id, variables):
    """Send the number of the input as each sample."""
    with sender_of(variables) as sender:
        for _ in range(5):
            sender.send(np.float32([variables["COMPSS_TRAIN_INPUT"]]), np.float32([0]))


def check_numbers(model, batch, context):
    x, _ = batch
    if x[:, 0].int().tolist() != context.simulations.tolist():
        raise ValueError(f"{x[:, 0].tolist()} are of {context.simulations}")
    return model(x).square().mean()


def fit(local, queue, inputs=INPUTS, **options):
    options = {
        "jobs": queue.jobs(at_most=3, every=0.02),
        "address": f"tcp://127.0.0.1:{free_port()}",
        "token": "ours alone",
        **options,
    }
    trainer, error = run_fit(local, CountingNet(SAMPLES), None, inputs, **options)
    assert not job_threads()
    if error is not None:
        raise error
    return trainer


def test_each_sample_of_jobs_is_trained_once_though_two_jobs_are_killed(local):
    queue = FakeQueue(Jobs(killed=[5, 20]))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = fit(local, queue)
    queue.join()
    texts = [str(warning.message) for warning in caught]
    assert len(texts) == 2
    assert all("has ended before its stream; retry 1 of 2" in text for text in texts)
    assert sample_counts(trainer.get_parameters(), 1) == [1] * SAMPLES
    record = trainer.history[-1]
    assert record["simulations"] == {"running": 0, "done": len(INPUTS), "failed": 0}
    assert len(queue.variables) == len(INPUTS) + 2
    assert not queue.living()


def test_a_training_step_knows_the_inputs_of_jobs_by_the_numbers_of_their_streams(local):
    queue = FakeQueue(send_input)
    trainer = build_trainer(local, 1, nn.Linear(1, 1), SGD, None, training_step=check_numbers)
    online(
        trainer,
        None,
        range(4),
        jobs=queue.jobs(every=0.02),
        address=f"tcp://127.0.0.1:{free_port()}",
        token="ours alone",
    )
    queue.join()
    assert trainer.history[-1]["received"] == 20


class Watched(Callback):
    """Keeps what records and the state of the study have; a job waits until both have something."""

    def __init__(self, folder):
        self.folder = folder
        self.statistics = []
        self.states = []

    def on_round_end(self, trainer, record):
        self.statistics += [record["buffer_inputs"]] if "buffer_inputs" in record else []
        if (self.folder / STUDY_FILE).exists():
            self.states.append(read_study_state(self.folder))

    def connected(self):
        """Return the row of a simulation whose sender is connected, in the last state with one."""
        rows = [row for state in self.states for row in state.simulations]
        connected = [row for row in rows if row["process"] is not None]
        return connected[-1] if connected else None


def test_the_inputs_of_jobs_are_in_records_and_their_ids_in_the_state(
    local, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(study_monitor, "_INTERVAL", 0.0)
    monkeypatch.setattr(study_monitor, "_PAUSES", 0)
    watched = Watched(tmp_path)
    printed = []

    def job(job_id, variables):
        value = json.loads(variables["COMPSS_TRAIN_INPUT"])
        with sender_of(variables) as sender:
            for number in range(20):
                sender.send(one_hot(number, SAMPLES), 0.0)
            if value == [1.0, 10.0]:  # the first one, and the other one's samples come later
                wait_until(lambda: watched.statistics and watched.connected())
                assert main(["watch", str(tmp_path)]) == 0
                printed.append(capsys.readouterr().out)

    queue = FakeQueue(job)
    fit(
        local,
        queue,
        inputs=[[1.0, 10.0], [3.0, 20.0]],
        jobs=queue.jobs(at_most=1, every=0.02),
        buffer=BufferSpec("Reservoir", 16, threshold=4),
        batch_size=2,
        record_every=0.01,
        callbacks=[Checkpoint(tmp_path), watched],
    )
    queue.join()
    assert watched.statistics[0] == {"mean": [1.0, 10.0], "std": [0.0, 0.0]}
    for statistics in watched.statistics:
        first, second = statistics["mean"]
        assert second == pytest.approx(10 + 5 * (first - 1))
    row = watched.connected()
    assert row["job"] in queue.variables
    assert (row["node"], row["process"]) == (socket.gethostname(), os.getpid())
    heading, running = printed[0].splitlines()[-2:]
    assert heading.split()[-1] == "job"
    assert running.split()[-1] == "1"


def test_jobs_that_run_when_training_ends_are_cancelled(local):
    def job(job_id, variables):
        with suppress(TrainingEndedError, OSError):  # as the fit may end while it connects
            Jobs(timeout=0)(job_id, variables)

    queue = FakeQueue(job)
    fit(local, queue, inputs=iter(INPUTS * 100), max_batches=3)
    queue.join()
    assert not queue.living()


def started(folder):
    command = [sys.executable, "-m", "tests.online.job_program", str(folder)]
    return subprocess.Popen(command, cwd=ROOT, start_new_session=True)


def killed(program):
    """Kill a program with all its processes but the jobs."""
    for process in session(program.pid):
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    program.wait()


@pytest.fixture
def study(tmp_path):
    """The folder of a study, no job of which outlives the test."""
    yield tmp_path
    for job_id in job_program.living(tmp_path):
        os.kill(int(job_id), signal.SIGKILL)


def jobs_begun(folder):
    """Return the ids of all jobs of each simulation, once the study is complete."""
    counts = json.loads((folder / "ended.json").read_text())
    assert counts["simulations"] == {"running": 0, "done": job_program.INPUTS, "failed": 0}
    return [path.read_text().split() for path in folder.glob("*.began")]


@pytest.mark.slow
def test_a_coordinator_that_is_killed_goes_on_with_the_jobs_that_run(study):
    program = started(study)
    journal = study / "saves" / JOURNAL
    wait_until(lambda: len(jobs_of(journal)) > job_program.AT_MOST)
    killed(program)
    running = job_program.living(study)
    assert running
    assert started(study).wait(LIMIT) == 0
    adopted = [jobs for jobs in jobs_begun(study) if set(jobs) & set(running)]
    assert adopted
    assert all(len(jobs) == 1 for jobs in adopted)  # none of them was submitted again


@pytest.mark.slow
def test_a_job_that_is_submitted_when_the_coordinator_is_killed_does_not_run_twice(study):
    program = started(study)
    journal = study / "saves" / JOURNAL
    wait_until(lambda: len(jobs_of(journal)) >= job_program.AT_MOST)
    (study / "slow").touch()
    wait_until(lambda: (study / "submitting").exists())
    killed(program)
    assert read_journal(journal).attempts
    assert started(study).wait(LIMIT) == 0
    assert [len(jobs) for jobs in jobs_begun(study)] == [1] * job_program.INPUTS
    assert not read_journal(journal).attempts


def jobs_of(journal):
    """Return the lines of a journal with the id of a job."""
    if not journal.exists():
        return []
    return [line for line in journal.read_text().splitlines() if '"job"' in line]
