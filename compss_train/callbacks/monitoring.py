"""Monitoring of a field of the records: its best value, and early stopping."""

import math
from typing import Any, Literal

from compss_train._utils.validation import check_choice, check_count, check_non_negative
from compss_train.model.parameters import Parameters
from compss_train.reports.records import AVERAGED_PREFIX, monitored_number
from compss_train.training.callback import Callback
from compss_train.training.trainer_protocol import TrainerProtocol

Mode = Literal["min", "max"]

_LOWER = {"loss", "mse", "mae", "mre", "rmse", "error", "perplexity"}
_HIGHER = {
    "accuracy",
    "acc",
    "auc",
    "auroc",
    "f1",
    "precision",
    "recall",
    "r2",
    "score",
    "iou",
    "psnr",
}


def mode_of(monitor: str, mode: Mode | None) -> Mode:
    """Return ``mode``, or infer from the name of the field whether low or high values are better.

    Raises ``ValueError`` if the name is unknown.
    """
    if not isinstance(monitor, str):
        raise TypeError(f"{monitor!r} is not the name of a field of records, such as 'val_loss'")
    if mode is not None:
        check_choice("mode", mode, ("min", "max"))
        return mode
    words = monitor.lower().split("_")
    if not _LOWER.isdisjoint(words):
        return "min"
    if not _HIGHER.isdisjoint(words):
        return "max"
    raise ValueError(
        f"{monitor!r}: unknown whether low or high values are better; give mode='min' or mode='max'"
    )


def is_better(value: float, best: float | None, mode: Mode, min_delta: float = 0.0) -> bool:
    """Return whether a value improves the best one by more than ``min_delta``; NaN never does."""
    if best is None:
        return not math.isnan(value)
    return (best - value if mode == "min" else value - best) > min_delta


class EarlyStopping(Callback):
    """Stops a fit when ``monitor`` has not improved for some rounds or epochs (Prechelt 1998).

    Parameters
    ----------
    monitor:
        Field of the records to monitor, by default ``"val_loss"``, which needs ``validation_data``.
    patience, patience_epochs:
        Number of consecutive rounds, or of epochs, without improvement after which the fit stops,
        at least 1; give one of them. By default 5 rounds, which are epochs if workers merge once
        per epoch.
    min_delta:
        An improvement must be larger than this; 0 by default.
    mode:
        Whether ``"min"`` or ``"max"`` is better; ``None`` infers it from the name (loss, error,
        accuracy, ...).
    restore_best:
        Whether to restore the parameters of the best round at the end of the fit. With commutative
        merging these are the latest global parameters at the end of the best round; if ``monitor``
        begins with ``val_averaged_``, they are the average that ``Merge(averaging=...)`` kept then.

    Attributes: ``best``, the best value, and ``best_round``, the number of its round.
    """

    def __init__(
        self,
        monitor: str = "val_loss",
        *,
        patience: int | None = None,
        patience_epochs: int | None = None,
        min_delta: float = 0.0,
        mode: Mode | None = None,
        restore_best: bool = True,
    ) -> None:
        self.monitor = monitor
        if patience is not None and patience_epochs is not None:
            raise ValueError(
                f"patience={patience} and patience_epochs={patience_epochs}: give one, in rounds "
                "or epochs"
            )
        if patience_epochs is None:
            self._unit = "rounds"
            self.patience = check_count("patience", 5 if patience is None else patience)
        else:
            self._unit = "epochs"
            self.patience = check_count("patience_epochs", patience_epochs)
        self.min_delta = check_non_negative("min_delta", min_delta)
        self.mode = mode_of(monitor, mode)
        check_choice("restore_best", restore_best, (True, False))
        self.restore_best = restore_best
        self._reset()

    def _reset(self) -> None:
        self.best: float | None = None
        self.best_round: int | None = None
        self._waited = 0
        """Number of rounds or epochs since the last improvement."""
        self._epoch: int | None = None
        """The epoch of the last round."""
        self._parameters: Parameters | None = None
        self._resumed = False

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Reset, as another fit may have other data; stop a resumed fit that had been stopped."""
        if trainer.resumed_from is None or not self._resumed:
            self._reset()
        self._resumed = False
        self._stop_if_due(trainer)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the best value so far, unless the mode has changed."""
        if state["mode"] != self.mode:
            return
        self.best = state["best"]
        self.best_round = state["best_round"]
        self._waited = state["waited"]
        self._epoch = state["epoch"]
        self._parameters = state["parameters"]
        self._resumed = True

    def watches(self) -> str | None:
        """Return the monitored field."""
        return self.monitor

    def state_dict(self) -> dict[str, Any]:
        """Return the best value so far, with its parameters."""
        return {
            "mode": self.mode,
            "best": self.best,
            "best_round": self.best_round,
            "waited": self._waited,
            "epoch": self._epoch,
            "parameters": self._parameters,
        }

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Compare with the best value, and stop the fit if it has not improved for long enough."""
        value = monitored_number(record, self.monitor)
        last = self._epoch
        self._epoch = record.get("epoch", last or 0)
        if is_better(value, self.best, self.mode, min_delta=self.min_delta):
            self.best = value
            self.best_round = record["round"]
            self._waited = 0
            if self.restore_best:
                self._parameters = trainer.get_parameters(
                    averaged=self.monitor.startswith(AVERAGED_PREFIX)
                )
        else:
            self._waited += 1 if last is None or self._unit == "rounds" else self._epoch - last
        self._stop_if_due(trainer)

    def _stop_if_due(self, trainer: TrainerProtocol) -> None:
        if self._waited >= self.patience:
            trainer.stop(f"{self.monitor} has not improved for {self._waited} {self._unit}")

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Restore the best parameters."""
        if self._parameters is not None:
            trainer.set_parameters(self._parameters)
