"""``Merge``: when the models of the workers become one, and how."""

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, TypeAlias, get_args

from compss_train._utils.validation import (
    check_choice,
    check_count,
    check_fraction,
    check_non_negative,
)
from compss_train.data.partitioning import MergeEvery, MergeUnit
from compss_train.model.compression import MergeDtype
from compss_train.model.optimizers import OptimizerSpec
from compss_train.training.network_checks import check_outer_optimizer
from compss_train.worker.merging.buffers import BufferRule
from compss_train.worker.merging.rules import Mean, MergeRule, Trimmed
from compss_train.worker.work import OptimizerState

MergeKind = Literal["synchronous", "commutative", "parameter_server"]
Preset = Literal["auto", "diloco", "slowmo", "post_local"]
RuleName = Literal["weighted", "halving", "trimmed"]
DEFAULT_TRIM = 0.1
"""The default of ``Merge(trim=...)``."""
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
        function of the epoch, counted from 0 over all fits as in learning-rate schedules, such as
        ``training.PostLocal``; a round of several epochs uses the value for its first one.
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
        the newest. ``fit_online`` averages by steps only. The average is evaluated on the
        validation data as ``val_averaged_loss`` and so on, and ``trainer.model(averaged=True)``
        returns it. ``None`` (default) for no average.
    dtype:
        ``"bf16"`` or ``"int8"``: workers return changes of the weights in half or a quarter of the
        bytes, and add the rounding error to their next change (Seide et al. 2014; Karimireddy et
        al. 2019, arXiv 1901.09847); docs/slow-networks.md. ``None`` (default): workers return
        uncompressed parameters.
    rule, trim:
        How what the workers trained becomes one: ``"weighted"``, their mean by samples (default);
        ``"trimmed"``, the mean of each element without the ``ceil(trim * n)`` smallest and largest
        of the n workers' values, against workers with bad data: workers count equally, at least
        three, ``trim`` is above 0 and below 0.5, 0.1 by default (Yin et al. 2018, arXiv
        1803.01498); a ``MergeRule`` of your own; or, for commutative merging, dislib's
        ``"halving"``, (global + worker) / 2, which implies ``quorum=0``.
    buffers:
        How buffers of the state_dict merge that are no statistics, by patterns of dotted names or
        their prefixes, of which the last that matches counts: ``{"queue": "worker", "*.peak":
        "max"}``. ``"worker"``: each worker keeps its own, such as a queue of keys, and the global
        parameters have worker 0's; ``"first"``: that of the first worker in the merge (not where
        each merges by itself); ``"max"``: the maximum of each element; ``"mean"``: the mean by
        samples. By default floats have the mean, and integers the maximum. A buffer that no worker
        has changed keeps its bits. ``None`` (default) for none.
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
    rule: RuleName | MergeRule | None = None
    trim: float | None = None
    buffers: Mapping[str, BufferRule] | None = None
    quorum: float | None = None
    grace: Grace | None = None

    def __post_init__(self) -> None:
        self._check_values()
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
    def _set_options(self) -> dict[str, Any]:
        """The options that are not ``None``."""
        options = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: value for name, value in options.items() if value is not None}

    def __repr__(self) -> str:
        options = (f"{name}={value!r}" for name, value in self._set_options.items())
        return f"Merge({', '.join(options)})"

    def _check_values(self) -> None:
        """Raise ``ValueError`` or ``TypeError`` for an option that is wrong by itself."""
        check_choice("merge", self.kind, (*get_args(MergeKind), *get_args(Preset), None))
        for name, choices in _CHOICES.items():
            check_choice(name, getattr(self, name), (*choices, None))
        self._check_rule()
        if self.buffers is not None:
            self._check_buffers(self.buffers)
        if self.every is not None and not callable(self.every):
            check_count("every", self.every, least=0)
        if self.outer_optimizer is not None:
            check_outer_optimizer(self.outer_optimizer)
        if isinstance(self.averaging, str):
            check_choice("averaging", self.averaging, ("ema", "a decay between 0 and 1", None))
        elif self.averaging is not None:
            check_fraction("averaging", self.averaging)
        if self.quorum is not None and check_non_negative("quorum", self.quorum) > 1:
            raise ValueError(
                f"quorum={self.quorum!r}: give the share of the workers that a merge waits for, "
                "0 to 1"
            )
        if isinstance(self.grace, str):
            check_choice("grace", self.grace, ("auto", "a share of a round's time", None))
        elif self.grace is not None:
            check_non_negative("grace", self.grace)

    def _check_rule(self) -> None:
        rule: object = self.rule
        if isinstance(rule, type) and issubclass(rule, MergeRule):
            raise TypeError(
                f"rule={rule.__name__}: give an object of this class, {rule.__name__}()"
            )
        if not isinstance(rule, MergeRule):
            check_choice("rule", rule, (*get_args(RuleName), "a MergeRule()", None))
        if self.trim is None:
            return
        if check_fraction("trim", self.trim) >= 0.5:
            raise ValueError(
                f"trim={self.trim!r}: give the share of the workers whose values are dropped at "
                "each end, above 0 and below 0.5"
            )
        if self.rule != "trimmed":
            raise ValueError(
                f"trim={self.trim!r} belongs to rule='trimmed', not to rule={self.rule!r}: leave "
                "it out, or give that rule"
            )

    def _check_buffers(self, buffers: object) -> None:
        if not isinstance(buffers, Mapping):
            raise TypeError(
                f"buffers={buffers!r}: give a dict from patterns of names to rules, such as "
                "{'queue': 'worker'}"
            )
        for pattern, rule in buffers.items():
            check_choice(f"buffers[{pattern!r}]", rule, get_args(BufferRule))

    def _check_together(self, kind: str) -> None:
        """Raise ``ValueError`` for options that this kind of merge does not support."""
        if kind == "parameter_server":
            importlib.import_module("compss_train.net")  # raises if ZeroMQ is missing
        texts = set[str]()
        for name, value in self._set_options.items():
            texts |= {f"{name}=", f"{name}={value!r}"}
        special = [option for option in _SUPPORTING if option in texts]
        for option in special:
            supporting = _SUPPORTING[option]
            if kind not in supporting:
                merges = " and ".join(f"Merge({name!r})" for name in supporting)
                raise ValueError(
                    f"{option} belongs to {merges}, not to Merge({kind!r}): leave it out"
                )
        if kind == "parameter_server" and self.averaging and self.averaging_unit != "steps":
            raise ValueError(
                f"averaging={self.averaging!r} by merges needs workers that merge together, and on "
                "a parameter server each merges by itself: leave it out, or in fit_online give "
                "averaging_unit='steps'"
            )
        of_all_workers = self.rule not in (None, "weighted", "halving")
        if of_all_workers and (kind == "parameter_server" or self.quorum == 0):
            alone = "Merge('parameter_server')" if kind == "parameter_server" else "quorum=0"
            raise ValueError(
                f"rule={self.rule!r} needs what several workers trained, and {alone} merges each "
                "worker by itself, as it arrives: take kind 'synchronous', or 'commutative' with a "
                "quorum above 0"
            )
        is_alone = kind == "parameter_server" or self.quorum == 0 or self.rule == "halving"
        if is_alone and "first" in (self.buffers or {}).values():
            raise ValueError(
                f"buffers={self.buffers!r}: 'first' needs several workers that merge together, and "
                "here each merges by itself: give 'worker', of which the global parameters have "
                "worker 0's"
            )
        if self.rule != "halving" and self.quorum != 0:
            return
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
        """Return ``fit(merge=...)`` as a merge; raise ``TypeError`` for another type."""
        if not isinstance(value, Merge | str):
            raise TypeError(
                f"merge={value!r}: give a kind by name, such as 'synchronous', or a Merge"
            )
        return value if isinstance(value, Merge) else cls(value)

    @property
    def chosen_rule(self) -> MergeRule:
        """The rule as an object."""
        if isinstance(self.rule, MergeRule):
            return self.rule
        if self.rule == "trimmed":
            return Trimmed(DEFAULT_TRIM if self.trim is None else self.trim)
        return Mean()

    def check_workers(self, workers: int) -> None:
        """Raise ``ValueError`` if the rule needs more workers."""
        least = self.chosen_rule.least_workers
        if workers < least:
            raise ValueError(
                f"rule={self.rule!r} needs at least {least} workers that train, and there are "
                f"{workers}: give num_workers={least} or more and enough blocks, or take "
                "rule='weighted'"
            )

    def check_merges_several(self) -> None:
        """Raise ``ValueError`` if each worker merges by itself: nobody can change its weight."""
        if self.kind == "parameter_server" or self.quorum == 0:
            raise ValueError(
                "on_merge of a callback changes the weights of workers that merge together, and "
                f"with {self} each merges by itself: take kind 'synchronous', or 'commutative' "
                "with a quorum above 0"
            )

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
        """Return this merge with options of ``defaults``, by default the usual, for ``None``."""
        chosen = DEFAULTS if defaults is None else defaults
        names = [field.name for field in fields(self) if getattr(self, field.name) is None]
        return replace(self, **{name: getattr(chosen, name) for name in names})


