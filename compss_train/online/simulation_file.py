"""The task that runs one simulation and writes its samples to a file."""

import threading
from dataclasses import dataclass
from pathlib import Path

import torch

from compss_train._utils.files import DISK, atomic_path
from compss_train.data.block import Block, as_tensor
from compss_train.data.writing import write_part
from compss_train.online.simulation_task import Watchdog, failure_of, send_all
from compss_train.online.source_messages import SimulationFailed, SimulationMessage, TimedOut
from compss_train.online.stream import Sample

Layout = dict[str, str]
"""Dtype and shape of a sample's x and y, as messages show them."""


@dataclass(frozen=True)
class SimulationWritten:
    """A simulation is complete, and its samples are in a file, if there are any."""

    samples: int
    steps: int
    """The number of time steps, of which some may make no sample."""
    layout: Layout


class SampleCollector:
    """Collects the samples of a simulation; what the watchdog reports goes to a file."""

    paired = False

    def __init__(self, number: int, report: Path) -> None:
        self.number = number
        self.rejected = ""
        self.ended = threading.Event()
        self.layout: Layout = {}
        self._report = report
        self._samples: list[list[torch.Tensor]] = []
        self._steps: list[int] = []

    @property
    def sent(self) -> int:
        """How many samples there are."""
        return len(self._samples)

    def send(self, sample: Sample, step: int | None) -> None:
        """Copy the next sample, which the simulation may change.

        Raises ``ValueError`` if it has another shape or dtype than those before.
        """
        parts = [_copied(part) for part in sample]
        layout = {
            name: f"{str(part.dtype).removeprefix('torch.')} {tuple(part.shape)}"
            for name, part in zip("xy", parts, strict=False)
        }
        if self._samples and layout != self.layout:
            self.rejected = f"a sample of {layout} after samples of {self.layout}"
            raise ValueError(self.rejected)
        self.layout = layout
        self._steps.append(self.sent if step is None else step)
        self._samples.append(parts)

    def update(self, timeout: float = 0.0) -> None:
        """Do nothing: all samples are needed."""

    def notify(self, message: SimulationMessage) -> None:
        """Write what hangs to the file."""
        if isinstance(message, TimedOut):
            text = f"no sample within {message.timeout} s\n{message.stack}"
            self._report.write_text(text, encoding="utf-8")

    def write(self, path: Path, format: str) -> None:
        """Write the samples to a file that is there when it is complete; without any, none."""
        if not self._samples:
            path.unlink(missing_ok=True)
            return
        columns = {
            name: torch.stack([parts[place] for parts in self._samples])
            for place, name in enumerate(self.layout)
        }
        columns["step"] = torch.tensor(self._steps)
        with atomic_path(path) as temporary:
            write_part(temporary, columns, format)
            DISK.sync(temporary)


def _copied(part: Block) -> torch.Tensor:
    """Return a copy in memory, also of what is mapped from a file, and without a graph."""
    tensor = part.detach() if isinstance(part, torch.Tensor) else as_tensor(part)
    return tensor.cpu().clone(memory_format=torch.contiguous_format)


def write_simulation(
    simulate: bytes,
    value: bytes,
    number: int,
    path: str,
    report: str,
    format: str,
    timeout: float | None,
    steps: int | None,
) -> SimulationWritten | SimulationFailed:
    """Run a simulation and write its samples to the file ``path``; return what came of it.

    ``simulate`` and its input are pickled. The empty file ``report`` says that the task has begun:
    if an engine runs it again, its process has died, and that is the outcome. Raises ``OSError`` if
    the samples cannot be written, ``ValueError`` if the format cannot hold them.
    """
    try:
        Path(report).touch(exist_ok=False)
    except FileExistsError:
        reason = Path(report).read_text(encoding="utf-8")
        return SimulationFailed(reason or "its process died")
    collector = SampleCollector(number, Path(report))
    try:
        with Watchdog(collector, timeout) as watchdog:
            sent = send_all(simulate, value, collector, watchdog=watchdog, steps=steps)
    except (Exception, SystemExit) as error:
        return failure_of(error, collector)
    try:
        collector.write(Path(path), format)
    finally:
        Path(report).unlink(missing_ok=True)
    return SimulationWritten(collector.sent, sent, collector.layout)
