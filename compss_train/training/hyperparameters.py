"""What ``trainer.set_hyperparameters`` has set, and from which round on it holds.

Rounds are submitted ahead of those that callbacks see, so that a change holds from the first one
that is not submitted yet. Its number is kept, also in checkpoints: a resumed fit trains each round
with the same values.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Self

import torch
from torch import nn

from compss_train._utils.validation import is_finite, suggestion
from compss_train.model.joined_optimizer import JoinedOptimizer
from compss_train.model.lr_schedule import Hyperparameters, LrSchedule, TimedHyperparameters
from compss_train.model.net_optimizers import make_optimizer
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.build_arguments import BuildArguments

_NO_HYPERPARAMETERS = frozenset({"initial_lr", "factor"})
"""Numbers in parameter groups that schedules and callbacks keep there."""

_NAMED_PATHS = 10
"""Maximum number of attributes that an error lists."""


@dataclass(frozen=True, kw_only=True)
class SetValues:
    """The hyperparameters that hold from a round on."""

    round: int
    """The number of the first round."""
    groups: tuple[dict[str, Any], ...]
    """For each parameter group of ``build``, what was set in it by name."""
    attributes: dict[str, float]
    """The attributes of objects that were set, by paths such as ``loss.weight``."""

    def over(self, scheduled: Hyperparameters, schedule: LrSchedule | None) -> Hyperparameters:
        """Return hyperparameters with these in place of the optimizer's.

        A learning rate is the base rate of a schedule: its rates are multiplied by what the base
        rate was multiplied by.
        """
        groups = []
        for number, (before, values) in enumerate(zip(scheduled, self.groups, strict=True)):
            new = {**before, **values}
            if schedule is not None and "lr" in values:
                new["lr"] = before["lr"] * (values["lr"] / schedule.base_rates[number])
            groups.append(new)
        return tuple(groups)

    def over_timed(
        self, timed: TimedHyperparameters, schedule: LrSchedule | None
    ) -> TimedHyperparameters:
        """Return the hyperparameters of an epoch with these in place of the optimizer's."""
        return tuple((begin, self.over(scheduled, schedule)) for begin, scheduled in timed)


