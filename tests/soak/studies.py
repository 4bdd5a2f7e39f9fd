"""Studies whose processes are killed at random: ``python -m tests.soak.studies COUNT [FIRST]``.

Workers, simulations, ranks of solvers, senders and the coordinator are killed; a coordinator and a
sender with a name are started again. FIFO and FIRO must train each sample exactly once, or say what
is lost; more often only if a worker has died within a life, as docs/online.md says.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from tests.helpers.processes import ROOT, session
from tests.online.simulations import free_port
from tests.soak.disturbed import noted
from tests.soak.study_program import Study

LIMIT = 300.0
"""Seconds after which a study waits forever."""
RESTARTS = 4
"""How often a worker may be killed without a new save, and be started again."""


@dataclass
class KilledStudy:
    """A study of a seed that runs, and what was killed of it."""

    seed: int
    folder: Path
    kills: Counter[str] = field(default_factory=Counter)
    coordinator: subprocess.Popen | None = None
    sender: subprocess.Popen | None = None

    def __post_init__(self) -> None:
        self.study = Study.of(self.seed)
        self.draw = random.Random(f"kills {self.seed}")

    def start(self, *role: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "tests.soak.study_program", str(self.folder)]
        with (self.folder / "output.txt").open("a") as output:
            return subprocess.Popen(
                [*command, str(self.seed), *role],
                cwd=ROOT,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def run(self) -> None:
        """Run the study to its end, with up to four kills."""
        (self.folder / "port").write_text(str(free_port()))
        self.coordinator = self.start()
        if self.study.sender is not None:
            self.sender = self.start("sender")
        kills = self.draw.randint(1, 4)
        end = time.monotonic() + LIMIT
        due = time.monotonic() + self.draw.uniform(0.1, 2)
        while (status := self.coordinator.poll()) is None:
            if time.monotonic() > end:
                raise AssertionError(f"it has not ended in {LIMIT:.0f} s: {self.said()}")
            self.restart_sender()
            trains = noted(self.folder, "workers")
            if not trains and not sum(self.kills.values()):
                due = time.monotonic() + self.draw.uniform(0.1, 2)
            elif kills and time.monotonic() > due:
                kills -= self.kill()
                due = time.monotonic() + self.draw.uniform(0.2, 2)
            with suppress(subprocess.TimeoutExpired):
                self.coordinator.wait(0.05)
        self.check(status)

    def restart_sender(self) -> None:
        """Start a sender with a name again if it was killed, or the fit asks for it."""
        if self.sender is None or self.sender.poll() is None or self.study.sender != "named":
            return
        asks = sum("start it again" in text for text in self.said())
        if self.sender.returncode or asks > self.kills["asks"]:
            self.kills["asks"] = asks
            self.sender = self.start("sender")

    def kill(self) -> bool:
        """Kill one process; return whether there was one of the kind that was drawn."""
        kinds = ["workers", "simulations", "senders", "ranks", "coordinator"]
        kind = self.draw.choice(kinds)
        if kind == "coordinator":
            if not self.study.is_saved or self.study.sender == "nameless":
                return False
            for process in session(self.coordinator.pid):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self.coordinator.wait()
            self.coordinator = self.start()
        else:
            victims = self.ranks() if kind == "ranks" else noted(self.folder, kind)
            if not victims or (kind == "workers" and self.kills[kind] >= RESTARTS - 1):
                return False
            with suppress(psutil.NoSuchProcess):
                self.draw.choice(victims).kill()
        self.kills[kind] += 1
        return True

    def ranks(self) -> list[psutil.Process]:
        """Return the ranks of solvers that run."""
        ranks: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            for process in psutil.Process(self.coordinator.pid).children(recursive=True):
                if "counted" in process.name():
                    ranks.append(process)
        return ranks

    def said(self) -> list[str]:
        """Return what the fit has warned of, in all its lives."""
        path = self.folder / "said.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def check(self, status: int) -> None:
        """Raise ``AssertionError`` unless each sample was trained once, or its loss was said."""
        output = (self.folder / "output.txt").read_text()
        if status:
            assert "without a name" in output, output[-3000:]
            assert self.kills["workers"]
            self.kills["counted errors"] += 1
            return
        counts = json.loads((self.folder / "ended.json").read_text())["counts"]
        said = self.said()
        lost = 0
        for text in said:
            told = re.search(r"goes on without (\d+) samples|lacks (\d+) samples of senders", text)
            lost += int(told[1] or told[2]) if told else 0
        failed = any(text.startswith("a sender has failed") for text in said)
        lacking = counts.count(0)
        self.kills["said to be lost"] += lost
        self.kills["never trained"] += lacking
        self.kills["trained more often"] += sum(count > 1 for count in counts)
        # Of each simulation, a sample may be left that has no partner.
        lonely = self.study.streams if self.study.buffer == "SimPairedReservoir" else 0
        assert lacking <= lost + lonely or failed, (
            f"{lacking} samples were not trained: {counts} {said}"
        )
        if self.study.buffer in ("FIFO", "FIRO") and not self.kills["workers"]:
            assert max(counts) == 1, f"no worker has died: {counts} {said}"

    def end(self) -> None:
        """Kill what is left."""
        for program in (self.coordinator, self.sender):
            if program is not None:
                for process in session(program.pid):
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
                program.wait()


def run_study(seed: int) -> Counter[str]:
    """Run a study; return its kills, and what has become of its samples."""
    with tempfile.TemporaryDirectory(prefix="studies-") as folder:
        killed = KilledStudy(seed, Path(folder))
        try:
            killed.run()
        finally:
            killed.end()
        return killed.kills


def main(count: int, first: int = 0) -> int:
    """Run the studies; return how many failed."""
    total: Counter[str] = Counter()
    failed = 0
    for seed in range(first, first + count):
        began = time.monotonic()
        try:
            kills = run_study(seed)
        except AssertionError as error:
            failed += 1
            print(f"{seed} FAILED {Study.of(seed)}: {error}", flush=True)
            continue
        total += kills
        print(seed, Study.of(seed), dict(kills), f"{time.monotonic() - began:.0f} s", flush=True)
    print(f"{count} studies, {failed} failed: {dict(total)}")
    return failed


if __name__ == "__main__":
    sys.exit(bool(main(*map(int, sys.argv[1:]))))
