"""The worker's task in an online fit: receive samples, train on what the buffer gives, merge, report, save."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

from compss_train.buffers import Buffer, BufferDrainedError
from compss_train.data.order import buffer_seed
from compss_train.model.random_state import random_state
from compss_train.model.training_spec import TrainingSpec
from compss_train.online.connection import ConnectionLostError
from compss_train.online.control import Control, packed, unpacked
from compss_train.online.job import OnlineJob, Saved
from compss_train.online.learner import OnlineLearner, ServerShare
from compss_train.online.receiver import Receiver
from compss_train.training.worker.batches import Batch
from compss_train.training.worker.train import WorkerState

_TICK = 0.2
"""Seconds after which a worker that waits for samples looks whether it is still wanted."""


def train_online(training_spec: TrainingSpec, state: WorkerState, job: OnlineJob, number: int, device: str) -> None:
    """Train until all samples have been used or ``max_batches`` is reached, and tell the coordinator the new state.

    Where a worker with this number has died, this one goes on from what that one has saved.
    """
    with Control(job.director, number) as control, ExitStack() as stack:
        if control.is_done:
            _only_receive(job, control, stack)
        elif control.wanted:
            try:
                saved: Saved | None = None if control.saved is None else unpacked(control.saved)
                before = state if saved is None else saved.state
                stack.enter_context(random_state(before.random, device))
                OnlineWorker(training_spec, before, job, number, device, control, saved, stack).run()
            except ConnectionLostError:
                raise
            except BaseException as error:
                control.fail(error)
                raise


def _only_receive(job: OnlineJob, control: Control, stack: ExitStack) -> None:
    """Take the place of a worker that had trained all that it should, so that streams need not wait for one."""
    buffer = job.buffer.make(job.batch_size, 0)
    host = job.host or control.own_host
    receiver = stack.enter_context(Receiver(buffer, host, job.key, paired=job.paired))
    receiver.discard()
    receiver.start()
    control.start(receiver.port, {})
    control.ended.wait()


class OnlineWorker:
    """One worker: its model copy, its buffer, and its connections, which ``stack`` closes."""

    def __init__(
        self,
        training_spec: TrainingSpec,
        before: WorkerState,
        job: OnlineJob,
        number: int,
        device: str,
        control: Control,
        saved: Saved | None,
        stack: ExitStack,
    ) -> None:
        self._job, self._control, self._device = job, control, device
        server = stack.enter_context(job.served.connect(None))
        vote = ServerShare(job.served.exchange, server, number, 1 / job.num_workers)
        optimizer = None if job.new_optimizer and saved is None else before.optimizer
        self._trainee = OnlineLearner(training_spec, vote, optimizer, device)
        self._buffer = self._make_buffer(number, saved)
        self._batches = 0 if saved is None else saved.batches
        received = {} if saved is None else saved.received
        self._receiver = stack.enter_context(
            Receiver(
                self._buffer,
                job.host or control.own_host,
                job.key,
                paired=job.paired,
                received=received,
                saving=job.save_every is not None,
                failed=control.fail,
            )
        )
        self._stopped = threading.Event()
        self._reported = time.monotonic()
        # Not all at once.
        self._saved = self._reported - (job.save_every or 0) * number / job.num_workers

    def _make_buffer(self, number: int, saved: Saved | None) -> Buffer:
        seed = buffer_seed(self._job.seed, 0, number)
        buffer = self._job.buffer.make(self._job.batch_size, seed, pin_memory=self._device.startswith("cuda"))
        if saved is not None:
            buffer.load_state_dict(saved.buffer)
        return buffer

    def run(self) -> None:
        """Train, and stay until the coordinator says that all have ended."""
        self._receiver.start()
        receiver = self._receiver
        orders = {
            "over": lambda _: receiver.over(),
            "forget": receiver.forget,
            "stop": lambda _: self._stopped.set(),
        }
        self._control.start(receiver.port, orders)
        for batch in self._drawn():
            self._trainee.learn(batch)
            self._batches += 1
            self._between_batches()
        self._receiver.discard()
        self._trainee.merge()
        self._report()
        repetitions = self._buffer.repetitions().tolist()
        self._control.tell({"done": True, "repetitions": repetitions}, [packed(self._trainee.state())])
        self._control.ended.wait()

    def _drawn(self) -> Iterator[Batch]:
        """Iterate over batches, on the device, as the buffer gives them."""
        while not self._stopped.is_set() and self._batches != self._job.max_batches:
            if self._control.ended.is_set():
                raise ConnectionLostError("the coordinator has ended this fit")
            try:
                drawn = self._buffer.get_batch(self._job.batch_size, timeout=_TICK)
            except BufferDrainedError:
                return
            except queue.Empty:
                self._report_if_due()
            else:
                yield self._job.batch_of(drawn, self._device)

    def _between_batches(self) -> None:
        if self._batches % self._job.merge_every == 0:
            self._trainee.merge()
        self._report_if_due()
        if self._job.save_every is not None and time.monotonic() - self._saved > self._job.save_every:
            self._save()

    def _report_if_due(self) -> None:
        if time.monotonic() - self._reported > self._job.report_every:
            self._report()

    def _report(self) -> None:
        self._reported = time.monotonic()
        buffer = self._buffer
        counts = {
            "held": len(buffer),
            "unseen": buffer.unseen,
            "put": buffer.samples_put,
            "got": buffer.samples_got,
        }
        self._control.tell({"report": True}, [packed({**self._trainee.measured(), **counts})])

    def _save(self) -> None:
        self._trainee.merge()  # so that what was learnt is in the global parameters, and need not be saved
        buffer, received = self._receiver.snapshot()
        saved = Saved(self._trainee.state(), buffer, received, self._batches)
        streams = [[stream, upto] for stream, upto in received.items()]
        self._control.tell({"saved": streams}, [packed(saved)])
        self._saved = time.monotonic()
