"""An online fit: what it checks, what it goes on from, what it consists of, and what it tells."""

import os
from collections.abc import Sized
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from compss_train._utils.files import TemporaryFolder
from compss_train._utils.validation import warn_user
from compss_train.engines.nodes import ONE_CPU
from compss_train.engines.watch import say
from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.model.training_loss import elementwise
from compss_train.net import Address, new_token
from compss_train.online import saves
from compss_train.online.chosen_inputs import ChosenInputs, Predictor
from compss_train.online.ending import Ending
from compss_train.online.evaluation import Evaluation
from compss_train.online.event_loop import EventLoop
from compss_train.online.events import EventServer
from compss_train.online.external_senders import ExternalSenders
from compss_train.online.inputs import FAILED, Inputs
from compss_train.online.job_journal import JOURNAL, EarlierJobs, JobJournal, read_journal
from compss_train.online.job_runs import JobRuns
from compss_train.online.online_job import OnlineJob
from compss_train.online.options import OnlineOptions, Simulations
from compss_train.online.recorder import Recorder
from compss_train.online.reports import Reports
from compss_train.online.routing import StreamKeys
from compss_train.online.simulation_runs import SimulationRuns
from compss_train.online.solver import shared_cores
from compss_train.online.sources import Sources
from compss_train.online.stream_router import StreamRouter
from compss_train.online.study_monitor import StudyMonitor
from compss_train.online.task_runs import TaskRuns
from compss_train.online.workers import Workers
from compss_train.training import (
    description,
    network_checks,
    remote_checkpoints,
    resume_checks,
    resuming,
    rounds,
)
from compss_train.training.callback import Callback
from compss_train.training.inference import VALIDATION, Inference
from compss_train.training.merge import Merge
from compss_train.training.pickling import check_picklable
from compss_train.training.running_fit import Fit, FitRun
from compss_train.training.schedules.server import GlobalParameters
from compss_train.training.session import Session
from compss_train.training.snapshot import Checkpoint, Study
from compss_train.training.stopping import status_of
from compss_train.training.training_state import MergeState, TrainingState


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
    """Those that were given; none if a sampler chooses them."""
    study: saves.SavedStudy | None = field(default=None, init=False)
    """The save from which it goes on, if any."""
    resumes: bool = field(default=False, init=False)
    """Whether it goes on from the last program, also if that has left no save."""
    loop: EventLoop | None = field(default=None, init=False)
    """Its event loop, once it runs."""

    def __post_init__(self) -> None:
        self._check_model()
        self._check_sweep()
        self.inputs = Inputs(self.simulations.given_inputs)
        self.merge = self.options.merge

    def _check_model(self) -> None:
        built = self.session.model.built
        spec = built.training_spec
        if built.schedule is not None and built.lr_schedule is not None:
            if built.schedule.unit != "batches":
                raise ValueError(
                    "fit_online has no epochs, which this schedule depends on; build with "
                    "Schedule(function, unit='batches'), whose steps are a worker's batches"
                )
            check_picklable(schedule=built.schedule)
            max_batches = self.options.max_batches
            if max_batches is not None:
                workers = self.session.num_workers
                built.lr_schedule.prepare(max_batches, batches=1, workers=workers)
        outer_optimizer = self.options.merge.outer_optimizer
        if outer_optimizer is not None:
            network_checks.check_outer_optimizer(outer_optimizer, spec.net)
        sampler = self.simulations.sampler
        if sampler is not None and sampler.needs_losses and spec.training_step is None:
            elementwise(spec.loss)

    def _check_sweep(self) -> None:
        sweep = self.options.buffer.sweep_size
        inputs = self.simulations.given_inputs
        if sweep is None or not isinstance(inputs, Sized):
            return
        sources = len(inputs) + self.simulations.senders
        if sources > sweep:
            raise ValueError(
                f"sweep_size={sweep}: the study has {sources} simulations, one for each of "
                "inputs= and senders=; give their number"
            )

    @property
    def asked(self) -> dict[str, Any]:
        """The options, the simulations and the validation data."""
        options = description.described_fields(self.options)
        return {**options, "simulations": self.simulations, "validation_data": self.validation}

    def run(self, resume: str | os.PathLike[str] | bool | None) -> None:  # noqa: FBT001
        """Train, from the save of ``fit_online(resume=...)``, unless that is the end of a study."""
        model = self.session.model
        self.resumes = resume is not None and resume is not False
        with ExitStack() as stack:
            checkpoint: Checkpoint | None = None
            if resume is not None and resume is not False:
                resuming.check_resume(resume)
                if resume is not True:
                    resume = stack.enter_context(remote_checkpoints.local_copy(resume))
                checkpoint = resuming.find_checkpoint(resume, self.callbacks.callbacks)
            if checkpoint is not None:
                self._go_on_from(checkpoint)
            params.check_finite(model.parameters, model.built.training_spec.net)
            model.resumed_from = None if checkpoint is None else checkpoint.path
            if self.study is not None and self.study.is_complete:
                self._warn_of_end(self.study)
                with self.session.fitting(self, None):
                    return
            self._train()

    def _go_on_from(self, checkpoint: Checkpoint) -> None:
        """Let the trainer and this fit be as they were at a save."""
        session = self.session
        study = saves.check_same_study(checkpoint, self.options, self.simulations, session=session)
        setting = resume_checks.setting_of(session)
        resume_checks.check_trainer(checkpoint, session, setting)
        if not study.is_complete and self.simulations.sampler is None:
            self.inputs.resume(study.simulations)
        resume_checks.warn_of_differences(checkpoint, setting, fit="the fit goes on")
        _, snapshot = checkpoint
        resuming.load(snapshot, session)
        self.callbacks.saved = snapshot.callbacks
        # Options of optimizers may have changed.
        states = session.state().workers
        parts = [
            replace(part, state=state) for part, state in zip(study.workers, states, strict=True)
        ]
        self.study = replace(study, workers=parts)

    def _warn_of_end(self, study: saves.SavedStudy) -> None:
        given_up = int((np.array(study.simulations["samples"]) == FAILED).sum())
        remark = f"; {given_up} of its simulations were given up" if given_up else ""
        warn_user(
            f"{self.session.model.resumed_from} is the end of its study: nothing is left to "
            f"train{remark}; to train on other inputs give trainer.restore this folder, "
            "and fit_online no resume="
        )

    def _train(self) -> None:
        """Run the fit; then tell other programs how the study has ended, and its callbacks."""
        try:
            self._run_loop()
        except BaseException as error:
            self._tell_end(error)
            raise
        self._tell_end()

    def _run_loop(self) -> None:
        """Run the event loop; set the model's parameters, and the reason why the fit stopped."""
        session = self.session
        model = self.session.model
        with ExitStack() as outside, session.fitting(self, None), ExitStack() as stack:
            model.averaged = None
            folder = TemporaryFolder()
            outside.callback(folder.remove)  # once callbacks have the last save
            folder.create()
            loop = self._event_loop(stack, Path(folder.path))
            self.loop = loop
            model.run = self
            try:
                loop.run()
                model.parameters = loop.parameters.pull()
                model.averaged = loop.parameters.pull_averaged()
                model.stopped = loop.ending.reason
                # What else is kept belongs to other parameters.
                session.keep(session.states, MergeState(averaged=model.averaged))
            except BaseException:
                # The error to raise is that of the fit.
                with suppress(OSError, RuntimeError, DivergedError):
                    model.parameters = loop.parameters.pull(timeout=rounds.MERGE_SECONDS)
                    model.averaged = loop.parameters.pull_averaged(timeout=rounds.MERGE_SECONDS)
                raise
            finally:
                model.run = None
                if model.hyperparameters is not None:
                    model.hyperparameters.settle()

    def _tell_end(self, error: BaseException | None = None) -> None:
        """Tell other programs how the study has ended."""
        if self.loop is not None and self.loop.monitor is not None:
            self.loop.monitor.end(status_of(self.session.model.stopped, error))

    # What it consists of

    def _event_loop(self, stack: ExitStack, folder: Path) -> EventLoop:
        """Return the event loop, with all that it needs, which ``stack`` frees.

        Buffers are saved in a ``folder``.
        """
        session = self.session
        study = self.study
        count = self._reserve()
        parameters = stack.enter_context(self._global_parameters())
        server = stack.enter_context(EventServer(session.engine.host()))
        address: Address | None = None
        if self.simulations.address is not None:
            address = server.listen_for_senders(
                self.simulations.address, str(self.simulations.token)
            )
        recorder = self._recorder(server, parameters)
        job = self._job(server, parameters)
        parts = () if study is None else study.workers
        spec = session.model.spec_with_pairing(self.options.pairing)
        workers = Workers(session, spec, job, reports=recorder.reports, folder=folder, parts=parts)
        router = StreamRouter(workers.all, job.keys, paired=job.paired)
        router.next_number = self.simulations.first_sender(self.options.buffer)
        inputs = self._inputs(workers, recorder.reports, parameters)
        recorder.reports.inputs = inputs.statistics
        state_folder = next(filter(None, map(_state_folder, self.callbacks.callbacks)), None)
        runs: SimulationRuns[Any]
        if self.simulations.jobs is None or address is None:
            runs = TaskRuns(
                self.simulations, inputs, session.engine, count=count, router=router, job=job
            )
        else:
            journal = None if state_folder is None else state_folder / JOURNAL
            runs = JobRuns(
                self.simulations,
                inputs,
                self.simulations.jobs,
                router=router,
                job=job,
                address=address,
                earlier=self._earlier_jobs(journal),
                journal=JobJournal(journal),
            )
            stack.enter_context(runs)
        senders = ExternalSenders(
            self.simulations.senders, router, timeout=self.simulations.senders_timeout
        )
        if self.simulations.lockstep:
            runs.may_begin = workers.are_settled
        keeps_saves = any(callback.keeps_state for callback in self.callbacks.callbacks)
        loop = EventLoop(
            job=job,
            described_options=saves.described_options(self.options, self.simulations, session),
            server=server,
            parameters=parameters,
            workers=workers,
            router=router,
            sources=Sources(runs, senders),
            recorder=recorder,
            ending=Ending(self.stopping, keeps_saves=keeps_saves),
            keeps_saves=keeps_saves,
        )
        if state_folder is not None:
            loop.monitor = StudyMonitor(
                state_folder, loop.sources, workers, reports=recorder.reports, model=session.model
            )
        if study is not None:
            loop.go_on_from(study)
        return loop

    def _earlier_jobs(self, journal: Path | None) -> EarlierJobs:
        """Return the jobs of the program that this fit goes on from, if any.

        The journal of another study is removed.
        """
        saved = [] if self.study is None else self.study.simulations.get("jobs", [])
        jobs = EarlierJobs({str(job_id): str(name) for name, job_id in saved})
        if journal is None:
            return jobs
        if not self.resumes:
            journal.unlink(missing_ok=True)
        return jobs.before(read_journal(journal))

    def _reserve(self) -> int:
        """Reserve resources to run workers and simulations at the same time; return their count.

        If possible also evaluations, each of which otherwise runs when a simulation has ended.
        """
        session = self.session
        count = self._simulations_at_a_time()
        tasks = [session.resources] * session.num_workers
        tasks += [self.simulations.resources] * count
        session.engine.reserve(tasks)
        if self.validation is not None:
            with suppress(ValueError):
                session.engine.reserve([*tasks, ONE_CPU])
        return count

    def _simulations_at_a_time(self) -> int:
        """Return ``count``, at most what the engine runs; print what it does not have."""
        count = self.simulations.slots
        engine = self.session.engine
        most = engine.most_tasks
        if most is None:  # it refuses to reserve more than it has
            return count
        most = max(1, most - self.session.num_workers)
        if count > most:
            say(f"count={count}: this engine runs {most} simulations at a time")
            count = most
        cpus = self.simulations.resources.cpus
        shortage = shared_cores(count, cpus, engine.nodes(), sharers=" with the workers")
        if shortage is not None:
            say(shortage)
        return count

    def _global_parameters(self) -> GlobalParameters:
        return GlobalParameters(
            self.session,
            self.session.model.parameters,
            self.options.merge,
            saved=None if self.study is None else self.study.server,
            averaged=self._earlier_average,
        )

    @property
    def _earlier_average(self) -> params.Parameters | None:
        """The average that an earlier fit has kept, which this one continues if it keeps one."""
        keeps_average = self.options.merge.averaging is not None
        return self.session.state().merge.averaged if keeps_average else None

    def _recorder(self, server: EventServer, parameters: GlobalParameters) -> Recorder:
        """Return what makes records, after a first evaluation on validation data, if any.

        That finds mismatches before other tasks start.
        """
        model = self.session.model
        measures = model.built.training_spec.measures
        evaluation: Evaluation | None = None
        if self.validation is not None:
            inference = Inference(self.session, self.validation, on_cpu=True, name=VALIDATION)
            evaluation = Evaluation(inference, server.address, self.stopping)
            evaluation.start(model.parameters, None, model.reports, notify=False)
            evaluation.result(measures)
        return Recorder(
            model,
            self.callbacks,
            Reports(self.session.num_workers, measures),
            evaluation=evaluation,
            parameters=parameters,
            interval=self.options.record_every,
        )

    def _job(self, server: EventServer, parameters: GlobalParameters) -> OnlineJob:
        model = self.session.model
        sampler = self.simulations.sampler
        # Another seed for each fit of a trainer.
        seed = model.seed + len({record.get("fit_started") for record in model.history})
        return OnlineJob(
            coordinator=server.address,
            keys=StreamKeys(new_token()),
            host=self.simulations.host,
            server_address=parameters.server_address,
            num_workers=self.session.num_workers,
            options=self.options,
            seed=seed if self.study is None else self.study.seed,
            schedule=model.built.schedule,
            continues_average=self._earlier_average is not None,
            counts_inputs=self.simulations.runs_inputs,
            set_values=None if model.hyperparameters is None else model.hyperparameters.last,
            by_sample=sampler is not None and sampler.needs_losses,
            lockstep=self.simulations.lockstep,
        )

    def _inputs(self, workers: Workers, reports: Reports, parameters: GlobalParameters) -> Inputs:
        """Return the inputs: those that were given, or what a sampler chooses by the losses."""
        sampler = self.simulations.sampler
        if sampler is None:
            return self.inputs
        predictor = Predictor(self.session.model.built.training_spec, parameters.pull)
        chosen = ChosenInputs(sampler, predictor, reports.add_drawn)
        workers.on_losses = chosen.report
        if self.study is not None:
            chosen.resume(self.study.simulations)
        return chosen

    # What trainer and callbacks ask it

    @property
    def save(self) -> Study | None:
        """The save that belongs to the last record, if any."""
        return None if self.loop is None else self.loop.recorder.save

    def newest(self) -> params.Parameters | None:
        """Return the current global parameters, or ``None`` before their server has started."""
        return None if self.loop is None else self.loop.parameters.pull()

    def state(self) -> tuple[params.Parameters | None, TrainingState]:
        """Return the parameters of the save, if there is one, and the state before the fit.

        The workers report their new states in saves, and when the fit ends.
        """
        parameters = self.newest() if self.save is None else self.save.parameters
        averaged = self.averaged() if self.save is None else self.save.averaged
        state = self.session.state()
        return parameters, replace(state, merge=MergeState(averaged=averaged))

    def first_open_round(self) -> int:
        """Raise ``RuntimeError``: the workers of an online fit have no rounds."""
        raise RuntimeError(
            "set_hyperparameters was called during fit_online, whose workers have no rounds that "
            "could begin with other values: call it before fit_online or in on_fit_start, or "
            "build with Schedule(function, unit='batches')"
        )

    def averaged(self) -> params.Parameters | None:
        """Return the current average of the parameters by steps, if one is kept."""
        return None if self.loop is None else self.loop.parameters.pull_averaged()


def _state_folder(callback: Callback) -> Path | None:
    """Return the folder of a callback that keeps saves, if it has one."""
    folder = callback.writes_to() if callback.keeps_state else None
    return folder if folder is not None and folder.is_dir() else None
