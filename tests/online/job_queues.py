"""A queue of jobs in this process, whose jobs end when a test says so, or run as threads."""

import itertools
import threading

from compss_train import Jobs
from tests.buffers.kinds import Thread


class FakeQueue:
    """Accepts jobs; ``run`` is what a job does, in a thread, or ``None`` if tests act for it."""

    def __init__(self, run=None):
        self._run = run
        self._ids = map(str, itertools.count(1))
        self._threads = {}
        self.variables = {}
        """By the id of each job that was submitted."""
        self.ended = set()
        """The ids of jobs that have ended."""
        self.cancelled = []
        self.refusals = 0
        """How many of the next submissions are refused."""
        self.lost_answers = 0
        """How many of the next submissions fail, though their jobs are in the queue."""
        self.is_down = False
        """Whether it does not say which jobs are alive."""
        self.looks = 0
        """How often it was asked which jobs are alive."""
        self.searches = 0
        """How often it was asked for a name."""

    def jobs(self, at_most=2, every=0.01, *, finds=False):
        find = self.find if finds else None
        return Jobs(self.submit, self.alive, self.cancel, at_most=at_most, every=every, find=find)

    def submit(self, variables):
        if self.refusals:
            self.refusals -= 1
            raise OSError("the queue is full")
        job_id = next(self._ids)
        self.variables[job_id] = variables
        if self._run is not None:
            self._threads[job_id] = Thread(self._run_job, job_id)
        if self.lost_answers:
            self.lost_answers -= 1
            raise OSError("Socket timed out on send/recv operation")
        return job_id

    def _run_job(self, job_id):
        try:
            self._run(job_id, self.variables[job_id])
        finally:
            self.ended.add(job_id)

    def living(self):
        return set(self.variables) - self.ended

    def alive(self, ids):
        self.looks += 1
        if self.is_down:
            raise OSError("no answer")
        return self.living()

    def find(self, name):
        self.searches += 1
        return [
            job_id
            for job_id in self.living()
            if self.variables[job_id]["COMPSS_TRAIN_NAME"] == name
        ]

    def cancel(self, job_id):
        self.cancelled.append(job_id)
        self.ended.add(job_id)

    def names(self):
        return [variables["COMPSS_TRAIN_NAME"] for variables in self.variables.values()]

    def join(self):
        for thread in self._threads.values():
            thread.result()


def job_threads():
    return [thread for thread in threading.enumerate() if thread.name == "jobs"]
