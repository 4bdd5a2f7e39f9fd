"""The history in checkpoints: files of JSON lines that never change, which several checkpoints
share.

A checkpoint has all records in such files, but for the last one, which callbacks may still change:
that is in its state. It gets the files of an earlier one as hard links, and its new records in one
more, into which it merges the last files that are not longer, as a log-structured merge tree does
(O'Neil et al., 1996). Of n records, each is therefore written ``1 + log2(LONGEST) / 2`` times on
average, however large n is, and a checkpoint has about ``log2(LONGEST) + n / LONGEST`` files. Each
checkpoint is a whole without the others: any may be removed, copied, or resumed from. Where there
are no hard links, each has files of its own.
"""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from compss_train._utils import strict_json
from compss_train._utils.files import DISK, Disk
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


def file_name(first: int) -> str:
    """Return the name of the file whose first record is that of this round."""
    return f"history-{first:06d}.jsonl"


class SharedHistory:
    """What the checkpoints that one fit writes share of the history."""

    def __init__(self) -> None:
        self._files: list[HistoryFile] = []
        """The files of the last checkpoint."""
        self._last: Record = {}
        """The last record in them."""
        self._emptied = 0
        """The number of first records that have no worker entries any more, although their files
        may have.
        """
        self._source: tuple[Path, int] | None = None
        """The last checkpoint and when its folder last changed; ``None`` if it is incomplete."""

    def write(self, folder: Path, history: Sequence[Record], disk: Disk = DISK) -> dict[str, Any]:
        """Write the history to files of a folder; return what ``read_history`` needs besides
        them.
        """
        end = max(0, len(history) - 1)
        source = self._unchanged_source(history)
        self._source = None
        files = [] if source is None else self._files
        new = end - sum(file.records for file in files)
        kept = len(files)
        while new and kept and files[kept - 1].records <= new <= LONGEST - files[kept - 1].records:
            kept -= 1
            new += files[kept].records
        self._files = []
        first = 0
        for file in [*files[:kept], *([HistoryFile(new, "")] if new else [])]:
            path = folder / file_name(first)
            stop = first + file.records
            shared = source is not None and file.sha256 and _linked(source / path.name, path, disk)
            self._files.append(file if shared else _written(path, history[first:stop], disk))
            first = stop
        self._last = history[end - 1] if end else {}
        self._emptied = 0 if source is None else self._emptied
        while self._emptied < end and not history[self._emptied].get("workers"):
            self._emptied += 1
        rest = [strict_json.loads(line_of(record)) for record in history[end:]]
        return {
            "files": [file.sha256 for file in self._files],
            "emptied": self._emptied,
            "rest": rest,
        }

    def completed(self, folder: Path) -> None:
        """Let the next checkpoint share the files of this one, which is complete and has its final
        name.
        """
        with suppress(OSError):
            self._source = folder, folder.stat().st_mtime_ns

    def _unchanged_source(self, history: Sequence[Record]) -> Path | None:
        """Return the last checkpoint, unless it was changed by others, or has another history."""
        number = sum(file.records for file in self._files)
        if self._source is None or number >= len(history):
            return None
        if number and not _same(history[number - 1], self._last):
            return None
        with suppress(OSError):
            return (
                self._source[0] if self._source[0].stat().st_mtime_ns == self._source[1] else None
            )
        return None


def _same(record: Record, other: Record) -> bool:
    """Return whether records are of the same round: when it ended is unique, and stays when entries
    are emptied.
    """
    return record is other or ("ended" in record and record["ended"] == other.get("ended"))


def _linked(old: Path, new: Path, disk: Disk) -> bool:
    """Link a file; return ``False`` if it is gone, or the file system has no hard links or no more
    of this file.
    """
    with suppress(OSError):
        disk.link(old, new)
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
            data = (folder / name).read_bytes()
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
