"""An online fit: the coordinator's event loop, which keeps workers and simulations running until all is trained.

::

    simulations (tasks)  ── samples, over ZeroMQ ▶  workers (tasks): buffer ─▶ model replica ◀─▶ parameter server
            │                                         │
            └────────── messages ──▶ coordinator ◀────┘  starts them, restarts them, records
"""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from compss_train._utils.files import TemporaryFolder
from compss_train.engines.nodes import ONE_CPU
from compss_train.exceptions import DivergedError
from compss_train.model import losses
from compss_train.model import parameters as params
from compss_train.net import MessageError, Received, new_token
from compss_train.online import events, records, sources, worker_task, workers
from compss_train.online.chosen_inputs import ChosenInputs, Predictor
from compss_train.online.input_samplers import InputSampler
from compss_train.online.options import OnlineOptions, Simulations
from compss_train.training import build_arguments, description, rounds
from compss_train.training.callback import CallbackList
from compss_train.training.data_source import DataSource
from compss_train.training.inference import VALIDATION, Inference, validation_source
from compss_train.training.merging.on_arrival import GlobalParameters
from compss_train.training.session import NOTHING_KEPT, Fit, Session, Stopping, TrainingState

_TICK = 0.1
"""Seconds between checks for changes that cause no message."""

GRACE = 5.0
"""Seconds for workers to end a fit that stops immediately; they merge once more and send their states."""


def train_online(
    session: Session,
    simulations: Simulations,
    options: OnlineOptions,
    callbacks: CallbackList,
    validation_data: Any,
    stopping: Stopping,
) -> None:
    """Check what depends on the model and the data, and train; ``fit_online`` documents the options."""
    model, built = session.model, session.model.built
    if built.lr_schedule is not None:
        raise ValueError(
            "fit_online has no epochs, which a schedule depends on; build without schedule=, with a constant "
            "learning rate"
        )
    validation = None if validation_data is None else validation_source(session, validation_data)
    if options.merge.outer_optimizer is not None:
        build_arguments.check_outer_optimizer(options.merge.outer_optimizer, built.training_spec.net)
    needs_losses = isinstance(simulations.inputs, InputSampler) and simulations.inputs.needs_losses
    if needs_losses and built.training_spec.training_step is None:
        losses.check_by_sample(built.training_spec.loss)
    params.check_finite(model.parameters)
    model.resumed_from = None
    told = {"simulations": description.described(simulations)}
    model.last_fit = description.FitFacts(
        method="fit_online",
        options=description.described_fields(options),
        data={**told, "validation_data": None if validation is None else validation.facts},
        callbacks=[*map(type, callbacks.callbacks)],
    )
    OnlineFit(
        callbacks=callbacks,
        stopping=stopping,
        validation=validation,
        session=session,
        simulations=simulations,
        options=options,
    ).run()


@dataclass(kw_only=True, eq=False)
class OnlineFit(Fit):
    """A fit of ``DistributedTrainer.fit_online``."""

    leaves_processes = False

    session: Session
    simulations: Simulations
    options: OnlineOptions
    loop: EventLoop | None = field(default=None, init=False)
    """Its event loop, once it runs."""

    def run(self) -> None:
        """Train; set the model's parameters and history, and the reason why the fit stopped."""
        session, model = self.session, self.session.model
        with session.fitting(self, None), ExitStack() as stack:
            model.averaged = None
            loop = self.loop = EventLoop(self, stack)
            self.running = True
            try:
                loop.run()
                model.parameters = loop.pull()
                model.stopped = loop.stopped
                session.keep(session.states, NOTHING_KEPT)  # what is kept belongs to other parameters
            except BaseException:
                with suppress(OSError, RuntimeError, DivergedError):  # the error to raise is that of the fit
                    model.parameters = loop.pull(timeout=rounds.MERGE_SECONDS)
                raise
            finally:
                self.running = False

    def newest(self) -> params.Parameters | None:
        """Return the current global parameters, or ``None`` before the parameter server has started."""
        return None if self.loop is None else self.loop.pull()

    def state(self) -> tuple[params.Parameters | None, TrainingState]:
        """Return the current global parameters, and the state at the start of the fit.

        The workers report their new states when the fit ends.
        """
        return self.newest(), self.session.state()

    def averaged(self) -> None:
        """Return ``None``: an online fit keeps no average."""


