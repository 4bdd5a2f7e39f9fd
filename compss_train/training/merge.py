"""``Merge``: when the models of the workers become one, and how; ``every`` as a function of the
epoch.

Epochs are counted from 0 over all fits of a trainer, as in learning-rate schedules.
"""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypeAlias, get_args

import torch
from torch import nn

from compss_train._utils.private_names import is_batch_norm
from compss_train._utils.validation import (
    check_choice,
    check_count,
    check_fraction,
    check_non_negative,
)
from compss_train.data.partitioning import MergeEvery, MergeUnit
from compss_train.model.compression import MergeDtype
from compss_train.model.optimizers import NetOptimizer, OptimizerSpec, make_optimizer
from compss_train.training.build_arguments import check_outer_optimizer
from compss_train.worker.work import OptimizerState

MergeKind = Literal["synchronous", "commutative", "parameter_server"]
Preset = Literal["auto", "diloco", "slowmo", "post_local"]
Rule = Literal["weighted", "halving"]
Grace: TypeAlias = Literal["auto"] | float
Averaging: TypeAlias = Literal["ema"] | float
AveragingUnit = Literal["merges", "steps"]


@dataclass(frozen=True)
class Merge:
    """When and how workers merge; ``fit(merge=...)``.

    Parameters
    ----------
    kind:
        ``"synchronous"`` averages all workers weighted by their samples; ``"commutative"`` averages
        those that have arrived (``quorum``) and does not wait for late ones, whose changes the next
        merges add; ``"parameter_server"`` adds each worker's change on arrival, layer by layer, on
        a server that the workers connect to (needs the extra ``online``). Or a preset, which is
        synchronous (commutative with ``quorum`` or ``grace``) and chooses ``every``, ``unit``,
        ``outer_optimizer`` and ``optimizer_state`` unless you give them: ``"auto"`` by the number
        of workers, the data, the network and whether there is a schedule (it also chooses
        ``batch_size``); ``"diloco"``, ``"slowmo"`` and ``"post_local"`` as published.
        docs/learning.md compares them. ``None`` (default) means ``"synchronous"``, or the kind in
        the name of the fit.
    every, unit:
        Number of ``"epochs"`` (default: 1) between merges, or number of ``"blocks"`` or
        ``"batches"`` that a worker trains between two merges within an epoch; 0 merges once, at the
        end (not with batches). The last round of an epoch may be shorter. ``every`` may be a
        function of the epoch, counted from 0 over all fits, such as ``training.PostLocal``; a round
        of several epochs uses the value for its first one.
    outer_optimizer:
        How the global parameters move when workers merge. With ``None`` (default) they become the
        mean of the workers. An optimizer, given as in ``build``, takes a step from the parameters
        at the start of the round, with the negative mean change as gradient: ``{"optimizer": "sgd",
        "lr": 0.7, "momentum": 0.9, "nesterov": True}`` is DiLoCo's (arXiv 2311.08105), and ``sgd``
        with a learning rate of 1 gives the mean. Buffers are only averaged. On a parameter server,
        it takes a step for each change on arrival.
    optimizer_state:
        What happens to the state of the workers' optimizers when they merge: ``"keep"`` (default)
        lets each worker keep its own, ``"average"`` averages momentum and moments, ``"reset"``
        starts every round with a new optimizer, and ``"reset_blocks"`` every block, as dislib does
        (not with ``buffer`` or ``PartialShuffle``, which mix blocks).
    averaging, averaging_unit:
        ``"ema"`` keeps an exponential moving average of the parameters after each of the
        ``"merges"`` (default), with a decay of 0.8, or of the workers' ``"steps"``, with a decay of
        0.99; a number between 0 and 1 sets another decay. By steps, each worker averages as
        ``torch.optim.swa_utils`` does, and the averages are merged like the parameters; buffers are
        the newest. The average is evaluated on the validation data as ``val_averaged_loss`` and so
        on, and ``trainer.model(averaged=True)`` returns it. ``None`` (default) for no average.
    dtype:
        ``"bf16"`` or ``"int8"``: workers return changes of the weights in half or a quarter of the
        bytes, and add the rounding error to their next change (Seide et al. 2014; Karimireddy et
        al. 2019, arXiv 1901.09847); docs/slow-networks.md. ``None`` (default): workers return
        uncompressed parameters.
    rule:
        For commutative merging: ``"weighted"`` by samples (default), or dislib's ``"halving"``,
        (global + worker) / 2, which implies ``quorum=0``.
    quorum:
        For commutative merging: the share of the training workers that a merge needs, rounded down,
        but at least one worker; ``None`` (default) for 0.75. Workers that merge together start
        together from the result; if no worker is late, the numbers are those of synchronous
        merging. A late worker's change is added to the merge that it arrives for, weighted by its
        samples relative to those of that merge. With more workers than slots, merges wait for all:
        slow slots then get fewer workers. The fastest worker may be 8 rounds ahead of the slowest;
        then it waits. 0 adds each worker's change by itself, weighted by its samples relative to
        those of the round; ``outer_optimizer``, ``averaging`` and averaged optimizer states need
        several workers. COMPSs cannot tell which workers have arrived: unless ``quorum`` is 0, they
        merge synchronously there, with a warning.
    grace:
        For commutative merging: how long a merge waits for more workers when its quorum has
        arrived, if one is expected by then; as a share of the time that the arrived ones took for
        the round. ``"auto"`` (default) is 0.2. Source: Liu et al. 2024, arXiv 2401.09135.

    Raises ``ValueError`` and ``TypeError`` for other values and for incompatible combinations.
    """

    kind: MergeKind | Preset | None = None
    every: MergeEvery = None
    unit: MergeUnit | None = None
    outer_optimizer: OptimizerSpec | None = None
    optimizer_state: OptimizerState | None = None
    averaging: Averaging | None = None
    averaging_unit: AveragingUnit | None = None
    dtype: MergeDtype | None = None
    rule: Rule | None = None
    quorum: float | None = None
    grace: Grace | None = None

    def __post_init__(self) -> None:
        for name, value in self._given.items():
            _CHECKS[name](value)
        if self.unit == "batches" and self.every == 0:
            raise ValueError(
                "Merge(every=0) merges once, at the end, but unit='batches' merges inside every "
                "epoch: give a number of batches of at least 1, or take unit='epochs'"
            )
        if self.preset is not None and (self.every is None) != (self.unit is None):
            raise ValueError(
                f"Merge({self.kind!r}) chooses every= and unit= together: give both or neither "
                "of them"
            )
        if self.averaging_unit == "steps" and self.averaging is None:
            raise ValueError(
                "averaging_unit='steps' needs averaging=, 'ema' or a decay such as 0.99"
            )
        if self.rule == "halving" and self.quorum is None:
            object.__setattr__(self, "quorum", 0)
        if self.kind is not None:
            self._check_together(self.kind if self.preset is None else self.kind_of_preset)

    @property
    def _given(self) -> dict[str, Any]:
        """The options that are not ``None``."""
        return {
            each.name: value
            for each in fields(self)
            if (value := getattr(self, each.name)) is not None
        }

    def __repr__(self) -> str:
        return f"Merge({', '.join(f'{name}={value!r}' for name, value in self._given.items())})"

    def _check_together(self, kind: str) -> None:
        """Raise ``ValueError`` for options that this kind of merge does not support."""
        if kind == "parameter_server":
            importlib.import_module("compss_train.net")  # raises if ZeroMQ is missing
        texts = {
            text
            for name, value in self._given.items()
            for text in (f"{name}=", f"{name}={value!r}")
        }
        special = [option for option in _SUPPORTING if option in texts]
        for option in special:
            if kind not in (supporting := _SUPPORTING[option]):
                own = " and ".join(f"Merge({each!r})" for each in supporting)
                raise ValueError(f"{option} belongs to {own}, not to Merge({kind!r}): leave it out")
        if self.rule == "halving" or self.quorum == 0:
            of_several = [option for option in special if option.partition("=")[0] in _OF_SEVERAL]
            if self.rule == "halving":
                of_several += [option for option in special if option.startswith("dtype=")]
                of_several += [f"quorum={self.quorum!r}"] if self.quorum else []
            if of_several:
                raise ValueError(
                    "quorum=0 and rule='halving' merge each worker by itself, without "
                    f"{' and '.join(of_several)}: leave that out, or let several merge together, "
                    "with rule='weighted' and a quorum above 0"
                )

    @classmethod
    def of(cls, value: "MergeLike") -> "Merge":
        """Return ``fit(merge=...)`` as a merge; raise ``TypeError`` unless it is the name of a kind
        or a merge.
        """
        if not isinstance(value, Merge | str):
            raise TypeError(
                f"merge={value!r}: give a kind by name, such as 'synchronous', or a Merge"
            )
        return value if isinstance(value, Merge) else cls(value)

    def decay(self, unit: AveragingUnit) -> float | None:
        """Return the decay of the average by this unit, or ``None`` if none is kept by it."""
        if unit != (self.averaging_unit or "merges"):
            return None
        return _DECAYS[unit] if isinstance(self.averaging, str) else self.averaging

    @property
    def preset(self) -> Preset | None:
        """The kind if it is a preset, or ``None``."""
        return next((name for name in get_args(Preset) if name == self.kind), None)

    @property
    def kind_of_preset(self) -> MergeKind:
        """The kind that a preset has."""
        return "commutative" if self.quorum or self.grace is not None else "synchronous"

    def with_defaults(self, defaults: "Merge | None" = None) -> Self:
        """Return this merge with every ``None`` replaced by the option of other ``defaults``, or
        the usual one.
        """
        chosen = DEFAULTS if defaults is None else defaults
        missing = [each.name for each in fields(self) if getattr(self, each.name) is None]
        return replace(self, **{name: getattr(chosen, name) for name in missing})


