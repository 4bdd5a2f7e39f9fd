"""``WorkerCallback``: hooks that run inside the workers, around batches and rounds."""

import copy
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from compss_train.model.measurements import MetricAccumulator, measured_number
from compss_train.model.training_step import StepResult


@dataclass(kw_only=True)
class WorkerContext:
    """What a ``WorkerCallback`` sees of its worker; ``log`` writes to the record of the round."""

    worker: int
    """The number of the worker."""
    round: int
    """The number of the round, counted from 0 over all fits, as in records."""
    model: nn.Module
    """The worker's copy of the network, on its device."""
    optimizer: torch.optim.Optimizer = field(init=False)
    epoch: int = 0
    """The epoch, counted from 0 over all fits: of the batch, or in which the round starts."""
    number: int = 0
    """Number of batches that the worker has trained since ``build``, before this one."""
    x: Any = None
    """The batch as the network receives it; ``None`` outside batches."""
    y: Any = None
    """Its targets."""
    loss: Tensor | None = None
    """The loss of the batch, without its graph.

    ``None`` before its step, and if ``on_nan="skip"`` skipped it.
    """
    output: Any = None
    """The network's outputs if the training step returns them; ``None`` before the step."""
    logged: dict[str, Any] = field(default_factory=dict)
    """The numbers logged in the current hooks."""

    def log(self, name: str, value: Any) -> None:
        """Log a number; records have its mean over the samples of the batch or of the round.

        Raises ``ValueError`` for the name of another field, and ``TypeError`` unless it is a single
        number.
        """
        value = measured_number(name, value)
        self.logged[name] = value.detach().clone() if isinstance(value, Tensor) else value


class WorkerCallback:
    """Base class of callbacks that run in the workers' tasks.

    All hooks do nothing; override those you need. Pass them to ``fit(callbacks=...)``, with any
    others. They are pickled, and each worker starts every round with a copy of the original object;
    only its ``state_dict`` is kept between rounds and in checkpoints. Hooks may read everything,
    log numbers, and change parameters (in place, under ``torch.no_grad()``), gradients and
    optimizer options. For the same bits on every engine and after a retry they must depend on
    nothing else: not on time, files or other processes. Random numbers come from the worker's
    generators. Hooks must not keep tensors of the batch. An exception ends the fit, and names the
    callback, round and worker.

    Numbers logged around a batch are weighted by its samples. Numbers logged at the start and end
    of a round are weighted by the samples that the worker actually trained on in it (``samples`` of
    the worker in the record).
    """

    def check(self, trainer: Any) -> None:
        """Raise an exception if the trainer does not suit the callback.

        Called before fits, and in ``check_fit``.
        """

    def on_optimizer(self, context: WorkerContext) -> None:
        """Run in every round after the optimizer is created, before its state is loaded.

        May add groups of parameters; from then on it must add them in every round, in the same
        order. With a learning-rate schedule they have the first group's rate times their option
        ``"factor"``.
        """

    def added_rates(self, epoch: int) -> Mapping[str, float]:
        """Return the groups that ``on_optimizer`` has added, for the history; by default none.

        By their names, with their learning rates as multiples of the first group's, in a round that
        starts in this epoch.
        """
        return {}

    def on_round_start(self, context: WorkerContext) -> None:
        """Run before the first batch of a worker's round, with the merged parameters."""

    def on_batch_start(self, context: WorkerContext) -> None:
        """Run before the step of a batch."""

    def on_batch_end(self, context: WorkerContext) -> None:
        """Run after the step.

        The clipped gradients still exist, with ``accumulate`` the sum so far.
        """

    def on_round_end(self, context: WorkerContext) -> None:
        """Run after the last batch, before the parameters are merged."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state to keep.

        It consists of numbers, strings, arrays and CPU tensors, in dicts and lists.
        """
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what ``state_dict`` returned.

        Called before ``on_round_start`` if the worker has a state.
        """


class CallbackRunner:
    """Calls the callbacks of one worker in one task."""

    def __init__(
        self,
        callbacks: Sequence[WorkerCallback],
        context: WorkerContext,
        accumulator: MetricAccumulator,
        states: Mapping[str, Any],
    ) -> None:
        copies = copy.deepcopy(callbacks)
        names = numbered(type(callback).__name__ for callback in copies)
        self._callbacks = dict(zip(names, copies, strict=True))
        self.context = context
        self._accumulator = accumulator
        self._logged_at_start: dict[str, Any] = {}
        for name, callback in self._callbacks.items():
            if name in states:
                callback.load_state_dict(copy.deepcopy(states[name]))

    def optimizer(self, optimizer: torch.optim.Optimizer) -> None:
        """Call ``on_optimizer`` with a new optimizer."""
        self.context.optimizer = optimizer
        self._call("on_optimizer")

    def round_start(self) -> None:
        """Call ``on_round_start``; ``round_end`` measures what it logs."""
        self._call("on_round_start")
        # Streams have unknown lengths, so that the number of samples is not known yet.
        self._logged_at_start = self.context.logged
        self.context.logged = {}

    def batch_start(self, x: Any, y: Any, samples: int, *, epoch: int, number: int) -> None:
        """Call ``on_batch_start``."""
        context = self.context
        context.epoch = epoch
        context.number = number
        context.x = x
        context.y = y
        self._call("on_batch_start")
        self._measure(samples)

    def batch_end(self, samples: int, result: StepResult | None) -> None:
        """Call ``on_batch_end``; a batch that was skipped has no result."""
        context = self.context
        if result is not None:
            context.loss = result.loss.detach()
            context.output = result.output
        self._call("on_batch_end")
        self._measure(samples)
        context.x = None
        context.y = None
        context.loss = None
        context.output = None

    def round_end(self) -> None:
        """Call ``on_round_end``; logs of the round are weighted by its trained samples."""
        self._call("on_round_end")
        samples = self._accumulator.samples
        self._accumulator.measure(self._logged_at_start, samples)
        self._measure(samples)

    def states(self) -> dict[str, Any] | None:
        """Return the states by the callbacks' names, without empty ones; ``None`` for none."""
        states = {name: callback.state_dict() for name, callback in self._callbacks.items()}
        return {name: state for name, state in states.items() if state} or None

    def _call(self, hook: str) -> None:
        context = self.context
        for callback in self._callbacks.values():
            try:
                getattr(callback, hook)(context)
            except Exception as error:
                error.add_note(
                    f"Raised by the callback {type(callback).__name__}, by its {hook}, in round "
                    f"{context.round} on worker {context.worker}."
                )
                raise

    def _measure(self, samples: int) -> None:
        if self.context.logged:
            self._accumulator.measure(self.context.logged, samples)
            self.context.logged = {}


def numbered(names: Iterable[str]) -> Iterator[str]:
    """Iterate over unique names: each with the number of its occurrence, from 1."""
    seen: Counter[str] = Counter()
    for name in names:
        seen[name] += 1
        yield f"{name} {seen[name]}"
