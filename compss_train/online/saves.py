"""Saves of a study, and whether another fit may go on from one.

A save is one cut: at a merge that is due anyway every worker stops, and goes on when the
coordinator has the parts of all of them. A fit that goes on from it trains none of their samples
again, and repeats only simulations of which workers lack samples.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

import numpy as np

from compss_train.online.options import OnlineOptions, Simulations
from compss_train.training import description
from compss_train.training.session import Session
from compss_train.training.snapshot import Checkpoint, Study
from compss_train.worker.state import WorkerState

CHANGEABLE = ("record_every", "checkpoint_every")
"""Options that may change when a study goes on."""


def buffer_file(worker: int) -> str:
    """Return the name of the file with the buffer of a worker and the offsets that belong to it."""
    return f"buffer-{worker}.safetensors"


@dataclass(frozen=True, eq=False)
class SavedWorker:
    """The part of a worker in a save."""

    state: WorkerState
    position: dict[str, Any]
    """The numbers of batches trained and merged, and the change that was not merged."""
    offsets: Mapping[int, int] = field(default_factory=dict)
    """The worker's offset in each stream."""
    repetitions: list[int] | None = None
    """How many samples were trained on n times, if the worker has ended; it then has no buffer."""
    buffer: Path | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class SavedStudy:
    """The content of a save, in the form in which a fit goes on from it."""

    is_complete: bool
    """Whether there is nothing left to train."""
    seed: int
    """The seed of the fit."""
    options: dict[str, Any]
    """The options of the fit and its objective, as plain values."""
    server: dict[str, Any] | None
    """The global parameters in double precision, their average and the outer optimizer's state."""
    workers: Sequence[SavedWorker]
    streams: int
    """The number of the next sender's stream of samples."""
    simulations: dict[str, Any]
    """The state of the simulations and their inputs."""
    senders: dict[str, Any]
    reports: dict[str, Any]

    def to_study(self, parameters: Any, averaged: Any = None) -> Study:
        """Return it as plain values and files, with the parameters and their average, if any."""
        workers = [
            {
                "offsets": np.array(list(part.offsets.items()), np.int64).reshape(-1, 2),
                "repetitions": part.repetitions,
                **part.position,
            }
            for part in self.workers
        ]
        return Study(
            content={**vars(self), "workers": workers},
            parameters=parameters,
            workers=tuple(part.state for part in self.workers),
            files={
                buffer_file(worker): part.buffer
                for worker, part in enumerate(self.workers)
                if part.buffer is not None
            },
            averaged=averaged,
        )

    @classmethod
    def of(
        cls, content: Mapping[str, Any], states: Sequence[WorkerState], files: Mapping[str, Path]
    ) -> Self:
        """Return it from the content of a checkpoint, its states of workers, and its files."""
        workers: list[SavedWorker] = []
        for saved, state in zip(content["workers"], states, strict=True):
            fields_of_their_own = ("offsets", "repetitions")
            position = {
                name: value for name, value in saved.items() if name not in fields_of_their_own
            }
            part = SavedWorker(
                state,
                position,
                dict(saved["offsets"].tolist()),
                repetitions=saved["repetitions"],
                buffer=files.get(buffer_file(len(workers))),
            )
            workers.append(part)
        return cls(**{**content, "workers": workers})


def described_options(
    options: OnlineOptions, simulations: Simulations, session: Session
) -> dict[str, Any]:
    """Return what must be the same when a study goes on, as plain values by name.

    That is its options, who chooses inputs, and its objective.
    """
    sampler = simulations.sampler
    first_sender = simulations.first_sender(options.buffer) if simulations.senders else None
    described: dict[str, Any] = {
        "num_workers": session.num_workers,
        "the number of the first sender": first_sender,
        "inputs": "given" if sampler is None else type(sampler).__name__,
        "class_weight": description.described(session.model.built.training_spec.class_weight),
    }
    for option in fields(options):
        value = getattr(options, option.name)
        if option.name in ("buffer", "merge"):
            described |= {
                f"{option.name}.{name}": description.described(part)
                for name, part in vars(value).items()
            }
        elif option.name not in CHANGEABLE:
            described[option.name] = description.described(value)
    return described | dict(session.model.built.objective)


def check_same_study(
    checkpoint: Checkpoint, options: OnlineOptions, simulations: Simulations, session: Session
) -> SavedStudy:
    """Return the study of a checkpoint.

    Raises ``ValueError`` if it has none, or one with other options.
    """
    path, snapshot = checkpoint
    if snapshot.study is None:
        method = "fit" if snapshot.progress is not None else "trainer.restore"
        raise ValueError(
            f"{path} is not a save of fit_online, so it cannot be resumed; use {method}"
        )
    saved_options = snapshot.study["options"]
    present_options = described_options(options, simulations, session)
    differences = [
        f"{name} was {saved_options.get(name)}, and is {present_options.get(name)}"
        for name in {**present_options, **saved_options}
        if saved_options.get(name) != present_options.get(name)
    ]
    if differences:
        raise ValueError(
            f"{path} is a save of another study: {'; '.join(differences[:5])}. Give the same "
            "options to go on, or begin a new study with its parameters by trainer.restore"
        )
    return SavedStudy.of(snapshot.study, snapshot.workers, snapshot.files)
