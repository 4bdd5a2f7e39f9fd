"""``Simulations.write``: runs simulations as tasks that write their samples to files."""

import secrets
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from compss_train._utils.files import FolderLock, make_folders
from compss_train._utils.validation import check_choice, warn_user
from compss_train.data.writing import FORMATS
from compss_train.engines import Engine, Ref, Resources, codec, engine_class
from compss_train.engines.watch import say
from compss_train.exceptions import SimulationError
from compss_train.online import simulation_file
from compss_train.online.inputs import SHOWN, hash_of, own_copy, shown
from compss_train.online.simulation_file import SimulationWritten, write_simulation
from compss_train.online.simulation_records import SimulationRecord, SimulationRecords
from compss_train.online.solver import shared_cores
from compss_train.online.solver_steps import SolverSteps
from compss_train.online.source_failures import FIRST, SourceFailure
from compss_train.online.source_messages import SimulationFailed

_TICK = 0.05
"""Seconds between looks at the tasks that run."""


@dataclass(eq=False)
class _Run:
    """A simulation that runs, or is to run."""

    number: int
    value: Any
    input_hash: int
    failures: int = 0
    report: Path = field(default_factory=Path)
    """The file by which its task knows that it runs for the second time."""

    def __str__(self) -> str:
        return f"simulation {self.number} of input {shown(self.value)}"


