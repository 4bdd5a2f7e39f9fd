"""The task of one worker: receives samples, trains on batches from its buffer, merges, reports and
checkpoints.

It holds a connection to the coordinator as long as it runs. What it sends is data, safetensors and
JSON, and no pickle.
"""

import queue
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import torch

from compss_train._utils import Closable
from compss_train.buffers import BufferDrainedError
from compss_train.data import block, order, partitioning
from compss_train.engines import calls, liveness, nodes
from compss_train.exceptions import DivergedError
from compss_train.model import devices, saved_state
from compss_train.model import parameters as params
from compss_train.model.training_spec import TrainingSpec
from compss_train.net import Address, ConnectionLostError, Header, shortened, sockets
from compss_train.online.options import OnlineOptions
from compss_train.online.receiver import NUMBERS, Receiver
from compss_train.online.sample_losses import SampleLosses
from compss_train.online.stream import worker_of
from compss_train.training.checkpoints import worker_from_dict, worker_to_dict
from compss_train.worker import batches, learner, preparing, server_exchange
from compss_train.worker.state import GroupState, WorkerState
from compss_train.worker.work import Job, Work

_ALL_ADDRESSES = "0.0.0.0"
MAX_SKIPPED = 100
"""Maximum number of consecutive batches that are skipped because loss or gradients are not
finite.
"""
_SETTLE_BATCHES = 1000
"""Batches after which losses of samples that have left the buffer become sums, whenever reports are
made.
"""
_TICK = 0.2
"""Seconds between checks for the end of the fit while a worker waits for samples."""
_LOCKSTEP_TICK = 0.01
"""The same where simulations wait for the worker."""


@dataclass(frozen=True, kw_only=True)
class OnlineJob:
    """What all workers of an online fit share."""

    coordinator: Address
    key: str = field(repr=False)
    """The token that the workers' receivers require of streams."""
    host: str | None
    """The host of the address for senders, or ``None``."""
    server_address: server_exchange.ServerAddress
    """The global parameters."""
    num_workers: int
    options: OnlineOptions
    seed: int
    by_sample: bool = False
    """Whether workers report the losses of samples."""
    lockstep: bool = False
    """Whether simulations wait for the workers."""

    @property
    def paired(self) -> bool:
        """Whether batches are pairs of time steps."""
        return self.options.pairing is not None

    def listening_address(self, local_host: str) -> str | None:
        """Return the address at which a worker listens for streams, or ``None`` for a socket file.

        ``local_host`` is this machine's address as the coordinator's machine sees it. Senders on
        other machines can reach that, unless it is the loopback interface: such a worker listens
        where the coordinator does.
        """
        if self.host is None or nodes.is_loopback(self.host) or not nodes.is_loopback(local_host):
            inside = self.host is None and self.coordinator.url.startswith(sockets.PRIVATE)
            return None if inside else f"tcp://{local_host}:*"
        return f"tcp://{self.host}:*"

    def routed(self, worker: int, stream: int, samples: range) -> int:
        """Return how many of some successive samples of a stream a worker gets."""
        ahead = (
            worker - worker_of(stream, samples.start, self.num_workers, whole=self.paired)
        ) % self.num_workers
        return (
            (len(samples) if not ahead else 0)
            if self.paired
            else len(samples[ahead :: self.num_workers])
        )

    def make_batch(self, drawn: Any, worker: int, position: int) -> batches.Batch:
        """Return a batch that the worker's buffer gave; the position is its number."""
        if self.options.pairing is None:
            x = drawn["x"]
            y = drawn.get("y")
            (simulations, steps) = drawn[NUMBERS].T
        else:
            parts = self.options.pairing(*drawn)
            x, y = (
                (*parts, None)[:2] if isinstance(parts, tuple) and len(parts) < 3 else (parts, None)
            )
            simulations, steps = (np.stack(each, 1) for each in list(zip(*drawn, strict=True))[:2])
        return batches.Batch(0, worker, position, x, y, simulations=simulations, steps=steps)


