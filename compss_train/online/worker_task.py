"""The task of a worker: receives samples, trains on them, merges, reports, and takes part in saves.

What it sends is data, safetensors and JSON, and no pickle.
"""

import queue
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import torch
from numpy.typing import NDArray

from compss_train.buffers import Buffer, BufferDrainedError
from compss_train.buffers.samples import NO_KEYS
from compss_train.data.block_passes import Batching
from compss_train.data.order import buffer_seed
from compss_train.engines import calls, liveness, nodes
from compss_train.exceptions import DivergedError
from compss_train.model import devices
from compss_train.model import parameters as params
from compss_train.model.lr_schedule import LrSchedule, make_schedule, rates
from compss_train.model.parts import Moments
from compss_train.model.program_variables import changed_variables
from compss_train.model.training_spec import TrainingSpec
from compss_train.model.value_encoding import decode_value, encoded_pieces
from compss_train.net import Address, ConnectionLostError
from compss_train.online.coordinator_connection import TICK, CoordinatorConnection
from compss_train.online.input_statistics import simulation_counts
from compss_train.online.intake import NUMBERS
from compss_train.online.online_job import OnlineJob
from compss_train.online.receiver import Receiver
from compss_train.online.sample_losses import SampleLosses
from compss_train.online.shared_average import SharedAverage
from compss_train.online.worker_messages import Done, Failed, Reported, SavePart, WorkerReport
from compss_train.training.snapshot import worker_from_dict
from compss_train.worker.batches import Batch
from compss_train.worker.learner import Learner
from compss_train.worker.preparing import prepared_batches
from compss_train.worker.state import WorkerState
from compss_train.worker.work import Job, Work

MAX_SKIPPED = 100
"""Maximum number of consecutive batches without a finite loss and finite gradients."""
_SETTLE_BATCHES = 1000
"""Batches after which losses of samples that have left the buffer become sums."""
_LOCKSTEP_TICK = 0.01
"""As ``TICK``, where simulations wait for the worker."""


def train_online(
    training_spec: TrainingSpec,
    state: WorkerState,
    job: OnlineJob,
    number: int,
    device: str,
    moments: Moments | None,
) -> None:
    """Train until all samples are used or ``max_batches`` is reached, and send the new state.

    Resumes from the last save in which an earlier attempt has taken part, if any. ``moments`` are
    what an earlier fit has averaged of the optimizers' states.
    """
    with CoordinatorConnection(job.coordinator, number) as coordinator, ExitStack() as stack:
        if not coordinator.accepted:
            return
        try:
            worker = OnlineWorker(
                training_spec,
                state,
                job,
                number=number,
                device=device,
                moments=moments,
                coordinator=coordinator,
                stack=stack,
            )
            worker.run()
        except ConnectionLostError:
            raise
        except BaseException as error:
            # It ends the fit; the engine has it when this task has ended.
            failed = Failed(f"{type(error).__name__}: {error}", calls.task_traceback(error))
            with suppress(ConnectionLostError):
                coordinator.send(failed)
            raise


