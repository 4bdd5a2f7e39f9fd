"""What a fit of ``learning`` reached, how that is measured, and the file that keeps it."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Images, accuracy, load_images, network
from _learning_cases import Case
from numpy.typing import NDArray

CHANCE = 15.0
"""A network below this percentage has learnt nothing of ten classes: it has diverged, whether or not to NaN."""

State = dict[str, NDArray[Any]]


@dataclass(kw_only=True)
class Result:
    """The accuracies in percent at the marks of a fit, and what they cost."""

    accuracies: list[float] = field(default_factory=list)
    epochs: list[float] = field(default_factory=list)
    """Epochs that had been trained at each mark."""
    seconds: list[float] = field(default_factory=list)
    """Since the fit began; evaluation does not count."""
    merges: int = 0
    diverged: bool = False
    samples_per_second: float | None = None
    """After the first mark."""
    merge_seconds: list[float] = field(default_factory=list)
    """Of each merge, where nothing else is measured."""
    merge_bytes: int | None = None
    """What a worker sends to a merge."""
    used: dict[str, Any] = field(default_factory=dict)
    """The options of the fit as ``trainer.configuration`` describes them."""
    torch: str = torch.__version__
    load: float = field(default_factory=lambda: os.getloadavg()[0])
    """Of the machine when the fit ended."""

    @property
    def accuracy(self) -> float:
        """In percent at the end; 0 for a fit that diverged."""
        return 0.0 if self.diverged or not self.accuracies else self.accuracies[-1]

    def seconds_to(self, target: float) -> float:
        """Return the seconds until the first mark with the accuracy, infinity if there is none."""
        marks = zip(self.seconds, self.accuracies, strict=True)
        return next((seconds for seconds, reached in marks if reached >= target), float("inf"))


@dataclass(kw_only=True)
class Marks:
    """States of the network during a fit, which are evaluated after it."""

    case: Case
    epochs: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    states: list[State] = field(default_factory=list)

    def add(self, epochs: float, seconds: float, state: State) -> None:
        """Keep a state."""
        self.epochs.append(epochs)
        self.seconds.append(seconds)
        self.states.append(state)

    def is_due(self, epochs: float) -> bool:
        """Return whether a mark has been passed since the last one that was kept."""
        done = self.epochs[-1] if self.epochs else 0.0
        return _marks_until(epochs, self.case.marks) > _marks_until(done, self.case.marks)

    def result(self, images: Images, **more: Any) -> Result:
        """Evaluate the states."""
        accuracies = [evaluated(self.case, state, images) for state in self.states]
        result = Result(accuracies=accuracies, epochs=self.epochs, seconds=self.seconds, **more)
        result.diverged |= not accuracies or not accuracies[-1] > CHANCE
        if len(self.seconds) > 1:
            trained = (self.epochs[-1] - self.epochs[0]) * len(images.x)
            result.samples_per_second = trained / (self.seconds[-1] - self.seconds[0])
        return result


def _marks_until(epochs: float, marks: int) -> int:
    return int(epochs * marks + 1e-6)


@lru_cache(maxsize=2)
def _images(samples: int, choose: bool) -> Images:
    images = load_images(samples)
    if not choose:
        return images
    kept = samples - max(1, samples // 12)
    return Images(images.x[:kept], images.y[:kept], images.x[kept:], images.y[kept:])


def images_of(case: Case) -> Images:
    """Return the images of a case; where settings are chosen, the last training images are those for testing."""
    return _images(case.samples, case.choose)


def evaluated(case: Case, state: State, images: Images) -> float:
    """Return the accuracy of a network with this state on the test images, in percent."""
    net = network(case.network, case.seed)
    net.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in state.items()})
    net.eval()
    with torch.no_grad():
        outputs = [net(batch) for batch in torch.from_numpy(images.test_x).split(1000)]
    return accuracy(torch.cat(outputs), images.test_y)


class ResultsFile:
    """A file of JSON lines, a case and its result each, to which several processes append."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, Result]:
        """Return the results by the keys of their cases; of repeated cases the last."""
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        return dict(self._parsed(lines))

    def _parsed(self, lines: Sequence[str]) -> Iterable[tuple[str, Result]]:
        for number, line in enumerate(lines, 1):
            try:
                entry = json.loads(line)
                yield Case(**entry["case"]).key, Result(**entry["result"])
            except (ValueError, TypeError, KeyError):
                print(f"{self.path}: line {number} is no result, as of a killed process; skipped", file=sys.stderr)

    def append(self, case: Case, result: Result) -> None:
        """Write a line, on a line of its own even if a killed process left half of one."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"case": asdict(case), "result": asdict(result)}) + "\n"
        with self.path.open("a+b") as file:
            if file.tell() and not _ends_with_newline(file):
                line = "\n" + line
            file.write(line.encode())


def _ends_with_newline(file: Any) -> bool:
    file.seek(-1, os.SEEK_END)
    return bool(file.read(1) == b"\n")
