"""The simulations of a fit as jobs, as its coordinator sees them, with a queue in this process."""

import json
import time
from types import SimpleNamespace

import numpy as np
import pytest

from compss_train import Simulations
from compss_train.exceptions import SimulationError
from compss_train.net.connection import Address
from compss_train.online.inputs import BEGUN, FAILED, Inputs
from compss_train.online.job_journal import EarlierJobs, JobJournal, read_journal
from compss_train.online.job_queue import JobQueue, Refused
from compss_train.online.job_runs import JobRuns
from compss_train.online.jobs import input_text, job_name
from tests.helpers.waiting import awaited, wait_until
from tests.online.job_queues import FakeQueue, job_threads

URL = "tcp://127.0.0.1:5555"
TOKEN = "ours alone"


class Runs:
    """Runs of jobs whose senders a test plays."""

    def __init__(
        self, queue, inputs, *, at_most=2, finds=False, earlier=None, journal=None, **options
    ):
        self.queue = queue
        self.registered = []
        self.lost_workers = []
        jobs = queue.jobs(at_most, finds=finds)
        router = SimpleNamespace(
            register=lambda client, number, progress: self.registered.append((number, progress)),
            unregister=lambda client: self.lost_workers,
        )
        self.inputs = Inputs(inputs)
        self.runs = JobRuns(
            Simulations(jobs=jobs, inputs=inputs, address=URL, token=TOKEN, **options),
            self.inputs,
            jobs,
            router=router,
            job=None,
            address=Address(URL, TOKEN),
            earlier=earlier or EarlierJobs(),
            journal=JobJournal(journal),
        )

    def until(self, condition):
        """Do what the event loop does, until a condition holds."""

        def holds():
            self.runs.start()
            return condition()

        wait_until(holds)

    def until_submitted(self, number):
        self.until(lambda: self.runs_known() >= number)

    def runs_known(self):
        """Return how many jobs were submitted, and are known to be."""
        waiting = [job for _, job in self.runs.running if job.job_id is None]
        return len(self.queue.variables) if not waiting else 0

    def connect(self, name):
        """Connect as the sender of a job; return the client, whose replies are in ``sent``."""
        greeting = {"role": "sender", "name": name}
        client = SimpleNamespace(greeting=greeting, sent=[])
        client.send = lambda header, arrays=(): client.sent.append(header)
        assert self.runs.serves(greeting)
        self.runs.handle(client, greeting)
        return client

    def finish(self, job_id, samples=5):
        """Let a job send all its samples and end."""
        client = self.connect(self.queue.variables[job_id]["COMPSS_TRAIN_NAME"])
        self.runs.handle(client, {"finished": samples})
        self.queue.ended.add(job_id)


@pytest.fixture
def queue():
    return FakeQueue()


@pytest.fixture
def make(queue):
    """Make runs, whose threads end after the test."""
    made = []

    def make(inputs, **options):
        made.append(Runs(queue, inputs, **options))
        return made[-1]

    yield make
    for runs in made:
        runs.runs.close()
    wait_until(lambda: not job_threads())


def name_of(number, value):
    return job_name(number, input_text(value), URL)


def test_each_input_is_a_job_that_has_it_in_its_environment_and_a_few_run_at_a_time(make, queue):
    inputs = [1.5, "text", np.float32([1, 2]), {"rate": np.float64(3)}, [4]]
    runs = make(inputs)
    for job_id in map(str, range(1, 6)):
        runs.until(lambda job_id=job_id: job_id in queue.variables)
        assert len(queue.living()) <= 2
        runs.finish(job_id)
    runs.until(lambda: runs.runs.all_ended)
    assert runs.runs.counts() == {"running": 0, "done": 5, "failed": 0}
    assert [number for number, _ in runs.registered] == [0, 1, 2, 3, 4]
    variables = list(queue.variables.values())
    texts = [each["COMPSS_TRAIN_INPUT"] for each in variables]
    assert list(map(json.loads, texts)) == [1.5, "text", [1.0, 2.0], {"rate": 3.0}, [4]]
    assert {each["COMPSS_TRAIN_ADDRESS"] for each in variables} == {URL}
    assert {each["COMPSS_TRAIN_TOKEN"] for each in variables} == {TOKEN}
    assert queue.names() == [name_of(number, value) for number, value in enumerate(inputs)]
    runs.runs.close()
    assert queue.cancelled == []


