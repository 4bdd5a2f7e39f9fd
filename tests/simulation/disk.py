"""A disk that fills up, cuts writes short, and forgets what was not synced when the power goes."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from compss_train._utils.files import Disk
from tests.simulation.engine import FaultPlan


@dataclass(frozen=True)
class Change:
    """A change of a folder's entries that a loss of power may undo."""

    folder: Path
    undo: Callable[[Path], object]
    """Is called with ``folder``."""
    moved: tuple[Path, Path] | None = None
    """From where to where it moved a folder."""


class FaultyDisk(Disk):
    """A real folder, with faults at a ``"disk"`` operation.

    ``full``: there is no space, and half is written. ``cut``: half is written, without an error.
    ``kill``: the coordinator is killed before it, and in the middle of a write. After
    ``lose_power`` files that were not synced have any of their bytes, and of the changes of folders
    that were not synced only the first ones have happened.
    """

    def __init__(self, plan: FaultPlan, draw: random.Random, trash: Path) -> None:
        self._plan = plan
        self._draw = draw
        self._trash = trash
        self._changes: list[Change] = []
        self._unsynced: set[Path] = set()
        self._removed = 0
        trash.mkdir()

    def make_folder(self, path: Path) -> None:
        self._occasion(path)
        if not path.exists():
            super().make_folder(path)
            self._change(path.parent, lambda parent: shutil.rmtree(parent / path.name))

    def write(self, path: Path, write: Callable[[Path], object]) -> None:
        kind = self._occasion(path, writes=True)
        existed = path.exists()
        super().write(path, write)
        self._unsynced.add(path)
        if not existed:
            self._change(path.parent, lambda parent: (parent / path.name).unlink())
        if kind is not None:
            os.truncate(path, path.stat().st_size // 2)
        if kind == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if kind == "kill":
            self._plan.kill()

    def sync(self, path: Path) -> None:
        self._occasion(path)
        self._unsynced.discard(path)
        remaining: list[Change] = []
        for change in self._changes:
            if change.folder != path:
                remaining.append(change)
            elif change.moved is not None:
                remaining = [_relocated(each, *change.moved) for each in remaining]
        self._changes = remaining

    def link(self, old: Path, new: Path) -> None:
        self._occasion(new)
        super().link(old, new)
        self._change(new.parent, lambda parent: (parent / new.name).unlink())

    def rename(self, old: Path, new: Path) -> None:
        self._occasion(old)
        self.rename_safely(old, new)

    def rename_safely(self, old: Path, new: Path) -> None:
        """Rename without a fault."""
        self._move(old, new)
        self._change(
            old.parent, lambda parent: self._move(parent / new.name, parent / old.name), (old, new)
        )

    def remove(self, folder: Path) -> None:
        self._occasion(folder, fails=False)
        self.remove_safely(folder)

    def remove_safely(self, folder: Path) -> None:
        """Remove a folder without a fault."""
        if folder.exists():
            self._removed += 1
            kept = self._trash / str(self._removed)
            self._move(folder, kept)
            self._change(
                folder.parent, lambda parent: self._move(kept, parent / folder.name), (folder, kept)
            )

    def lose_power(self) -> None:
        """Forget some of what was not synced."""
        lost = self._changes[self._draw.randint(0, len(self._changes)) :]
        for change in reversed(lost):
            change.undo(change.folder)
        for path in sorted(filter(Path.exists, self._unsynced)):
            os.truncate(path, self._draw.choice([0, path.stat().st_size // 2, path.stat().st_size]))
        self._changes.clear()
        self._unsynced.clear()

    def _move(self, old: Path, new: Path) -> None:
        old.rename(new)
        inside = {path for path in self._unsynced if path.is_relative_to(old)}
        self._unsynced -= inside
        self._unsynced |= {new / path.relative_to(old) for path in inside}

    def _change(
        self, folder: Path, undo: Callable[[Path], object], moved: tuple[Path, Path] | None = None
    ) -> None:
        self._changes.append(Change(folder, undo, moved))

    def _occasion(self, path: Path, *, writes: bool = False, fails: bool = True) -> str | None:
        """Return the kind of a fault of a write; raise others."""
        self._plan.check_alive()
        for fault in self._plan.at("disk"):
            if writes:
                return fault.kind
            if fault.kind == "kill":
                self._plan.kill()
            if fault.kind == "full" and fails:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        return None


def _relocated(change: Change, old: Path, new: Path) -> Change:
    """Return a change inside a folder that has moved for good."""
    if not change.folder.is_relative_to(old):
        return change
    return replace(change, folder=new / change.folder.relative_to(old))