_DECAYS: Mapping[AveragingUnit, float] = {"merges": 0.8, "steps": 0.99}
"""The decays of ``averaging="ema"``: the average reaches back about five merges, or a hundred steps
of a worker.
"""

_CHECKS: Mapping[str, Callable[[Any], object]] = {
    "kind": lambda given: check_choice(
        "merge", given, (*get_args(MergeKind), *get_args(Preset), None)
    ),
    "every": lambda given: callable(given) or check_count("every", given, least=0),
    "unit": lambda given: check_choice("unit", given, (*get_args(MergeUnit), None)),
    "outer_optimizer": check_outer_optimizer,
    "optimizer_state": lambda given: check_choice(
        "optimizer_state", given, (*get_args(OptimizerState), None)
    ),
    "averaging": lambda given: _check_number(
        "averaging", given, check_fraction, "ema", ("a decay between 0 and 1")
    ),
    "averaging_unit": lambda given: check_choice(
        "averaging_unit", given, (*get_args(AveragingUnit), None)
    ),
    "dtype": lambda given: check_choice("dtype", given, (*get_args(MergeDtype), None)),
    "rule": lambda given: check_choice("rule", given, (*get_args(Rule), None)),
    "quorum": lambda given: _check_quorum(given),
    "grace": lambda given: _check_number(
        "grace", given, check_non_negative, "auto", ("a share of a round's time")
    ),
}
"""The check of each option, if it is given."""

