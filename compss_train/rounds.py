"""The rounds of a fit: submit them a little ahead, collect what they measured, keep the history."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from compss_train.data.schedule import Round
from compss_train.engines import Engine, Ref
from compss_train.exceptions import BadFileError, EngineClosedError
from compss_train.fleet import Fleet
from compss_train.inference import Inference, means, tell_skipped
from compss_train.merging import Merge, Submitted
from compss_train.parameters import Parameters

Record = dict[str, Any]

MERGE_SECONDS = 1.0
"""How long an interrupted fit waits for the merge of a round whose training is complete."""


@dataclass
class Rounds:
    """Runs the rounds of one fit."""

    engine: Engine
    fleet: Fleet
    merge: Merge
    metric: str | None
    validation: Inference | None
    on_round: Callable[[Record], None]
    _complete: deque[Submitted] = field(default_factory=deque)
    """The last two rounds whose training is complete; the merge of the last may still be running."""
    _pending: deque[tuple[Submitted, list[Ref]]] = field(default_factory=deque)
    _skipped: dict[str, str] = field(default_factory=dict)
    _left_out: int = 0
    """Samples of files that could not be read since the last round that trained something."""
    _clock: float = field(default_factory=time.perf_counter)

    def run(self, rounds: Iterable[Round]) -> Parameters:
        """Submit and collect all rounds and return the final parameters; an exception of a task is raised here."""
        ahead = self.merge.rounds_ahead if self.engine.asynchronous else 0
        for round_ in rounds:
            submitted = self.merge.submit(self.fleet, round_)
            validation = self.validation.evaluate(submitted.parameters) if self.validation else []
            self._pending.append((submitted, validation))
            if len(self._pending) > ahead:
                self._collect(*self._pending.popleft())
        while self._pending:
            self._collect(*self._pending.popleft())
        final: Parameters = self.engine.fetch([self.merge.parameters])[0]
        while len(self._complete) > 1:
            self.merge.retire(self._complete.popleft())
        return final

    def current(self) -> Parameters | None:
        """Return the global parameters after the last complete round, ``None`` before there is one."""
        return self.merge.current(self._complete[-1]) if self._complete else None

    def newest(self) -> Parameters | None:
        """Return the parameters after the last complete round, or ``None`` where they cannot be had soon."""
        with contextlib.suppress(OSError, EngineClosedError):  # whatever ended the fit is what is told
            for submitted in reversed(self._complete):
                newest: Parameters | None = self.engine.peek(submitted.parameters, MERGE_SECONDS)
                if newest is not None:
                    return newest
        return None

    def _collect(self, submitted: Submitted, validation: list[Ref]) -> None:
        refs = [*submitted.measured.values(), *validation]
        values = self.engine.fetch(refs, small=True)
        self.engine.delete(refs)
        measured = dict(zip(submitted.measured, values, strict=False))
        tell_skipped(values, self._skipped)
        self._check_something_is_read(measured)
        self._complete.append(submitted)
        if len(self._complete) > 2:
            self.merge.retire(self._complete.popleft())
        record = self._record(submitted.round, measured)
        if validation:
            record |= means(values[len(measured) :], self.metric, "val_")
        self.on_round(record)

    def _check_something_is_read(self, measured: dict[int, dict[str, Any]]) -> None:
        """Raise ``BadFileError`` where no file of as many samples as an epoch has can be read."""
        self._left_out += sum(sums.get("left_out", 0) for sums in measured.values())
        if any(sums["samples"] for sums in measured.values()):
            self._left_out = 0
        elif self._left_out >= sum(self.fleet.data.sizes):
            file, reason = next(iter(self._skipped.items()))
            raise BadFileError(file, f"{reason}; nor can any other file be read")

    def _record(self, round_: Round, measured: dict[int, dict[str, Any]]) -> Record:
        now = time.perf_counter()
        seconds, self._clock = now - self._clock, now
        samples = sum(round_.counts) - sum(sums.get("left_out", 0) for sums in measured.values())
        return {
            "round": round_.number,
            "epoch": round_.epoch,
            **means(list(measured.values()), self.metric),
            "samples": samples,
            "seconds": seconds,
            "samples_per_second": samples / seconds,
            **({"skipped": list(self._skipped)} if self._skipped else {}),
            "workers": [
                {"worker": worker, "samples": int(sums["samples"]), "seconds": sums["seconds"]}
                | means([sums], self.metric)
                | {name: sums[name] for name in ("files",) if name in sums}
                for worker, sums in measured.items()
            ],
        }