class HyperparameterChanges:
    """The hyperparameters that were set since ``build``, by the rounds from which they hold."""

    def __init__(self, built: BuildArguments) -> None:
        self._built = built
        self._changes: list[SetValues] = []
        """In ascending order of their rounds."""
        self._is_new = False
        """Whether values were set that no fit has had."""

    def at(self, number: int) -> SetValues | None:
        """Return what holds in a round; ``None`` for what the network was built with."""
        holding = [change for change in self._changes if change.round <= number]
        return holding[-1] if holding else None

    @property
    def last(self) -> SetValues | None:
        """What was set last, and holds in later fits."""
        return self._changes[-1] if self._changes else None

    def settle(self) -> None:
        """Let what was set last hold at once, as a fit has ended that had rounds ahead."""
        self._is_new = False
        if self._changes:
            self._changes = [replace(self._changes[-1], round=0)]

    def lost_in(self, loaded: Self) -> dict[str, tuple[Any, Any]]:
        """Return the values for the next fit that a checkpoint has replaced, each with its own.

        It is ``None`` for an attribute that is as it was built. There are no values if the
        checkpoint's fit has had the same ones, as that of a program that is run again.
        """
        last = self.last
        if last is None or not self._is_new:
            return {}
        if any(replace(change, round=last.round) == last for change in loaded._changes):
            return {}
        in_checkpoint = loaded.current()
        return {
            name: (value, in_checkpoint.get(name))
            for name, value in self.current().items()
            if value != in_checkpoint.get(name)
        }

    def set(
        self,
        first_round: int,
        options: Mapping[str, Any],
        *,
        group: str | int | None = None,
        attributes: Mapping[str, Any] | None = None,
    ) -> None:
        """Set values from a round on; ``DistributedTrainer.set_hyperparameters`` documents them."""
        if not options and not attributes:
            raise TypeError(
                "set_hyperparameters() sets nothing: give values by name, such as lr=0.01"
            )
        optimizer = make_optimizer(
            self._built.training_spec.optimizer, self._built.training_spec.net
        )
        numbers = _group_numbers(optimizer, group)
        values = _checked_options(optimizer, numbers, options)
        if self._built.lr_schedule is not None:
            self._built.lr_schedule.check_settable(options)
        checked_attributes = _checked_attributes(self._built.training_spec, attributes or {})
        last = self.last
        groups = [{} for _ in optimizer.param_groups] if last is None else [*last.groups]
        for number, of_group in values.items():
            groups[number] = {**groups[number], **of_group}
        _check_by_class(optimizer, groups, numbers)
        attributes_before = {} if last is None else last.attributes
        earlier = [change for change in self._changes if change.round < first_round]
        change = SetValues(
            round=first_round,
            groups=tuple(groups),
            attributes={**attributes_before, **checked_attributes},
        )
        self._changes = [*earlier, change]
        self._is_new = True

    def current(self) -> dict[str, Any]:
        """Return the hyperparameters by name; ``DistributedTrainer.hyperparameters`` says how."""
        spec = self._built.training_spec
        groups = make_optimizer(spec.optimizer, spec.net).param_groups
        last = self.last
        current: dict[str, Any] = {}
        for number, group in enumerate(groups):
            values = _hyperparameters_of(group)
            if last is not None:
                values |= last.groups[number]
            if number == 0:
                current |= values
            if number > 0 or "name" in group:
                name = group.get("name", number)
                current |= {f"{option}/{name}": value for option, value in values.items()}
        return current if last is None else current | last.attributes

    def state(self) -> list[dict[str, Any]]:
        """Return the changes as a checkpoint holds them."""
        return [{**vars(change), "groups": [*change.groups]} for change in self._changes]

    def load_state(
        self, state: Sequence[Mapping[str, Any]], changed_options: Sequence[Mapping[str, Any]]
    ) -> None:
        """Continue from what ``state`` returned.

        ``changed_options`` are those that ``build`` has changed since, by group: they count.
        """
        self._changes = []
        for change in state:
            groups = [
                {name: value for name, value in group.items() if name not in changed}
                for group, changed in zip(change["groups"], changed_options, strict=True)
            ]
            attributes = dict(change["attributes"])
            for path in attributes:
                if path not in _numbers_by_path(self._built.training_spec):
                    raise ValueError(
                        f"set_hyperparameters has set {path} in the checkpoint's fit, and there is "
                        "no such number now: build with the same network, loss and steps"
                    )
            self._changes.append(
                SetValues(round=change["round"], groups=tuple(groups), attributes=attributes)
            )