_SUPPORTING: Mapping[str, tuple[MergeKind, ...]] = {
    "rule='halving'": ("commutative",),
    "quorum=": ("commutative",),
    "grace=": ("commutative",),
    "outer_optimizer=": get_args(MergeKind),
    "averaging=": ("synchronous", "commutative"),
    "optimizer_state='average'": ("synchronous", "commutative"),
    **dict.fromkeys(
        [f"dtype={each!r}" for each in get_args(MergeDtype)], ("synchronous", "commutative")
    ),
}
"""The options, or values of options, that do not suit every merge, and the kinds that support
them.
"""

_OF_SEVERAL = ("grace", "outer_optimizer", "averaging", "optimizer_state")
"""Those of merges of several workers."""


def _check_number(
    name: str, given: Any, check: Callable[[str, Any], float], word: str, number: str
) -> None:
    if isinstance(given, str):
        check_choice(name, given, (word, number, None))
    else:
        check(name, given)


def _check_quorum(given: Any) -> None:
    if check_non_negative("quorum", given) > 1:
        raise ValueError(
            f"quorum={given!r}: give the share of the workers that a merge waits for, 0 to 1"
        )


MergeLike: TypeAlias = MergeKind | Preset | Merge
"""What ``fit(merge=...)`` takes."""

DEFAULTS = Merge(
    kind="synchronous", every=1, unit="epochs", optimizer_state="keep", rule="weighted"
)
"""Values for options that are still ``None`` after a preset has been applied."""


@dataclass(frozen=True, kw_only=True)
class PostLocal:
    """Post-local SGD: merge after every batch until an epoch, then less often.

    Parameters
    ----------
    epochs:
        Number of initial epochs in which workers merge after every batch.
    then:
        Number of batches (or other units, by ``unit``) between two merges afterwards.

    Raises ``ValueError`` unless both are integers of at least 1.

    Source: Lin, Stich, Patel and Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020.
    """

    epochs: int
    then: int

    def __post_init__(self) -> None:
        check_count("epochs", self.epochs)
        check_count("then", self.then)

    def __call__(self, epoch: int) -> int:
        """Return the number of batches between merges in an epoch."""
        return 1 if epoch < self.epochs else self.then


