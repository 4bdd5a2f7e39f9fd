"""``Learner``: a worker's copy of the model, which it trains batch by batch, from and to a
``WorkerState``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import nn

from compss_train._utils.private_names import let_scaler_skip, norms
from compss_train.engines import liveness
from compss_train.exceptions import DivergedError
from compss_train.model import devices, losses, metrics, schedule
from compss_train.model import parameters as params
from compss_train.model.optimizers import JoinedOptimizer, make_optimizer, needs_closure
from compss_train.model.training_spec import ModelReplica
from compss_train.model.training_step import Step, StepContext, StepResult
from compss_train.worker.batches import Batch, batches_in_epoch
from compss_train.worker.callbacks import CallbackRunner, WorkerContext
from compss_train.worker.state import (
    StepAverage,
    WorkerState,
    changed_buffers,
    load_moments,
    load_optimizer,
    on_host,
    restore_buffers,
)
from compss_train.worker.work import Job, Work

LEAST_SCALE = 1e-4
"""Minimum loss scale of fp16: gradients that overflow even then are NaN, or have diverged."""


class Learner(ModelReplica):
    """A worker's copy of the model and its optimizer, which learn batch by batch, in ``fit`` and in
    ``fit_online``.

    Parameters
    ----------
    job:
        The network and how it is trained; not modified.
    parameters:
        The global parameters that the copy starts from.
    state:
        The worker's state after its last task.
    work:
        What the worker does: its number, device, callbacks.
    moments:
        The optimizer state for a worker that has none.
    averaged:
        The average of the parameters that the copy continues by steps; ``None`` begins with its
        first step.
    """

    def __init__(
        self,
        job: Job,
        parameters: params.Parameters,
        state: WorkerState,
        work: Work,
        moments: params.Parameters | None = None,
        averaged: params.Parameters | None = None,
    ) -> None:
        super().__init__(job.spec, parameters, work.device, training=True)
        if state.module_buffers is not None:
            restore_buffers(self.net, state.module_buffers, work.device)
        self._job, self._work, self._accumulator = (
            job,
            work,
            metrics.MetricAccumulator(self.measures),
        )
        self._callbacks: CallbackRunner | None = None
        if job.callbacks:
            context = WorkerContext(
                worker=work.worker, round=work.round, model=self.net, epoch=work.epoch
            )
            self._callbacks = CallbackRunner(
                job.callbacks, context, self._accumulator, state.callbacks or {}
            )
        reset = job.optimizer_state == "reset"
        self.optimizer = self._new_optimizer(None if reset else state.optimizer)
        if moments and not reset and state.optimizer is None:
            load_moments(self.optimizer, moments)
        own = {
            id(parameter) for group in self.optimizer.param_groups for parameter in group["params"]
        }
        self._trained = [parameter for parameter in self.net.parameters() if id(parameter) in own]
        self._average = (
            None if job.averaging is None else StepAverage(self.net, job.averaging, averaged)
        )
        self._takes_closure = needs_closure(type(self.optimizer).step)
        self._scaler = torch.amp.GradScaler(
            torch.device(self.device).type, enabled=self.half is torch.float16
        )
        """Scales losses in fp16, and does nothing otherwise."""
        if self._scaler.is_enabled():
            self._restore_scaler(state.scaler)
        self._accumulated_batches = self._accumulated_samples = 0
        self._batches = state.batches
        self._random = state.random
        """Number of batches trained, including by earlier tasks of the worker."""
        self._updated = False
        trusts = (
            self.spec.gradients.on_nan == "skip"
            and devices.is_gpu(work.device)
            and not state.skipped
        )
        self._norms = torch.zeros((), device=work.device) if trusts else None
        """Largest norm of what was learnt on a GPU, which stands still for a read: it is read at
        the end.
        """
        self._check_outputs = work.check_outputs and not isinstance(self.optimizer, JoinedOptimizer)
        self.compares_step = work.check_outputs
        self._output_warning = ""
        """What is wrong with the first outputs."""
        self.skipped = 0
        """Number of batches skipped since the last one that was learnt."""
        self.on_losses: Callable[[Batch, torch.Tensor], None] | None = None
        """Gets each batch that was learnt with the loss of each of its samples, which are then
        computed.
        """

    @property
    def finite(self) -> bool:
        """Whether all that was learnt is finite; only known before the end where each batch is
        checked.
        """
        return self._norms is None or math.isfinite(self._norms)

    def learn_all(self, batches: Iterator[Batch]) -> int:
        """Learn prepared batches, and return the number of their samples.

        The next batch is taken after the step on the previous one. Accumulated gradients are
        applied at the end of each epoch.
        """
        drawn = 0
        work = self._work
        unbegun = set[tuple[int, int]]()
        if self._job.optimizer_state == "reset_blocks":
            # Blocks that begin here, of which no batch was trained: first ones are left out if they
            # cannot be read.
            unbegun = {(each.epoch, each.block) for each in work.block_passes if not each.start}
        if self._callbacks is not None:
            self._callbacks.round_start()
        for epoch, epoch_batches in groupby(batches, lambda batch: batch.epoch):
            changes = self._changes_in(epoch) if work.hyperparameters is not None else {}
            current: schedule.Hyperparameters | None = None
            before = drawn
            for number, batch in enumerate(epoch_batches):
                current = changes.get(number, current)
                if (epoch, batch.block) in unbegun:
                    unbegun.remove((epoch, batch.block))
                    self._renew_optimizer(current)
                elif number in changes:
                    self._set_hyperparameters(changes[number])
                self.learn(batch)
                drawn += batch.samples
                liveness.beat(batch.samples)
            self._step_accumulated()  # the gradients that the end of the epoch has left
            self._accumulator.measure(self.end_epoch(self.training_step), drawn - before)
        if self._callbacks is not None:
            self._callbacks.round_end()
        return drawn

    def _changes_in(self, epoch: int) -> dict[int, schedule.Hyperparameters]:
        """Return the hyperparameters of a schedule in an epoch, by the number of the batch from
        which they hold.
        """
        timed = (self._work.hyperparameters or {}).get(epoch, ())
        planned = batches_in_epoch(self._job, self._work, epoch) if len(timed) > 1 else 0
        return {math.ceil(begin * planned): hyperparameters for begin, hyperparameters in timed}

    def learn(self, batch: Batch) -> None:
        """Train on a prepared batch; the optimizer steps once the gradients of ``accumulate`` are
        added up.
        """
        samples = batch.samples
        if self._callbacks is not None:
            self._callbacks.batch_start(
                batch.x, batch.y, samples, epoch=batch.epoch, number=self._batches
            )
        self._batches += 1
        try:
            with self.annotate_errors(batch.x, batch.y, own_target=batch.y is None):
                result = self._result(batch)
                if result is None:
                    self._accumulator.skip()
                else:
                    self._accumulator.add(samples, *result[:4])
                    if self.on_losses is not None:
                        self.on_losses(batch, self.losses_by_sample(result, samples))
        except torch.OutOfMemoryError as error:
            error.add_note(
                f"{self.device} has too little memory for batches of {samples} samples in "
                f"{self._work.name}: choose a smaller batch_size (Gradients(accumulate=...) "
                "keeps the size of the steps), precision='bf16', or fewer workers on a GPU."
            )
            raise
        self.skipped = 0 if result is not None else self.skipped + 1
        if self._callbacks is not None:
            self._callbacks.batch_end(samples, result)

    def _result(self, batch: Batch) -> StepResult | None:
        """Train on a batch, and return its loss and outputs; ``None`` if it was skipped."""
        result: StepResult | None
        if self.training_step is not None and isinstance(self.optimizer, JoinedOptimizer):
            result = self._run_step(self.training_step, batch, self.optimizer)
            if not self._updated and self._batches == 1:
                raise ValueError(
                    "the training step has updated none of the optimizers, so that nothing is "
                    "trained; call, also in the first batch, context.update(name, loss) for "
                    f"{', '.join(self.optimizer.optimizers)}"
                )
            self._after_step()
        elif self._takes_closure:
            result = self._step_by_closure(batch)
            self._after_step()
        else:
            result = self._accumulate(batch)
        if result is not None and self._check_outputs:
            self._check_outputs = False
            compared = (result.output, result.target)
            loss = self.spec.loss
            self._output_warning = (
                losses.output_warning(loss, result.output)
                or losses.binary_warning(loss, *compared)
                or losses.accuracy_warning(self.measures.metrics.values(), *compared)
                or metrics.batch_warning(loss, self.measures.metrics, *compared)
            )
        return result

    def _accumulate(self, batch: Batch) -> StepResult | None:
        """Add the gradients of a batch, and step if it is the last of ``accumulate``; ``None`` if
        it is skipped.
        """
        if not self._accumulated_batches and _gradients(self._trained):
            self.optimizer.zero_grad()
        skips = self.spec.gradients.on_nan == "skip"
        undo = _undo(self.net, self._trained) if skips and self._norms is None else None
        result = self._add_gradients(batch)
        if skips:
            # In fp16, gradients overflow in normal operation; the scaler handles that.
            gradients = [] if self._scaler.is_enabled() else _gradients(self._trained)
            norm = _largest_norm([result.loss.detach(), *gradients])
            if self._norms is not None:
                self._norms = torch.maximum(self._norms, norm)
            elif undo is not None and not norm.isfinite():
                undo()
                return None
        self._accumulated_batches += 1
        self._accumulated_samples += batch.samples
        if self._accumulated_batches == self.spec.gradients.accumulate:
            self._step_accumulated()
        return result

    def _step_by_closure(self, batch: Batch) -> StepResult:
        """Let the optimizer evaluate the loss of the batch as often as it needs; return the first
        evaluation.
        """
        evaluations: list[StepResult] = []

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            result = self._add_gradients(batch)
            self.spec.gradients.clip(self._trained)
            if not evaluations:
                evaluations.append(result)
            return result.loss

        self.optimizer.step(closure)  # type: ignore[arg-type]
        if not evaluations:
            raise ValueError(
                f"{type(self.optimizer).__name__} has not called the closure that its step "
                "takes, which evaluates the loss; call it, or give step the default closure=None"
            )
        return evaluations[0]

    def _step_accumulated(self) -> None:
        """Make an optimizer step with the gradients that are accumulated, if any.

        In fp16 the scaler leaves the step out if gradients overflow; elsewhere it just calls
        ``optimizer.step()``.
        """
        if not self._accumulated_batches:
            return
        self._scaler.unscale_(self.optimizer)
        if self.spec.gradients.accumulate > 1:  # each loss was multiplied by its number of samples
            for gradient in _gradients(self._trained):
                gradient.div_(self._accumulated_samples)
        self.spec.gradients.clip(self._trained)
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self._after_step()
        self._accumulated_batches = self._accumulated_samples = 0

    def _after_step(self) -> None:
        if self._average is not None:
            self._average.update()

    def averaged(self) -> params.Parameters:
        """Return the average that ``Merge(averaging_unit="steps")`` keeps, under names of its own,
        or nothing.
        """
        return {} if self._average is None else self._average.arrays()

    def _add_gradients(self, batch: Batch) -> StepResult:
        """Add the gradients of a batch to the accumulated ones."""
        if self.training_step is not None:
            result = self._run_step(self.training_step, batch)
        else:
            with self.autocast():
                result = self.measure_loss(batch.x, batch.y, batch.weight)
        loss = result.loss
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ValueError(
                "the loss must be one number a batch in a tensor, whose gradients train the "
                f"network, not {losses.kind_of(loss)}; take its mean, and leave out .item(), "
                "float() and numpy()"
            )
        if not loss.requires_grad:
            raise ValueError(
                "the loss has no gradient: it does not depend on the parameters that are "
                "trained, or not in a way that can be differentiated; leave out detach(), "
                "no_grad(), argmax and comparisons"
            )
        scaled = loss if self.spec.gradients.accumulate == 1 else loss * batch.samples
        self._scaler.scale(scaled).backward()  # type: ignore[no-untyped-call]
        return result

    def _run_step(
        self, step: Step, batch: Batch, optimizer: JoinedOptimizer | None = None
    ) -> StepResult:
        """Run the training step; with several optimizers it updates them itself."""
        context = StepContext(
            loss=self.loss,
            weight=batch.weight,
            epoch=batch.epoch,
            number=self._batches - 1,
            simulations=batch.simulations,
            steps=batch.steps,
            optimizers={} if optimizer is None else optimizer.optimizers,
            apply=None if optimizer is None else partial(self._update, optimizer),
        )
        return self.run_step(step, batch.x, batch.y, context, as_made=batch.as_made)

    def _update(
        self, optimizer: JoinedOptimizer, name: str, loss: torch.Tensor, retain_graph: bool
    ) -> None:
        self._updated = True
        own = optimizer.optimizers[name]
        trained = [
            each for group in own.param_groups for each in group["params"] if each.requires_grad
        ]
        own.zero_grad()
        with torch.autocast(loss.device.type, enabled=False):
            torch.autograd.backward(
                self._scaler.scale(loss), inputs=trained, retain_graph=retain_graph
            )
        self._scaler.unscale_(own)
        self.spec.gradients.clip(trained)
        self._scaler.step(own)
        self._scaler.update()
        torch.clear_autocast_cache()  # of the weights before the step

    def _set_hyperparameters(self, hyperparameters: schedule.Hyperparameters) -> None:
        """Set the learning rate, and other values that a schedule changes, in each parameter
        group.
        """
        groups = self.optimizer.param_groups
        first = hyperparameters[0]
        added = [
            {**first, "lr": first["lr"] * group["factor"]}
            for group in groups[len(hyperparameters) :]
        ]
        for group, values in zip(groups, (*hyperparameters, *added), strict=True):
            for name, value in values.items():
                if isinstance(group[name], torch.Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value

    def _renew_optimizer(self, hyperparameters: schedule.Hyperparameters | None) -> None:
        """Train the next block with a new optimizer, as dislib does; accumulated gradients are
        applied before.
        """
        self._step_accumulated()
        for parameter, given in zip(self.net.parameters(), self.spec.net.parameters(), strict=True):
            # A callback may have changed it for the last block.
            parameter.requires_grad_(given.requires_grad)
        self.optimizer = self._new_optimizer(None)
        if hyperparameters is not None:
            self._set_hyperparameters(hyperparameters)

    def _new_optimizer(self, state: dict[str, Any] | None) -> torch.optim.Optimizer:
        """Return a new optimizer of the copy's parameters, with the given state if it is not
        ``None``.
        """
        optimizer = make_optimizer(self.optimizer_factory, self.net)
        if self._callbacks is not None:
            self._callbacks.optimizer(optimizer)
        if state is not None:
            saved = state["param_groups"]
            own = optimizer.state_dict()["param_groups"]
            if len(saved) > len(own):
                raise ValueError(
                    f"the optimizer's state has {len(saved)} groups of parameters instead of "
                    f"{len(own)}, as an Unfreeze has added some: give later fits the same "
                    "callback, or build again"
                )
            state = {**state, "param_groups": [*saved, *own[len(saved) :]]}
            load_optimizer(optimizer, state)
        return optimizer

    def _restore_scaler(self, state: Mapping[str, Any] | None) -> None:
        """Let the scaler continue from a state, and skip steps itself."""
        one = self.optimizer
        for part in one.optimizers.values() if isinstance(one, JoinedOptimizer) else [one]:
            # Torch's fused SGD would otherwise start with uninitialized momentum.
            let_scaler_skip(part)
        if state is not None:
            self._scaler.load_state_dict(dict(state))

    def finish(self, measured: metrics.Measured | None = None) -> params.Parameters:
        """Apply the gradients that are still accumulated, and return the parameters.

        Raises ``DivergedError`` in the task rather than in the coordinator, so that NaN is never
        merged. ``measured`` has the measurements since the last merge, if they have already been
        taken.
        """
        self._step_accumulated()
        trained = params.from_module(self.net)
        name = self._work.name
        if self.spec.gradients.on_nan != "ignore":
            sums = self._accumulator if measured is None else measured
            if not math.isfinite(sums.loss):
                raise DivergedError(
                    f"the loss became {sums.loss / sums.samples} in {name}; lower the learning "
                    "rate, or check the data for NaN and for values that are far too large"
                )
            # By the last step, which no loss follows.
            if (bad := params.first_not_finite(trained)) is not None:
                raise DivergedError(
                    f"parameter {bad!r} became NaN or infinite in {name}; lower the learning rate"
                )
        scale = self._scaler.get_scale()
        if scale < LEAST_SCALE:  # so far that it is not their overflow
            raise DivergedError(
                "gradients were NaN or infinite in so many batches that the loss scale of fp16 "
                f"fell to {scale:.1g} in {name}; lower the learning rate, or train with "
                "precision='bf16'"
            )
        return trained

    def pending(self) -> dict[str, Any] | None:
        """Return the gradients that wait for a step, for ``set_pending``, or ``None``."""
        if not self._accumulated_batches:
            return None
        gradients = [None if each.grad is None else each.grad.cpu() for each in self._trained]
        counts = {"batches": self._accumulated_batches, "samples": self._accumulated_samples}
        return {"gradients": gradients, **counts}

    def set_pending(self, saved: Mapping[str, Any]) -> None:
        """Continue with gradients that wait for a step."""
        for parameter, gradient in zip(self._trained, saved["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        self._accumulated_batches = saved["batches"]
        self._accumulated_samples = saved["samples"]

    def measured(self) -> metrics.Measured:
        """Return what was measured since the last call."""
        measured = self._accumulator.measured()
        if self._output_warning:
            measured.warnings = [self._output_warning]
            self._output_warning = ""
        measured.conversions = sorted(self.conversions)
        self._accumulator = metrics.MetricAccumulator(self.measures)
        return measured

    def state(self, **others: Any) -> WorkerState:
        """Return what the worker keeps; ``others`` are fields that the learner does not know."""
        return WorkerState(
            optimizer=on_host(self.optimizer.state_dict()),
            random=devices.RandomState.capture(self._work.device, self._random),
            batches=self._batches,
            module_buffers=changed_buffers(self.net, self.spec.net),
            scaler=self._scaler.state_dict() or None,
            callbacks=self._callbacks.states() if self._callbacks is not None else None,
            **others,
        )


def _undo(net: nn.Module, trained: Sequence[nn.Parameter]) -> Callable[[], None]:
    """Return a function that undoes a backward pass: it restores the buffers and the accumulated
    gradients.
    """
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers(remove_duplicate=False)}
    gradients = [None if each.grad is None else each.grad.clone() for each in trained]

    @torch.no_grad()
    def undo() -> None:
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient
        # Some networks replace their buffers, possibly under only one of two names.
        present = dict(net.named_buffers(remove_duplicate=False))
        for name, buffer in buffers.items():
            present[name].copy_(buffer)

    return undo


def _gradients(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _largest_norm(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the largest of the tensors' norms, which is finite only if all numbers are, on their
    device.
    """
    dense = [tensor.coalesce().values() if tensor.is_sparse else tensor for tensor in tensors]
    return torch.stack(norms(dense)).amax()
