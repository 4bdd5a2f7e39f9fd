"""How an online fit ends before all samples are trained: its phases, and what leads to the next."""

import time
from enum import Enum

from compss_train.training.snapshot import Study
from compss_train.training.stopping import LONGEST_SAVING, Stopping

GRACE = 5.0
"""Seconds for workers to end a fit that must stop at once: they merge and send their states."""


class Phase(Enum):
    """What an online fit is about to do."""

    TRAINING = "training"
    """It trains until its workers are done, and makes saves when they are due."""
    SAVING = "saving"
    """It is to stop: its workers make the last save first."""
    STOPPING = "stopping"
    """Its workers are told to stop, after the last save or without one."""
    ABANDONED = "abandoned"
    """They have not stopped in time: it ends without them."""


class Ending:
    """The phase of an online fit, which a callback, a time limit or SIGTERM may have to stop.

    ::

        TRAINING ── is to stop ──────────────────────────────────▶ SAVING
        TRAINING ── is to stop, and no callback keeps saves ─────▶ STOPPING
        SAVING ──── the save is made, or cannot be stored ───────▶ STOPPING
        SAVING ──── was urgent for LONGEST_SAVING seconds ───────▶ STOPPING
        STOPPING ── was urgent for GRACE seconds ────────────────▶ ABANDONED
    """

    def __init__(self, stopping: Stopping, *, keeps_saves: bool) -> None:
        self._stopping = stopping
        self._keeps_saves = keeps_saves
        self.phase = Phase.TRAINING
        self.reason: str | None = None
        """Why the fit stops, once it does."""
        self.last_save: Study | None = None
        """The save with which it stops, once that is made."""
        self._urgent_since: float | None = None
        """Since when the present phase has been urgent."""

    @property
    def urgent(self) -> bool:
        """Whether the fit must stop at once."""
        return self._stopping.urgent

    def advance(self) -> None:
        """Enter the next phase if it is time; to be called often, until all workers are done."""
        if self._stopping.reason is None:
            return
        self.reason = self._stopping.reason
        match self.phase:
            case Phase.TRAINING:
                self._enter(Phase.SAVING if self._keeps_saves else Phase.STOPPING)
            case Phase.SAVING if self._seconds_urgent() >= LONGEST_SAVING:
                self._enter(Phase.STOPPING)
            case Phase.STOPPING if self._seconds_urgent() > GRACE:
                self._enter(Phase.ABANDONED)

    def end_saving(self, save: Study | None) -> None:
        """Let the workers stop: the last save is made, or ``None`` if it could not be stored."""
        self.last_save = save
        self._enter(Phase.STOPPING)

    def _enter(self, phase: Phase) -> None:
        self.phase = phase
        self._urgent_since = time.monotonic() if self.urgent else None

    def _seconds_urgent(self) -> float:
        """Return for how long the present phase has been urgent."""
        if not self.urgent:
            return 0.0
        now = time.monotonic()
        if self._urgent_since is None:
            self._urgent_since = now
        return now - self._urgent_since
