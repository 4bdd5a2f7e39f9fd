"""Makes the records of an online fit, with their validation and the saves that belong to them."""

from compss_train.online.evaluation import Evaluation
from compss_train.online.reports import Reports
from compss_train.reports.records import Record
from compss_train.training.callback_list import CallbackList
from compss_train.training.schedules.server import GlobalParameters
from compss_train.training.snapshot import Study
from compss_train.training.trained_model import TrainedModel


class Recorder:
    """Adds a record to the model's history every ``interval`` seconds.

    With validation, each waits for its own.
    """

    def __init__(
        self,
        model: TrainedModel,
        callbacks: CallbackList,
        reports: Reports,
        *,
        evaluation: Evaluation | None,
        parameters: GlobalParameters,
        interval: float,
    ) -> None:
        self._model = model
        self._callbacks = callbacks
        self._parameters = parameters
        self._interval = interval
        self.reports = reports
        self.evaluation = evaluation
        self._number = len(model.history)
        """Of the next record."""
        self._pending: Record | None = None
        """A record that waits for its validation."""
        self._pending_save: Study | None = None
        """The save that it belongs to, if any."""
        self.save: Study | None = None
        """The save that the record that is being made belongs to; at the end the last one."""

    def start(self) -> None:
        """Begin the next interval."""
        self._callbacks.round_start(self._number)

    def update(self, simulations: dict[str, int], *, saving: bool = False) -> None:
        """Complete the pending record if its validation is ready; make the next one if it is due.

        If a fit is ``saving``, or about to, none begins to wait for its validation: the save makes
        the next one.
        """
        if self._pending is not None and self.evaluation is not None and self.evaluation.is_ready:
            self.complete()
        waits = saving and self.evaluation is not None
        if self._pending is None and not waits and self.reports.is_due(self._interval):
            self._begin(self.reports.record(self._number, simulations))

    def _begin(self, record: Record, save: Study | None = None) -> None:
        """Make a record, with validation when that is ready."""
        if self.evaluation is None:
            self._emit(record, save)
        else:
            if save is None:
                parameters = self._parameters.pull()
                averaged = self._parameters.pull_averaged()
            else:
                parameters = save.parameters
                averaged = save.averaged
            self.evaluation.start(parameters, averaged, self._model.reports)
            self._pending = record
            self._pending_save = save

    @property
    def is_idle(self) -> bool:
        """Whether no record waits for its validation."""
        return self._pending is None

    def add_save(self, save: Study, simulations: dict[str, int], seconds: float) -> None:
        """Make a record of what was reported until a save, for which workers waited ``seconds``.

        No other record may wait for its validation.
        """
        record = self.reports.record(self._number, simulations) | {"save_seconds": seconds}
        save.content["reports"] = self.reports.state_dict()
        self._begin(record, save)

    def complete(self) -> None:
        """Complete the pending record, if any; wait for its validation unless that is ready."""
        record = self._pending
        if record is None or self.evaluation is None:
            return
        save = self._pending_save
        self._pending = None
        self._pending_save = None
        validation = self.evaluation.result(self.reports.measures)
        if validation is None:  # callbacks expect it in every record
            self.reports.put_back()
        else:
            self._emit(record | validation, save)

    def drop_save(self) -> None:
        """Make the pending record, if any, without its save, whose files a newer one replaces."""
        self._pending_save = None

    def keep(self, save: Study) -> None:
        """Let a fit that cannot end have this save, with all that is in no record."""
        if self._pending is not None:
            self.reports.put_back()
            self._pending = None
            self._pending_save = None
        save.content["reports"] = self.reports.state_dict()
        self.save = save

    def _emit(self, record: Record, save: Study | None) -> None:
        self.save = save
        self._model.record(record)
        self.save = None
        self._number += 1
        self.start()

    def finish(
        self, simulations: dict[str, int], repetitions: list[int], save: Study | None = None
    ) -> None:
        """Complete the pending record, and make a final one, of the last save if any."""
        self.complete()
        record = self.reports.record(self._number, simulations, final=True)
        self.save = save
        if self.evaluation is not None:
            parameters = self._parameters.pull()
            averaged = self._parameters.pull_averaged()
            self.evaluation.start(parameters, averaged, self._model.reports, notify=False)
            validation = self.evaluation.result(self.reports.measures)
            if validation is None:
                self.reports.put_back()
                if save is not None:
                    self.keep(save)
                return
            record |= validation
        if save is not None:
            save.content["reports"] = self.reports.state_dict()
        self._model.record(record | {"repetitions": repetitions})
