"""What an online fit needs around it, made before it starts and ended with it however it ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from compss_train.engines.base import ONE_CPU
from compss_train.model.metrics import Measures
from compss_train.model.parameters import Parameters
from compss_train.online.evaluation import Evaluation
from compss_train.online.event_server import Director
from compss_train.online.fitting import OnlineFit, Recording
from compss_train.online.job import OnlineJob
from compss_train.online.options import OnlineOptions
from compss_train.online.sender import host_and_port
from compss_train.online.stream_router import new_key
from compss_train.online.workers import Checkpoints
from compss_train.training.data_source import DataSource
from compss_train.training.inference import EVALUATION_BATCH, Inference
from compss_train.training.merging.server import GlobalParameters
from compss_train.training.session import Session
from compss_train.training.stopping import Stopping


@dataclass(frozen=True)
class FitStart:
    """Where a trainer is when an online fit begins."""

    parameters: Parameters
    seed: int
    measures: Measures
    records: int
    """How many records its history has."""
    epoch: int


@contextmanager
def online_fit(
    session: Session,
    options: OnlineOptions,
    begun: FitStart,
    held_out: DataSource | None,
    stopping: Stopping,
    on_record: Callable[[dict[str, Any]], None],
    on_start: Callable[[int], None],
) -> Iterator[OnlineFit]:
    """Give an online fit that is ready to run."""
    engine = session.engine
    workers = len(session.devices)
    _reserve(session, options, held_out)
    statistics = [name for name, _ in session.net.named_buffers()]
    with ExitStack() as stack:
        shared = stack.enter_context(GlobalParameters(engine, begun.parameters, workers, statistics))
        saved = stack.enter_context(Checkpoints())
        director = stack.enter_context(Director(engine.host(), saved.keep))
        if options.address is not None:
            director.let_in_senders(*host_and_port(options.address), str(options.token))
        job = OnlineJob(
            director=director.address,
            key=new_key(),
            host=None if options.address is None else "0.0.0.0",
            served=shared.server_address,
            num_workers=workers,
            buffer=options.buffer,
            batch_size=options.batch_size,
            merge_every=options.merge_every_batches,
            max_batches=options.max_batches,
            report_every=min(1.0, options.record_every) / 2,
            save_every=options.checkpoint_every,
            pairing=options.pairing,
            new_optimizer=options.optimizer_state == "reset",
            seed=begun.seed + begun.records,
        )
        evaluation = None
        if held_out is not None:
            evaluation = _evaluation(session, held_out, director, begun.parameters, stopping)
        recording = Recording(
            begun.measures, begun.records, begun.epoch, options.record_every, evaluation, on_record, on_start
        )
        yield OnlineFit(session, options, job, director, shared.pull, recording, saved, stopping)
        if evaluation is not None:
            evaluation.close()


def _reserve(session: Session, options: OnlineOptions, held_out: DataSource | None) -> None:
    """See to it that workers and simulations can run at the same time, and if possible evaluations, too.

    Without room of its own an evaluation runs when a simulation has ended.
    """
    tasks = [session.resources] * len(session.devices) + [ONE_CPU] * options.num_simulators
    session.engine.reserve(tasks)
    if held_out is not None:
        with suppress(ValueError):
            session.engine.reserve([*tasks, ONE_CPU])


def _evaluation(
    session: Session, held_out: DataSource, director: Director, parameters: Parameters, stopping: Stopping
) -> Evaluation:
    """Return what evaluates on the CPU, after it has once: what does not fit together is found before tasks run."""
    engine = session.engine
    inference = Inference(
        engine=engine,
        training_spec=session.training_spec,
        data=held_out.publish(engine),
        batch_size=EVALUATION_BATCH,
        resources=ONE_CPU,
        devices=["cpu"],
    )
    evaluation = Evaluation(inference, director.address)
    evaluation.start(parameters, told=False)
    evaluation.wait(stopping)
    evaluation.end()
    return evaluation
