"""An online fit: the coordinator's event loop, which keeps workers and simulations running until
all is trained.

::

    simulations (tasks)  ── samples ─▶  workers (tasks): buffer ─▶ replica ◀─▶ parameter server
            │               (ZeroMQ)          │
            └──── messages ──▶ coordinator ◀──┘  starts them, restarts them, records
"""

from __future__ import annotations

import os
import time
from collections.abc import Sized
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from compss_train._utils.files import TemporaryFolder
from compss_train._utils.validation import warn_user
from compss_train.engines.nodes import ONE_CPU
from compss_train.exceptions import DivergedError, SimulationError
from compss_train.model import losses
from compss_train.model import parameters as params
from compss_train.net import MessageError, Received, new_token
from compss_train.online import events, records, saves, sources, workers
from compss_train.online.chosen_inputs import ChosenInputs, Predictor
from compss_train.online.inputs import FAILED, Inputs
from compss_train.online.online_job import OnlineJob
from compss_train.online.options import OnlineOptions, Simulations
from compss_train.online.stream_router import StreamRouter
from compss_train.online.worker_messages import EndReception, Stop
from compss_train.training import build_arguments, checkpoints, description, resuming, rounds
from compss_train.training.checkpoints import Checkpoint, Study
from compss_train.training.data_source import DataSource
from compss_train.training.inference import VALIDATION, Inference
from compss_train.training.merge import Merge
from compss_train.training.merging.on_arrival import GlobalParameters
from compss_train.training.running_fit import Fit, FitRun
from compss_train.training.session import Session
from compss_train.training.stopping import LONGEST_SAVING
from compss_train.training.training_state import NOTHING_KEPT, TrainingState

_TICK = 0.1
"""Seconds between checks for changes that cause no message."""

GRACE = 5.0
"""Seconds for workers to end a fit that stops immediately; they merge once more and send their
states.
"""


@dataclass(kw_only=True, eq=False)
class OnlineFit(Fit, FitRun):
    """A fit of ``DistributedTrainer.fit_online``, which documents the options.

    Raises ``ValueError`` for options that do not suit the model.
    """

    method = "fit_online"
    leaves_processes = False
    saves_studies = True

    session: Session
    simulations: Simulations
    options: OnlineOptions
    merge: Merge = field(init=False)
    inputs: Inputs = field(init=False)
    """None if a sampler chooses them."""
    study: saves.SavedStudy | None = field(default=None, init=False)
    """The save from which it goes on, if any."""
    loop: EventLoop | None = field(default=None, init=False)
    """Its event loop, once it runs."""

    def __post_init__(self) -> None:
        built = self.session.model.built
        sampler = self.simulations.sampler
        if built.lr_schedule is not None:
            raise ValueError(
                "fit_online has no epochs, which a schedule depends on; build without schedule=, "
                "with a constant learning rate"
            )
        sweep = self.options.buffer.sweep_size
        given = self.simulations.given
        if (
            sweep is not None
            and isinstance(given, Sized)
            and len(given) + self.simulations.senders > sweep
        ):
            raise ValueError(
                f"sweep_size={sweep}: the study has {len(given) + self.simulations.senders} "
                "simulations, one for each of inputs= and senders=; give their number"
            )
        if (outer := self.options.merge.outer_optimizer) is not None:
            build_arguments.check_outer_optimizer(outer, built.training_spec.net)
        if (
            sampler is not None
            and sampler.needs_losses
            and built.training_spec.training_step is None
        ):
            losses.elementwise(built.training_spec.loss)
        self.inputs, self.merge = Inputs(self.simulations.given), self.options.merge

    @property
    def asked(self) -> dict[str, Any]:
        """The options, the simulations and the validation data."""
        options = description.described_fields(self.options)
        return {**options, "simulations": self.simulations, "validation_data": self.validation}

    def run(self, resume: str | os.PathLike[str] | bool) -> None:
        """Train, from the save of ``fit_online(resume=...)``, unless that is the end of a study."""
        model = self.session.model
        with ExitStack() as stack:
            if not isinstance(resume, bool):
                resume = stack.enter_context(checkpoints.local_copy(resume))
            checkpoint = (
                None
                if resume is False
                else resuming.find_checkpoint(resume, self.callbacks.callbacks)
            )
            if checkpoint is not None:
                self._go_on_from(checkpoint)
            params.check_finite(model.parameters)
            model.resumed_from = None if checkpoint is None else checkpoint[0]
            if self.study is not None and self.study.is_complete:
                lost = int((np.array(self.study.simulations["samples"]) == FAILED).sum())
                more = f"; {lost} of its simulations were given up" if lost else ""
                warn_user(
                    f"{model.resumed_from} is the end of its study: nothing is left to "
                    f"train{more}; to train on other inputs give trainer.restore this folder, "
                    "and fit_online no resume="
                )
                with self.session.fitting(self, None):
                    return
            self._train()

    def _go_on_from(self, checkpoint: Checkpoint) -> None:
        """Let the trainer and this fit be as they were at a save."""
        session = self.session
        sampler = self.simulations.sampler
        study = saves.check_same_study(checkpoint, self.options, self.simulations, session)
        setting = resuming.setting_of(session)
        resuming.check_trainer(checkpoint, session, setting)
        if not study.is_complete and sampler is None:
            self.inputs.resume(study.simulations)
        resuming.warn_of_differences(checkpoint, setting, fit="the fit goes on")
        resuming.load(checkpoint[1], session)
        self.callbacks.saved = checkpoint[1].callbacks
        # Options of optimizers may have changed.
        workers = zip(study.workers, session.state().workers, strict=True)
        self.study = replace(study, workers=[replace(each, state=state) for each, state in workers])

    def _train(self) -> None:
        """Run the event loop; set the model's parameters and history, and the reason why the fit
        stopped.
        """
        session = self.session
        model = self.session.model
        with ExitStack() as outside, session.fitting(self, None), ExitStack() as stack:
            model.averaged = None
            folder = TemporaryFolder()
            outside.callback(folder.remove)  # once callbacks have the last save
            folder.create()
            loop = self.loop = EventLoop(self, stack, Path(folder.path))
            model.run = self
            try:
                loop.run()
                model.parameters = loop.pull()
                model.stopped = loop.stopped
                # What is kept belongs to other parameters.
                session.keep(session.states, NOTHING_KEPT)
            except BaseException:
                # The error to raise is that of the fit.
                with suppress(OSError, RuntimeError, DivergedError):
                    model.parameters = loop.pull(timeout=rounds.MERGE_SECONDS)
                raise
            finally:
                model.run = None

    @property
    def save(self) -> Study | None:
        """The save that belongs to the last record, if any."""
        return None if self.loop is None else self.loop.recorder.save

    def newest(self) -> params.Parameters | None:
        """Return the current global parameters, or ``None`` before the parameter server has
        started.
        """
        return None if self.loop is None else self.loop.pull()

    def state(self) -> tuple[params.Parameters | None, TrainingState]:
        """Return the parameters of the save, if there is one, and the state at the start of the
        fit.

        The workers report their new states in saves, and when the fit ends.
        """
        return self.newest() if self.save is None else self.save.parameters, self.session.state()

    def averaged(self) -> None:
        """Return ``None``: an online fit keeps no average."""