def _local_host(coordinator: Address) -> str:
    """Return the address of this machine as the coordinator's machine sees it."""
    parts = urlsplit(coordinator.url)
    if parts.hostname is None:  # a socket file
        return nodes.LOOPBACK
    return nodes.own_address(parts.hostname, parts.port or 1)


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
        *,
        number: int,
        device: str,
        moments: Moments | None,
        coordinator: CoordinatorConnection,
        stack: ExitStack,
    ) -> None:
        self._job = job
        self._coordinator = coordinator
        self._number = number
        self._device = device
        self._batch_size = job.options.batch_size
        saved: dict[str, Any] = {}
        saved_buffer: dict[str, Any] = {}
        if coordinator.part:
            saved, saved_buffer = map(decode_value, coordinator.part)
            state = worker_from_dict(saved["worker"])
        elif job.options.merge.optimizer_state == "reset":
            state = replace(state, optimizer=None)
            moments = None
        stack.enter_context(devices.random_state(state.random, device))
        self._server = stack.enter_context(job.server_address.connect(None))
        self._exchange = job.server_address.exchange
        self._base = self._exchange.pull(self._server)
        """The global parameters from which the worker has continued last."""
        batching = Batching(size=self._batch_size)
        self._training = Job(
            spec=training_spec,
            batching=batching,
            seed=job.seed,
            buffers=self._exchange.buffers,
            checks_globals=True,
            averaging=job.options.merge.decay("steps"),
        )
        self._average = self._make_average(saved)
        self._learner = self._make_learner(state, moments)
        self._schedule = self._make_schedule()
        if self._schedule is None and job.set_values is not None:
            self._learner.set_hyperparameters(job.set_values.groups)
        self._losses = self._make_losses(saved_buffer)
        self._buffer = self._make_buffer(saved_buffer)
        self._batches: int = saved.get("batches", 0)
        """Batches trained."""
        self._merged: int = saved.get("merged", 0)
        """Those of them that are merged."""
        unmerged = saved.get("unmerged")
        if unmerged is not None:
            self._restore_change(unmerged)
        self._settled = -1
        """The last number of ``Settle`` that was answered."""
        self._settling = -1
        """The last one that was seen."""
        self._to_settle = 0
        """How many samples had arrived by then."""
        self._local_host = _local_host(job.coordinator)
        self._receiver = stack.enter_context(self._make_receiver(saved_buffer))
        self._held = NO_KEYS
        """What the last report had of the simulations in the buffer."""
        self._counting = 0.0
        """Seconds that it took to count them."""
        self._counted = 0.0
        """When they were counted."""
        self._merge_every = cast("int", job.options.merge.every)
        self._report_every = min(1.0, job.options.record_every) / 2
        self._reported = time.monotonic()

    def _make_learner(self, state: WorkerState, moments: Moments | None) -> Learner:
        values = self._job.set_values
        work = Work(
            check_outputs=True,
            worker=self._number,
            device=self._device,
            name=f"worker {self._number}",
            attributes=None if values is None else values.attributes,
        )
        # What is not finite is found at once: samples do not come again.
        state = replace(state, skipped=True)
        averaged = None if self._average is None else self._average.start
        return Learner(
            self._training, self._base, state, work=work, moments=moments, averaged=averaged
        )

    def _make_average(self, saved: dict[str, Any]) -> SharedAverage | None:
        exchange = self._job.server_address.averages
        if exchange is None:
            return None
        return SharedAverage(
            exchange,
            self._server,
            worker=self._number,
            share=self._share,
            has_begun=saved.get("has_average", self._job.continues_average),
        )

    def _make_schedule(self) -> LrSchedule | None:
        if self._job.schedule is None:
            return None
        replica = self._learner.replica
        return make_schedule(self._job.schedule, replica.net, replica.optimizer_factory)

    def _follow_schedule(self) -> None:
        """Set the hyperparameters of the next batch; the schedule's steps are a worker's batches.

        They follow from the number of the batch alone: after a save they are the same.
        """
        if self._schedule is None:
            return
        number = self._learner.batches
        values = self._job.set_values
        scheduled = self._schedule.at(number)
        self._learner.set_hyperparameters(
            scheduled if values is None else values.over(scheduled, self._schedule)
        )
        self._schedule.forget(number)

    def _make_losses(self, saved: dict[str, Any]) -> SampleLosses | None:
        if not self._job.by_sample:
            return None
        self._learner.on_losses = self._add_losses
        return SampleLosses(saved.get("losses"))

    def _make_buffer(self, saved: dict[str, Any]) -> Buffer:
        seed = buffer_seed(self._job.seed, 0, self._number)
        buffer = self._job.options.buffer.make(
            self._batch_size, seed, pin_memory=devices.is_gpu(self._device)
        )
        if saved:
            # More may come: the coordinator says again when reception is over.
            buffer.load_state_dict({**saved["buffer"], "over": False})
        return buffer

    def _make_receiver(self, saved: dict[str, Any]) -> Receiver:
        return Receiver(
            self._buffer,
            self._job.listening_address(self._local_host),
            keys=self._job.keys,
            worker=self._number,
            routing=self._job.routing,
            offsets=saved.get("offsets", {}),
        )

    def _restore_change(self, unmerged: dict[str, Any]) -> None:
        """Restore a change that was not merged when the worker took part in the save."""
        self._base = unmerged["base"]
        params.load_into(self._learner.replica.net, unmerged["own"])
        if unmerged["pending"] is not None:
            self._learner.set_pending(unmerged["pending"])
        if self._average is not None:
            self._average.restore(self._learner, unmerged["average"])

    def run(self) -> None:
        """Train, and stay connected until the coordinator ends the fit."""
        self._coordinator.listen(self._receiver, self._local_host)
        drawn = self._drawn_batches()
        try:
            self._learner.learn_all(prepared_batches(drawn, self._learner.replica, self._training))
            self._receiver.discard()
            self._merge()
        except DivergedError as error:
            error.sample = self._receiver.not_finite
            raise
        self._report()
        self._coordinator.send(self._done())
        self._coordinator.await_end()

    def _done(self) -> Done:
        spec = self._learner.replica.spec
        state = self._learner.state()
        changed = changed_variables(spec.roots(), spec.attributes.values, state.attributes or {})
        return Done(self._buffer.repetitions().tolist(), state, changed)

    def _drawn_batches(self) -> Iterator[Batch]:
        """Iterate over batches from the buffer, and do what is due when each has been learnt."""
        tick = _LOCKSTEP_TICK if self._job.lockstep else TICK
        while not self._is_complete():
            self._settle()
            try:
                drawn = self._buffer.get_batch(self._batch_size, timeout=tick)
            except BufferDrainedError:
                return
            except queue.Empty:
                liveness.beat()  # simulations may take long
                self._report_if_due()
                self._settle(waits=True)
                self._save_if_asked()
                continue
            self._follow_schedule()
            batch = self._job.make_batch(
                drawn, self._number, self._batches, pairing=self._learner.replica.pairing
            )
            yield batch.to(self._device)
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
        merge_is_due = self._batches % self._merge_every == 0
        if merge_is_due:
            self._merge()
            self._coordinator.update()  # so that it does not train on until the next merge first
        self._report_if_due()
        if merge_is_due or self._coordinator.urgent:
            self._save_if_asked()

    # Merges

    @property
    def _is_merged(self) -> bool:
        return self._merged == self._batches

    @property
    def _share(self) -> float:
        """How much its changes count in a merge."""
        return 1 / self._job.num_workers

    def _merge(self) -> None:
        """Push the weighted change since the last merge; continue from the global parameters."""
        if self._is_merged:
            return
        self._exchange.push_change(
            self._server,
            self._number,
            self._base,
            trained=self._learner.finish(self._base),
            share=self._share,
        )
        if self._average is not None:
            self._average.push(self._learner)
        self._continue_from_global()
        self._merged = self._batches

    def _continue_from_global(self) -> None:
        self._base = self._exchange.pull(self._server)
        net = self._learner.replica.net
        kept = self._exchange.buffers.worker
        current = params.to_arrays({name: net.get_buffer(name) for name in kept})
        params.load_into(net, {**self._base, **current})
        if self._average is not None:
            self._average.continue_from_shared(self._learner)

    # Reports

    def _report_if_due(self) -> None:
        if time.monotonic() - self._reported > self._report_every:
            self._report()

    def _settle(self, *, waits: bool = False) -> None:
        """Report, if asked for it, once every full batch of what had arrived by then is trained.

        ``waits``: there was no batch, as the buffer holds fewer samples than its threshold.
        """
        number = self._coordinator.settle
        if number == self._settled:
            return
        if number != self._settling:
            self._settling = number
            self._to_settle = self._buffer.samples_put
            waits = False
        if waits or self._buffer.samples_got + self._batch_size > self._to_settle:
            self._settled = number
            self._report()

    def _add_losses(self, batch: Batch, losses: torch.Tensor) -> None:
        if self._losses is not None and batch.simulations is not None and batch.steps is not None:
            self._losses.add(losses, batch.simulations, batch.steps)

    def _report(self, *, stops: int | None = None) -> None:
        """Report; ``stops`` is the number of a save for which this worker stops now."""
        self._reported = time.monotonic()
        measured = self._learner.measured()
        self._learner.check_globals()
        if self._number == 0:
            measured.model_state = self._learner.model_state()
        report = WorkerReport(
            **vars(measured),
            held=len(self._buffer),
            unseen=self._buffer.unseen,
            put=self._buffer.samples_put,
            got=self._buffer.samples_got,
            waited=self._buffer.waited,
            rates=self._rates(),
        )
        self._buffer.waited = 0.0
        losses = None if self._losses is None else self._losses.report()
        reported = Reported(
            report, losses, held=self._held_simulations(), settled=self._settled, stops=stops
        )
        self._coordinator.send(reported)

    def _held_simulations(self) -> NDArray[np.int64]:
        """Return which simulations have samples in the buffer, and how many.

        They are counted for at most a hundredth of the time.
        """
        began = time.monotonic()
        if self._job.counts_inputs and began - self._counted >= 100 * self._counting:
            self._held = simulation_counts(self._buffer.keys(NUMBERS))
            self._counted = time.monotonic()
            self._counting = self._counted - began
        return self._held

    def _rates(self) -> dict[str, float]:
        """Return the learning rates of the last batch, if they are not those of ``build``."""
        if self._schedule is None and self._job.set_values is None:
            return {}
        return rates(self._learner.optimizer.param_groups)

    # Saves

    def _save_if_asked(self) -> None:
        """Take part in a save if there is one, and go on from the global parameters afterwards."""
        number = self._coordinator.asked
        if number is None:
            return
        self._report(stops=number)
        self._receiver.holds_ends = True
        buffer, offsets = self._receiver.snapshot()
        saved_buffer: dict[str, Any] = {"buffer": buffer, "offsets": offsets}
        if self._losses is not None:
            saved_buffer["losses"] = self._losses.state_dict()
        part = SavePart(
            number,
            self._learner.state(),
            position=self._position(),
            offsets=offsets,
            buffer=encoded_pieces(saved_buffer),
        )
        self._coordinator.save(part)
        if self._is_merged:
            self._continue_from_global()

    def _position(self) -> dict[str, Any]:
        """Return how far training has come, with the change that is not merged."""
        position: dict[str, Any] = {"batches": self._batches, "merged": self._merged}
        if self._average is not None:
            position["has_average"] = self._average.has_begun
        if not self._is_merged:
            position["unmerged"] = {
                "base": self._base,
                "own": params.from_module(self._learner.replica.net),
                "pending": self._learner.pending(),
            }
            if self._average is not None:
                position["unmerged"]["average"] = self._average.unmerged(self._learner)
        return position
