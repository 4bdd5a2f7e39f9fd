"""``Unfreeze``: trains frozen parameters from some epoch on, as in fine-tuning."""

from collections.abc import Mapping

import torch

from compss_train._utils.validation import check_count, check_non_negative
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.net_optimizers import matches
from compss_train.training.trainer_protocol import TrainerProtocol
from compss_train.worker.callbacks import WorkerCallback, WorkerContext


class Unfreeze(WorkerCallback):
    """Unfreezes parameters in the first round that starts in the given epoch or later.

    In fine-tuning this is when a new head has settled. Every worker's optimizer gets them as a new
    group with the options of its first one (``add_param_group``), and keeps its state. Submodules
    in evaluation mode, such as BatchNorm, stay in it. The history has their learning rate as
    ``lr/PATTERN``. Later fits need the same callback. An outer
    optimizer does not step these parameters: they are averaged.

    Parameters
    ----------
    pattern:
        A prefix of dotted names, such as ``"layer4"``, or a pattern, such as ``"layer4.*.weight"``.
    epoch:
        The epoch, counted from 0 over all fits.
    factor:
        Their learning rate, as a multiple of the first group's; 1 by default.

    Raises ``ValueError`` if no frozen parameter matches, or if the optimizer cannot take another
    group.
    """

    def __init__(self, pattern: str, *, epoch: int, factor: float = 1.0) -> None:
        self.pattern = pattern
        self.epoch = check_count("epoch", epoch, least=0)
        self.factor = check_non_negative("factor", factor)

    def check(self, trainer: TrainerProtocol) -> None:
        """Raise ``ValueError`` if no frozen parameter matches the pattern."""
        frozen = [
            name
            for name, parameter in trainer.model().named_parameters()
            if not parameter.requires_grad
        ]
        if not any(matches(name, self.pattern) for name in frozen):
            some = ", ".join(frozen[:5]) or "none"
            raise ValueError(
                f"Unfreeze({self.pattern!r}) matches no frozen parameter; the "
                f"frozen ones are {some}"
            )

    def added_rates(self, epoch: int) -> Mapping[str, float]:
        """Return the group's name and ``factor`` once it is trained."""
        return {self.pattern: self.factor} if epoch >= self.epoch else {}

    def on_optimizer(self, context: WorkerContext) -> None:
        """Unfreeze the parameters, and add those that the optimizer lacks."""
        if context.epoch < self.epoch:
            return
        optimizer = context.optimizer
        named = dict(context.model.named_parameters())
        if isinstance(optimizer, JoinedOptimizer | torch.optim.LBFGS):
            raise ValueError(
                f"Unfreeze adds a parameter group, which {type(optimizer).__name__} "
                "does not support"
            )
        groups = optimizer.param_groups
        present = {id(parameter) for group in groups for parameter in group["params"]}
        matching = {name: named[name] for name in named if matches(name, self.pattern)}
        for parameter in matching.values():
            parameter.requires_grad_()
        new = {
            name: parameter for name, parameter in matching.items() if id(parameter) not in present
        }
        options = {**groups[0], "name": self.pattern, "factor": self.factor}
        options["lr"] = options["lr"] * self.factor
        takes_names = bool(options.pop("param_names", None))
        options["params"] = list(new.items()) if takes_names else list(new.values())
        if new:
            optimizer.add_param_group(options)