class CoordinatorConnection(Closable):
    """The connection of a worker to the coordinator, for one thread.

    Raises ``OSError`` if the coordinator is gone.
    """

    def __init__(self, coordinator: Address, worker: int) -> None:
        self._connection = coordinator.connect({"role": "worker", "number": worker})
        reply, arrays = self._connection.receive() or ({}, [])
        self.accepted = bool(reply.get("accepted"))
        """False if another task is connected as this worker."""
        self.part = [array.tensor() for array in arrays]
        """This worker's part of the last save: its state and its buffer; empty before the first
        one.
        """
        self.stopped = bool(reply.get("stop"))
        """Whether training is to end now; after an earlier attempt has completed it, this one only
        receives.
        """
        self.asked: int | None = None
        """The number of a save in which the worker is to take part."""
        self.urgent = False
        """Whether that is to be at once, instead of at the next merge."""
        self.settle = -1
        """The number with which the coordinator has asked for a report of all that has arrived."""

    def listen(self, receiver: Receiver, local_host: str) -> None:
        """Report where the worker receives samples."""
        self._receiver = receiver
        self.send({"url": receiver.url.replace(_ALL_ADDRESSES, local_host)})

    def update(self, timeout: float | None = 0.0) -> None:
        """Do what the coordinator has asked for; raise ``ConnectionLostError`` if it has ended this
        fit.
        """
        while (message := self._connection.receive(timeout)) is not None:
            header = message[0]
            timeout = 0.0
            self.stopped = self.stopped or "stop" in header
            if "save" in header:
                self.asked = header["save"]
                self.urgent = header["urgent"]
            if self.asked is not None and header.get("go_on") == self.asked:
                self.asked = None
            self.settle = header.get("settle", self.settle)
            self._receiver.forget(header.get("forget", ()))
            if "end_reception" in header:
                self._receiver.end_reception()
            if "shutdown" in header:
                raise ConnectionLostError("the coordinator has ended this fit")

    def await_end(self) -> None:
        """Stay connected until the coordinator ends the fit; raise an error of the receiver."""
        with suppress(ConnectionLostError):
            while self._receiver.failed is None:
                self.update(_TICK)
            raise self._receiver.failed

    def save(self, part: Sequence[torch.Tensor]) -> None:
        """Send this worker's part of a save, and wait until all workers have, or training ends.

        After a save with which training ends streams have no end, as it may lack their last
        samples.
        """
        number = self.asked
        self._connection.send({"part": number}, part, copy=False)
        while self.asked == number and not self.stopped:
            liveness.beat()
            self.update(_TICK)
        self._receiver.holds_ends = self.asked == number

    def send(self, header: Header, arrays: Sequence[block.Block] = ()) -> None:
        """Send a message to the coordinator."""
        self._connection.send(header, arrays)

    def close(self) -> None:
        """Disconnect."""
        self._connection.close()


def _local_host(coordinator: Address) -> str:
    """Return the address of this machine as the coordinator's machine sees it."""
    parts = urlsplit(coordinator.url)  # without a host for a socket file
    return (
        nodes.LOOPBACK
        if parts.hostname is None
        else nodes.own_address(parts.hostname, parts.port or 1)
    )


def train_online(
    training_spec: TrainingSpec,
    states: GroupState,
    job: OnlineJob,
    number: int,
    device: str,
    moments: params.Parameters | None,
) -> None:
    """Train until all samples are used or ``max_batches`` is reached, and send the new state to the
    coordinator.

    Resumes from the checkpoint of an earlier attempt, if any. ``moments`` are what an earlier fit
    has averaged of the optimizers' states.
    """
    with CoordinatorConnection(job.coordinator, number) as coordinator, ExitStack() as stack:
        if coordinator.accepted:
            try:
                OnlineWorker(
                    training_spec, states[0], job, number, device, moments, coordinator, stack
                ).run()
            except ConnectionLostError:
                raise
            except (
                BaseException
            ) as error:  # which ends the fit; the engine has it when this task has ended
                failed = f"{type(error).__name__}: {error}"
                text = calls.task_traceback(error)
                with suppress(ConnectionLostError):
                    coordinator.send({"failed": shortened(failed), "traceback": shortened(text)})
                raise


