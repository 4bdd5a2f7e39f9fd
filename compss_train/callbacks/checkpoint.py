"""The callback that writes checkpoints."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from compss_train._utils.locking import FolderLock
from compss_train._utils.validation import check_count
from compss_train.callbacks.monitoring import Mode, is_better, mode_of, value_of
from compss_train.exceptions import BadCheckpointError
from compss_train.training.callback import Callback, TrainerProtocol
from compss_train.training.checkpoints import storage
from compss_train.training.checkpoints.json_encoding import IncrementalListEncoder


class Checkpoint(Callback):
    """Writes checkpoints to a folder, from which ``fit(..., resume=...)`` goes on exactly where they were made.

    Each is a folder ``round-000012`` with the parameters, each worker's optimizer and random states, the history
    and the states of callbacks, in safetensors and JSON; complete or not there, whenever the machine stops.

    Parameters
    ----------
    folder:
        Where checkpoints go; made where it is missing. One for each run.
    every:
        Rounds from one to the next. When a fit is stopped (``max_time``, SIGTERM, a callback) its last complete
        round is written in any case, and so is a new best one.
    keep:
        How many are kept, the newest ones; the best is kept beside them.
    best:
        Name in the history's records, such as ``"val_loss"``, whose best round is kept, that of all fits of the
        run; ``None`` for none.
    mode:
        ``"min"`` or ``"max"``, whichever is better; ``None`` tells by the name.
    overwrite:
        Whether checkpoints of another run in the folder are removed rather than an error.

    With commutative merging or a parameter server, workers wait for each other where a checkpoint is due, and a
    resumed fit goes on with all workers at the global parameters: not bit for bit.

    Attributes: ``best_round``, the number of the best round, ``None`` before there is one.

    Raises ``OSError`` at the start of a fit where the folder cannot be written to, or lacks room for a checkpoint;
    ``FileExistsError`` for one with checkpoints of another run, ``BlockingIOError`` for one that another program is
    writing to.
    """

    keeps_state: ClassVar[bool] = True

    def __init__(
        self,
        folder: str | Path,
        every: int = 1,
        keep: int = 2,
        best: str | None = None,
        *,
        mode: Mode | None = None,
        overwrite: bool = False,
    ) -> None:
        self.folder = Path(folder)
        self.every = check_count("every", every)
        self.keep = check_count("keep", keep)
        self.best = best
        self.mode: Mode = "min" if best is None else mode_of(best, mode)
        self.overwrite = overwrite
        self.best_round: int | None = None
        self._best_value: float | None = None
        self._written: int | None = None
        self._history = IncrementalListEncoder("history")
        self._goes_on = False
        self._lock = FolderLock(self.folder)

    @property
    def path(self) -> Path | None:
        """The newest checkpoint that this has written or gone on from."""
        return None if self._written is None else storage.checkpoint_path(self.folder, self._written)

    def needs_state(self, number: int) -> bool:
        """Tell whether a checkpoint may be due after that round."""
        return self.best is not None or self._is_due(number)

    def watches(self) -> str | None:
        """Return what tells the best round, if that is kept."""
        return self.best

    def writes_to(self) -> Path:
        """Return the folder."""
        return self.folder

    def resume_folder(self) -> Path:
        """Return the folder."""
        return self.folder

    def _is_due(self, number: int) -> bool:
        return (number + 1) % self.every == 0

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """See to it that checkpoints can be written, and are not mistaken for those of another run."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock.acquire()
        self._check_room(trainer)
        own = self._own_rounds(trainer)
        if others := set(storage.list_checkpoints(self.folder)) - own:
            if not self.overwrite:
                raise FileExistsError(
                    f"{self.folder} has checkpoints of another run, or of later rounds of this one (round "
                    f"{max(others)}); give fit resume=True to go on from there, Checkpoint another folder, or "
                    "overwrite=True to have them removed"
                )
            storage.prune_checkpoints(self.folder, own)
        self._go_on(trainer.history, own)

    def _own_rounds(self, trainer: TrainerProtocol) -> set[int]:
        """Return which of the checkpoints in the folder are of this run; those after a resumed round, too."""
        there = set(storage.list_checkpoints(self.folder))
        goes_on, self._goes_on = self._goes_on, False
        resumed = trainer.resumed_from
        if resumed is not None and (goes_on or resumed.parent.resolve() == self.folder.resolve()):
            return there
        if not there or not self._is_of(trainer.history):
            return set()
        is_copy = resumed is not None and len(trainer.history) - 1 in there
        return there if is_copy else {number for number in there if number < len(trainer.history)}

    def _is_of(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Tell whether the newest checkpoint and a history are of the same run, by when its rounds ended."""
        try:
            saved = storage.read_latest_checkpoint(self.folder)[1]["history"]
        except BadCheckpointError:
            return False
        pairs = list(zip(saved, history, strict=False))
        return bool(pairs) and all(one.get("ended") == other.get("ended") for one, other in pairs)

    def _go_on(self, history: Sequence[Mapping[str, Any]], own: set[int]) -> None:
        """Take note of the rounds that a run has had: which is written, and the best of those that are there."""
        self.best_round = self._best_value = None
        self._history = IncrementalListEncoder("history")
        had = sorted(number for number in own if number < len(history))
        self._written = had[-1] if had else None
        for number in had:
            if self.best in history[number]:
                self._is_best(history[number])

    def _check_room(self, trainer: TrainerProtocol) -> None:
        """Find out now what would otherwise be found after the first round: a checkpoint's bytes can be had."""
        values = sum(array.nbytes for array in trainer.get_parameters().values())
        needed = values * (1 + 2 * trainer.num_workers) + 2**16  # as with Adam: two moments a worker
        try:
            with tempfile.TemporaryFile(dir=self.folder) as file:
                if hasattr(os, "posix_fallocate"):
                    os.posix_fallocate(file.fileno(), 0, needed)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise OSError(
                    error.errno, f"{self.folder} has no room for a checkpoint of some {needed / 1e6:.1f} MB"
                ) from error
            raise

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take note whether the run that is resumed has written to this folder."""
        self._goes_on = state["folder"] == str(self.folder)

    def state_dict(self) -> dict[str, Any]:
        """Return where checkpoints go, and which is the best, for ``restore(best=True)``."""
        return {"folder": str(self.folder), "best_round": self.best_round}

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write a checkpoint where one is due, or the round is the best."""
        number = record["round"]
        if self._is_best(record) or self._is_due(number):
            self._write(trainer, number)

    def _is_best(self, record: Mapping[str, Any]) -> bool:
        if self.best is None or not is_better(value := value_of(record, self.best), self._best_value, self.mode):
            return False
        self._best_value, self.best_round = value, record["round"]
        return True

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Write the last complete round, unless that is done: also where the fit was stopped."""
        if trainer.history and self._written != (number := trainer.history[-1]["round"]):
            self._write(trainer, number)
        self._lock.release()

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Leave the folder to others."""
        self._lock.release()

    def _write(self, trainer: TrainerProtocol, number: int) -> None:
        before, self._written = self._written, number
        try:
            snapshot = trainer.snapshot()
            content = {**snapshot.to_dict(), "history": self._history.encode(snapshot.history)}
            storage.write_checkpoint(storage.checkpoint_path(self.folder, number), content)
        except BaseException:
            self._written = before
            raise
        newest = [n for n in storage.list_checkpoints(self.folder) if n <= number][-self.keep :]
        storage.prune_checkpoints(self.folder, {*newest, self.best_round})
