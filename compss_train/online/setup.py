"""Resources of an online fit: set up before it starts, and released when it ends for any reason."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

from compss_train.engines.base import ONE_CPU
from compss_train.model.metrics import Measures
from compss_train.model.parameters import Parameters
from compss_train.net.connection import Address
from compss_train.net.tokens import new_token
from compss_train.online.event_server import EventServer
from compss_train.online.fitting import OnlineFit
from compss_train.online.options import OnlineJob, OnlineOptions
from compss_train.online.records import Evaluation, Progress, Recorder
from compss_train.online.workers import CheckpointStore
from compss_train.training.data_source import DataSource
from compss_train.training.merging.server import GlobalParameters
from compss_train.training.session import Session
from compss_train.training.stopping import Stopping
from compss_train.worker.server_exchange import ServerAddress


@dataclass(frozen=True, kw_only=True)
class FitStart:
    """State of a trainer when an online fit starts."""

    parameters: Parameters
    seed: int
    measures: Measures
    records: int
    """Number of records in its history."""
    epoch: int


@contextmanager
def online_fit(
    session: Session,
    options: OnlineOptions,
    *,
    start: FitStart,
    validation: DataSource | None,
    stopping: Stopping,
    on_record: Callable[[dict[str, Any]], None],
    on_start: Callable[[int], None],
) -> Iterator[OnlineFit]:
    """Yield an online fit that is ready to run.

    ``validation`` has the samples to validate on. ``on_record`` gets every record, ``on_start`` the number of each
    record when its interval begins.
    """
    engine = session.engine
    workers = len(session.devices)
    _reserve(session, options, validation)
    with ExitStack() as stack:
        shared = GlobalParameters(
            engine,
            start.parameters,
            workers,
            names=session.names,
            optimizer=options.merge.outer_optimizer,
        )
        stack.enter_context(shared)
        checkpoints = stack.enter_context(CheckpointStore())
        server = stack.enter_context(EventServer(engine.host()))
        if (address := options.simulations.address) is not None:
            server.listen_for_senders(address, str(options.simulations.token))
        evaluation = None
        if validation is not None:
            evaluation = _evaluation(session, validation, server.address, start.parameters, stopping)
        recorder = Recorder(
            progress=Progress(workers, start.measures),
            evaluation=evaluation,
            pull=shared.pull,
            stopping=stopping,
            first=start.records,
            epoch=start.epoch,
            interval=options.record_every,
            on_record=on_record,
            on_start=on_start,
        )
        yield OnlineFit(
            session=session,
            options=options,
            job=_job(options, server.address, shared.server_address, workers, start),
            server=server,
            pull=shared.pull,
            recorder=recorder,
            checkpoints=checkpoints,
            stopping=stopping,
        )
        if evaluation is not None:
            evaluation.close()


def _reserve(session: Session, options: OnlineOptions, validation: DataSource | None) -> None:
    """Reserve resources so that workers and simulations run at the same time, if possible evaluations, too.

    Without resources of its own an evaluation runs when a simulation has ended.
    """
    tasks = [session.resources] * len(session.devices) + [ONE_CPU] * options.simulations.places
    session.engine.reserve(tasks)
    if validation is not None:
        with suppress(ValueError):
            session.engine.reserve([*tasks, ONE_CPU])


def _job(
    options: OnlineOptions, coordinator: Address, server_address: ServerAddress, num_workers: int, start: FitStart
) -> OnlineJob:
    return OnlineJob(
        coordinator=coordinator,
        key=new_token(),
        host=options.simulations.host,
        server_address=server_address,
        num_workers=num_workers,
        buffer=options.buffer,
        batch_size=options.batch_size,
        merge_every=cast("int", options.merge.every),
        max_batches=options.max_batches,
        report_every=min(1.0, options.record_every) / 2,
        checkpoint_every=options.checkpoint_every,
        pairing=options.simulations.pairing,
        new_optimizer=options.merge.optimizer_state == "reset",
        seed=start.seed + start.records,
    )


def _evaluation(
    session: Session, validation: DataSource, coordinator: Address, parameters: Parameters, stopping: Stopping
) -> Evaluation:
    """Return an evaluation on the CPU that has run once, so that mismatches are found before tasks start."""
    inference = replace(session.inference(validation), resources=ONE_CPU, devices=["cpu"])
    evaluation = Evaluation(inference, coordinator)
    evaluation.start(parameters, notify=False)
    evaluation.wait(stopping)
    evaluation.clear()
    return evaluation