@dataclass(kw_only=True, eq=False)
class SimulationWriter:
    """Writes simulations to files of a folder; goes on after those that are complete there."""

    simulate: Callable[[Any], Iterable[Any]]
    inputs: Iterable[Any]
    count: int
    """How many run at a time."""
    retries: int
    timeout: float | None
    steps_of: Callable[[Any], int | None]
    resources: Resources
    folder: Path
    format: str
    _repeated: deque[_Run] = field(default_factory=deque, init=False)
    """Those that are to run again."""
    _given_up: list[str] = field(default_factory=list, init=False)
    """What messages call the simulations that were given up."""
    _failure: SourceFailure | None = field(default=None, init=False)
    """That of the first one."""

    def __post_init__(self) -> None:
        check_choice("format", self.format, FORMATS)
        if self.format == "npy":
            raise ValueError(
                "format='npy': its files hold one array, and simulations have x, y and step; "
                "choose npz, npz-compressed, pt or h5"
            )
        self._solver_steps = SolverSteps(self.simulate)
        self._suffix = f".{self.format.partition('-')[0]}"

    def write(self, engine: str | Engine) -> list[str]:
        """Run what is not complete; return the names of all files, in the order of inputs."""
        if not isinstance(engine, Engine):
            kind = engine_class(engine)
            preload = [simulation_file.__name__]
            with kind.start(self.count, self.resources.cpus, preload) as started:
                return self.write(started)
        if self.timeout is not None and not engine.traits.asynchronous:
            raise ValueError(
                f"timeout={self.timeout} on the {engine.name} engine, which runs simulations in "
                "this process, where none can be ended; use engine='local', or leave it out"
            )
        at_a_time = self.count if engine.traits.asynchronous else 1
        shortage = shared_cores(at_a_time, self.resources.cpus, engine.nodes())
        if shortage is not None:
            say(shortage)
        make_folders(self.folder)
        with self._locked():
            records = SimulationRecords(self.folder)
            self._check_files(records)
            records.begin()
            if records.complete:
                say(f"{self.folder} has {len(records.complete)} simulations; going on")
            for record in records.complete[:1]:
                self._solver_steps.compare(str(record), record.steps)
            with engine.scope():
                self._run(engine, records)
            self._report(records)
            return [str(self.folder / record.file) for record in records.complete if record.file]

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other programs out of the folder; remove what those that were killed have left."""
        lock = FolderLock(self.folder)
        lock.acquire()
        try:
            self._remove_temporary()
            yield
        finally:
            self._remove_temporary()
            lock.release()

    def _remove_temporary(self) -> None:
        for path in self.folder.glob(".simulation-*"):
            path.unlink(missing_ok=True)

    def _check_files(self, records: SimulationRecords) -> None:
        """Raise ``ValueError`` for files that are not of these simulations, or of another format.

        A pattern of names would find both.
        """
        existing = next(self.folder.glob(f"*{self._suffix}"), None)
        if existing is not None and not records.exists:
            raise ValueError(
                f"{self.folder} already contains {existing.name}, and no simulations; give another "
                "folder"
            )
        names = [record.file for record in records.complete if record.file]
        misfit = next((name for name in names if not name.endswith(self._suffix)), None)
        if misfit is not None:
            raise ValueError(
                f"format={self.format!r}: {self.folder} has {misfit}; give its format, or another "
                "folder"
            )

    def _run(self, engine: Engine, records: SimulationRecords) -> None:
        simulate = engine.publish(codec.pickled(self.simulate))
        running: dict[Ref, _Run] = {}
        with closing(self._pending(records)) as pending:
            while True:
                while len(running) < self.count:
                    run = self._repeated.popleft() if self._repeated else next(pending, None)
                    if run is None:
                        break
                    running[self._submit(engine, simulate, run)] = run
                if not running:
                    return
                for ref in _ended(engine, list(running)):
                    [outcome] = engine.fetch([ref])
                    self._take(running.pop(ref), outcome, records)

    def _pending(self, records: SimulationRecords) -> Generator[_Run]:
        """Iterate over the simulations that are not complete; check the inputs of the others."""
        number = -1
        for number, value in enumerate(self.inputs):
            input_hash = hash_of(value)
            if number in records:
                records.check(number, value, input_hash, self.steps_of(value))
            else:
                yield _Run(number, own_copy(value), input_hash)
        if number < 0:
            raise ValueError(
                "inputs= has no item: give at least one, and a new iterator to each call, as one "
                "is used up by the first"
            )
        records.check_number(number + 1)

    def _name(self, run: _Run) -> str:
        return f"simulation-{run.number:06d}{self._suffix}"

    def _submit(self, engine: Engine, simulate: Ref, run: _Run) -> Ref:
        run.report = self.folder / f".simulation-{run.number:06d}.{secrets.token_hex(4)}"
        ref: Ref = engine.submit(
            write_simulation,
            simulate,
            codec.pickled(run.value),
            run.number,
            str(self.folder / self._name(run)),
            str(run.report),
            self.format,
            self.timeout,
            self.steps_of(run.value),
            resources=self.resources,
        )
        return ref

    def _take(
        self, run: _Run, outcome: SimulationWritten | SimulationFailed, records: SimulationRecords
    ) -> None:
        """Record what came of a simulation, or let it run again."""
        run.report.unlink(missing_ok=True)
        if isinstance(outcome, SimulationFailed):
            self._failed(run, outcome, records)
            return
        self._check_layout(run, outcome, records)
        if self.steps_of(run.value) is None:
            self._solver_steps.compare(str(run), outcome.steps)
        records.add(
            SimulationRecord(
                simulation=run.number,
                input=shown(run.value),
                input_hash=run.input_hash,
                file=self._name(run) if outcome.samples else None,
                samples=outcome.samples,
                steps=outcome.steps,
                layout=outcome.layout,
            )
        )

    def _check_layout(
        self, run: _Run, written: SimulationWritten, records: SimulationRecords
    ) -> None:
        first = records.any_with_samples
        if first is None or not written.samples or written.layout == first.layout:
            return
        (self.folder / self._name(run)).unlink(missing_ok=True)
        raise SimulationError(
            f"{run} yielded what does not fit: samples of {written.layout}, and {first} has "
            f"samples of {first.layout}"
        )

    def _failed(self, run: _Run, failed: SimulationFailed, records: SimulationRecords) -> None:
        """Let a simulation run again, or give it up, with a warning."""
        if failed.rejected:
            raise SimulationError(f"{run} yielded what does not fit: {failed.rejected}")
        run.failures += 1
        failure = SourceFailure.of(run, failed)
        if run.failures <= self.retries and not failed.repeats:
            failure.warn_of_retry(run.failures, self.retries)
            self._repeated.append(run)
            return
        is_first = self._failure is None and bool(failed.traceback)
        failure.warn_of_skip(run.failures, repeats=failed.repeats, with_traceback=is_first)
        self._failure = self._failure or failure
        self._given_up.append(str(run))
        records.add(
            SimulationRecord(
                simulation=run.number,
                input=shown(run.value),
                input_hash=run.input_hash,
                failed=failed.failed,
            )
        )
        if not records.complete and len(self._given_up) >= max(FIRST, self.count):
            raise self._failure.with_reason(
                f"{len(self._given_up)} simulations were given up, and none is complete"
            )

    def _report(self, records: SimulationRecords) -> None:
        """Warn of the simulations that were given up; raise an error if no other is complete."""
        failure = self._failure
        if failure is None:
            return
        given_up = len(self._given_up)
        if not records.complete:
            raise failure.with_reason(f"no simulation is complete, and {given_up} were given up")
        names = self._given_up[:SHOWN]
        others = f" and {given_up - SHOWN} more" if given_up > SHOWN else ""
        warn_user(
            f"{self.folder} is {given_up} simulations short, which were given up: "
            f"{', '.join(names)}{others}. The first failure: {failure.summary}. Write to the same "
            "folder again to repeat them"
        )


def _ended(engine: Engine, refs: list[Ref]) -> list[Ref]:
    """Wait for tasks to end, and return them; of an engine that cannot tell, the first one."""
    while True:
        ended = engine.arrived(refs)
        if ended:
            return ended
        if engine.wait(refs[:1], _TICK):
            return refs[:1]
