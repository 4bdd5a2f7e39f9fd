"""Training while simulations run: what an online fit does to the model of a trainer."""

from contextlib import ExitStack, suppress
from typing import Any, cast

from compss_train.engines.base import ONE_CPU
from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.net.tokens import new_token
from compss_train.online.event_server import EventServer
from compss_train.online.fitting import OnlineFit
from compss_train.online.options import OnlineJob, OnlineOptions
from compss_train.online.records import Evaluation, Progress, Recorder
from compss_train.online.workers import CheckpointStore
from compss_train.training.build_arguments import check_outer_factory
from compss_train.training.callback import CallbackList
from compss_train.training.data_source import DataSource
from compss_train.training.description import described_fit
from compss_train.training.inference import Inference
from compss_train.training.merging.on_arrival import GlobalParameters
from compss_train.training.planning import validation_source
from compss_train.training.session import Session
from compss_train.training.stopping import Stopping
from compss_train.training.trained_model import Fit, TrainedModel
from compss_train.training.workplace import Workplace


def train_online(
    model: TrainedModel,
    workplace: Workplace,
    options: OnlineOptions,
    callbacks: CallbackList,
    validation_data: Any,
    stopping: Stopping,
) -> None:
    """Check what depends on the model and the data, and train; ``fit_online`` documents the options."""
    built = model.built
    if built.lr_schedule is not None:
        raise ValueError(
            "fit_online has no epochs, which a schedule depends on; build without schedule=, with a constant "
            "learning rate"
        )
    validation = None
    if validation_data is not None:
        validation = validation_source(model, workplace.num_workers, validation_data)
    if options.merge.outer_optimizer is not None:
        check_outer_factory(built.training_spec.net, options.merge.outer_optimizer)
    params.check_finite(model.parameters)
    model.resumed_from = None
    model.last_fit = described_fit("fit_online", options, callbacks.callbacks, validation_data=validation)
    fit = Fit(callbacks=callbacks, stopping=stopping, validation=validation)
    with workplace.fitting(fit, model, None) as session, ExitStack() as stack:
        model.averaged = None
        online = _online_fit(model, session, options, validation, callbacks, stopping, stack)
        fit.running = online
        try:
            online.run()
            model.parameters = online.current()
            model.stopped = online.stopped
            session.forget_merges()
        except BaseException:
            with suppress(OSError, RuntimeError, DivergedError):  # the error to raise is that of the fit
                model.parameters = online.newest()
            raise
        finally:
            fit.running = None


def _online_fit(
    model: TrainedModel,
    session: Session,
    options: OnlineOptions,
    validation: DataSource | None,
    callbacks: CallbackList,
    stopping: Stopping,
    stack: ExitStack,
) -> OnlineFit:
    """Return a fit that is ready to run; ``stack`` frees what it needs, for whatever reason it ends."""
    engine, workers, records = session.engine, len(session.devices), len(model.history)
    _reserve(session, options, validation)
    optimizer = options.merge.outer_optimizer
    shared = GlobalParameters(engine, model.parameters, workers, names=session.names, optimizer=optimizer)
    stack.enter_context(shared)
    checkpoints = stack.enter_context(CheckpointStore())
    server = stack.enter_context(EventServer(engine.host()))
    if (address := options.simulations.address) is not None:
        server.listen_for_senders(address, str(options.simulations.token))
    evaluation: Evaluation | None = None
    if validation is not None:
        evaluation = Evaluation(Inference(session, validation, on_cpu=True), server.address)
        evaluation.start(model.parameters, notify=False)  # so that mismatches are found before other tasks start
        evaluation.result(stopping)
    recorder = Recorder(
        progress=Progress(workers, model.built.training_spec.measures),
        evaluation=evaluation,
        pull=shared.pull,
        stopping=stopping,
        first=records,
        epoch=model.epochs,
        interval=options.record_every,
        on_record=model.record,
        on_start=callbacks.round_start,
    )
    job = OnlineJob(
        coordinator=server.address,
        key=new_token(),
        host=options.simulations.host,
        server_address=shared.server_address,
        num_workers=workers,
        buffer=options.buffer,
        batch_size=options.batch_size,
        merge_every=cast("int", options.merge.every),
        max_batches=options.max_batches,
        report_every=min(1.0, options.record_every) / 2,
        checkpoint_every=options.checkpoint_every,
        pairing=options.simulations.pairing,
        new_optimizer=options.merge.optimizer_state == "reset",
        seed=model.seed + records,
    )
    return OnlineFit(
        session=session,
        simulations=options.simulations,
        job=job,
        server=server,
        pull=shared.pull,
        recorder=recorder,
        checkpoints=checkpoints,
        stopping=stopping,
    )


def _reserve(session: Session, options: OnlineOptions, validation: DataSource | None) -> None:
    """Reserve resources so that workers and simulations run at the same time, if possible evaluations, too.

    Without resources of its own an evaluation runs when a simulation has ended.
    """
    tasks = [session.resources] * len(session.devices) + [ONE_CPU] * options.simulations.places
    session.engine.reserve(tasks)
    if validation is not None:
        with suppress(ValueError):
            session.engine.reserve([*tasks, ONE_CPU])
