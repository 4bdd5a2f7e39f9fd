"""Training while simulations run: what an online fit does to the model of a trainer."""

from contextlib import suppress
from typing import Any

from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.online.options import OnlineOptions
from compss_train.online.setup import FitStart, online_fit
from compss_train.training.build_arguments import check_outer_factory
from compss_train.training.callback import CallbackList
from compss_train.training.description import described_fit
from compss_train.training.fit import Fit
from compss_train.training.planning import validation_source
from compss_train.training.running import running
from compss_train.training.stopping import Stopping
from compss_train.training.trained_model import TrainedModel
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
    with running(fit, model, workplace, None) as session:
        model.averaged = None
        start = FitStart(
            parameters=model.parameters,
            seed=model.seed,
            measures=built.training_spec.measures,
            records=len(model.history),
            epoch=model.epochs,
        )
        with online_fit(
            session,
            options,
            start=start,
            validation=validation,
            stopping=stopping,
            on_record=model.record,
            on_start=callbacks.round_start,
        ) as online:
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