def test_a_job_that_is_gone_is_submitted_again_until_no_retries_are_left(make, queue):
    runs = make([7], retries=1)
    runs.until_submitted(1)
    queue.ended.add("1")
    with pytest.warns(UserWarning, match=r"simulation 0 of input 7 failed: its job 1.*retry 1 of"):
        runs.until_submitted(2)
    client = runs.connect(name_of(0, 7))
    queue.ended.add("2")
    looks = queue.looks
    runs.until(lambda: queue.looks > looks + 3)  # its sender is still connected
    assert runs.runs.counts()["running"] == 1
    runs.runs.handle(client, None)
    with pytest.warns(UserWarning, match="its job 2 has ended before its stream; skipped after 2"):
        runs.until(lambda: runs.runs.all_ended)
    assert runs.inputs.samples[0] == FAILED
    assert runs.connect(name_of(0, 7)).sent == [{"accepted": False}]


def test_a_sender_may_disconnect_and_come_back_while_its_job_is_alive(make, queue):
    runs = make([7])
    runs.until_submitted(1)
    runs.runs.handle(runs.connect(name_of(0, 7)), None)
    looks = queue.looks
    runs.until(lambda: queue.looks > looks + 3)
    runs.finish("1")
    runs.until(lambda: runs.runs.all_ended)
    assert len(queue.variables) == 1
    assert runs.runs.counts()["done"] == 1


def test_a_queue_that_does_not_answer_does_not_make_jobs_fail(make, queue):
    runs = make([7])
    runs.until_submitted(1)
    queue.is_down = True
    queue.ended.add("1")
    looks = queue.looks
    with pytest.warns(UserWarning, match="OSError: no answer; the jobs that ran are taken to run"):
        runs.until(lambda: queue.looks > looks + 3)
    assert runs.runs.counts() == {"running": 1, "done": 0, "failed": 0}
    queue.is_down = False
    with pytest.warns(UserWarning, match="retry 1 of 2"):
        runs.until_submitted(2)


def test_a_job_that_has_sent_all_counts_until_it_is_not_in_the_queue(make, queue):
    runs = make([7, 8, 9], at_most=2)
    runs.until_submitted(2)
    runs.runs.handle(runs.connect(name_of(0, 7)), {"finished": 5})
    looks = queue.looks
    runs.until(lambda: queue.looks > looks + 3)
    assert len(queue.variables) == 2
    assert runs.runs.counts() == {"running": 1, "done": 1, "failed": 0}
    queue.ended.add("1")
    runs.until_submitted(3)
    runs.runs.close()
    assert "1" not in queue.cancelled


@pytest.mark.parametrize("finds", [True, False])
def test_a_submission_that_fails_is_not_repeated_if_its_job_is_found(make, queue, finds):
    runs = make([7], finds=finds)
    queue.lost_answers = 1
    with pytest.warns(UserWarning, match="could not be submitted, and is tried again: .*timed out"):
        runs.until(lambda: [job for _, job in runs.runs.running if job.job_id is not None])
    assert queue.names() == [name_of(0, 7)] * (1 if finds else 2)
    assert queue.searches == (1 if finds else 0)


def attempted(seconds):
    """Return what a program leaves that was killed so many seconds ago, in the submission of 7."""
    return EarlierJobs(attempts={name_of(0, 7): time.time() - seconds})


def test_a_job_that_was_submitted_when_the_program_was_killed_is_adopted(make, queue):
    runs = make([7, 8], earlier=attempted(1.0), finds=True)
    runs.until(lambda: queue.searches > 3)
    assert queue.names() == [name_of(1, 8)]  # others do not wait
    queue.submit({"COMPSS_TRAIN_NAME": name_of(0, 7)})  # as its command was slow
    runs.until_submitted(2)
    assert [(job.job_id, job.is_adopted) for _, job in runs.runs.running] == [
        ("2", True),
        ("1", False),
    ]
    searches = queue.searches
    for job_id in "12":
        runs.finish(job_id)
    runs.until(lambda: runs.runs.all_ended)
    assert (len(queue.variables), queue.searches) == (2, searches)