class OnlineWorker:
    """One worker: its model replica, its buffer, and its connections, which ``stack`` closes.

    Its part of a save is its state between two batches. Right after a merge it does not contain the
    parameters. A worker that waits for samples, or has to end, takes part before its next merge,
    with its unmerged change.
    """

    def __init__(
        self,
        training_spec: TrainingSpec,
        state: WorkerState,
        job: OnlineJob,
        number: int,
        device: str,
        moments: params.Parameters | None,
        coordinator: CoordinatorConnection,
        stack: ExitStack,
    ) -> None:
        self._job = job
        self._coordinator = coordinator
        self._number = number
        self._device = device
        saved, buffer = (
            map(saved_state.decode_value, coordinator.part) if coordinator.part else ({}, {})
        )
        if saved:
            state = worker_from_dict(saved["worker"])
        elif job.options.merge.optimizer_state == "reset":
            state = replace(state, optimizer=None)
            moments = None
        stack.enter_context(devices.random_state(state.random, device))
        self._server = stack.enter_context(job.server_address.connect(None))
        self._exchange = job.server_address.exchange
        self._base = self._exchange.pull(self._server)
        batching = partitioning.Batching(size=job.options.batch_size)
        self._training = Job(spec=training_spec, batching=batching, seed=job.seed)
        self._work = Work(check_outputs=True, worker=number, device=device, name=f"worker {number}")
        # What is not finite is found at once: samples do not come again.
        state = replace(state, skipped=True)
        self._learner = learner.Learner(
            self._training, self._base, state, self._work, moments=moments
        )
        if unmerged := saved.get("unmerged"):
            self._base = unmerged["base"]
            params.load_into(self._learner.replica.net, unmerged["own"])
            if unmerged["pending"] is not None:
                self._learner.set_pending(unmerged["pending"])
        self._losses = SampleLosses(buffer.get("losses")) if job.by_sample else None
        if self._losses is not None:
            self._learner.on_losses = self._add_losses
        self._settled = -1
        self._asked = -1
        self._arrived = 0
        seed = order.buffer_seed(job.seed, 0, number)
        self._buffer = job.options.buffer.make(
            job.options.batch_size, seed, pin_memory=devices.is_gpu(device)
        )
        if buffer:  # more may come: the coordinator says again when reception is over
            self._buffer.load_state_dict({**buffer["buffer"], "over": False})
        self._batches = saved.get("batches", 0)
        self._merged = saved.get("merged", 0)
        self._local_host = _local_host(job.coordinator)
        self._receiver = stack.enter_context(
            Receiver(
                self._buffer,
                job.listening_address(self._local_host),
                token=job.key,
                paired=job.paired,
                offsets=buffer.get("offsets", {}),
            )
        )
        self._merge_every = cast("int", job.options.merge.every)
        self._report_every = min(1.0, job.options.record_every) / 2
        self._reported = time.monotonic()

    def run(self) -> None:
        """Train, and stay connected until the coordinator ends the fit."""
        self._coordinator.listen(self._receiver, self._local_host)
        try:
            self._learner.learn_all(
                preparing.prepared_batches(
                    self._drawn_batches(), self._learner.replica, self._training
                )
            )
            self._receiver.discard()
            self._merge()
        except DivergedError as error:
            error.sample = self._receiver.not_finite
            raise
        self._report()
        repetitions = self._buffer.repetitions().tolist()
        state = saved_state.encode_value(worker_to_dict(self._learner.state()))
        self._coordinator.send({"done": True, "repetitions": repetitions}, [state])
        self._coordinator.await_end()

    def _drawn_batches(self) -> Iterator[batches.Batch]:
        """Iterate over batches from the buffer, and do what is due when each has been learnt."""
        tick = _LOCKSTEP_TICK if self._job.lockstep else _TICK
        while not self._is_complete():
            self._settle()
            try:
                drawn = self._buffer.get_batch(self._job.options.batch_size, timeout=tick)
            except BufferDrainedError:
                return
            except queue.Empty:
                liveness.beat()  # simulations may take long
                self._report_if_due()
                self._settle(waits=True)
                self._save_if_asked()
                continue
            yield self._job.make_batch(drawn, self._number, self._batches).to(self._device)
            self._batches += 1
            self._after_batch()

    def _is_complete(self) -> bool:
        """Return whether no more batches are to be drawn; raise an error of the receiver."""
        self._coordinator.update()
        if self._receiver.failed is not None:
            raise self._receiver.failed
        limit = self._job.options.max_batches
        return self._coordinator.stopped or (limit is not None and self._batches >= limit)

    def _after_batch(self) -> None:
        if self._learner.skipped == MAX_SKIPPED:
            raise DivergedError(
                f"loss or gradients were NaN or infinite in {MAX_SKIPPED} consecutive batches; "
                "lower the learning rate, or check the samples of the simulations"
            )
        if self._losses is not None and self._batches % _SETTLE_BATCHES == 0:
            self._losses.settle(self._buffer.keys(NUMBERS))
        if is_due := self._batches % self._merge_every == 0:
            self._merge()
            self._coordinator.update()  # so that it does not train on until the next merge first
        self._report_if_due()
        if is_due or self._coordinator.urgent:
            self._save_if_asked()

    def _merge(self) -> None:
        """Push the weighted change since the last merge, and continue from the global
        parameters.
        """
        if self._merged == self._batches:
            return
        trained = self._learner.finish()
        share = 1 / self._job.num_workers
        self._exchange.push_change(self._server, self._number, self._base, trained, share)
        self._continue_from(self._exchange.pull(self._server))
        self._merged = self._batches

    def _report_if_due(self) -> None:
        if time.monotonic() - self._reported > self._report_every:
            self._report()

    def _settle(self, *, waits: bool = False) -> None:
        """Report, if the coordinator asks for it, once all full batches of what had arrived are
        trained.

        ``waits``: there was no batch, as the buffer holds fewer samples than its threshold.
        """
        asked = self._coordinator.settle
        size = self._job.options.batch_size
        if asked == self._settled:
            return
        if asked != self._asked:
            self._asked, self._arrived, waits = asked, self._buffer.samples_put, False
        if waits or self._buffer.samples_got + size > self._arrived:
            self._settled = asked
            self._report()

    def _add_losses(self, batch: batches.Batch, losses: torch.Tensor) -> None:
        if self._losses is not None and batch.simulations is not None and batch.steps is not None:
            self._losses.add(losses, batch.simulations, batch.steps)

    def _report(self, *, stops: int | None = None) -> None:
        """Report; ``stops`` is the number of a save for which this worker stops now."""
        self._reported = time.monotonic()
        held = len(self._buffer)
        put = self._buffer.samples_put
        got = self._buffer.samples_got
        counts = {"held": held, "unseen": self._buffer.unseen, "put": put, "got": got}
        waited, self._buffer.waited = self._buffer.waited, 0.0
        report = [
            saved_state.encode_value(
                self._learner.measured().__getstate__() | counts | {"waited": waited}
            )
        ]
        if self._losses is not None:
            report.append(torch.from_numpy(self._losses.report()))
        self._coordinator.send({"report": True, "settled": self._settled, "stops": stops}, report)

    def _save_if_asked(self) -> None:
        """Take part in a save if there is one, and go on from the global parameters when it is
        complete.
        """
        if self._coordinator.asked is None:
            return
        self._report(stops=self._coordinator.asked)
        self._receiver.holds_ends = True
        buffer, offsets = self._receiver.snapshot()
        saved = {
            "worker": worker_to_dict(self._learner.state()),
            "batches": self._batches,
            "merged": self._merged,
        }
        is_merged = self._merged == self._batches
        if not is_merged:
            own = params.from_module(self._learner.replica.net)
            saved["unmerged"] = {"base": self._base, "own": own, "pending": self._learner.pending()}
        kept: dict[str, Any] = {"buffer": buffer, "offsets": offsets}
        if self._losses is not None:
            kept["losses"] = self._losses.state_dict()
        by_stream = torch.tensor(list(offsets.items()), dtype=torch.int64)
        self._coordinator.save(
            [saved_state.encode_value(saved), by_stream, *saved_state.encoded_pieces(kept)]
        )
        if is_merged:
            self._continue_from(self._exchange.pull(self._server))

    def _continue_from(self, parameters: params.Parameters) -> None:
        self._base = parameters
        params.load_into(self._learner.replica.net, parameters)
