"""The file in which a study notes its jobs, for the program that goes on when it was killed."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

JOURNAL = "jobs.jsonl"
"""Its name, in the folder of the study."""


@dataclass(frozen=True)
class EarlierJobs:
    """What the next program has to know of the jobs of the programs before it."""

    names: dict[str, str] = field(default_factory=dict)
    """By the id of each job that may be in the queue, its name; the last ones come last."""
    attempts: dict[str, float] = field(default_factory=dict)
    """By the names of jobs whose submission has begun, and whose id is not known, when it began
    (Unix time).
    """

    def before(self, other: "EarlierJobs") -> "EarlierJobs":
        """Return these jobs and those of another one, which count as later."""
        names = {**self.names, **other.names}
        return EarlierJobs(names, {**self.attempts, **other.attempts})


class JobJournal:
    """Writes a line when a job is to be submitted, when it has an id, and when it is gone.

    Without a path it writes nothing. Methods raise ``OSError`` if the disk fails.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def attempt(self, name: str) -> None:
        """Note, before the queue is asked, that a job is submitted."""
        self._write([{"simulation": name, "submitted": time.time()}])

    def job(self, name: str, job_id: str) -> None:
        """Note the id of a job."""
        self._write([{"simulation": name, "job": job_id}])

    def gone(self, job_ids: Sequence[str]) -> None:
        """Note that jobs are not in the queue any more."""
        self._write([{"gone": job_id} for job_id in job_ids])

    def _write(self, entries: Sequence[dict[str, Any]]) -> None:
        if self._path is None or not entries:
            return
        with self._path.open("a") as file:
            # The last line may be half written, as the disk was full: it must not spoil these.
            file.write("\n" + "".join(json.dumps(entry) + "\n" for entry in entries))


def read_journal(path: Path) -> EarlierJobs:
    """Return the jobs of a journal; nothing of a line that was not written to its end."""
    jobs = EarlierJobs()
    if not path.exists():
        return jobs
    for line in path.read_text(errors="replace").splitlines():
        try:
            _read_entry(jobs, json.loads(line))
        except (ValueError, KeyError, TypeError):
            continue
    return jobs


def _read_entry(jobs: EarlierJobs, entry: dict[str, Any]) -> None:
    if "gone" in entry:
        jobs.names.pop(str(entry["gone"]), None)
        return
    name = str(entry["simulation"])
    if "submitted" in entry:
        jobs.attempts[name] = float(entry["submitted"])
        return
    job_id = str(entry["job"])
    jobs.names.pop(job_id, None)
    jobs.names[job_id] = name
    jobs.attempts.pop(name, None)
