"""Quotas of cores for groups of processes, such as those of an emulated node, by cgroups."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
PERIOD = 20_000
"""Microseconds of a quota."""
MOST_WEIGHT = "10000"
"""Weight with which a group gets its cores also on a busy machine."""
MOST_SHARES = "262144"
"""The same for the first version of cgroups."""


@dataclass(frozen=True)
class Quota:
    """The cores that each of some groups may use.

    It says all as text and numbers, so that a process in a group can hold it, too.
    """

    groups: Sequence[str] = ()
    """The folders of control groups; none where none can be made."""
    cores: float = 0.0
    file: str = ""
    """Of a group, with its limit."""
    limited: str = ""
    """What the file says where the quota is held."""
    unlimited: str = ""
    """What it says where it is not."""
    owner: int = 0
    """The process that made the groups: a network namespace has a /sys without them."""

    @classmethod
    def of(cls, names: Sequence[str], cores: float) -> Quota:
        """Make a group for each name.

        Raises:
            OSError: A group can not be made, or given a weight; none is left.
        """
        microseconds = int(PERIOD * cores)
        if (ROOT / "cpu").is_dir():
            root = ROOT / "cpu"
            settings = {"cpu.shares": MOST_SHARES, "cpu.cfs_period_us": str(PERIOD)}
            limits = ("cpu.cfs_quota_us", str(microseconds), "-1")
        else:
            root = ROOT
            settings = {"cpu.weight": MOST_WEIGHT}
            limits = ("cpu.max", f"{microseconds} {PERIOD}", f"max {PERIOD}")
        groups = [str(root / name) for name in names]
        quota = cls(groups, cores, *limits, owner=os.getpid())
        try:
            for folder in groups:
                Path(folder).mkdir()
                for setting, value in settings.items():
                    Path(folder, setting).write_text(value)
        except OSError:
            quota.remove()
            raise
        return quota

    @contextmanager
    def held(self) -> Iterator[None]:
        """Limit the groups meanwhile.

        Processes start without a limit: with a quarter of a core one needs 20 s for its imports.
        """
        self._write(self.limited)
        try:
            yield
        finally:
            self._write(self.unlimited)

    def _write(self, limit: str) -> None:
        if self.groups:
            files = [f"{folder}/{self.file}" for folder in self.groups]
            command = ("nsenter", f"--target={self.owner}", "--mount", "tee", *files)
            subprocess.run(command, input=limit, text=True, check=True, stdout=subprocess.DEVNULL)

    def remove(self) -> None:
        """Remove the groups, from which no process may start any more."""
        for folder in self.groups:
            # A process that ends a moment later: an empty group costs nothing.
            with suppress(OSError):
                Path(folder).rmdir()
