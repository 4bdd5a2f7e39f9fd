"""``TrainedModel``: a network, how it is trained, and the results of its fits."""

import secrets
from pathlib import Path
from typing import Any

from compss_train._utils.validation import check_seed
from compss_train.data.tables import Coding
from compss_train.exceptions import NotBuiltError
from compss_train.model import parameters as params
from compss_train.reports.history import History
from compss_train.reports.records import Record
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.description import Details, described_fields
from compss_train.training.fit import Fit


class TrainedModel:
    """The network of a trainer with its global parameters and its history, and the fit that runs, if any."""

    def __init__(self, seed: int | None) -> None:
        self.given_seed = None if seed is None else check_seed(seed)
        """The user's seed, or ``None`` for a drawn one."""
        self.seed = secrets.randbits(32) if self.given_seed is None else self.given_seed
        self._built: BuildArguments | None = None
        self.fit: Fit | None = None
        """The running fit, or ``None``."""
        self._start_over({})

    def build(self, built: BuildArguments) -> None:
        """Start over with a network."""
        self._built = built
        self._start_over(params.copy_of(params.from_module(built.training_spec.net)))

    def _start_over(self, parameters: params.Parameters) -> None:
        self.parameters = parameters
        self.averaged: params.Parameters | None = None
        """The average of the parameters that the last fit kept, with ``Merge(averaging=...)``."""
        self.epochs = 0
        self.history = History()
        self.last_fit: dict[str, Any] | None = None
        """The description of the last fit."""
        self.coding: Coding = {}
        """What the numbers of the last fit's data meant."""
        self.stopped: str | None = None
        self.resumed_from: Path | None = None

    @property
    def built(self) -> BuildArguments:
        """The arguments of ``build``; raises ``NotBuiltError`` before it was called."""
        if self._built is None:
            raise NotBuiltError("this trainer has no network yet; call build(net, optimizer, loss) first")
        return self._built

    @property
    def described(self) -> dict[str, Any] | None:
        """The arguments of ``build`` as values that JSON can hold, or ``None`` before it was called."""
        if self._built is None:
            return None
        spec, others = described_fields(self._built.training_spec), described_fields(self._built)
        del others["training_spec"]
        count = sum(parameter.numel() for parameter in self._built.training_spec.net.parameters())
        return {"net": spec.pop("net"), "parameters": count, **spec.pop("gradients"), **spec, **others}

    @property
    def details(self) -> Details | None:
        """What tells apart the objects of ``build``, or ``None`` before it was called."""
        return None if self._built is None else {**self._built.objective, **self._built.surroundings}

    def ready(self, method: str) -> BuildArguments:
        """Return ``built``; raise ``RuntimeError`` during a fit."""
        self.require_idle(method)
        return self.built

    def require_idle(self, method: str) -> None:
        """Raise ``RuntimeError`` during a fit."""
        if self.fit is not None:
            raise RuntimeError(f"{method} was called during a fit, from a callback; call it when the fit has ended")

    def require_workers(self, method: str) -> None:
        """Raise ``RuntimeError`` during an online fit, whose tasks leave no process for others until it ends."""
        if self.fit is not None and self.fit.running and not self.fit.leaves_processes:
            raise RuntimeError(
                f"{method} was called during fit_online, whose tasks use all processes; give fit_online "
                "validation_data=, or use model() in this process"
            )

    def current(self, *, averaged: bool = False) -> params.Parameters:
        """Return the global parameters, or their average; during a fit, those after the last complete round."""
        running = self.fit if self.fit is not None and self.fit.running else None
        if not averaged and self.built:
            current = None if running is None else running.current()
            return self.parameters if current is None else current
        average = self.averaged if running is None else running.averaged()
        if average is None:
            raise ValueError(
                'the last fit kept no average of the parameters; give fit merge=Merge(averaging="ema")'
            )
        return average

    def record(self, record: Record) -> None:
        """Add the record of a round to the history, and pass it to the callbacks of the fit."""
        self.history.append(record)
        self.epochs = record["epoch"]
        if self.fit is not None:
            self.fit.callbacks.round_end(record)