@pytest.mark.parametrize(("seconds", "finds"), [(1000.0, True), (1.0, False)])
def test_a_job_that_is_not_found_is_submitted_again(make, queue, seconds, finds):
    """At once where it cannot come any more, or cannot be found."""
    runs = make([7], earlier=attempted(seconds), finds=finds)
    runs.until_submitted(1)
    assert queue.searches == finds


def test_a_queue_that_cannot_be_asked_for_a_job_is_asked_again(make, queue, monkeypatch):
    monkeypatch.setattr(queue, "find", lambda name: 1 / 0)
    runs = make([7], earlier=attempted(1000.0), finds=True)
    with (
        pytest.warns(UserWarning, match="find= has raised ZeroDivisionError"),
        pytest.raises(SimulationError, match="no job could be submitted: find= has raised"),
    ):
        runs.until(lambda: False)
    assert not queue.variables


def test_a_job_of_a_submission_that_failed_is_cancelled_at_the_end(queue):
    queue.lost_answers = 1
    jobs = JobQueue(
        queue.jobs(every=1000.0, finds=True), JobJournal(None), watched={}, ending=(), attempts={}
    )
    jobs.submit("a", {"COMPSS_TRAIN_NAME": "a"})
    assert isinstance(awaited(lambda: next(iter(jobs.events()), None)), Refused)
    jobs.close()
    assert queue.cancelled == ["1"]


def test_refused_jobs_are_submitted_later(make, queue):
    runs = make([7, 8])
    queue.refusals = 2
    with pytest.warns(UserWarning, match="could not be submitted, and is tried again: submit= has"):
        runs.until_submitted(2)
    assert queue.names() == [name_of(0, 7), name_of(1, 8)]


def test_a_fit_whose_first_jobs_are_all_refused_ends(make, queue):
    runs = make([7])
    queue.refusals = 1000
    with (
        pytest.warns(UserWarning, match="tried again"),
        pytest.raises(SimulationError, match=r"no job could be submitted: .*the queue is full"),
    ):
        runs.until(lambda: False)


def test_a_job_without_an_id_ends_the_fit(make, queue, monkeypatch):
    monkeypatch.setattr(queue, "submit", lambda variables: "Submitted batch job 12")
    runs = make([7])
    with pytest.raises(SimulationError, match="'Submitted batch job 12': it must be the id"):
        runs.until(lambda: False)


def test_a_silent_job_is_cancelled_and_one_that_makes_progress_is_not(make, queue, clock):
    runs = make([7, 8], timeout=60.0)
    runs.until_submitted(2)
    clients = [runs.connect(name) for name in queue.names()]
    assert runs.registered == [(0, 1.0), (1, 1.0)]
    clock.now += 50
    runs.runs.handle(clients[1], {"progress": 3})
    clock.now += 20
    with pytest.warns(UserWarning, match=r"simulation 0 of input 7 failed: no sample within 60.0"):
        runs.until(lambda: queue.cancelled == ["1"])
    assert clients[0].sent == [{"stop": True}]
    runs.until_submitted(3)
    assert queue.names()[2] == name_of(0, 7)


def test_a_job_that_says_that_it_has_failed_is_cancelled_and_runs_again(make, queue):
    runs = make([7])
    runs.until_submitted(1)
    client = runs.connect(name_of(0, 7))
    with pytest.warns(UserWarning, match="simulation 0 of input 7 failed: ValueError: no"):
        runs.runs.handle(client, {"failed": "Traceback ...\nValueError: no"})
    runs.until(lambda: queue.cancelled == ["1"] and len(queue.variables) == 2)


