"""The callback that writes checkpoints."""

from collections import deque
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from compss_train._utils import files, validation
from compss_train.callbacks.monitoring import Mode, is_better, mode_of
from compss_train.data.locations import is_remote
from compss_train.exceptions import BadCheckpointError
from compss_train.reports.records import monitored_number
from compss_train.training import checkpoints as storage
from compss_train.training.callback import Callback
from compss_train.training.remote_checkpoints import RemoteFolder
from compss_train.training.shared_history import SharedHistory
from compss_train.training.trainer_protocol import TrainerProtocol


class Checkpoint(Callback):
    """Writes checkpoints to a folder, from which ``fit(..., resume=...)`` resumes exactly.

    A checkpoint is a folder such as ``round-000012`` with the parameters, the optimizer and random
    states of each worker, the history and the states of callbacks, in safetensors and JSON. It is
    complete or does not exist, even if the machine stops. Checkpoints share files of the history by
    hard links, where the file system has them, so that one is written as fast after many rounds as
    after few; each can be copied, and resumed from, alone.

    Parameters
    ----------
    folder:
        The folder of checkpoints, created if it does not exist. Use one folder per run. A name such
        as ``"s3://bucket/run"`` is opened with ``fsspec``: each checkpoint is written to a
        temporary folder and uploaded, but for what the store can copy from an earlier one. If
        another program writes there at the same time, nothing detects it.
    every:
        Number of rounds between checkpoints, 1 by default. The last complete round is always
        written, also of a fit that is stopped (``max_time``, SIGTERM, a callback), and so is a new
        best round.
    keep:
        Number of latest checkpoints to keep, 2 by default, in addition to the best one. The last
        two share no file, so that damage to one leaves the other.
    best:
        Field of the records, such as ``"val_loss"``, by which the best round of all fits of the run
        is kept; ``None`` keeps no best round.
    mode:
        Whether ``"min"`` or ``"max"`` is better; ``None`` infers it from the name.
    overwrite:
        Whether to remove checkpoints of another run from the folder; by default they are an error.

    In ``fit_online`` it writes saves, which are made every ``checkpoint_every`` seconds and have
    the workers' buffers: the first one after ``every`` records, and the last one.

    With commutative merging or a parameter server, workers wait for each other when a checkpoint is
    due. All workers of a resumed fit then start from the global parameters, so its bits differ from
    those of an uninterrupted one.

    Attributes: ``best_round``, the number of the best round, or ``None`` before the first.

    Raises at the start of a fit: ``OSError`` if the folder is not writable or lacks disk space for
    a checkpoint, ``FileExistsError`` if it has checkpoints of another run, ``BlockingIOError`` if
    another program writes to it (not detected on file systems without locks), and ``ValueError`` if
    its name is not valid UTF-8.
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
        self._name = str(folder)
        self._remote = RemoteFolder(self._name) if is_remote(self._name) else None
        self.folder = Path(folder) if self._remote is None else self._remote.copy
        self.every = validation.check_count("every", every)
        self.keep = validation.check_count("keep", keep)
        self.best = best
        self.mode: Mode = mode_of("val_loss" if best is None else best, mode)
        validation.check_choice("overwrite", overwrite, (True, False))
        self.overwrite = overwrite
        self.best_round: int | None = None
        self._best_value: float | None = None
        self._last_written: int | None = None
        self._last_state: object = None
        """What tells apart the state that was written last."""
        self._is_overdue = False
        """Whether a checkpoint was due after a round from which no fit can resume."""
        self._histories = deque[SharedHistory]()
        self._is_resumed = False
        self._lock = files.FolderLock(self.folder)
        self._disk = files.DISK

    @property
    def path(self) -> Path | None:
        """The latest checkpoint that was written or resumed from."""
        if self._last_written is None:
            return None
        return storage.checkpoint_path(self.folder, self._last_written)

    def needs_state(self, number: int) -> bool:
        """Return whether a checkpoint may be due after round ``number``."""
        return self.best is not None or self._is_due(number)

    def watches(self) -> str | None:
        """Return the field by which the best round is kept."""
        return self.best

    def writes_to(self) -> Path:
        """Return the folder."""
        return self.folder

    def resume_folder(self) -> Path:
        """Return the folder, with what is in the object store."""
        if self._remote is not None:
            self._remote.download()
        return self.folder

    def _is_due(self, number: int) -> bool:
        return (number + 1) % self.every == 0

    def on_fit_start(self, trainer: TrainerProtocol, total_samples: int | None) -> None:
        """Lock the folder, check the disk space, and check or remove checkpoints of other runs."""
        self.folder = self.folder.absolute()  # wherever the program is when rounds end
        files.make_folders(self.resume_folder(), self._disk)
        if not self._lock.acquire():
            validation.warn_user(
                f"{self.folder} is on a file system without locks: no other fit may write to it"
            )
        # A program that was killed may have renamed a checkpoint without syncing the folder.
        self._disk.sync(self.folder)
        self._check_disk_space(trainer)
        rounds = self._rounds_of_run(trainer)
        foreign = set(storage.list_checkpoints(self.folder)) - rounds
        if foreign:
            if not self.overwrite:
                raise FileExistsError(
                    f"{self._name} has checkpoints of another run, or of later rounds of this "
                    f"one (round {max(foreign)}); call fit with resume=True to resume from them, "
                    "or give Checkpoint another folder, or overwrite=True to remove them"
                )
            self._keep_only(rounds)
        self._scan_rounds(trainer.history, rounds)
        self._last_state = self._last_written
        # Every other checkpoint shares files, so that damage to one leaves another good one.
        self._histories = deque(SharedHistory() for _ in range(min(2, self.keep)))

    def _rounds_of_run(self, trainer: TrainerProtocol) -> set[int]:
        """Return the rounds of this run's checkpoints in the folder, also after a resumed one."""
        rounds = set(storage.list_checkpoints(self.folder))
        is_resumed = self._is_resumed
        self._is_resumed = False
        resumed = trainer.resumed_from
        if resumed is not None and (
            is_resumed or resumed.parent.resolve() == self.folder.resolve()
        ):
            return rounds
        if not rounds or not self._is_same_run(trainer.history):
            return set()
        is_copy = resumed is not None and len(trainer.history) - 1 in rounds
        return rounds if is_copy else {number for number in rounds if number < len(trainer.history)}

    def _is_same_run(self, history: Sequence[Mapping[str, Any]]) -> bool:
        """Return whether the rounds of the latest checkpoint and of a history ended together."""
        try:
            saved = storage.read_latest_checkpoint(self.folder)[1]["history"]
        except BadCheckpointError:
            return False
        pairs = list(zip(saved, history, strict=False))
        return bool(pairs) and all(
            record.get("ended") == round_.get("ended") for record, round_ in pairs
        )

    def _scan_rounds(self, history: Sequence[Mapping[str, Any]], rounds: set[int]) -> None:
        """Find the latest and the best of the run's checkpoints."""
        self.best_round = self._best_value = None
        numbers = sorted(number for number in rounds if number < len(history))
        self._last_written = numbers[-1] if numbers else None
        for number in numbers:
            if self.best in history[number]:
                self._is_best(history[number])

    def _check_disk_space(self, trainer: TrainerProtocol) -> None:
        """Raise ``OSError`` if the disk or a quota has no space for a checkpoint."""
        needed = trainer.checkpoint_bytes()
        try:
            files.check_space(self.folder, needed)
        except OSError as error:
            error.add_note(f"A checkpoint in {self.folder} needs about {needed / 1e6:.1f} MB.")
            raise

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember whether the resumed run has written to this folder."""
        self._is_resumed = state["folder"] == self._name

    def state_dict(self) -> dict[str, Any]:
        """Return the folder and the best round, for ``restore(best=True)``."""
        return {"folder": self._name, "best_round": self.best_round}

    def on_round_end(self, trainer: TrainerProtocol, record: dict[str, Any]) -> None:
        """Write a checkpoint if it is due or the round is the best."""
        self._is_overdue = self._is_overdue or self._is_due(record["round"])
        if trainer.state_id is not None and (self._is_best(record) or self._is_overdue):
            self._write(trainer, record["round"])

    def _is_best(self, record: Mapping[str, Any]) -> bool:
        if self.best is None:
            return False
        value = monitored_number(record, self.best)
        if not is_better(value, self._best_value, self.mode):
            return False
        self._best_value = value
        self.best_round = record["round"]
        return True

    def on_fit_end(self, trainer: TrainerProtocol) -> None:
        """Write the last complete round unless it is written already, and release the lock."""
        number = trainer.history[-1]["round"] if trainer.history else 0
        state = trainer.state_id
        if state is not None and self._last_state != state:
            self._write(trainer, number)
        elif trainer.history:
            self._prune(number)  # a killed program may have written it without pruning
        self._lock.release()

    def on_exception(self, trainer: TrainerProtocol, error: BaseException) -> None:
        """Release the lock."""
        self._lock.release()

    def _write(self, trainer: TrainerProtocol, number: int) -> None:
        previous = self._last_written
        self._last_written = number
        self._last_state = trainer.state_id
        self._is_overdue = False
        try:
            path = storage.checkpoint_path(self.folder, number)
            self._histories.rotate()
            content = trainer.snapshot().to_dict()
            storage.write_checkpoint(path, content, self._disk, shared=self._histories[0])
            if self._remote is not None:
                self._remote.upload(path)
        except BaseException:
            self._last_written = previous
            raise
        self._prune(number)

    def _prune(self, number: int) -> None:
        """Remove all checkpoints up to this round but those to keep."""
        written = [saved for saved in storage.list_checkpoints(self.folder) if saved <= number]
        self._keep_only({*written[-self.keep :], self.best_round})

    def _keep_only(self, numbers: Container[int | None]) -> None:
        storage.prune_checkpoints(self.folder, numbers, self._disk)
        if self._remote is not None:
            self._remote.prune()
