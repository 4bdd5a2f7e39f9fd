"""``OnlineTrainer``: a trainer that also trains while simulations run."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from compss_train.exceptions import DivergedError
from compss_train.model import parameters as params
from compss_train.online.options import OnlineOptions
from compss_train.online.setup import FitStart, online_fit
from compss_train.training.build_arguments import check_outer_factory
from compss_train.training.callback import CallbackList
from compss_train.training.data_source import DataSource
from compss_train.training.description import described_fit
from compss_train.training.fit_state import ActiveFit
from compss_train.training.fitting import FittingTrainer
from compss_train.training.session import Session
from compss_train.training.stopping import Stopping


class OnlineTrainer(FittingTrainer):
    """A trainer that runs online fits; ``DistributedTrainer.fit_online`` documents their options."""

    def _fit_online(
        self,
        options: OnlineOptions,
        callbacks: CallbackList,
        validation_data: Any,
        max_time: float | timedelta | None,
    ) -> None:
        """Check what depends on the model and the data, and train."""
        built = self._require_built()
        if built.lr_schedule is not None:
            raise ValueError(
                "fit_online has no epochs, which a schedule depends on; build without schedule=, with a constant "
                "learning rate"
            )
        stopping = Stopping(max_time, self._clock, self._engine_class.time_left())
        validation = None if validation_data is None else self._validation_source(validation_data)
        if options.outer_optimizer is not None:
            check_outer_factory(built.training_spec.net, options.outer_optimizer)
        params.check_finite(self._parameters)
        self.resumed_from = None
        self._last_fit = described_fit("fit_online", options, callbacks.callbacks, validation_data=validation)
        start = ActiveFit(stopping=stopping, callbacks=callbacks)
        with self._working(built, fitting=True) as session, self._activated(start) as active:
            with callbacks.fit(None):
                self._run_online(session, options, validation, active)
            self._end_in_time(stopping)

    def _run_online(
        self, session: Session, options: OnlineOptions, validation: DataSource | None, active: ActiveFit
    ) -> None:
        measures = self._require_built().training_spec.measures
        self._averaged = None
        start = FitStart(
            parameters=self._parameters,
            seed=self.seed,
            measures=measures,
            records=len(self.history),
            epoch=self._epochs,
        )
        with online_fit(
            session,
            options,
            start=start,
            validation=validation,
            stopping=active.stopping,
            on_record=self._recorder(active.callbacks),
            on_start=active.callbacks.round_start,
        ) as running:
            active.running = running
            try:
                running.run()
                self._parameters = running.current()
                self.stopped = running.stopped
                session.forget_merges()
            except BaseException:
                with suppress(OSError, RuntimeError, DivergedError):  # the error to raise is that of the fit
                    self._parameters = running.newest()
                raise
            finally:
                active.running = None