NESTEROV: Mapping[str, Any] = {"optimizer": "sgd", "lr": 0.7, "momentum": 0.9, "nesterov": True}

BATCH = 100
"""The local batch size of few workers; the learning rate should be chosen for one worker with this
batch size.
"""
JOINT_BATCH = 800
"""The global batch size, in samples, which many workers share."""
SMALLEST_BATCH = 16
"""Minimum local batch size: smaller batches cost more time than they are worth."""
SAMPLES_PER_MERGE = 15_000
"""Samples of all workers between two merges; a quarter of an epoch if that is less."""
SAMPLES_PER_MERGE_WITH_BATCH_NORM = 3_200
SCHEDULED_JOINT_BATCH = 400
"""``JOINT_BATCH`` with BatchNorm and a schedule: a falling rate gains only with small batches,
merged often.
"""
SCHEDULED_SAMPLES_PER_MERGE = 800
MANY_WORKERS = 8
"""With BatchNorm, fewer workers learn better from the mean and their own momentum than from outer
steps.
"""


def published_merge(preset: Preset, num_epochs: int) -> Merge:
    """Return the options of a paper, all for image classification.

    Douillard et al. 2023, "DiLoCo", arXiv 2311.08105, whose inner optimizer is AdamW. Wang et al.
    2020, "SlowMo", arXiv 1910.00643. Lin et al. 2020, "Don't use large mini-batches, use local
    SGD", arXiv 1808.07217.
    """
    if preset == "diloco":
        return Merge(every=500, unit="batches", outer_optimizer=NESTEROV, optimizer_state="keep")
    if preset == "slowmo":
        outer = {"optimizer": "sgd", "lr": 1.0, "momentum": 0.7}
        return Merge(every=12, unit="batches", outer_optimizer=outer, optimizer_state="reset")
    return Merge(
        every=PostLocal(epochs=max(1, num_epochs // 2), then=16),
        unit="batches",
        optimizer_state="keep",
    )


def has_batch_norm(net: nn.Module) -> bool:
    """Return whether a network has layers of BatchNorm."""
    return any(map(is_batch_norm, net.modules()))


def auto_batch(num_workers: int, net: nn.Module, scheduled: bool) -> int:
    """Return a worker's batch size; ``scheduled`` says whether the learning rate has a schedule."""
    joint = SCHEDULED_JOINT_BATCH if scheduled and has_batch_norm(net) else JOINT_BATCH
    return min(BATCH, max(SMALLEST_BATCH, joint // num_workers))


def auto_merge(
    samples: int,
    batch: int,
    num_workers: int,
    net: nn.Module,
    optimizer: NetOptimizer,
    scheduled: bool,
) -> Merge:
    """Return when workers merge, with which outer optimizer, and what happens to the workers'
    momentum.

    With frequent merges both kinds of momentum add up, which networks with BatchNorm do not
    tolerate. They get only one kind: the outer momentum with many workers, or the workers' own,
    because Adam needs its moments. With a schedule they get the workers' own, and merge after a few
    batches: outer steps gain nothing from a falling rate.
    """
    if num_workers == 1:  # the plain loop
        return Merge()
    batch_norm = has_batch_norm(net)
    adaptive = not isinstance(make_optimizer(optimizer, net), torch.optim.SGD)
    often = SCHEDULED_SAMPLES_PER_MERGE if scheduled else SAMPLES_PER_MERGE_WITH_BATCH_NORM
    most = often if batch_norm else SAMPLES_PER_MERGE
    every = max(1, round(min(most, samples / 4) / (batch * num_workers)))
    # Steps in one direction add up to lr / (1 - momentum) times the mean change: as far as these
    # workers would have moved one after another, up to 7 of them.
    momentum = round(min(NESTEROV["momentum"], 1 - NESTEROV["lr"] / num_workers), 3)
    own = adaptive or scheduled or num_workers < MANY_WORKERS
    outer = None if batch_norm and own else {**NESTEROV, "momentum": momentum}
    state: OptimizerState = "reset" if batch_norm and outer is not None else "average"
    return Merge(every=every, unit="batches", outer_optimizer=outer, optimizer_state=state)