def test_lost_samples_are_said_and_those_of_a_worker_make_a_job_run_again(make, queue):
    runs = make([7])
    runs.until_submitted(1)
    client = runs.connect(name_of(0, 7))
    with pytest.warns(UserWarning, match="simulation 0 of input 7 goes on without 3 samples"):
        runs.runs.handle(client, {"lost": 3})
    runs.runs.handle(client, {"finished": 5})
    runs.until(lambda: runs.runs.all_ended)
    runs.runs.repeat_lost(SimpleNamespace(lacks_samples=lambda number, samples: 2))
    assert runs.inputs.samples[0] == BEGUN
    runs.until_submitted(2)
    runs.finish("2")
    runs.until(lambda: runs.runs.all_ended)


def test_senders_that_are_not_due_wait_and_those_of_other_inputs_do_not(make, queue):
    runs = make([7, 8], at_most=1)
    runs.until_submitted(1)
    runs.connect(name_of(0, 7))
    for name in (name_of(0, 7), name_of(1, 8)):
        assert runs.connect(name).sent[0]["busy"]
    assert runs.connect(name_of(0, 9)).sent == [{"accepted": False}]
    assert not runs.runs.serves({"role": "sender", "name": "simulation-3"})
    assert not runs.runs.serves({"role": "sender", "name": None})


def test_a_program_that_goes_on_adopts_the_living_and_submits_the_dead_again(make, queue, tmp_path):
    journal = tmp_path / "jobs.jsonl"
    first = make([7, 8, 9], at_most=3, journal=journal)
    first.until_submitted(3)
    saved = first.runs.state_dict()["jobs"]
    assert saved == [[name, job_id] for job_id, name in zip("123", queue.names(), strict=True)]
    assert read_journal(journal) == EarlierJobs(dict(zip("123", queue.names(), strict=True)))
    first.runs.stop(goes_on=True)
    first.runs.close()
    assert queue.cancelled == []
    queue.ended.add("2")
    queue.is_down = True
    with journal.open("a") as file:
        file.write('{"simulation": "simul')  # the program was killed
    second = make([7, 8, 9], at_most=3, earlier=read_journal(journal), journal=journal, retries=0)
    looks = queue.looks
    with pytest.warns(UserWarning, match="no answer"):
        second.until(lambda: queue.looks > looks + 2)
    assert second.runs.running == []
    assert len(queue.variables) == 3
    queue.is_down = False
    second.until_submitted(4)
    assert queue.names()[3] == name_of(1, 8)
    jobs = [(simulation.number, job.job_id) for simulation, job in second.runs.running]
    assert jobs == [(0, "1"), (1, "4"), (2, "3")]
    for job_id in "143":
        second.finish(job_id)
    second.until(lambda: second.runs.all_ended)
    assert second.runs.counts() == {"running": 0, "done": 3, "failed": 0}


def test_an_adopted_job_that_ends_unseen_is_no_failure(make, queue):
    """Its sender may have ended between the programs."""
    queue.submit({"COMPSS_TRAIN_NAME": name_of(0, 7)})
    runs = make([7], earlier=EarlierJobs({"1": name_of(0, 7)}), retries=0)
    runs.until(lambda: runs.runs.running)
    queue.ended.add("1")
    runs.until_submitted(2)
    assert runs.runs.counts()["failed"] == 0


def test_jobs_of_other_inputs_are_not_adopted_and_all_are_cancelled_at_the_end(make, queue):
    for number, value in enumerate([6, 8]):
        queue.submit({"COMPSS_TRAIN_NAME": name_of(number, value)})
    earlier = EarlierJobs(dict(zip("12", queue.names(), strict=True)))
    runs = make([7, 8], earlier=earlier)
    runs.until_submitted(3)
    client = runs.connect(name_of(0, 7))
    assert runs.connect(name_of(0, 6)).sent == [{"accepted": False}]
    runs.runs.stop()
    assert client.sent == [{"stop": True}]
    runs.runs.close()
    assert sorted(queue.cancelled) == ["1", "2", "3"]


def test_a_line_of_the_journal_that_was_cut_spoils_no_other(tmp_path):
    path = tmp_path / "jobs.jsonl"
    JobJournal(path).job("first", "1")
    JobJournal(path).attempt("second")
    path.write_text(path.read_text()[:-9])  # the disk was full
    JobJournal(path).attempt("third")
    jobs = read_journal(path)
    assert jobs.names == {"1": "first"}
    assert list(jobs.attempts) == ["third"]
