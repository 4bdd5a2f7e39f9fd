"""How a batch becomes a step of the optimizer: ``Stepper``, and a subclass for each other way.

``stepper_of`` chooses: the gradients of one or several batches make a step; or the optimizer
evaluates the loss itself, by a closure; or a training step updates several optimizers.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias, cast

import torch
from torch import nn

from compss_train._utils.private_names import let_scaler_skip, norms
from compss_train.model.devices import is_gpu
from compss_train.model.error_hints import kind_of
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.replica import ModelReplica
from compss_train.model.training_step import Step, StepContext, StepResult, Update
from compss_train.worker.batches import Batch
from compss_train.worker.state import WorkerState
from compss_train.worker.step_average import StepAverage

Numeric: TypeAlias = torch.Tensor | float


def stepper_of(
    replica: ModelReplica,
    optimizer: torch.optim.Optimizer,
    state: WorkerState,
    *,
    average: StepAverage | None,
) -> "Stepper":
    """Return the way in which a replica is trained with an optimizer; see ``Stepper``."""
    if replica.training_step is not None and isinstance(optimizer, JoinedOptimizer):
        kind: type[Stepper] = SeveralOptimizersStepper
    elif replica.spec.closure_use != "no":
        kind = ClosureStepper
    else:
        kind = Stepper
    return kind(replica, optimizer, state, average=average)


class Stepper:
    """Steps the optimizer with the gradients of one batch, or those of ``accumulate`` batches.

    Parameters
    ----------
    replica:
        The copy of the model that is trained.
    optimizer:
        The optimizer of its parameters.
    state:
        The worker's state after its last task: its loss scale, and whether it skipped batches.
    average:
        The average of the parameters by steps; ``None`` if there is none.
    """

    def __init__(
        self,
        replica: ModelReplica,
        optimizer: torch.optim.Optimizer,
        state: WorkerState,
        *,
        average: StepAverage | None,
    ) -> None:
        self._replica = replica
        self._gradients = replica.spec.gradients
        """What happens to gradients before a step."""
        self._average = average
        self.scaler = torch.amp.GradScaler(
            torch.device(replica.device).type, enabled=replica.half is torch.float16
        )
        """Scales losses in fp16, and does nothing otherwise."""
        if state.scaler is not None:
            self.scaler.load_state_dict(dict(state.scaler))
        self._accumulated_batches = 0
        self._accumulated_share: Numeric = 0.0
        """What the accumulated gradients are a sum over."""
        self._first_share: tuple[int, Numeric] = (1, 1.0)
        """The samples of the first accumulated batch, and its count."""
        self._skips = self._gradients.on_nan == "skip"
        """Whether batches whose loss or gradients are not finite are skipped."""
        self._largest_norm: torch.Tensor | None = None
        """Largest norm of what was learnt on a GPU, where ``finite`` tells at the end.

        To read the norm of each batch would have the GPU wait.
        """
        if self._skips and is_gpu(replica.device) and not state.skipped:
            self._largest_norm = torch.zeros((), device=replica.device)
        self.use(optimizer)

    def use(self, optimizer: torch.optim.Optimizer) -> None:
        """Step this optimizer from now on."""
        self.optimizer = optimizer
        stepped = {
            id(parameter) for group in optimizer.param_groups for parameter in group["params"]
        }
        self._trained = [
            parameter for parameter in self._replica.net.parameters() if id(parameter) in stepped
        ]
        if self.scaler.is_enabled():
            parts = [optimizer]
            if isinstance(optimizer, JoinedOptimizer):
                parts = [*optimizer.optimizers.values()]
            for part in parts:
                let_scaler_skip(part)  # torch's fused SGD would begin with uninitialized momentum

    @property
    def finite(self) -> bool:
        """Whether all that was learnt is finite, as far as batches were not checked one by one."""
        return self._largest_norm is None or math.isfinite(self._largest_norm)

    def step(self, batch: Batch, number: int) -> StepResult | None:
        """Train on a batch, and return its loss and outputs, or ``None`` if it was skipped.

        ``number`` batches were trained before it.
        """
        if not self._accumulated_batches and _gradients_of(self._trained):
            self.optimizer.zero_grad()
        undo = None
        if self._skips and self._largest_norm is None:
            undo = _undo_of(self._replica.net, self._trained)
        result = self._add_gradients(batch, number)
        if self._skips:
            # In fp16, gradients overflow in normal operation; the scaler handles that.
            gradients = [] if self.scaler.is_enabled() else _gradients_of(self._trained)
            norm = _largest_norm_of([result.loss.detach(), *gradients])
            if self._largest_norm is not None:
                self._largest_norm = torch.maximum(self._largest_norm, norm)
            elif undo is not None and not norm.isfinite():
                undo()
                return None
        if self._gradients.accumulate > 1:
            share = self._share(result.counted, batch.samples)
            self._accumulated_share = self._accumulated_share + share
        self._accumulated_batches += 1
        if self._accumulated_batches == self._gradients.accumulate:
            self.step_accumulated()
        return result

    def step_accumulated(self) -> None:
        """Make a step with the gradients that are accumulated, if any.

        In fp16 the scaler leaves the step out if gradients overflow; elsewhere it just calls
        ``optimizer.step()``.
        """
        if not self._accumulated_batches:
            return
        self.scaler.unscale_(self.optimizer)
        if self._gradients.accumulate > 1:  # each loss was multiplied by its share
            share = torch.as_tensor(self._accumulated_share)
            divisor = share.where(share > 0, 1.0)
            for gradient in _gradients_of(self._trained):
                gradient.div_(divisor)
        self._gradients.clip(self._trained)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._after_step()
        self._accumulated_batches = 0
        self._accumulated_share = 0.0

    def accumulated(self) -> dict[str, Any] | None:
        """Return the gradients that wait for a step, for ``set_accumulated``, or ``None``."""
        if not self._accumulated_batches:
            return None
        gradients = [
            None if parameter.grad is None else parameter.grad.cpu() for parameter in self._trained
        ]
        return {
            "gradients": gradients,
            "batches": self._accumulated_batches,
            "share": float(self._accumulated_share),
            "first_share": [float(number) for number in self._first_share],
        }

    def set_accumulated(self, saved: Mapping[str, Any]) -> None:
        """Continue with gradients that wait for a step."""
        for parameter, gradient in zip(self._trained, saved["gradients"], strict=True):
            parameter.grad = None if gradient is None else gradient.to(parameter.device, copy=True)
        self._accumulated_batches = saved["batches"]
        self._accumulated_share = saved["share"]
        self._first_share = saved["first_share"]

    def _add_gradients(self, batch: Batch, number: int) -> StepResult:
        """Add the gradients of a batch to the accumulated ones."""
        replica = self._replica
        if replica.training_step is not None:
            result = self._run_training_step(replica.training_step, batch, number)
        else:
            with replica.autocast():
                result = replica.measure_loss(batch.x, batch.y, batch.weight)
        loss = result.loss
        if not isinstance(result.counted, torch.Tensor) and result.counted == 0:
            for parameter in self._trained:  # not of the loss, which may be NaN
                if parameter.grad is None and parameter.requires_grad:
                    parameter.grad = torch.zeros_like(parameter)
            return result
        _check_loss(loss)
        if self._gradients.accumulate > 1:
            share = self._share(result.counted, batch.samples)
            if isinstance(share, torch.Tensor):
                share = share.to(torch.promote_types(loss.dtype, torch.float32))
            loss = loss * share
        self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        return result

    def _share(self, count: Numeric | None, samples: int) -> Numeric:
        """Return how much a batch counts among those that are accumulated.

        It is its count, in samples of the first batch: if all samples count alike, gradients have
        the same bits as if samples were counted.
        """
        if count is None:
            return samples
        wide = torch.as_tensor(count, dtype=torch.float64)
        if not self._accumulated_batches:
            self._first_share = (samples, wide.where(wide > 0, samples))
        first_samples, first_count = self._first_share
        return wide * first_samples / first_count

    def _run_training_step(
        self,
        step: Step,
        batch: Batch,
        number: int,
        *,
        optimizers: Mapping[str, torch.optim.Optimizer] | None = None,
        update: Update | None = None,
    ) -> StepResult:
        """Run the training step; several ``optimizers`` it updates itself, by ``update``."""
        context = StepContext(
            loss=self._replica.loss,
            weight=batch.weight,
            epoch=batch.epoch,
            number=number,
            simulations=batch.simulations,
            steps=batch.steps,
            optimizers=optimizers or {},
            apply=update,
        )
        return self._replica.run_step(
            step, batch.x, batch.y, context=context, as_made=batch.as_made
        )

    def _after_step(self) -> None:
        if self._average is not None:
            self._average.update()


class ClosureStepper(Stepper):
    """Lets the optimizer evaluate the loss of a batch as often as it needs, as LBFGS does.

    Optimizers that evaluate it again, as SAM does, find its gradients.
    """

    def step(self, batch: Batch, number: int) -> StepResult:
        """Make a step; return the first evaluation."""
        evaluations: list[StepResult] = []

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            with torch.enable_grad():
                result = self._add_gradients(batch, number)
            self._gradients.clip(self._trained)
            if not evaluations:
                evaluations.append(result)
            return result.loss

        if self._replica.spec.closure_use == "evaluates again":
            closure()
        self.optimizer.step(closure)  # type: ignore[arg-type]
        if not evaluations:
            raise ValueError(
                f"{type(self.optimizer).__name__} has not called the closure that its step "
                "takes, which evaluates the loss; call it, or give step the default closure=None"
            )
        self._after_step()
        return evaluations[0]


class SeveralOptimizersStepper(Stepper):
    """Lets the training step update several optimizers, each with the gradients of a loss."""

    def step(self, batch: Batch, number: int) -> StepResult:
        """Run the training step, which calls ``context.update`` for its optimizers."""
        step = cast("Step", self._replica.training_step)
        optimizers = cast("JoinedOptimizer", self.optimizer).optimizers
        updated = set[str]()
        self.optimizer.zero_grad()

        def update(name: str, loss: torch.Tensor, retain_graph: bool) -> None:  # noqa: FBT001
            if name not in updated:
                _check_no_gradients(name, optimizers[name])
            updated.add(name)
            self._update(optimizers[name], loss, retain_graph=retain_graph)

        result = self._run_training_step(step, batch, number, optimizers=optimizers, update=update)
        if not updated and number == 0:
            raise ValueError(
                "the training step has updated none of the optimizers, so that nothing is "
                "trained; call, also in the first batch, context.update(name, loss) for "
                f"{', '.join(optimizers)}"
            )
        self._after_step()
        return result

    def _update(
        self, optimizer: torch.optim.Optimizer, loss: torch.Tensor, *, retain_graph: bool
    ) -> None:
        """Step one of the optimizers with the gradients of a loss for its own parameters."""
        trained = [
            parameter
            for group in optimizer.param_groups
            for parameter in group["params"]
            if parameter.requires_grad
        ]
        optimizer.zero_grad()
        with torch.autocast(loss.device.type, enabled=False):
            torch.autograd.backward(
                self.scaler.scale(loss), inputs=trained, retain_graph=retain_graph
            )
        self.scaler.unscale_(optimizer)
        self._gradients.clip(trained)
        self.scaler.step(optimizer)
        self.scaler.update()
        torch.clear_autocast_cache()  # of the weights before the step


def _check_no_gradients(name: str, optimizer: torch.optim.Optimizer) -> None:
    """Raise ``ValueError`` if a training step has computed gradients of an optimizer itself."""
    trained = (parameter for group in optimizer.param_groups for parameter in group["params"])
    if _gradients_of(trained):
        raise ValueError(
            f"the training step has called backward() before context.update({name!r}, loss), "
            "which computes the gradients of its loss alone, and would lose those: leave out "
            "backward(), and give update the sum of the losses"
        )


def _check_loss(loss: Any) -> None:
    """Raise ``ValueError`` unless the loss is one number with a gradient."""
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ValueError(
            "the loss must be one number a batch in a tensor, whose gradients train the "
            f"network, not {kind_of(loss)}; take its mean, and leave out .item(), "
            "float() and numpy()"
        )
    if not loss.requires_grad:
        raise ValueError(
            "the loss has no gradient: it does not depend on the parameters that are "
            "trained, or not in a way that can be differentiated; leave out detach(), "
            "no_grad(), argmax and comparisons"
        )


def _undo_of(net: nn.Module, trained: Sequence[nn.Parameter]) -> Callable[[], None]:
    """Return a function that undoes a backward pass: it restores buffers and gradients."""
    buffers = {name: buffer.clone() for name, buffer in net.named_buffers(remove_duplicate=False)}
    gradients = [
        None if parameter.grad is None else parameter.grad.clone() for parameter in trained
    ]

    @torch.no_grad()
    def undo() -> None:
        for parameter, gradient in zip(trained, gradients, strict=True):
            parameter.grad = gradient
        # Some networks replace their buffers, possibly under only one of two names.
        present = dict(net.named_buffers(remove_duplicate=False))
        for name, buffer in buffers.items():
            present[name].copy_(buffer)

    return undo


def _gradients_of(parameters: Iterable[nn.Parameter]) -> list[torch.Tensor]:
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _largest_norm_of(tensors: Iterable[torch.Tensor]) -> torch.Tensor:
    """Return the largest norm on the tensors' device, which is finite only if all numbers are."""
    dense = [tensor.coalesce().values() if tensor.is_sparse else tensor for tensor in tensors]
    return torch.stack(norms(dense)).amax()
