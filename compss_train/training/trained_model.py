"""``TrainedModel``: a trainer's network, its global parameters and its history."""

import secrets
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from compss_train._utils.validation import check_seed
from compss_train.data.coding import Coding
from compss_train.data.sample_reading import SampleReader
from compss_train.exceptions import NotBuiltError
from compss_train.model import parameters as params
from compss_train.model.measurements import Measured
from compss_train.model.model_state import (
    ModelState,
    model_state,
    of_network,
    restore,
    without_not_kept,
)
from compss_train.model.network_uses import check_optimizers_unused, network_use
from compss_train.model.task_globals import check_network_unused
from compss_train.model.training_spec import TrainingSpec
from compss_train.reports.history import History
from compss_train.reports.records import Record
from compss_train.training.build_arguments import BuildArguments
from compss_train.training.callback import Callback
from compss_train.training.data_source import DataSource
from compss_train.training.description import Details, described_fields
from compss_train.training.hyperparameters import HyperparameterChanges
from compss_train.training.running_fit import Fit, FitRun
from compss_train.training.unseen_changes import HeldValues
from compss_train.training.untrained_uses import UntrainedUses
from compss_train.worker.callbacks import WorkerCallback

NOT_BUILT = "this trainer has no network yet; call build(net, optimizer, loss) first"