_DECAYS: Mapping[AveragingUnit, float] = {"merges": 0.8, "steps": 0.99}
"""The decays of ``averaging="ema"``.

The average reaches back about five merges, or a hundred steps of a worker.
"""

_CHOICES: Mapping[str, tuple[str, ...]] = {
    "unit": get_args(MergeUnit),
    "optimizer_state": get_args(OptimizerState),
    "averaging_unit": get_args(AveragingUnit),
    "dtype": get_args(MergeDtype),
}
"""The values of the options that are names."""

_SUPPORTING: Mapping[str, tuple[MergeKind, ...]] = {
    "rule='halving'": ("commutative",),
    "quorum=": ("commutative",),
    "grace=": ("commutative",),
    "outer_optimizer=": get_args(MergeKind),
    "averaging=": get_args(MergeKind),
    "optimizer_state='average'": ("synchronous", "commutative"),
    **{f"dtype={dtype!r}": ("synchronous", "commutative") for dtype in get_args(MergeDtype)},
}
"""The kinds that support an option, or a value of it, that does not suit every merge."""

_OF_SEVERAL = ("grace", "outer_optimizer", "averaging", "optimizer_state")
"""Those of merges of several workers."""

MergeLike: TypeAlias = MergeKind | Preset | Merge
"""What ``fit(merge=...)`` takes."""

DEFAULTS = Merge(
    kind="synchronous", every=1, unit="epochs", optimizer_state="keep", rule="weighted"
)
"""Values for options that are still ``None`` after a preset has been applied."""