def _hyperparameters_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a parameter group that are numbers, or tuples of them."""
    values = {
        name: value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value
        for name, value in group.items()
        if name not in _NO_HYPERPARAMETERS
    }
    return {name: value for name, value in values.items() if _is_number(value) or _is_tuple(value)}


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_tuple(value: object) -> bool:
    return isinstance(value, tuple) and len(value) > 0 and all(map(_is_number, value))


def _group_numbers(optimizer: torch.optim.Optimizer, group: str | int | None) -> list[int]:
    """Return the numbers of the groups that are meant; raise ``ValueError`` for an unknown one."""
    groups = optimizer.param_groups
    if group is None:
        return [*range(len(groups))]
    names = [options.get("name", number) for number, options in enumerate(groups)]
    is_number = isinstance(group, int) and not isinstance(group, bool)
    if is_number and group in range(len(groups)):
        return [int(group)]
    if isinstance(group, str) and group in names:
        return [number for number, name in enumerate(names) if name == group]
    raise ValueError(
        f"group={group!r}: the optimizer's groups of parameters are "
        f"{', '.join(map(repr, names))}; those that Unfreeze adds follow the first one"
    )


def _checked_options(
    optimizer: torch.optim.Optimizer, numbers: Sequence[int], options: Mapping[str, Any]
) -> dict[int, dict[str, Any]]:
    """Return the options to set in each of the groups that have them.

    Raises ``ValueError`` for a name that no group has, and for what is no finite number.
    """
    accepted = {number: _hyperparameters_of(optimizer.param_groups[number]) for number in numbers}
    names = dict.fromkeys(name for of_group in accepted.values() for name in of_group)
    values: dict[int, dict[str, Any]] = {number: {} for number in numbers}
    for name, value in options.items():
        if name not in names:
            raise ValueError(
                f"set_hyperparameters({name}={value!r}): {type(optimizer).__name__} has "
                f"{', '.join(names)}{suggestion(name, names)}; attributes of a loss or a step are "
                "given by paths, attributes={'loss.weight': 0.5}"
            )
        for number, of_group in accepted.items():
            if name in of_group:
                values[number][name] = _checked_option(name, value, of_group[name])
    return values


def _checked_option(name: str, value: Any, before: Any) -> Any:
    """Return an option as plain numbers; ``before`` is what the optimizer was made with."""
    if isinstance(before, tuple):
        is_like = isinstance(value, tuple | list) and len(value) == len(before)
        if not is_like or not all(_is_number(part) and is_finite(part) for part in value):
            raise ValueError(
                f"set_hyperparameters({name}={value!r}): give {len(before)} finite numbers, such "
                f"as {before}"
            )
        return tuple(map(_plain, value))
    accepted = "a finite number of at least 0" if name == "lr" else "a finite number"
    is_accepted = _is_number(value) and is_finite(value) and (name != "lr" or value >= 0)
    if not is_accepted:
        raise ValueError(f"set_hyperparameters({name}={value!r}): give {accepted}")
    return _plain(value)


def _plain(number: Any) -> int | float:
    return number if type(number) is int else float(number)


def _check_by_class(
    optimizer: torch.optim.Optimizer, groups: Sequence[Mapping[str, Any]], numbers: Sequence[int]
) -> None:
    """Raise ``ValueError`` for values that the class of torch's optimizer does not take."""
    members = [optimizer]
    if isinstance(optimizer, JoinedOptimizer):
        members = [*optimizer.optimizers.values()]
    kinds = [type(member) for member in members for _ in member.param_groups]
    for number in numbers:
        kind = kinds[number]
        if not kind.__module__.startswith("torch.optim."):
            continue
        group = optimizer.param_groups[number]
        switches = {name: group[name] for name in ("nesterov", "amsgrad") if name in group}
        options: dict[str, Any] = _hyperparameters_of(group) | switches | dict(groups[number])
        taken = inspect.signature(kind).parameters
        arguments = {name: value for name, value in options.items() if name in taken}
        try:
            kind([nn.Parameter(torch.zeros(1))], **arguments)
        except ValueError as error:
            raise ValueError(f"set_hyperparameters: {kind.__name__} says: {error}") from error


def _numbers_by_path(spec: TrainingSpec) -> list[str]:
    """Return the paths of the numbers that objects keep in attributes."""
    return [path for path, value in spec.attributes.values.items() if _is_number(value)]


def _checked_attributes(spec: TrainingSpec, attributes: Mapping[str, Any]) -> dict[str, float]:
    """Return attributes of objects as plain numbers.

    Raises ``ValueError`` for a path that is not one of a number, and for what is no finite number.
    """
    if not attributes:
        return {}
    numbers = _numbers_by_path(spec)
    checked = {}
    for path, value in attributes.items():
        if path not in numbers:
            ordered = sorted(numbers, key=lambda number_path: number_path.startswith("network."))
            listed = ", ".join(ordered[:_NAMED_PATHS]) or "none"
            raise ValueError(
                f"attributes= has {path!r}, and the numbers that objects of build keep are "
                f"{listed}{suggestion(path, numbers)}; 'loss.weight' is what a loss keeps in "
                "self.weight"
            )
        if not _is_number(value) or not is_finite(value):
            raise ValueError(f"attributes= has {path!r}: {value!r}; give a finite number")
        checked[path] = _plain(value)
    return checked