class TrainedModel:
    """The network of a trainer, its global parameters, its history, and its current fit."""

    def __init__(self, seed: int | None) -> None:
        self.given_seed = None if seed is None else check_seed(seed)
        """The user's seed, or ``None`` for a drawn one."""
        self.seed = secrets.randbits(32) if self.given_seed is None else self.given_seed
        self.fit: Fit | None = None
        """The current fit, from the start of its callbacks to their end."""
        self.run: FitRun | None = None
        """The run of the current fit, while it has tasks."""
        self.start_over(None)

    def start_over(
        self,
        built: BuildArguments | None,
        original: nn.Module | None = None,
        optimizers: Sequence[torch.optim.Optimizer] = (),
    ) -> None:
        """Start over with a copy of the ``original`` network, or without one.

        ``optimizers`` are those over its parameters that the user gave.
        """
        self._built = built
        self._original = None if original is None else weakref.ref(original)
        self._optimizers = [weakref.ref(optimizer) for optimizer in optimizers]
        self.uses_globals = False
        """Whether functions of the user use global variables, which tasks must not change."""
        self.held: HeldValues | None = None
        """What functions given to ``build`` held when the last fit had ended, if there was one."""
        self.parameters = {}
        if built is not None:
            self.parameters = params.copy_of(params.from_module(built.training_spec.net))
            self.uses_globals = bool(built.training_spec.global_users)
        self.as_built = True
        """Whether the parameters are those that the network was built with."""
        self.state: ModelState | None = None
        """What worker 0's model keeps besides the parameters, after the last complete round."""
        self.averaged: params.Parameters | None = None
        """The average of the parameters that the last fit kept, with ``Merge(averaging=...)``."""
        self.hyperparameters: HyperparameterChanges | None = None
        """The hyperparameters that were set since ``build``, if any."""
        self.epochs = 0
        self.history = History()
        self.last_fit: dict[str, Any] | None = None
        """The description of the last fit that has ended."""
        self.example: DataSource | None = None
        """A few inputs of the last fit, or its files, which an export traces the network with."""
        self.coding: Coding = {}
        """What the numbers of the last fit's data meant."""
        self.stopped: str | None = None
        self.resumed_from: Path | None = None

    @property
    def parameters(self) -> params.Parameters:
        """The global parameters; during a fit, those before it."""
        return self._parameters

    @parameters.setter
    def parameters(self, parameters: params.Parameters) -> None:
        self._parameters = parameters
        self.as_built = False

    @property
    def built(self) -> BuildArguments:
        """The arguments of ``build``; raises ``NotBuiltError`` before it was called."""
        if self._built is None:
            raise NotBuiltError(NOT_BUILT)
        return self._built

    @property
    def number_weights(self) -> int:
        """Number of weights of the network, without its buffers."""
        return sum(parameter.numel() for parameter in self.built.training_spec.net.parameters())

    @property
    def described(self) -> dict[str, Any] | None:
        """The arguments of ``build`` as values for JSON, or ``None`` before it was called."""
        if self._built is None:
            return None
        arguments = described_fields(self._built)
        del arguments["training_spec"]
        spec = described_fields(self._built.training_spec)
        return {
            "net": spec.pop("net"),
            "parameters": self.number_weights,
            **spec.pop("gradients"),
            **spec,
            **arguments,
        }

    @property
    def described_fit(self) -> dict[str, Any] | None:
        """The description of the current fit, or of the last one; ``None`` before the first."""
        return self.last_fit if self.fit is None else self.fit.described

    @property
    def details(self) -> Details | None:
        """What tells apart the objects of ``build``, or ``None`` before it was called."""
        if self._built is None:
            return None
        return {**self._built.objective, **self._built.surroundings}

    def require_idle(self, method: str) -> None:
        """Raise ``RuntimeError`` during a fit."""
        if self.fit is not None:
            raise RuntimeError(
                f"{method} was called during a fit, from a callback; call it when the fit has ended"
            )

    def require_workers(self, method: str) -> None:
        """Raise ``RuntimeError`` during an online fit, whose tasks occupy all processes."""
        if self.run is not None and not self.run.leaves_processes:
            raise RuntimeError(
                f"{method} was called during fit_online, whose tasks use all processes; give "
                "fit_online validation_data=, or use model() in this process"
            )

    def current(self, *, averaged: bool = False) -> params.Parameters:
        """Return the global parameters, or their average; in a run, after the last complete round.

        Raises ``NotBuiltError`` before ``build``, ``ValueError`` without an average.
        """
        if self._built is None:
            raise NotBuiltError(NOT_BUILT)
        if not averaged:
            newest = None if self.run is None else self.run.newest()
            return self.parameters if newest is None else newest
        average = self.averaged if self.run is None else self.run.averaged()
        if average is None:
            raise ValueError(
                "the last fit kept no average of the parameters; give fit "
                'merge=Merge(averaging="ema"), and fit_online averaging_unit="steps", too'
            )
        return average

    def show_attributes(self, attributes: Mapping[str, float]) -> None:
        """Let inference see attributes that were set after the last round."""
        seen: ModelState = self.state or {"buffers": None, "attributes": None}
        self.state = model_state(
            seen["buffers"],
            {**(seen["attributes"] or {}), **attributes},
            steps=self.built.training_spec.validation_step is not None,
        )

    def check_callback(self, callback: WorkerCallback) -> None:
        """Raise ``ValueError`` for a callback that holds the network that was given to ``build``.

        In workers it would see that, and not the copy that a worker trains.
        """
        name = type(callback).__name__
        check_optimizers_unused({name: callback}, self._given_optimizers)
        use = self._use_of_original(callback)
        if use:
            raise ValueError(f"{name} {use}, but each worker trains a copy; use context.model")

    def check_reader(self, reader: SampleReader) -> None:
        """Raise ``ValueError`` for a data set that uses the network that was given to ``build``.

        Its samples would be those of the network as it was given, whatever workers train.
        """
        use = self._use_of_original(vars(reader))
        if use:
            raise ValueError(
                f"the data set {use}, but workers train copies, so that its samples would not "
                "change while they learn: compute what depends on the network in training_step=, "
                "of the model that it gets; if samples are to be those of the network as it is "
                "now, give the data set copy.deepcopy(net)"
            )

    def check_simulations(self, simulate: object, inputs: object) -> None:
        """Raise ``ValueError`` for simulations that use the network that was given to ``build``.

        Their processes have it as it was when they began, whatever workers train; so has a sampler
        of their ``inputs``.
        """
        of_inputs = self._use_of_original(inputs)
        if of_inputs:
            raise ValueError(
                f"{type(inputs).__name__} {of_inputs}, which stays as it is while workers train "
                "copies: use table.predict(x), what their merged parameters make of x; if inputs "
                "are to be chosen by the network as it is now, give copy.deepcopy(net)"
            )
        use = self._use_of_original(simulate)
        if use:
            raise ValueError(
                f"simulate= {use}, which stays as it is in the processes of simulations while "
                "workers train copies: compute what depends on the network in training_step=, of "
                "the model that it gets; if simulations are to use the network as it is now, give "
                "them copy.deepcopy(net)"
            )

    def untrained_uses(self, callbacks: Sequence[Callback]) -> UntrainedUses | None:
        """Return which callbacks use the network that was given to ``build``, if it is there."""
        original = None if self._original is None else self._original()
        if original is None:
            return None
        return UntrainedUses(callbacks, original, self._given_optimizers)

    @property
    def _given_optimizers(self) -> list[torch.optim.Optimizer]:
        """The optimizers that were given to ``build``, as far as they are there."""
        optimizers = (reference() for reference in self._optimizers)
        return [optimizer for optimizer in optimizers if optimizer is not None]

    def _use_of_original(self, value: Any) -> str:
        """Return how an object uses the network that was given to ``build``; or nothing."""
        original = None if self._original is None else self._original()
        return "" if original is None else network_use(value, original)

    def spec_with_pairing(self, pairing: Callable[..., Any] | None) -> TrainingSpec:
        """Return what was built, with a function that pairs time steps.

        Raises ``ValueError`` if it uses the network by a global variable.
        """
        spec = replace(self.built.training_spec, pairing=pairing)
        original = None if self._original is None else self._original()
        if pairing is None or original is None:
            return spec
        check_network_unused(spec.global_users, original)
        return spec.made_from(original)

    @property
    def reports(self) -> Sequence[Measured]:
        """A report with the state of the model, for inference."""
        return () if self.state is None else (Measured(model_state=self.state),)

    @property
    def network_state(self) -> ModelState | None:
        """What the network alone keeps of it, without buffers in the state_dict."""
        if self.state is None:
            return None
        state = of_network(self.state, self.built.training_spec.net)
        return state if state["buffers"] or state["attributes"] else None

    def network(self, *, averaged: bool = False) -> nn.Module:
        """Return a new copy of the network on the CPU, with the parameters of ``current``.

        It is in the state in which worker 0's is, and in evaluation mode.
        """
        parameters = self.current(averaged=averaged)
        copied = self.built.training_spec.weightless("cpu")
        params.load_into(copied.net, parameters)
        if self.state is not None:
            restore(without_not_kept(self.state), copied.net, copied.roots())
        return copied.net.eval()

    @property
    def state_id(self) -> object:
        """What tells apart states to resume from: a round, the save of a study, or ``None``."""
        if self.fit is not None and self.fit.saves_studies:
            return self.fit.save
        return self.history[-1]["round"] if self.history else None

    def record(self, record: Record) -> None:
        """Add the record of a round to the history, and pass it to the callbacks of the fit."""
        self.history.append(record)
        self.epochs = record.get("epoch", self.epochs)
        if self.fit is not None:
            self.fit.callbacks.round_end(record)