class EventLoop:
    """Trains an online fit, in one thread; ``stack`` frees what it needs, for whatever reason it
    ends.

    Buffers are saved in a ``folder``.
    """

    def __init__(self, fit: OnlineFit, stack: ExitStack, folder: Path) -> None:
        session = fit.session
        simulations = fit.simulations
        options = fit.options
        study = fit.study
        model = session.model
        engine = session.engine
        measures = model.built.training_spec.measures
        self._session = session
        self._stopping = fit.stopping
        self._urgent_since: float | None = None
        self._stopping_since: float | None = None
        self._options = options
        self._simulations = simulations
        sampler = simulations.sampler
        self._keeps_saves = any(callback.keeps_state for callback in fit.callbacks.callbacks)
        self._saved = time.monotonic()
        """When the last save was complete."""
        self._last_save: Study | None = None
        """The save of a fit that stops."""
        self._gave_up = False
        """Whether that save could not be stored, or came too late."""
        self.stopped: str | None = None
        """Why the fit ended before all samples were trained on."""
        self._reserve(simulations, fit.validation)
        saved = None if study is None else study.server
        self._shared = GlobalParameters(
            session, model.parameters, options.merge.outer_optimizer, saved
        )
        stack.enter_context(self._shared)
        self.pull = self._shared.pull
        """Returns the current global parameters."""
        self._server = stack.enter_context(events.EventServer(engine.host()))
        if simulations.address is not None:
            self._server.listen_for_senders(simulations.address, str(simulations.token))
        evaluation: records.Evaluation | None = None
        if fit.validation is not None:
            inference = Inference(session, fit.validation, on_cpu=True, name=VALIDATION)
            evaluation = records.Evaluation(inference, self._server.address, fit.stopping)
            # Finds mismatches before other tasks start.
            evaluation.start(model.parameters, notify=False)
            evaluation.result(measures)
        self._job = job = OnlineJob(
            coordinator=self._server.address,
            key=new_token(),
            host=simulations.host,
            server_address=self._shared.server_address,
            num_workers=session.num_workers,
            options=options,
            # Another one for each fit of a trainer.
            seed=model.seed + len({record.get("fit_started") for record in model.history})
            if study is None
            else study.seed,
            by_sample=sampler is not None and sampler.needs_losses,
            lockstep=simulations.lockstep,
        )
        reports = records.Reports(session.num_workers, measures)
        self.recorder = records.Recorder(
            model, fit.callbacks, reports, evaluation, self.pull, options.record_every
        )
        self._workers = workers.Workers(
            session, job, reports, folder, () if study is None else study.workers
        )
        self._router = StreamRouter(self._workers.all, job.key, paired=job.paired)
        self._router.next_number = simulations.first_sender(options.buffer)
        self._inputs = fit.inputs
        if sampler is not None:
            predictor = Predictor(model.built.training_spec, self.pull)
            self._inputs = chosen = ChosenInputs(sampler, predictor, reports.add_drawn)
            self._workers.on_losses = chosen.report
            if study is not None:
                chosen.resume(study.simulations)
        self._runs = sources.SimulationRuns(simulations, self._inputs, engine, self._router, job)
        if simulations.lockstep:
            self._runs.may_begin = self._workers.are_settled
        self._senders = sources.ExternalSenders(simulations.senders, self._router)
        if study is not None:
            reports.load_state_dict(study.reports)
            self._router.next_number = study.streams
            self._runs.resume(dict(study.simulations["failures"]))
            self._senders.resume(study.senders)

    def _reserve(self, simulations: Simulations, validation: DataSource | None) -> None:
        """Reserve resources to run workers and simulations at the same time, if possible also
        evaluations.

        Without resources of its own an evaluation runs when a simulation has ended.
        """
        session = self._session
        tasks = [session.resources] * session.num_workers + [
            simulations.resources
        ] * simulations.slots
        session.engine.reserve(tasks)
        if validation is not None:
            with suppress(ValueError):
                session.engine.reserve([*tasks, ONE_CPU])

    def run(self) -> None:
        """Train until every worker is done."""
        self.recorder.start()
        while not self._workers.all_done and not self._grace_is_over():
            if self._last_save is None:
                self._runs.start()
            received = self._server.next(_TICK)
            while received is not None:
                self._handle(received)
                received = self._server.next(0)
            self._check()
        done = self._workers.all_done
        failure = self._failure() if done else None
        self._runs.stop()
        self._senders.stop(goes_on=self._last_save is not None and self._stopping.urgent)
        if done:
            self._workers.finish()
            if self._keeps_saves and self.stopped is None and failure is None:
                self._runs.forget_given_up()
                self._last_save = self._cut(self.pull())
            self.recorder.finish(self._counts(), self._workers.repetitions(), self._last_save)
        elif self._last_save is not None:
            self.recorder.keep(self._last_save)
        if self.recorder.evaluation is not None:
            self.recorder.evaluation.warn_of_changes()
        if failure is not None:
            raise failure

    def _failure(self) -> SimulationError | None:
        """Return the error of a fit without samples or a complete simulation; warn of those given
        up in others.
        """
        counts = self._counts()
        names = self._inputs.lost
        if (
            self.stopped is None
            and counts["done"]
            and not (self._runs.any_samples or self._senders.any_samples)
        ):
            return SimulationError(
                f"{counts['done']} simulations have ended, and none has sent a sample"
            )
        least = self.recorder.reports.least_received
        needed = self._options.buffer.needed
        if self.stopped is None and least < needed:
            warn_user(
                f"a worker has received {least} samples, fewer than the threshold of its buffer, "
                f"{needed}: it has trained only after the last simulation; give a smaller "
                "threshold="
            )
        if not (number := counts["failed"]):
            return None
        first = (
            self._runs.failure
            or self._senders.failure
            or sources.SourceFailure("it was before this program")
        )
        # Otherwise workers have max_batches.
        ended = self._runs.all_ended and self._senders.all_ended
        if not counts["done"] and ended and self.stopped is None:
            return first.with_reason(f"no simulation is complete, and {number} were given up")
        if number > len(names):
            names = [*names, f"{number - len(names)} more"]
        warn_user(
            f"{number} of {number + counts['done']} simulations were given up, and samples of "
            f"them are missing: {', '.join(names)}; the first failure: {first.what}{first.more}"
        )
        return None

    def _grace_is_over(self) -> bool:
        """Return True if the fit had to stop immediately and the workers have not ended in time."""
        if not self._stopping.urgent or self._saves_before_stop():
            return False
        self._urgent_since = self._urgent_since or time.monotonic()
        return time.monotonic() - self._urgent_since > GRACE

    def _handle(self, received: Received) -> None:
        """Act on a message; refuse a client whose message is malformed. Other errors are those of
        the fit.
        """
        client, header, arrays = received
        try:
            match client.greeting["role"]:
                case "worker":
                    worker = self._workers.of(client)
                    try:
                        outcome = self._workers.handle(worker, client, header, arrays)
                    except DivergedError as error:
                        if error.sample is not None:
                            stream, step, name = error.sample
                            source = self._senders.named(stream) or self._runs.named(stream)
                            error.add_note(
                                f"{name} of time step {step} of {source} has NaN or "
                                "infinite values."
                            )
                        raise
                    if outcome == "died":
                        self._senders.warn_lost_samples(worker)
                    elif outcome == "restarted":
                        self._runs.repeat_lost(worker)
                    self._router.update()
                case "simulation":
                    self._runs.handle(client, header)
                case "sender":
                    self._senders.handle(client, header)
                case _:
                    if header is not None:
                        self.recorder.complete()
        except MessageError as error:
            client.refuse(error)

    def _check(self) -> None:
        self._workers.check()
        if self._stopping.reason is not None and not self._workers.all_done:
            self.stopped = self._stopping.reason
            if not self._saves_before_stop():
                self._gave_up = self._last_save is None  # workers that end are at no cut
                self._workers.broadcast(Stop())
        self._save_if_due()
        self._runs.check(self.recorder.reports.received)
        if self._runs.all_ended and self._senders.all_ended:
            self._senders.closed = True
            self._workers.broadcast(EndReception())
        self.recorder.update(
            self._counts(), saving=self._is_due or self._workers.saving is not None
        )

    def _counts(self) -> dict[str, int]:
        """Return the numbers of running, completed and failed simulations, other programs that send
        included.
        """
        senders = self._senders.counts()
        return {name: number + senders[name] for name, number in self._runs.counts().items()}

    # Saves

    def _saves_before_stop(self) -> bool:
        """Return whether a save must be made before the workers stop, for which they have
        ``LONGEST_SAVING``.
        """
        if (
            not self._keeps_saves
            or self._last_save is not None
            or self._workers.all_done
            or self._gave_up
        ):
            return False
        if self._stopping.urgent:
            self._stopping_since = self._stopping_since or time.monotonic()
        return (
            self._stopping_since is None or time.monotonic() - self._stopping_since < LONGEST_SAVING
        )

    def _save_if_due(self) -> None:
        """Ask for a save if one is due; let the workers go on, or stop, when all of them have taken
        part in it.
        """
        stops = self.stopped is not None
        if self._workers.saving is None:
            self._runs.forget_given_up()
        if self._last_save is not None or self._gave_up:
            return
        if self._workers.all_saved:
            self._complete_save(stops=stops and self._keeps_saves)
        elif stops and self._saves_before_stop():
            self.recorder.drop_save()
            self._runs.remembers = True
            self._workers.ask(urgent=self._stopping.urgent)
        elif self._is_due and not stops and self.recorder.is_idle:
            self._workers.ask()

    @property
    def _is_due(self) -> bool:
        """Whether ``checkpoint_every`` seconds have passed since the last save."""
        every = self._options.checkpoint_every
        return every is not None and time.monotonic() - self._saved > every

    def _complete_save(self, *, stops: bool) -> None:
        """Complete a save that all workers have taken part in; they go on before their buffers are
        written.

        Nothing else is handled meanwhile, such as the end of a simulation.
        """
        parameters = self.pull() if self._keeps_saves else {}
        server = self._shared.save() if self._keeps_saves else None
        saving = self._workers.saving
        waited = 0.0 if saving is None else saving.seconds_waited
        if not stops:
            self._workers.go_on()
        is_stored = self._workers.store()
        self._saved = time.monotonic()
        if not is_stored:
            self._gave_up = stops  # a fit that stops does not wait until there is room
            self._workers.go_on()
            return
        safe = self._runs.forget_safe(self._workers.all)
        save = self._cut(parameters, server) if self._keeps_saves else None
        if stops:
            self._last_save = save
            return
        self._workers.forget(safe)
        if save is not None:
            self.recorder.add_save(save, self._counts(), waited)

    def _cut(self, parameters: params.Parameters, server: dict[str, Any] | None = None) -> Study:
        """Return the state of everything, of a study that is complete without the content of the
        ``server``.
        """
        saved = saves.SavedStudy(
            is_complete=server is None,
            seed=self._job.seed,
            options=saves.described_options(self._options, self._simulations, self._session),
            server=server,
            workers=self._workers.parts(),
            streams=self._router.next_number,
            simulations=self._runs.state_dict(),
            senders=self._senders.state_dict(self._workers.all),
            reports={},
        )
        return saved.to_study(parameters)