class EventLoop:
    """Trains an online fit, in one thread; ``stack`` frees what it needs, for whatever reason it ends."""

    def __init__(self, fit: OnlineFit, stack: ExitStack) -> None:
        session, simulations, options = fit.session, fit.simulations, fit.options
        model = session.model
        engine, measures = session.engine, model.built.training_spec.measures
        self._session, self._stopping = session, fit.stopping
        self._urgent_since: float | None = None
        self.stopped: str | None = None
        """Why the fit ended before all samples were trained on."""
        self._reserve(simulations, fit.validation)
        shared = GlobalParameters(session, model.parameters, options.merge.outer_optimizer)
        stack.enter_context(shared)
        self.pull = shared.pull
        """Returns the current global parameters."""
        self._server = stack.enter_context(events.EventServer(engine.host()))
        if simulations.address is not None:
            self._server.listen_for_senders(simulations.address, str(simulations.token))
        evaluation: records.Evaluation | None = None
        if fit.validation is not None:
            inference = Inference(session, fit.validation, on_cpu=True, name=VALIDATION)
            evaluation = records.Evaluation(inference, self._server.address, fit.stopping)
            evaluation.start(model.parameters, notify=False)  # finds mismatches before other tasks start
            evaluation.result(measures)
        sampler = simulations.inputs if isinstance(simulations.inputs, InputSampler) else None
        self._job = job = worker_task.OnlineJob(
            coordinator=self._server.address,
            key=new_token(),
            host=simulations.host,
            server_address=shared.server_address,
            num_workers=session.num_workers,
            options=options,
            seed=model.seed + len(model.history),
            by_sample=sampler is not None and sampler.needs_losses,
            lockstep=simulations.lockstep,
        )
        reports = records.Reports(session.num_workers, measures)
        chosen = None
        if sampler is not None:
            chosen = ChosenInputs(sampler, Predictor(model.built.training_spec, shared.pull))
        draws = list if chosen is None else chosen.draws
        self._recorder = records.Recorder(
            model, fit.callbacks, reports, evaluation, shared.pull, options.record_every, draws
        )
        folder = TemporaryFolder()
        stack.callback(folder.remove)
        folder.create()
        self._workers = workers.Workers(session, job, reports, folder.path)
        self._router = workers.StreamRouter(self._workers.all, job.key, paired=job.paired)
        self._runs = sources.SimulationRuns(simulations, engine, self._router, job, chosen)
        if chosen is not None:
            self._workers.on_losses = chosen.report
        if simulations.lockstep:
            self._runs.may_choose = self._workers.are_settled
        self._senders = sources.ExternalSenders(simulations.senders, self._router)

    def _reserve(self, simulations: Simulations, validation: DataSource | None) -> None:
        """Reserve resources to run workers and simulations at the same time, if possible also evaluations.

        Without resources of its own an evaluation runs when a simulation has ended.
        """
        session = self._session
        tasks = [session.resources] * session.num_workers + [simulations.resources] * simulations.slots
        session.engine.reserve(tasks)
        if validation is not None:
            with suppress(ValueError):
                session.engine.reserve([*tasks, ONE_CPU])

    def run(self) -> None:
        """Train until every worker is done."""
        self._recorder.start()
        while not self._workers.all_done and not self._grace_is_over():
            self._runs.start()
            received = self._server.next(_TICK)
            while received is not None:
                self._handle(received)
                received = self._server.next(0)
            self._check()
        done = self._workers.all_done
        if done:
            self._runs.check(self._recorder.reports.received, final=True)
        self._runs.stop()
        self._senders.stop()
        if done:
            self._workers.finish()
            self._recorder.finish(self._runs.counts(), self._workers.repetitions())
        if self._recorder.evaluation is not None:
            self._recorder.evaluation.warn_of_changes()

    def _grace_is_over(self) -> bool:
        """Return True if the fit had to stop immediately and the workers have not ended in time."""
        if not self._stopping.urgent:
            return False
        self._urgent_since = self._urgent_since or time.monotonic()
        return time.monotonic() - self._urgent_since > GRACE

    def _handle(self, received: Received) -> None:
        """Act on a message; refuse a client whose message is malformed. Other errors are those of the fit."""
        try:
            self._act_on(received)
        except MessageError as error:
            received[0].refuse(error)

    def _act_on(self, received: Received) -> None:
        client, header, arrays = received
        match client.greeting["role"]:
            case "worker":
                worker = self._workers.of(client)
                outcome = self._workers.handle(worker, client, header, arrays)
                if outcome == "died":
                    self._senders.warn_lost_samples(worker, self._job)
                elif outcome == "restarted":
                    self._runs.repeat_lost(worker)
                elif outcome == "saved":
                    self._workers.forget(self._runs.forget_safe(self._workers.all))
                self._router.update()
            case "simulation":
                self._runs.handle(client, header)
            case "sender":
                self._senders.handle(client, header)
            case _:
                if header is not None:
                    self._recorder.complete()

    def _check(self) -> None:
        self._workers.check()
        if self._stopping.reason is not None and not self._workers.all_done:
            self.stopped = self._stopping.reason
            self._workers.broadcast("stop")
        self._runs.check(self._recorder.reports.received)
        if self._runs.all_ended and self._senders.all_ended:
            self._senders.closed = True
            self._workers.broadcast("end_reception")
        self._recorder.update(self._runs.counts())
