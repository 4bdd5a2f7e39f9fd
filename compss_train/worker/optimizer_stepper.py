"""``OptimizerStepper``: forward and backward passes, gradient accumulation and clipping, optimizer steps."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from compss_train.model import losses, metrics, schedule
from compss_train.model.optimizers import JoinedOptimizer, needs_closure
from compss_train.model.training_spec import ModelReplica
from compss_train.model.training_step import Step, StepContext, StepResult
from compss_train.worker.batches import Batch


class OptimizerStepper:
    """Trains a model copy batch by batch.

    ``check_outputs`` compares the outputs of the first batch that is not skipped with what the loss expects, for
    ``probabilities``.
    """

    def __init__(
        self,
        replica: ModelReplica,
        optimizer: torch.optim.Optimizer,
        *,
        check_outputs: bool = False,
        batches: int = 0,
        scaler: Mapping[str, Any] | None = None,
    ) -> None:
        self._replica, self.optimizer = replica, optimizer
        self._options = replica.training_spec.gradients
        self._evaluates = needs_closure(optimizer)
        self._step = replica.training_spec.training_step
        own = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
        self._trained = [parameter for parameter in replica.training_spec.net.parameters() if id(parameter) in own]
        self._accumulated_batches = 0
        self._accumulated_samples = 0
        several = isinstance(optimizer, JoinedOptimizer)
        self._check_outputs = check_outputs and not several and losses.takes_logits(replica.training_spec.loss)
        self.batches = batches
        """Number of batches trained, including by earlier tasks of the worker."""
        self.scaler = _scaler_of(replica, optimizer, scaler)
        """Scales losses in fp16, and does nothing otherwise."""
        self.probabilities = False
        """Whether the first outputs are probabilities, though the loss takes logits."""

    def set_hyperparameters(self, hyperparameters: schedule.Hyperparameters) -> None:
        """Set the learning rate, and other values that a schedule changes, in each parameter group."""
        for group, values in zip(self.optimizer.param_groups, hyperparameters, strict=True):
            for name, value in values.items():
                if isinstance(group[name], torch.Tensor):
                    group[name].fill_(value)
                else:
                    group[name] = value

    def learn(self, batch: Batch, accumulator: metrics.MetricAccumulator, epoch: int = 0) -> StepResult | None:
        """Train on one transformed batch, and add its measurements; return ``None`` if it was skipped.

        The optimizer steps once the gradients of ``accumulate`` batches have been added up.
        """
        self.batches += 1
        result: StepResult | None
        if self._step is not None and isinstance(self.optimizer, JoinedOptimizer):
            result = self._run_step(self._step, batch, epoch, self.optimizer)
        elif self._evaluates:
            result = self._step_by_closure(batch, epoch)
        else:
            result = self._accumulate(batch, epoch)
        if result is None:
            accumulator.skip()
            return None
        if self._check_outputs:
            self._check_outputs = False
            self.probabilities = losses.are_probabilities(result.output)
        accumulator.add(batch.samples, *result)
        return result

    def _accumulate(self, batch: Batch, epoch: int) -> StepResult | None:
        """Add the gradients of a batch, and step if it is the last of ``accumulate``; ``None`` if it is skipped."""
        if not self._accumulated_batches:
            self.optimizer.zero_grad()
        skips = self._options.on_nan == "skip"
        undo = _undo(self._replica.training_spec.net, self._trained) if skips else None
        result = self._add_gradients(batch, epoch)
        # In fp16, gradients overflow in normal operation; the scaler handles that.
        gradients = [] if self.scaler.is_enabled() else _gradients(self._trained)
        if undo is not None and not _are_finite([result.loss.detach(), *gradients]):
            undo()
            return None
        self._accumulated_batches += 1
        self._accumulated_samples += batch.samples
        if self._accumulated_batches == self._options.accumulate:
            self.finish()
        return result

    def _step_by_closure(self, batch: Batch, epoch: int) -> StepResult:
        """Let the optimizer evaluate the loss of the batch as often as it needs; return the first evaluation."""
        evaluations: list[StepResult] = []

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            result = self._add_gradients(batch, epoch)
            self._clip(self._trained)
            if not evaluations:
                evaluations.append(result)
            return result.loss

        self.optimizer.step(closure)  # type: ignore[arg-type]
        if not evaluations:
            raise ValueError(
                f"{type(self.optimizer).__name__} has not called the closure that its step takes, which evaluates "
                "the loss; call it, or give step the default closure=None"
            )
        return evaluations[0]

    def finish(self) -> None:
        """Apply the gradients that are still accumulated, if any."""
        if not self._accumulated_batches:
            return
        self.scaler.unscale_(self.optimizer)
        if self._options.accumulate > 1:  # each loss was multiplied by its number of samples
            for gradient in _gradients(self._trained):
                gradient.div_(self._accumulated_samples)
        self._clip(self._trained)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._accumulated_batches = self._accumulated_samples = 0

    def _clip(self, parameters: Sequence[nn.Parameter]) -> None:
        if self._options.clip_norm is not None:
            nn.utils.clip_grad_norm_(parameters, self._options.clip_norm)
        if self._options.clip_value is not None:
            nn.utils.clip_grad_value_(parameters, self._options.clip_value)

    def _add_gradients(self, batch: Batch, epoch: int) -> StepResult:
        """Add the gradients of a batch to the accumulated ones."""
        if self._step is not None:
            result = self._run_step(self._step, batch, epoch)
        else:
            with self._replica.autocast():
                output, target = self._replica.predict(batch.x), batch.x if batch.y is None else batch.y
                result = StepResult(self._replica.loss(output, target, batch.weight), output, target)
        loss = result.loss
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise ValueError(
                "the loss must be one number a batch in a tensor, whose gradients train the network, not "
                f"{metrics.kind_of(loss)}; take its mean, and leave out .item(), float() and numpy()"
            )
        if not loss.requires_grad:
            raise ValueError(
                "the loss has no gradient: it does not depend on the parameters that are trained, or not in a way "
                "that can be differentiated; leave out detach(), no_grad(), argmax and comparisons"
            )
        scaled = loss if self._options.accumulate == 1 else loss * batch.samples
        self.scaler.scale(scaled).backward()  # type: ignore[no-untyped-call]
        return result

    def _run_step(
        self, step: Step, batch: Batch, epoch: int, optimizer: JoinedOptimizer | None = None
    ) -> StepResult:
        """Run the training step; with several optimizers it updates them itself."""
        context = StepContext(
            loss=self._replica.loss,
            weight=batch.weight,
            epoch=epoch,
            number=self.batches - 1,
            optimizers={} if optimizer is None else optimizer.optimizers,
            apply=None if optimizer is None else partial(self._update, optimizer),
        )
        return self._replica.run_step(step, batch.x, batch.y, context)

    def _update(self, optimizer: JoinedOptimizer, name: str, loss: torch.Tensor, retain_graph: bool) -> None:
        own = optimizer.optimizers[name]
        trained = [each for group in own.param_groups for each in group["params"] if each.requires_grad]
        own.zero_grad()
        with torch.autocast(loss.device.type, enabled=False):
            torch.autograd.backward(self.scaler.scale(loss), inputs=trained, retain_graph=retain_graph)
        self.scaler.unscale_(own)
        self._clip(trained)
        self.scaler.step(own)
        self.scaler.update()
        torch.clear_autocast_cache()  # of the weights before the step


def _scaler_of(
    replica: ModelReplica, optimizer: torch.optim.Optimizer, state: Mapping[str, Any] | None
) -> torch.amp.GradScaler:
    """Return the scaler of a worker, which continues from a state."""
    scaler = torch.amp.GradScaler(torch.device(replica.device).type, enabled=replica.half is torch.float16)
    if scaler.is_enabled():
        parts = optimizer.optimizers.values() if isinstance(optimizer, JoinedOptimizer) else [optimizer]
        for part in parts:
            # The scaler itself skips steps: torch's fused SGD would otherwise start with uninitialized momentum.
            part._step_supports_amp_scaling = False  # type: ignore[attr-defined]
        if state is not None:
            scaler.load_state_dict(dict(state))
    return scaler


def _undo(net: nn.Module, trained: Sequence[nn.Parameter]) -> Callable[[], None]:
    """Return a function that undoes a backward pass: it restores the buffers and the accumulated gradients."""
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


def _are_finite(tensors: Iterable[torch.Tensor]) -> bool:
    """Return whether the norms of all tensors are finite; synchronizes with the device once."""
    dense = [tensor.coalesce().values() if tensor.is_sparse else tensor for tensor in tensors]
    norms = [torch.linalg.vector_norm(tensor) for tensor in dense]
    return bool(torch.stack([torch.isfinite(norm) for norm in norms]).all())
