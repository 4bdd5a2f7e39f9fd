"""``Profile``: which round of which worker a fit traces, and the file of the trace."""

import gzip
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from compss_train._utils.files import atomic_path, is_special_file
from compss_train._utils.validation import check_count, warn_user


@dataclass(frozen=True)
class Profile:
    """What ``fit(profile=...)`` traces: by default the second round, as the first one does much that others do not.

    Parameters
    ----------
    path:
        A file whose name ends in ``.json`` or ``.json.gz``, which is replaced; folders are made.
    round:
        Which round of the fit, counted from 1; 2 by default.
    worker:
        Which worker, counted from 0; 0 by default.

    Raises ``ValueError`` for other names and numbers, and ``IsADirectoryError`` for a folder.
    """

    path: str | os.PathLike[str] = "profile.json"
    round: int = 2
    worker: int = 0

    def __post_init__(self) -> None:
        if not str(self.path).endswith((".json", ".json.gz")):
            raise ValueError(f"profile={str(self.path)!r}: give a name that ends in .json or .json.gz")
        check_count("round", self.round)
        check_count("worker", self.worker, least=0)

    @classmethod
    def of(cls, value: "ProfileLike") -> "Profile | None":
        """Return the argument ``profile`` of ``fit``; raise ``TypeError`` if it is none."""
        if value is None or isinstance(value, Profile):
            return value
        if isinstance(value, bool):
            return cls() if value else None
        if not isinstance(value, str | os.PathLike):
            raise TypeError(f"profile={value!r}: give the path of a JSON file, a Profile, True or None")
        return cls(value)

    @property
    def location(self) -> str:
        """The absolute path."""
        return os.path.abspath(self.path)

    def check(self, num_workers: int) -> None:
        """Raise ``ValueError`` for a worker that the trainer lacks, ``OSError`` if the file cannot be written."""
        if self.worker >= num_workers:
            raise ValueError(f"profile= asks for worker {self.worker}, and there are {num_workers}, counted from 0")
        path = Path(self.location)
        if path.is_dir() or is_special_file(path):
            raise IsADirectoryError(f"{path} is no file that a trace can be written to; give another path")
        parent = next(folder for folder in path.parents if folder.exists())
        if not (parent.is_dir() and os.access(parent, os.W_OK)):
            raise PermissionError(f"profile={str(self.path)!r}: {parent} is not a writable folder")

    def starting_at(self, first_round: int) -> "TracedRound":
        """Return the round that is traced, if the fit starts with this one."""
        return TracedRound(self, first_round + self.round - 1)


ProfileLike: TypeAlias = bool | str | os.PathLike[str] | Profile | None
"""What ``fit(profile=...)`` takes."""


@dataclass
class TracedRound:
    """The round of a running fit that is traced."""

    profile: Profile
    number: int
    written: bool = False

    def worker_in(self, number: int) -> int | None:
        """Return the worker that is traced in a round, ``None`` for none."""
        return self.profile.worker if number == self.number else None

    def write(self, measured: Sequence[Mapping[str, Any]]) -> None:
        """Write the trace that is among the measurements of workers, if any is."""
        path = Path(self.profile.location)
        for trace in (part["trace"] for part in measured if "trace" in part):
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_path(path) as temporary:
                temporary.write_bytes(trace if path.suffix == ".gz" else gzip.decompress(trace))
            self.written = True

    def warn_if_missing(self) -> None:
        """Warn if the fit has ended without a trace."""
        if not self.written:
            warn_user(
                f"no trace was written to {self.profile.location}: the fit ended before its round "
                f"{self.profile.round}, which profile= asks for, or worker {self.profile.worker} had no samples"
            )
