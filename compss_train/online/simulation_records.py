"""The record of a folder of simulations: which are complete, of which input, and in which file."""

import json
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from compss_train._utils.files import write_atomic
from compss_train.online.inputs import shown

NAME = "simulations.jsonl"
"""The file of the record in its folder."""


@dataclass(frozen=True, kw_only=True)
class SimulationRecord:
    """A line of the file: a simulation that has ended."""

    simulation: int
    input: str
    """Its input as messages show it."""
    input_hash: int
    """That of the whole input, 0 if it has none."""
    file: str | None = None
    """The file with its samples; ``None`` if there are none."""
    samples: int = 0
    steps: int = 0
    layout: dict[str, str] = field(default_factory=dict)
    """Dtype and shape of x and y."""
    failed: str | None = None
    """Why it was given up; ``None`` for a complete one."""

    def __str__(self) -> str:
        return f"simulation {self.simulation} of input {self.input}"


class SimulationRecords:
    """The records of a folder, by simulation; those that were given up are run again."""

    def __init__(self, folder: Path) -> None:
        """Read the records of earlier programs, and write them again without those that failed.

        A line that was cut off when a program was killed is left out, as is a simulation whose file
        was removed: both run again. Raises ``ValueError`` for a file that is no record.
        """
        self._path = folder / NAME
        self.exists = self._path.exists()
        """Whether an earlier program has written to the folder."""
        self._complete: dict[int, SimulationRecord] = {}
        self.given_up: list[SimulationRecord] = []
        """Those that the last program has given up."""
        for record in self._read() if self.exists else ():
            has_file = record.file is None or (folder / record.file).exists()
            if record.failed is not None:
                self.given_up.append(record)
            elif has_file:
                self._complete[record.simulation] = record

    def _read(self) -> Iterator[SimulationRecord]:
        text = self._path.read_text(encoding="utf-8", errors="replace")
        *lines, cut_off = text.split("\n")
        for number, line in enumerate(lines, 1):
            try:
                yield SimulationRecord(**json.loads(line))
            except (ValueError, TypeError) as error:
                raise ValueError(
                    f"line {number} of {self._path} is no record of a simulation ({error}); give "
                    "another folder, or remove the line: its simulation runs again"
                ) from None
        with suppress(ValueError, TypeError):
            yield SimulationRecord(**json.loads(cut_off))

    def begin(self) -> None:
        """Write the file anew, with the simulations that are complete."""
        write_atomic(self._path, "".join(map(_line, self.complete)))

    def __contains__(self, simulation: int) -> bool:
        return simulation in self._complete

    @property
    def complete(self) -> list[SimulationRecord]:
        """The simulations that are complete, in order."""
        return [self._complete[number] for number in sorted(self._complete)]

    @property
    def any_with_samples(self) -> SimulationRecord | None:
        """One of those that have samples, which all have the same layout; ``None`` if none has."""
        return next((record for record in self._complete.values() if record.samples), None)

    def check(self, simulation: int, value: object, input_hash: int, steps: int | None) -> None:
        """Raise ``ValueError`` if a complete simulation had another input, or not these steps."""
        record = self._complete[simulation]
        if record.input_hash != input_hash:
            raise ValueError(
                f"the input of simulation {simulation} was {record.input} in {self._path}, and is "
                f"{shown(value)}; give the same inputs, in the same order, or another folder"
            )
        if steps is not None and record.steps != steps:
            raise ValueError(
                f"{record} has {record.steps} steps in {self._path}, and steps= says {steps}: "
                f"remove {record.file or 'its line'} to run it again, or give its steps"
            )

    def check_number(self, simulations: int) -> None:
        """Raise ``ValueError`` if the folder has more simulations than there are inputs."""
        beyond = [number for number in self._complete if number >= simulations]
        if beyond:
            raise ValueError(
                f"inputs= has {simulations} items, and {self._path} has simulation {max(beyond)}; "
                "give the same inputs, in the same order, or another folder"
            )

    def add(self, record: SimulationRecord) -> None:
        """Write the record of a simulation that has ended."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(_line(record))
        if record.failed is None:
            self._complete[record.simulation] = record


def _line(record: SimulationRecord) -> str:
    return f"{json.dumps(asdict(record))}\n"
