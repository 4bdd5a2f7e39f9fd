"""The history in checkpoints: files of JSON lines that several checkpoints share.

The files never change. A checkpoint has all records in them but the last one, which callbacks may
still change: that is in its state. It gets the files of an earlier one as hard links, and its new
records in one more, into which it merges the last files that are not longer, as a log-structured
merge tree does (O'Neil et al., 1996). Of n records, each is therefore written
``1 + log2(LONGEST) / 2`` times on average, however large n is, and a checkpoint has about
``log2(LONGEST) + n / LONGEST`` files. Each checkpoint is a whole without the others: any may be
removed, copied, or resumed from. Where there are no hard links, each has files of its own.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from compss_train._utils import strict_json
from compss_train._utils.files import DISK, Disk, read_bytes
from compss_train.exceptions import BadCheckpointError
from compss_train.model.saved_state import STATE
from compss_train.reports.history import line_of
from compss_train.reports.records import Record

LONGEST = 4096
"""Maximum number of records of a file that is made by merging others."""


class HistoryFile(NamedTuple):
    """The records of a file: how many, and the SHA-256 of its bytes."""

    records: int
    sha256: str


def file_name(first_round: int) -> str:
    """Return the name of the file whose first record is that of this round."""
    return f"history-{first_round:06d}.jsonl"


class SharedHistory:
    """What the checkpoints that one fit writes share of the history."""

    def __init__(self) -> None:
        self._files: list[HistoryFile] = []
        """The files of the last checkpoint."""
        self._last: Record = {}
        """The last record in them."""
        self._emptied = 0
        """How many first records have lost their worker entries, which their files may have."""
        self._source: tuple[Path, int] | None = None
        """The last checkpoint and when its folder last changed; ``None`` if it is incomplete."""

    def write(self, folder: Path, history: Sequence[Record], disk: Disk = DISK) -> dict[str, Any]:
        """Write the history to files of a folder; return what ``read_history`` needs as well."""
        end = max(0, len(history) - 1)
        source = self._unchanged_source(history)
        self._source = None
        files = _planned_files([] if source is None else self._files, end)
        self._files = []
        start = 0
        for file in files:
            path = folder / file_name(start)
            stop = start + file.records
            is_linked = source and file.sha256 and _linked(source / path.name, path, disk)
            self._files.append(file if is_linked else _written(path, history[start:stop], disk))
            start = stop
        self._last = history[end - 1] if end else {}
        if source is None:
            self._emptied = 0
        while self._emptied < end and not history[self._emptied].get("workers"):
            self._emptied += 1
        return {
            "files": [file.sha256 for file in self._files],
            "emptied": self._emptied,
            "rest": [strict_json.loads(line_of(record)) for record in history[end:]],
        }

    def completed(self, folder: Path) -> None:
        """Let the next checkpoint share the files of this one, which now has its final name."""
        with suppress(OSError):
            self._source = folder, folder.stat().st_mtime_ns

    def _unchanged_source(self, history: Sequence[Record]) -> Path | None:
        """Return the last checkpoint, unless it was changed by others, or has another history."""
        number = sum(file.records for file in self._files)
        if self._source is None or number >= len(history):
            return None
        if number and not _same(history[number - 1], self._last):
            return None
        folder, changed_at = self._source
        with suppress(OSError):
            if folder.stat().st_mtime_ns == changed_at:
                return folder
        return None


def _planned_files(shared: Sequence[HistoryFile], end: int) -> list[HistoryFile]:
    """Return the files for the first ``end`` records: some shared ones, and a new one.

    The new one, without a checksum, also gets the records of the last files that are not longer.
    """
    kept = len(shared)
    new_records = end - sum(file.records for file in shared)
    while new_records and kept:
        records = shared[kept - 1].records
        if records > new_records or new_records + records > LONGEST:
            break
        kept -= 1
        new_records += records
    new_files = [HistoryFile(new_records, "")] if new_records else []
    return [*shared[:kept], *new_files]


def _same(record: Record, other: Record) -> bool:
    """Return whether records are of the same round: no two rounds ended at the same time."""
    return record is other or ("ended" in record and record["ended"] == other.get("ended"))


def _linked(source: Path, target: Path, disk: Disk) -> bool:
    """Link a file; return ``False`` if it is gone, or the file system allows no further link."""
    with suppress(OSError):
        disk.link(source, target)
        return True
    return False


def _written(path: Path, records: Sequence[Record], disk: Disk) -> HistoryFile:
    data = "".join(map(line_of, records)).encode()
    disk.write(path, lambda path: path.write_bytes(data))
    disk.sync(path)
    return HistoryFile(len(records), hashlib.sha256(data).hexdigest())


def read_history(folder: Path, saved: Mapping[str, Any]) -> list[Record]:
    """Return the history of which ``SharedHistory.write`` returned this.

    Raises ``BadCheckpointError`` if a file is missing, damaged or cannot be read.
    """
    history: list[Record] = []
    try:
        for sha256 in saved["files"]:
            name = file_name(len(history))
            data = read_bytes(folder / name)
            if hashlib.sha256(data).hexdigest() != sha256:
                raise BadCheckpointError(
                    folder, (f"{name} is damaged: its checksum is not the one in {STATE}")
                )
            for record in map(strict_json.loads, data.splitlines()):
                emptied = len(history) < saved["emptied"] and record.get("workers")
                history.append({**record, "workers": []} if emptied else record)
        return [*history, *saved["rest"]]
    except BadCheckpointError:
        raise
    except FileNotFoundError as error:
        raise BadCheckpointError(folder, f"it has no {name}") from error
    except OSError as error:
        raise BadCheckpointError(folder, f"{name} cannot be read: {error}") from error
    except (TypeError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise BadCheckpointError(
            folder, f"its history is not that of a trainer: {error}"
        ) from error
