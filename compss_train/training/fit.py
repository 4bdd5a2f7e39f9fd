"""``FitOptions``: what a fit was asked for, checked before any task starts."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Literal, Self, TypeAlias

from compss_train._utils.validation import check_choice, check_count, warn_user
from compss_train.buffers import BufferSpec
from compss_train.data import FileDataset, partitioning
from compss_train.data.block_passes import Batching
from compss_train.model.schedule import Schedule
from compss_train.model.training_spec import TrainingSpec
from compss_train.samplers import PartialShuffle
from compss_train.samplers.loader import check_threads
from compss_train.training import merge as merges
from compss_train.training.callback import AnyCallback
from compss_train.training.data_source import DataSource
from compss_train.worker.callbacks import WorkerCallback
from compss_train.worker.work import Job, Residency

ShuffleLike: TypeAlias = Literal["blocks", "total"] | PartialShuffle | None
"""What ``fit(shuffle=...)`` takes."""

MAX_EPOCHS = 10**9
"""Maximum number of epochs of a fit, for fits that ``max_time`` or a callback ends."""

MAX_PASSES = 10**7
"""Maximum number of block passes in a round of several epochs, over all workers: they are planned
at once.
"""

CHECKED_EPOCHS = 10_000
"""Number of epochs for which a function ``Merge.every`` is checked before a fit."""


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """The options of ``DistributedTrainer.fit``, declared and checked before anything starts.

    ``python -m tests.fit_options`` writes the signature and the documentation of ``fit`` from here.
    Those with a ``repr`` determine the parameters: they are in ``trainer.configuration`` and in
    checkpoints. Every option of ``merge`` is set, unless it is a preset that has not been applied.
    """

    num_epochs: int
    """Number of passes over all samples, at most 10**9 (to train until ``max_time``)."""
    batch_size: int | None = None
    """Maximum number of samples in a batch. Batch sizes within a block differ by at most one. Give
    this or ``num_batches_per_worker``; ``merge="auto"`` needs neither."""
    num_batches_per_worker: int | None = None
    """Number of batches that each block is cut into, instead of ``batch_size``."""
    merge: merges.Merge = merges.DEFAULTS
    """When and how workers merge: a ``Merge``, or its kind by name. ``"synchronous"`` (default)
    averages all workers at the end of every epoch, ``"commutative"`` those that have arrived,
    ``"parameter_server"`` adds each worker's change, layer by layer; ``"auto"`` and the other
    presets also choose the options. ``configuration["fit"]`` has the options used."""
    preset: merges.Preset | None = None
    """The preset that has been applied; none of ``fit``'s options."""
    shuffle: ShuffleLike = "blocks"
    """``"blocks"`` (default) distributes whole blocks to the workers in a new order each epoch;
    ``"total"`` permutes all samples (not for files); a ``PartialShuffle`` distributes equal shares
    of blocks in a new order and mixes their samples in pools while they are read in sequence;
    ``None`` keeps the order."""
    shuffle_block_data: bool = True
    """Whether to shuffle the samples within each block in every epoch; true by default."""
    bucket_by_length: bool | str = False
    """``True`` makes each batch of samples of similar lengths, which need less padding: the samples
    of 50 batches of a block at a time are sorted by length and cut into batches, which come in
    random order. Where several columns hold sequences of different lengths, give the name of the
    one whose lengths count: ``"x"``, ``"y"`` or, for example, ``"x['text']"``. ``False`` (default)
    does not look at lengths."""
    buffer: BufferSpec | None = None
    """``None`` (default) trains on one block after another. With a ``BufferSpec`` each worker's
    samples pass through a buffer, so that batches mix blocks, and files are read ahead;
    docs/buffers.md compares the kinds."""
    sample_weight: Any = field(default=None, repr=False, compare=False)
    """A weight for each sample in the training loss, finite and at least 0: blocks that match
    ``x``, or an array of shape (samples,) or (samples, 1). For files use ``FileDataset(...,
    weight=NAME)``. ``None`` (default) for no weights; docs/training-options.md."""
    validation_data: tuple[Any, Any] | FileDataset | None = field(
        default=None, repr=False, compare=False
    )
    """(x, y) or files on which the global parameters are evaluated after every round, as
    ``val_loss`` and so on. Commutative merging then applies all updates of a round before the next
    round's. ``None`` (default) for none."""
    callbacks: Sequence[AnyCallback] = field(default=(), repr=False)
    """``Callback`` objects, called in this process, and ``WorkerCallback`` objects, called in the
    workers."""
    progress: bool = field(default=True, repr=False)
    """Whether to show progress (default), on standard error (in notebooks on standard output): a
    bar in a terminal or notebook, elsewhere a line per round. A ``ProgressBar`` or ``RoundLines``
    in the callbacks replaces it."""
    resume: str | os.PathLike[str] | bool = field(default=False, repr=False)
    """Folder of checkpoints, of which the newest good one is used, or a single checkpoint. The rest
    of the interrupted fit is trained and, if workers merge synchronously, gives the bits of a fit
    without interruption. A warning names damaged checkpoints. ``True`` uses the folder of the
    ``Checkpoint`` among the callbacks, and starts a new fit if it holds no checkpoint yet.
    ``False`` (default) starts a new fit."""
    max_time: float | timedelta | None = field(default=None, repr=False)
    """Time limit of the fit: seconds or a ``timedelta``; ``None`` (default) for none. Judging by
    earlier rounds, the fit stops before a round that would exceed it. If a round exceeds it anyway,
    it is cancelled (on COMPSs the fit ends then). The limit of ``runcompss --wall_clock_limit``
    also applies, less a twentieth of it, at most 60 s."""

    def __post_init__(self) -> None:
        if check_count("num_epochs", self.num_epochs) > MAX_EPOCHS:
            raise ValueError(
                f"num_epochs={self.num_epochs}: give at most {MAX_EPOCHS} epochs, and max_time="
            )
        given = {
            "num_batches_per_worker": self.num_batches_per_worker,
            "batch_size": self.batch_size,
        }
        for name, value in given.items():
            if value is not None:
                check_count(name, value)
        if None not in given.values():
            raise self._batching_error
        if self.merge.preset is None:
            object.__setattr__(self, "merge", self.merge.with_defaults())
        check_choice("shuffle_block_data", self.shuffle_block_data, (True, False))
        self._check_shuffle()
        self._check_bucketing()
        if self.buffer is not None:
            self._check_buffer(self.buffer)
        if self.merge.optimizer_state == "reset_blocks" and (
            self.buffer is not None or self.order == "partial"
        ):
            mixing = "buffer=" if self.buffer is not None else "PartialShuffle"
            raise ValueError(
                "optimizer_state='reset_blocks' makes a new optimizer for each block, and "
                f"{mixing} mixes blocks: use 'reset', which makes one for each round"
            )

    @property
    def _batching_error(self) -> ValueError:
        return ValueError(
            f"num_batches_per_worker={self.num_batches_per_worker} and "
            f"batch_size={self.batch_size}: give exactly one of them, batches a block or samples "
            "a batch"
        )

    def check_batches(self) -> None:
        """Raise ``ValueError`` if the batches are left open, unless a preset chooses them."""
        if (
            self.batch_size is None
            and self.num_batches_per_worker is None
            and self.merge.preset != "auto"
        ):
            raise self._batching_error

    def _check_shuffle(self) -> None:
        given: object = self.shuffle
        if given == "partial":
            raise ValueError(
                "shuffle='partial': give PartialShuffle(), which takes pool_size= and pools="
            )
        if not isinstance(given, PartialShuffle):
            check_choice("shuffle", given, ("blocks", "total", None))
        elif self.buffer is not None or not self.shuffle_block_data:
            raise ValueError(
                "PartialShuffle mixes samples in pools of its own: leave buffer= and "
                "shuffle_block_data= out, or take shuffle='blocks'"
            )

    def _check_bucketing(self) -> None:
        option = f"bucket_by_length={self.bucket_by_length!r}"
        if not isinstance(self.bucket_by_length, bool | str):
            raise TypeError(
                f"{option}: give True, False, or the name of the column whose lengths count, "
                "such as 'x'"
            )
        if self.bucket_by_length is not False and (
            self.mixes_blocks or not self.shuffle_block_data
        ):
            raise ValueError(
                f"{option} orders the samples within each block: leave buffer= and "
                "shuffle_block_data= out, and use shuffle='blocks' or None"
            )

    def _check_buffer(self, given: object) -> None:
        if not isinstance(given, BufferSpec):
            raise TypeError(
                f"buffer={given!r}: give a BufferSpec, such as BufferSpec('FIRO', 4096), or None"
            )
        if given.pairs:
            raise ValueError(
                "a SimPairedReservoir pairs time steps of simulations, which blocks do not have: "
                "use it in fit_online, or choose another buffer"
            )
        if given.max_repeats is not None:
            raise ValueError(
                f"max_repeats={given.max_repeats}: only fit_online has it; give the "
                "buffer without it"
            )

    @property
    def determining(self) -> dict[str, Any]:
        """The options that determine the parameters, by name."""
        return {each.name: getattr(self, each.name) for each in fields(self) if each.repr}

    @property
    def batching(self) -> Batching:
        """How blocks are cut into batches."""
        return Batching(self.num_batches_per_worker, self.batch_size)

    @property
    def carries_buffers(self) -> bool:
        """Whether workers keep samples in their buffers when they merge."""
        return self.buffer is not None and self.merge.unit == "batches"

    @property
    def order(self) -> partitioning.Shuffle:
        """The order of blocks and samples, by name."""
        return "partial" if isinstance(self.shuffle, PartialShuffle) else self.shuffle

    @property
    def mixes_blocks(self) -> bool:
        """Whether a batch may have samples of several blocks."""
        return self.buffer is not None or self.order in ("total", "partial")

    def job(
        self,
        data: DataSource,
        spec: TrainingSpec,
        seed: int,
        *,
        callbacks: Sequence[WorkerCallback] = (),
        resident: Residency | None = None,
    ) -> Job:
        """Return what all tasks that train on these samples share."""
        mixing = self.shuffle if isinstance(self.shuffle, PartialShuffle) else None
        shuffles_rows = self.shuffle_block_data and mixing is None
        return Job(
            spec=spec,
            reader=data.reader,
            batching=self.batching,
            row_seed=seed if shuffles_rows else None,
            bucketed_by=self._column_of_lengths(data),
            pools=None if mixing is None else mixing.of_blocks(data.sizes),
            buffer=self.buffer,
            seed=seed,
            structure=data.structure,
            may_skip=data.may_skip,
            optimizer_state=self.merge.optimizer_state or "keep",
            averaging=self.merge.decay("steps"),
            dtype=self.merge.dtype,
            callbacks=callbacks,
            resident=resident,
        )

    def _column_of_lengths(self, source: DataSource) -> int | None:
        """Return the number of the column by whose lengths samples are batched, or ``None``.

        Raises ``ValueError`` unless ``bucket_by_length`` fits the columns.
        """
        if self.bucket_by_length is False:
            return None
        option = f"bucket_by_length={self.bucket_by_length!r}"
        names = source.sequences
        if not names:
            raise ValueError(
                f"{option} needs sequences in memory that differ in length (lists or Ragged), and "
                f"there are none in {' and '.join(source.columns) or 'files'}: leave it out"
            )
        if self.bucket_by_length is True and len(names) > 1:
            raise ValueError(
                f"{option}, but {' and '.join(names)} have sequences; name the column whose "
                f"lengths count, such as bucket_by_length={names[0]!r}"
            )
        name = names[0] if self.bucket_by_length is True else self.bucket_by_length
        check_choice("bucket_by_length", name, names)
        return list(source.columns).index(name)

    def samples_between_merges(self, sizes: tuple[int, ...], workers: int) -> int:
        """Return the approximate number of samples that a worker trains in a round, for blocks of
        these sizes.
        """
        samples = sum(sizes)
        every = self.merge.every if isinstance(self.merge.every, int) else 1
        if not every or self.merge.unit == "epochs":
            return samples * (every or self.num_epochs) // workers
        block = -(-samples // len(sizes))
        if self.merge.unit == "blocks":
            return every * block
        return every * (self.batch_size or -(-block // (self.num_batches_per_worker or 1)))

    def batches_of_worker(self, source: DataSource, num_workers: int) -> int:
        """Return the number of batches that a worker with an average share of an epoch trains in
        it.
        """
        batches = sum(len(self.batching.bounds(rows)) for rows in source.sizes)
        return -(-batches // min(num_workers, source.shares(self.order)))

    def for_data(
        self, source: DataSource, num_workers: int, spec: TrainingSpec, scheduled: bool
    ) -> Self:
        """Return the options for these samples: with their batch size, if they have one and none
        was given.

        A preset of ``merge`` chooses its options; ``scheduled`` says whether the learning rate has
        a schedule. Raises ``ValueError`` if the batches are still left open.
        """
        size = self.batch_size
        preset = self.merge.preset
        if size is None and self.num_batches_per_worker is None and source.batch_size is not None:
            return replace(self, batch_size=source.batch_size).for_data(
                source, num_workers, spec, scheduled
            )
        self.check_batches()
        if preset is None:
            return self
        if preset == "auto":
            batch = size or merges.auto_batch(num_workers, spec.net, scheduled)
            if self.num_batches_per_worker is None:
                size = batch
            else:
                batch = -(-max(source.sizes) // self.num_batches_per_worker)
            chosen = merges.auto_merge(
                source.number_samples, batch, num_workers, spec.net, spec.optimizer, scheduled
            )
        else:
            chosen = merges.published_merge(preset, self.num_epochs)
        merge = replace(self.merge, kind=self.merge.kind_of_preset).with_defaults(chosen)
        return replace(self, merge=merge, batch_size=size, preset=preset)

    def check_epochs(self, epochs: range, blocks: int) -> None:
        """Raise ``ValueError`` unless ``Merge.every`` is valid in these epochs, and for rounds that
        are too long.

        A function is called for the first ``CHECKED_EPOCHS`` epochs, and for later ones when they
        are reached.
        """
        for epoch in epochs[: CHECKED_EPOCHS if callable(self.merge.every) else 1]:
            units = partitioning.units_between_merges(epoch, self.merge.every)
            length = (
                min(units or len(epochs), len(epochs))
                if self.merge.unit == "epochs" or not units
                else 1
            )
            if length > 1 and length * blocks > MAX_PASSES:
                raise ValueError(
                    f"a round of {length} epochs would pass over {blocks} blocks {length} times "
                    "before workers merge, and is planned as a whole: merge more often, with "
                    f"Merge(every=...) of at most {MAX_PASSES // blocks or 1}"
                )

    def check_data(self, source: DataSource, num_workers: int, schedule: Schedule | None) -> None:
        """Raise ``ValueError`` for options that these samples do not support.

        The buffer may never return batches of this size, blocks may have too few samples, files too
        many threads. Warns if there are more workers than blocks, files or samples to distribute.
        """
        in_steps = schedule is not None and (schedule.unit == "batches" or schedule.steps > 1)
        in_parts = (
            self.merge.unit != "epochs" or self.num_batches_per_worker is not None or in_steps
        )
        if in_parts and not source.counted:
            given = schedule and f"Schedule(steps={schedule.steps}, unit={schedule.unit!r})"
            raise ValueError(
                f"Merge(unit={self.merge.unit!r}), "
                f"num_batches_per_worker={self.num_batches_per_worker} and schedule={given}: "
                "without the number of samples in an epoch they can only be 'epochs', None and "
                "stepped once an epoch; give Samples(dataset, size=...), or leave them out"
            )
        structure = source.structure
        dataset = source.dataset
        sizes = source.sizes
        total = self.order == "total"
        pooled = self.buffer is not None or self.order == "partial"
        mixing = f"shuffle={self.shuffle!r}" if self.buffer is None else "buffer="
        if source.is_stream and (total or pooled):
            raise ValueError(
                f"{mixing} does not suit an IterableDataset: leave it out, and let the data set "
                "shuffle"
            )
        self._column_of_lengths(source)
        if structure.ragged and pooled:
            raise ValueError(
                f"{mixing} does not suit sequences that differ in length: leave it out, or pad them"
            )
        if dataset is not None and total:
            raise ValueError(
                "shuffle='total' would open every file for every batch; take PartialShuffle(), "
                "which mixes samples in pools, or load files that fit in memory with "
                "BlockedTensor.from_files"
            )
        if dataset is not None:
            check_threads(dataset.threads, dataset.file_buffer)
        smallest = min(sizes)
        if self.num_batches_per_worker is not None and self.num_batches_per_worker > smallest:
            raise ValueError(
                f"num_batches_per_worker={self.num_batches_per_worker}, but block "
                f"{sizes.index(smallest)} has only {smallest} rows; use {smallest} batches at "
                "most, or larger blocks"
            )
        if self.buffer is not None:
            self.buffer.check(
                min(
                    sum(sizes),
                    self.batch_size or -(-max(sizes) // (self.num_batches_per_worker or 1)),
                )
            )
            most_blocks = -(-len(sizes) // num_workers)
            self.buffer.check_samples(sum(sorted(sizes)[-most_blocks:]))
        if num_workers > (parts := source.shares(self.order)):
            unit = (
                "samples" if self.order == "partial" else "blocks" if dataset is None else "files"
            )
            warn_user(
                f"{num_workers} workers share {parts} {unit}, so some have nothing to train; cut "
                f"the data into at least {num_workers} {unit}, or use {parts} workers"
            )
