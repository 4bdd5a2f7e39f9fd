"""Running a fit: its rounds in the session of an engine, and what ends it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from compss_train.model import parameters as params
from compss_train.training.fit import Fit, FitOfEpochs
from compss_train.training.resuming import load
from compss_train.training.rounds import RoundRunner
from compss_train.training.session import Session
from compss_train.training.stopping import TERMINATED
from compss_train.training.trained_model import TrainedModel
from compss_train.training.workplace import Workplace


@contextmanager
def running(fit: Fit, model: TrainedModel, workplace: Workplace, samples: int | None) -> Iterator[Session]:
    """Provide the session of a fit, which callbacks, Ctrl-C and SIGTERM can stop; call its callbacks.

    ``samples`` is the number to train on, if it is known. Afterwards tasks of a fit that was stopped at once are
    ended, and the process after SIGTERM.
    """
    with workplace.working(model.built, fitting=True) as session:
        model.stopped, model.fit = None, fit
        try:
            with fit.stopping.on_sigterm():
                with fit.callbacks.fit(samples):
                    yield session
                if fit.stopping.terminated:
                    _report_end("SIGTERM", model)
                    raise SystemExit(TERMINATED)
                if fit.stopping.urgent:
                    workplace.end_keeping_states()
        except KeyboardInterrupt:
            _report_end("Ctrl-C", model)
            raise
        finally:
            model.fit = None


def _report_end(how: str, model: TrainedModel) -> None:
    last = f"last complete round: {model.history[-1]['round']}" if model.history else "no round completed"
    print(f"compss_train: fit interrupted by {how}; {last}", file=sys.stderr)


def resume(fit: FitOfEpochs, model: TrainedModel, workplace: Workplace) -> None:
    """Load the checkpoint that the fit starts from, if any; check that the schedule reaches the end of the fit."""
    model.resumed_from = None
    if fit.checkpoint is not None:
        model.resumed_from, snapshot = fit.checkpoint
        load(snapshot, model, workplace)
        fit.callbacks.saved = snapshot.callbacks
    if model.built.lr_schedule is not None:
        model.built.lr_schedule.prepare(fit.epochs.stop)


def run_rounds(fit: FitOfEpochs, model: TrainedModel, workplace: Workplace) -> None:
    """Run the rounds of a fit, and set the parameters of the model, its history, and why the fit has stopped."""
    plan = fit.options.round_plan(
        fit.data.sizes, workplace.num_workers, model.seed, fit.first_epoch, len(model.history), fit.reached
    )
    with running(fit, model, workplace, plan.samples if fit.data.counted else None) as session:
        rounds = fit.running = RoundRunner(fit, model, session)
        try:
            with session.engine.watched(workplace.worker_timeout):
                final = rounds.run(plan.rounds(rounds.is_over))
            model.parameters = params.copy_of(final or model.parameters)
            model.stopped = rounds.stopped
        except BaseException:
            model.parameters = params.copy_of(rounds.newest() or model.parameters)
            model.averaged = rounds.newest_average()
            raise
        finally:
            fit.running = None
            rounds.stop()
        session.merge_state = rounds.merge_state
        model.averaged = rounds.averaged()
        rounds.close()
