"""Progress of a fit: a bar in terminals and notebooks, a line per round elsewhere."""

import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any, TextIO

from tqdm import tqdm

from compss_train.reports.formatting import counted
from compss_train.reports.records import measured_names
from compss_train.training.callback import AnyCallback, Callback
from compss_train.training.trainer_protocol import TrainerProtocol

_INTERVAL = 0.2
"""Seconds between two moves of a bar within a round."""


def _standard_stream() -> TextIO | None:
    """Return standard error, or in notebooks standard output, as they show errors in red.

    ``None`` if the program was started without it, or has closed it.
    """
    in_notebook = type(sys.stderr).__module__.startswith("ipykernel.")
    stream = sys.stdout if in_notebook else sys.stderr
    return None if stream is None or stream.closed else stream


class _Progress(Callback):
    """Prints how a fit begins and why it stopped.

    By default on standard error, in notebooks on standard output.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Print the checkpoint from which the fit is resumed, and what is worth a line."""
        if trainer.resumed_from is not None:
            hint = ""
            if total_samples == 0:
                hint = "; nothing is left to train: raise num_epochs to continue"
            self._print(f"resumed from {trainer.resumed_from}{hint}")
        if total_samples != 0:
            self.show(trainer.remarks)

    def show(self, remarks: Sequence[str]) -> None:
        """Print what is worth a line at the start, a line each."""
        for remark in remarks:
            self._print(remark)

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Print why the fit was stopped, if it was."""
        if trainer.stopped is not None:
            place = "in the first round"
            if trainer.history:
                place = f"after round {trainer.history[-1]['round']}"
            self._print(f"stopped {place}: {trainer.stopped}")

    def _print(self, line: str) -> None:
        """Print a line, above the bar if there is one.

        Where that fails, as the terminal is gone or the disk is full, the fit goes on without.
        """
        stream = self._file or _standard_stream()
        if stream is not None:
            with suppress(OSError):
                tqdm.write(line, file=stream)
                stream.flush()


class _Bar:
    """A bar that a thread moves a few times a second to the samples that workers reported."""

    def __init__(
        self, text: str, total: int | None, file: TextIO | None, reported: Callable[[], int | None]
    ) -> None:
        self.lock = threading.Lock()
        self.tqdm = _bar_class()(
            total=total, desc=text, unit=" samples", unit_scale=True, file=file, dynamic_ncols=True
        )
        self._reported = reported
        self._first = reported() or 0
        self._completed = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="compss_train progress", daemon=True)
        self._thread.start()

    def complete(self, samples: int) -> None:
        """Move the bar to the end of a round of this number of samples."""
        self._completed += samples
        self._move(self._completed)

    def stop(self) -> None:
        """Leave the bar at the end of the last round, because later training is lost."""
        self._ended.set()
        self._thread.join()
        self.tqdm.n = self._completed
        self.tqdm.refresh()

    def _run(self) -> None:
        while not self._ended.wait(_INTERVAL):
            reported = self._reported()
            if reported is not None and reported > self._first:
                self._move(reported - self._first)

    def _move(self, samples: int) -> None:
        """Move the bar forward, at most to its end: repeated tasks report their samples again."""
        with self.lock:
            self.tqdm.set_description_str(None, refresh=False)
            end = samples if self.tqdm.total is None else min(samples, self.tqdm.total)
            self.tqdm.update(max(0, end - self.tqdm.n))


def _bar_class() -> "type[tqdm[Any]]":
    """Return the class of bars, in notebooks that have ipywidgets that of widgets."""
    if "ipykernel" not in sys.modules or find_spec("ipywidgets") is None:
        return tqdm
    from tqdm.notebook import tqdm as widget

    return widget


class ProgressBar(_Progress):
    """A tqdm bar that counts samples while workers train, with a line for each epoch above it.

    The lines show loss, metrics and samples/s, like those of ``RoundLines``. Output goes to
    standard error by default. With engines that do not report samples within a round, such as
    COMPSs, the bar moves at the end of each round.
    """

    _bar: _Bar | None = None
    _pending: dict[str, Any] | None = None
    """The newest record of an epoch whose line is not printed yet."""

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Show an empty bar, and that workers are starting."""
        super().on_fit_start(trainer, total_samples)
        self._pending = None
        self._rounds_are_epochs = (
            trainer.configuration["fit"].get("merge", {}).get("unit") == "epochs"
        )
        text = f"starting {counted(trainer.num_workers, 'worker')}"
        self._bar = _Bar(text, total_samples, self._file, reported=trainer.trained_samples)

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Advance the bar by the samples of the round; print a line if an epoch has ended."""
        if self._bar is None:
            return
        is_online = "received" in record  # of which the bar has all measures, as there are no lines
        measures = _formatted_measures(record)
        if not is_online:
            measures = {name: value for name, value in measures.items() if name == "loss"}
        with self._bar.lock:
            self._bar.tqdm.set_postfix(_position(record) | measures, refresh=False)
        self._bar.complete(record["samples"])  # before lines, below which the bar is drawn again
        if is_online:
            return
        with self._bar.lock:
            if self._pending is not None and record["epoch"] > self._pending["epoch"]:
                self._print_pending()
            self._pending = record
            if self._rounds_are_epochs:
                self._print_pending()

    def _print_pending(self) -> None:
        if self._pending is not None:
            self._print(_line(self._pending))
            self._pending = None

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Close the bar, and print why the fit was stopped, if it was."""
        self._close()
        super().on_fit_end(trainer)

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Close the bar."""
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._print_pending()
            self._bar.tqdm.close()
            self._bar = None


class RoundLines(_Progress):
    """Prints that workers start, then a line per round; suited to log files.

    Output goes to standard error by default.
    """

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Print that workers are starting, which may take seconds."""
        super().on_fit_start(trainer, total_samples)
        if total_samples != 0:
            self._print(f"starting {counted(trainer.num_workers, 'worker')}")

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Print the line."""
        self._print(f"round {record['round']}, {_line(record)}")


def show_remarks(callbacks: Sequence[AnyCallback], remarks: Sequence[str]) -> None:
    """Print what is worth a line at the start of a fit, if these callbacks show its progress."""
    for callback in callbacks:
        if isinstance(callback, _Progress):
            callback.show(remarks)


def with_progress(callbacks: Sequence[AnyCallback]) -> Sequence[AnyCallback]:
    """Return the callbacks, with one that shows progress appended if none of them does."""
    if any(isinstance(callback, _Progress) for callback in callbacks):
        return callbacks
    stream = _standard_stream()
    has_terminal = stream is not None and stream.isatty()
    shows_bars = _bar_class() is not tqdm or has_terminal
    return (*callbacks, ProgressBar() if shows_bars else RoundLines())


def _line(record: dict[str, Any]) -> str:
    shown = {**_position(record), **_formatted_measures(record)}
    speed = f"{record['samples_per_second']:,.0f} samples/s"
    return ", ".join([*(f"{name} {value}" for name, value in shown.items()), speed])


def _formatted_measures(record: dict[str, Any]) -> dict[str, str]:
    return {
        name: f"{record[name]:.4f}"
        for name in measured_names(record)
        if isinstance(record[name], float)
    }


def _position(record: dict[str, Any]) -> dict[str, Any]:
    """Return how far a fit is: the epoch, or online the state of buffers and simulations."""
    if "received" not in record:
        return {"epoch": record["epoch"]}
    return {
        "received": record["received"],
        "buffer": record["buffer"],
        "unseen": f"{record['unseen']:.0%}",
        "repeated": f"{record['repetitions_mean']:.1f}",
        "simulations": record["simulations"]["running"],
        "batches/s": f"{record['batches_per_second']:.0f}",
    }
