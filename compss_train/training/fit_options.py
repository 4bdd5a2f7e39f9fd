"""The options of a fit, checked before any task starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from compss_train._utils.validation import check_choice, check_count, check_fraction
from compss_train.buffers import BufferSpec
from compss_train.data.order import Batching
from compss_train.data.partitioning import MergeEvery, MergeUnit, Position, RoundPlan, Shuffle, units_between_merges
from compss_train.model.compression import MergeDtype
from compss_train.model.delayed_nesterov import DelayedNesterov
from compss_train.model.optimizers import OptimizerSpec
from compss_train.parameter_server import check_installed
from compss_train.samplers.loader import check_threads
from compss_train.samplers.pools import Pools, check_pools
from compss_train.training.build_arguments import check_outer_optimizer
from compss_train.training.description import described
from compss_train.training.presets import OptimizerState, Preset

MergeName = Literal["synchronous", "commutative", "parameter_server"]
Rule = Literal["weighted", "halving"]

MAX_EPOCHS = 10**9
"""The most epochs of a fit; for one that ends by ``max_time`` or a callback."""

MAX_PASSES = 10**7
"""The most passes over blocks in a round of several epochs, all workers together: they are planned at once."""

CHECKED_EPOCHS = 10_000
"""The epochs for which a function ``merge_every`` is called before a fit."""

JSON_VALUES = str | bool | int | float | None
"""Values that JSON holds as they are."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of a fit, from ``DistributedTrainer.fit``, which documents them, to the workers' tasks."""

    num_epochs: int
    preset: Preset | None = None
    """Where options that the caller left out come from."""
    num_batches_per_worker: int | None = None
    batch_size: int | None = None
    merge: MergeName = "synchronous"
    merge_every: MergeEvery = 1
    merge_unit: MergeUnit = "epochs"
    shuffle: Shuffle = "blocks"
    shuffle_block_data: bool = True
    rule: Rule = "weighted"
    outer_optimizer: OptimizerSpec | None = None
    optimizer_state: OptimizerState = "keep"
    weight_averaging: Literal["ema"] | float | None = None
    merge_dtype: MergeDtype | None = None
    buffer: BufferSpec | None = None
    shuffle_buffer: int | None = None
    pools: int = 1
    file_buffer: int = 10
    bucket_by_length: bool = False

    def __post_init__(self) -> None:
        if check_count("num_epochs", self.num_epochs) > MAX_EPOCHS:
            raise ValueError(f"num_epochs={self.num_epochs}: give at most {MAX_EPOCHS} epochs, and max_time=")
        if not callable(self.merge_every):
            check_count("merge_every", self.merge_every, least=0)
        if (self.num_batches_per_worker is None) == (self.batch_size is None):
            raise ValueError(
                f"num_batches_per_worker={self.num_batches_per_worker} and batch_size={self.batch_size}: "
                "give exactly one of them, batches a block or samples a batch"
            )
        for name in ("num_batches_per_worker", "batch_size"):
            if getattr(self, name) is not None:
                check_count(name, getattr(self, name))
        check_choice("merge", self.merge, get_args(MergeName))
        check_choice("merge_unit", self.merge_unit, get_args(MergeUnit))
        if self.merge_unit == "batches" and self.merge_every == 0:
            raise ValueError(
                "merge_every=0 merges once, at the end, but merge_unit='batches' merges inside every epoch: give a "
                "number of batches of at least 1, or take merge_unit='epochs'"
            )
        check_choice("shuffle", self.shuffle, ("blocks", "total", "partial", None))
        check_choice("shuffle_block_data", self.shuffle_block_data, (True, False))
        check_choice("rule", self.rule, get_args(Rule))
        self._check_rule()
        if self.merge == "parameter_server":
            check_installed()
        check_choice("optimizer_state", self.optimizer_state, get_args(OptimizerState))
        self._check_merging()
        if not isinstance(self.buffer, BufferSpec | None):
            raise TypeError(f"buffer={self.buffer!r}: give a BufferSpec, such as BufferSpec('FIRO', 4096), or None")
        if self.buffer is not None and self.buffer.pairs:
            raise ValueError(
                "a SimPairedReservoir pairs time steps of simulations, which blocks do not name: it is for "
                "fit_online; take another"
            )
        check_count("file_buffer", self.file_buffer)
        check_choice("bucket_by_length", self.bucket_by_length, (True, False))
        if self.bucket_by_length and (
            self.buffer is not None or self.shuffle not in ("blocks", None) or not self.shuffle_block_data
        ):
            raise ValueError(
                "bucket_by_length=True orders the samples within each block: leave buffer= and shuffle_block_data= "
                "out, and take shuffle='blocks' or None"
            )
        self._check_partial_shuffle()

    def _check_rule(self) -> None:
        if self.rule != "weighted" and self.merge != "commutative":
            raise ValueError(
                f"rule={self.rule!r} belongs to merge='commutative'; with merge={self.merge!r} workers are "
                "weighted by samples: leave rule= out"
            )

    def _check_merging(self) -> None:
        check_outer_optimizer(self.outer_optimizer)
        if self.outer_optimizer is not None and self.merge == "commutative":
            self._check_commutative_step()
        check_choice("merge_dtype", self.merge_dtype, (*get_args(MergeDtype), None))
        if self.merge_dtype is not None and (self.merge == "parameter_server" or self.rule == "halving"):
            raise ValueError(
                f"merge_dtype={self.merge_dtype!r} compresses changes that merge='synchronous' averages or "
                "merge='commutative' adds up, not what merge='parameter_server' and rule='halving' exchange: leave "
                "merge_dtype= out"
            )
        if isinstance(self.weight_averaging, str):
            check_choice("weight_averaging", self.weight_averaging, ("ema", "a decay between 0 and 1", None))
        elif self.weight_averaging is not None:
            check_fraction("weight_averaging", self.weight_averaging)
        only_synchronous = {
            "optimizer_state='average'": self.optimizer_state == "average",
            "weight_averaging=": self.weight_averaging is not None,
        }
        given = [name for name, is_given in only_synchronous.items() if is_given]
        if given and self.merge != "synchronous":
            raise ValueError(
                f"{given[0]} belongs to merge='synchronous', not to merge={self.merge!r}: leave it out"
            )

    def _check_commutative_step(self) -> None:
        if self.rule == "halving":
            raise ValueError(
                "rule='halving' has no outer optimizer: leave outer_optimizer= out, or take rule='weighted'"
            )
        try:
            DelayedNesterov.of(self.outer_optimizer)
        except ValueError as error:
            raise ValueError(f"outer_optimizer={self.outer_optimizer!r}: {error}") from None

    def _check_partial_shuffle(self) -> None:
        if self.shuffle_buffer is not None:
            check_count("shuffle_buffer", self.shuffle_buffer)
        check_pools(self.shuffle_buffer or 1, self.pools)
        if self.shuffle != "partial" and (self.shuffle_buffer is not None or self.pools != 1):
            raise ValueError(
                f"shuffle_buffer={self.shuffle_buffer} and pools={self.pools} belong to shuffle='partial', "
                f"not to shuffle={self.shuffle!r}"
            )
        if self.shuffle == "partial" and (self.buffer is not None or not self.shuffle_block_data):
            raise ValueError(
                "shuffle='partial' mixes samples in pools of its own: leave buffer= and shuffle_block_data= out, "
                "or take shuffle='blocks'"
            )

    def described(self) -> dict[str, Any]:
        """Return the options as plain values that JSON can hold; equal options give equal values."""
        return {
            name: described(value) if isinstance(value, JSON_VALUES | Mapping) or callable(value) else repr(value)
            for name, value in vars(self).items()
        }

    @property
    def batching(self) -> Batching:
        """How blocks are cut into batches."""
        return Batching(self.num_batches_per_worker, self.batch_size)

    @property
    def carries_buffers(self) -> bool:
        """Whether workers keep samples in their buffers when they merge."""
        return self.buffer is not None and self.merge_unit == "batches"

    @property
    def partial_shuffle(self) -> Pools | None:
        """The pools of a partial shuffle, ``None`` without one; call ``for_tasks`` first."""
        return Pools(self.shuffle_buffer or 1, self.pools) if self.shuffle == "partial" else None

    @property
    def read_ahead(self) -> int:
        """The most files that a worker reads before it needs them."""
        return self.file_buffer - 1

    def for_tasks(self, sizes: tuple[int, ...]) -> FitOptions:
        """Return the options for tasks on blocks of these sizes.

        By default a pool is as large as the largest block. ``merge_every`` is left out if it is a function, which
        other processes may not be able to import.
        """
        options = replace(self, merge_every=1, outer_optimizer=None)
        if self.shuffle != "partial" or self.shuffle_buffer is not None:
            return options
        return replace(options, shuffle_buffer=max(sizes))

    def check_epochs(self, epochs: range, blocks: int) -> None:
        """Raise ``ValueError`` unless ``merge_every`` is valid in these epochs, and for rounds that are too long.

        A function is called for the first ``CHECKED_EPOCHS`` of them, and for others when they are reached.
        """
        for epoch in epochs[: CHECKED_EPOCHS if callable(self.merge_every) else 1]:
            units = units_between_merges(epoch, self.merge_every)
            if self.merge_unit == "epochs" or not units:
                self._check_passes(min(units or len(epochs), len(epochs)), blocks)

    def _check_passes(self, epochs: int, blocks: int) -> None:
        if epochs > 1 and epochs * blocks > MAX_PASSES:
            raise ValueError(
                f"a round of {epochs} epochs would pass over {blocks} blocks {epochs} times before workers merge, "
                "and is planned as a whole: merge more often, with merge_every= of at most "
                f"{MAX_PASSES // blocks or 1}"
            )

    def check_lengths(self, *, ragged: bool) -> None:
        """Raise ``ValueError`` for options that sequences of different lengths lack, or that only they have."""
        if ragged and (self.buffer is not None or self.shuffle == "partial"):
            given = "shuffle='partial'" if self.buffer is None else "buffer="
            raise ValueError(
                f"{given} mixes samples of one size, and these sequences differ in length; take shuffle='total' or "
                "'blocks' without a buffer, or pad the sequences"
            )
        if self.bucket_by_length and not ragged:
            raise ValueError("bucket_by_length=True needs sequences of different lengths in x or y")

    def check_blocks(self, sizes: tuple[int, ...], num_workers: int, *, reading_threads: int | None) -> None:
        """Check the options against the numbers of samples of the blocks, or files that threads read.

        Raises ``ValueError`` if a block has too few samples, if the buffer can never return such batches, for
        shuffles that files do not support, and for more threads than the files in memory allow.
        """
        if reading_threads is not None:
            check_threads(reading_threads, self.file_buffer)
        if reading_threads is not None and self.shuffle == "total":
            raise ValueError(
                "shuffle='total' would open every file for every batch; take shuffle='partial', which mixes "
                "samples in pools, or load files that fit in memory with BlockedTensor.from_files"
            )
        smallest = min(sizes)
        if self.num_batches_per_worker is not None and self.num_batches_per_worker > smallest:
            raise ValueError(
                f"num_batches_per_worker={self.num_batches_per_worker}, but block {sizes.index(smallest)} has "
                f"only {smallest} rows; use {smallest} batches at most, or larger blocks"
            )
        if self.buffer is not None:
            self.buffer.check(
                min(sum(sizes), self.batch_size or -(-max(sizes) // (self.num_batches_per_worker or 1)))
            )
            most_blocks = -(-len(sizes) // num_workers)
            self.buffer.check_samples(sum(sorted(sizes)[-most_blocks:]))

    def round_plan(
        self,
        sizes: tuple[int, ...],
        num_workers: int,
        seed: int,
        first_epoch: int,
        first_round: int,
        start: Position | None = None,
    ) -> RoundPlan:
        """Return the rounds over blocks of these sizes."""
        return RoundPlan(
            sizes=sizes,
            num_workers=num_workers,
            num_epochs=self.num_epochs,
            seed=seed,
            shuffle=self.shuffle,
            batching=self.batching,
            merge_every=self.merge_every,
            merge_unit=self.merge_unit,
            first_epoch=first_epoch,
            first_round=first_round,
            start=start,
            put_counts=self.buffer.put_counts if self.carries_buffers and self.buffer else None,
        )
