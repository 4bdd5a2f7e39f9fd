"""``Callback``: the base class of what a fit calls in the coordinator."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from compss_train.worker.callbacks import WorkerCallback


@dataclass
class MergingWorker:
    """A worker whose result is about to be merged, for ``Callback.on_merge``."""

    worker: int
    """Its number."""
    round: int
    """The round that it has trained; a late worker's is an earlier one."""
    measured: Mapping[str, Any]
    """Its loss and metrics, by their names in the history."""
    weight: float
    """How much it counts in the merge: its samples that count, unless a callback changes it.

    It is what its loss is a mean over: the sum of its targets' weights, if they differ.
    """


class Callback:
    """Base class of callbacks. All hooks do nothing; override those you need.

    Hooks run in the coordinator's thread, in the order of the list. The order of calls is fixed:
    the start of the fit, then the start and end of each round (a cancelled round has no end), then
    the end of the fit; an exception may occur at any time. An exception raised by a hook ends the
    fit and names the callback; ``trainer.stop(reason)`` ends the fit cleanly.

    ``trainer`` is the ``DistributedTrainer``. It is typed as ``Any`` here, so that an override may
    annotate it with that class, or as the callbacks of this package do with ``TrainerProtocol``.
    """

    keeps_state: ClassVar[bool] = False
    """Whether the callback saves the state of the fit.

    If so, its ``on_round_end`` runs after all other callbacks', but its ``on_fit_start`` and
    ``on_fit_end`` run before them: if its folder is unavailable, the others have not done anything
    yet.
    """

    sets_hyperparameters: bool = False
    """Whether hooks call ``trainer.set_hyperparameters``: ``True`` lets no round run ahead.

    A round is then submitted after ``on_round_end`` of the one before, so that what is set there
    holds in the next round, on every engine.
    """

    def on_fit_start(self, trainer: Any, total_samples: int | None) -> None:
        """Run before the first round of ``total_samples`` to train on, ``None`` if unknown."""

    def on_round_start(self, trainer: Any, number: int) -> None:
        """Run when the fit starts to wait for a round; its tasks may already be running."""

    def on_merge(self, trainer: Any, workers: Sequence[MergingWorker]) -> None:
        """Run before workers merge, and possibly change their ``weight``; 0 leaves one out.

        For merges of several workers: synchronous ones, and commutative ones with a quorum. A fit
        with a callback that overrides this gives each worker a task of its own, and starts no round
        before the merge of the last one; the history has the weights.
        """

    def on_round_end(self, trainer: Any, record: dict[str, Any]) -> None:
        """Run after a round; ``record`` is its entry in ``trainer.history``."""

    def on_fit_end(self, trainer: Any) -> None:
        """Run after the last round, when the trainer has the final parameters."""

    def on_exception(self, trainer: Any, error: BaseException) -> None:
        """Run when an exception, Ctrl-C included, ends a fit after ``on_fit_start``.

        It is raised again afterwards.
        """

    def check(self, trainer: Any) -> None:
        """Raise an exception if the trainer does not suit the callback.

        Called before fits, and in ``check_fit``.
        """

    def traced_worker(self, number: int) -> int | None:
        """Return the worker to trace (``torch.profiler``) in round ``number``, or ``None``."""
        return None

    def write_trace(self, trainer: Any, worker: int, trace: bytes) -> None:
        """Save the trace of a worker's round, gzip-compressed JSON; called after the round."""

    def needs_state(self, number: int) -> bool:
        """Return whether ``on_round_end`` of round ``number`` will call ``trainer.snapshot()``.

        Workers that merge asynchronously then wait for each other once, so that the snapshot is
        consistent.
        """
        return False

    def watches(self) -> str | None:
        """Return the name of the record field that the callback monitors, or ``None``."""
        return None

    def writes_to(self) -> Path | None:
        """Return the file or folder that no other callback may write to, or ``None``."""
        return None

    def resume_folder(self) -> Path | None:
        """Return the folder of checkpoints that ``fit(resume=True)`` resumes from, or ``None``."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """Return the state that a resumed fit needs.

        It is made of numbers, strings and arrays, in dicts and lists.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state of ``state_dict``, before ``on_fit_start`` of a resumed fit."""


AnyCallback: TypeAlias = Callback | WorkerCallback
"""What ``fit(callbacks=...)`` takes."""
