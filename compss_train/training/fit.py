"""``FitOptions``: what a fit was asked for, checked before any task starts."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import Any, Literal, Self, TypeAlias

from compss_train._utils.validation import check_choice, check_count
from compss_train.buffers import BufferSpec
from compss_train.data import FileDataset, partitioning
from compss_train.data.block_passes import Batching
from compss_train.model.class_weights import weights_in_order
from compss_train.model.training_spec import TrainingSpec
from compss_train.samplers import PartialShuffle
from compss_train.training.callback import AnyCallback
from compss_train.training.data_source import DataSource
from compss_train.training.merge import DEFAULTS, Merge, Preset
from compss_train.training.presets import (
    CHOSEN,
    FitFacts,
    auto_batch,
    auto_merge,
    enough_epochs,
    enough_workers,
    published_merge,
)
from compss_train.worker.callbacks import WorkerCallback
from compss_train.worker.merging.buffers import NO_BUFFER_RULES, BufferRules
from compss_train.worker.optimizer_state import why_not_averaged
from compss_train.worker.work import Job, Residency

ShuffleLike: TypeAlias = Literal["blocks", "total"] | PartialShuffle | None
"""What ``fit(shuffle=...)`` takes."""

MAX_EPOCHS = 10**9
"""Maximum number of epochs of a fit, for fits that ``max_time`` or a callback ends."""


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
    merge: Merge = DEFAULTS
    """When and how workers merge: a ``Merge``, or its kind by name. ``"synchronous"`` (default)
    averages all workers at the end of every epoch, ``"commutative"`` those that have arrived,
    ``"parameter_server"`` adds each worker's change, layer by layer; ``"auto"`` and the other
    presets also choose the options. ``configuration["fit"]`` has the options used."""
    preset: Preset | None = None
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
        if self.num_batches_per_worker is not None:
            check_count("num_batches_per_worker", self.num_batches_per_worker)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if self.num_batches_per_worker is not None and self.batch_size is not None:
            raise self._batching_error
        if self.merge.preset is None:
            object.__setattr__(self, "merge", self.merge.with_defaults())
        check_choice("shuffle_block_data", self.shuffle_block_data, (True, False))
        self._check_shuffle()
        self._check_bucketing()
        self._check_buffer()
        self._check_optimizer_state()

    @property
    def _batching_error(self) -> ValueError:
        return ValueError(
            f"num_batches_per_worker={self.num_batches_per_worker} and "
            f"batch_size={self.batch_size}: give exactly one of them, batches a block or samples "
            "a batch"
        )

    def check_batches(self) -> None:
        """Raise ``ValueError`` if the batches are left open, unless a preset chooses them."""
        if self._leaves_batches_open and self.merge.preset != "auto":
            raise self._batching_error

    @property
    def _leaves_batches_open(self) -> bool:
        return self.batch_size is None and self.num_batches_per_worker is None

    def _check_shuffle(self) -> None:
        shuffle: object = self.shuffle
        if shuffle == "partial":
            raise ValueError(
                "shuffle='partial': give PartialShuffle(), which takes pool_size= and pools="
            )
        if not isinstance(shuffle, PartialShuffle):
            check_choice("shuffle", shuffle, ("blocks", "total", None))
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
        keeps_blocks = self.shuffle_block_data and not self.mixes_blocks
        if self.bucket_by_length is not False and not keeps_blocks:
            raise ValueError(
                f"{option} orders the samples within each block: leave buffer= and "
                "shuffle_block_data= out, and use shuffle='blocks' or None"
            )

    def _check_buffer(self) -> None:
        buffer: object = self.buffer
        if buffer is None:
            return
        if not isinstance(buffer, BufferSpec):
            raise TypeError(
                f"buffer={buffer!r}: give a BufferSpec, such as BufferSpec('FIRO', 4096), or None"
            )
        if buffer.pairs:
            raise ValueError(
                "a SimPairedReservoir pairs time steps of simulations, which blocks do not have: "
                "use it in fit_online, or choose another buffer"
            )
        if buffer.max_repeats is not None:
            raise ValueError(
                f"max_repeats={buffer.max_repeats}: only fit_online has it; give the "
                "buffer without it"
            )

    def _check_optimizer_state(self) -> None:
        if self.merge.optimizer_state != "reset_blocks":
            return
        if self.buffer is not None:
            mixing = "buffer="
        elif self.order == "partial":
            mixing = "PartialShuffle"
        else:
            return
        raise ValueError(
            "optimizer_state='reset_blocks' makes a new optimizer for each block, and "
            f"{mixing} mixes blocks: use 'reset', which makes one for each round"
        )

    @property
    def determining(self) -> dict[str, Any]:
        """The options that determine the parameters, by name."""
        names = [field.name for field in fields(self) if field.repr]
        return {name: getattr(self, name) for name in names}

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
        checks_globals: bool = False,
        buffers: BufferRules = NO_BUFFER_RULES,
    ) -> Job:
        """Return what all tasks that train on these samples share."""
        if isinstance(spec.class_weight, dict):
            spec = replace(spec, class_weight=weights_in_order(spec.class_weight, data.classes))
        mixing = self.shuffle if isinstance(self.shuffle, PartialShuffle) else None
        shuffles_rows = self.shuffle_block_data and mixing is None
        return Job(
            spec=spec,
            reader=data.reader,
            batching=self.batching,
            row_seed=seed if shuffles_rows else None,
            bucketed_by=self.column_of_lengths(data),
            pools=None if mixing is None else mixing.of_blocks(data.sizes),
            buffer=self.buffer,
            seed=seed,
            structure=data.structure,
            may_skip=data.may_skip,
            counts_samples=self.merge.quorum == 0,
            optimizer_state=self.merge.optimizer_state or "keep",
            averaging=self.merge.decay("steps"),
            buffers=buffers,
            dtype=self.merge.dtype,
            callbacks=callbacks,
            checks_globals=checks_globals,
            resident=resident,
        )

    def column_of_lengths(self, source: DataSource) -> int | None:
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
        """Return about how many samples of blocks of these sizes a worker trains in a round."""
        samples = sum(sizes)
        every = self.merge.every if isinstance(self.merge.every, int) else 1
        if not every or self.merge.unit == "epochs":
            return samples * (every or self.num_epochs) // workers
        block = -(-samples // len(sizes))
        if self.merge.unit == "blocks":
            return every * block
        return every * (self.batch_size or -(-block // (self.num_batches_per_worker or 1)))

    def batches_of_worker(self, source: DataSource, num_workers: int) -> int:
        """Return how many batches a worker with an average share of an epoch trains in it."""
        batches = sum(len(self.batching.bounds(rows)) for rows in source.sizes)
        return -(-batches // min(num_workers, source.shares(self.order)))

    def for_data(
        self,
        source: DataSource,
        num_workers: int,
        spec: TrainingSpec,
        *,
        scheduled: bool,
        saved: Mapping[str, Any] | None = None,
    ) -> Self:
        """Return the options for these samples: with their batch size, unless one was given.

        A preset of ``merge`` chooses its options; ``scheduled`` says whether the learning rate has
        a schedule. ``saved`` are the options in the checkpoint of a fit that is resumed: what
        ``"auto"`` chose for it stays. Raises ``ValueError`` if the batches are still left open.
        """
        if self._leaves_batches_open and source.batch_size is not None:
            options = replace(self, batch_size=source.batch_size)
            return options.for_data(source, num_workers, spec, scheduled=scheduled, saved=saved)
        self.check_batches()
        preset = self.merge.preset
        if preset is None:
            return self
        batch_size = self.batch_size
        if preset != "auto":
            chosen = published_merge(preset, self.num_epochs)
        elif saved is not None and saved.get("preset") == "auto":
            if self._leaves_batches_open:
                batch_size = saved["batch_size"]
            chosen = Merge(**{name: saved[f"merge.{name}"] for name in CHOSEN})
        else:
            facts = self.facts(source, num_workers, spec, scheduled=scheduled)
            if self._leaves_batches_open:
                batch_size = auto_batch(facts)
            batch = batch_size or self._batch_of(source)
            every = None
            if isinstance(self.merge.every, int):
                options = replace(self, batch_size=batch_size)
                every = options.samples_between_merges(source.sizes, num_workers) // batch
            chosen = auto_merge(facts, batch, every)
            if chosen.optimizer_state == "average" and why_not_averaged(spec) is not None:
                chosen = replace(chosen, optimizer_state="keep")
        merge = replace(self.merge, kind=self.merge.kind_of_preset).with_defaults(chosen)
        return replace(self, merge=merge, batch_size=batch_size, preset=preset)

    def _batch_of(self, source: DataSource) -> int:
        """Return the size of the largest batches, by the number of batches in a block."""
        return -(-max(source.sizes) // (self.num_batches_per_worker or 1))

    @staticmethod
    def facts(
        source: DataSource, num_workers: int, spec: TrainingSpec, *, scheduled: bool
    ) -> FitFacts:
        """Return what ``"auto"`` chooses by."""
        return FitFacts.of(
            source.number_samples, num_workers, spec.net, spec.optimizer, scheduled=scheduled
        )

    def auto_remarks(self, facts: FitFacts, source: DataSource, epochs: int) -> list[str]:
        """Return what ``"auto"`` has chosen, and how many workers learn more, if fewer do.

        ``epochs`` is the number at the end of the fit, with those of earlier fits.
        """
        merge = self.merge
        if facts.workers == 1:
            return []
        batch = self.batch_size or self._batch_of(source)
        outer = "the mean" if merge.outer_optimizer is None else "an outer optimizer"
        remarks = [
            f"merge='auto': batches of {batch} samples, merged every {merge.every} {merge.unit} by "
            f"{outer}"
        ]
        workers = enough_workers(facts, epochs)
        needed = enough_epochs(facts, batch)
        if workers == facts.workers or (needed is not None and needed <= epochs):
            return remarks
        batches = self.batches_of_worker(source, facts.workers)
        remark = (
            f"{facts.workers} workers have {batches} batches each an epoch, and learn less than "
            "one worker"
        )
        if needed is not None:
            remark += f" until about epoch {needed}"
        if workers > 1:
            remark += f": {workers} lose least"
        remarks.append(remark)
        return remarks
