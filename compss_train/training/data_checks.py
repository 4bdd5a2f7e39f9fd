"""Whether the options of a fit suit its data, and the epochs that it trains."""

from compss_train._utils.validation import warn_user
from compss_train.data import partitioning
from compss_train.model.schedule import Schedule
from compss_train.samplers.loader import check_threads
from compss_train.training.data_source import DataSource
from compss_train.training.fit import FitOptions

MAX_PASSES = 10**7
"""Maximum number of passes over blocks in a round, of all workers: they are planned at once."""

CHECKED_EPOCHS = 10_000
"""Number of epochs for which a function ``Merge.every`` is checked before a fit."""


def check_options(
    options: FitOptions, source: DataSource, num_workers: int, schedule: Schedule | None
) -> None:
    """Raise ``ValueError`` for options that these samples do not support.

    The buffer may never return batches of this size, blocks may have too few samples, files too
    many threads. Warns if there are more workers than blocks, files or samples to distribute.
    """
    if not source.counted:
        _check_whole_epochs(options, schedule)
    _check_order(options, source)
    options.column_of_lengths(source)
    if source.dataset is not None:
        check_threads(source.dataset.threads, source.dataset.file_buffer)
    _check_batches(options, source, num_workers)
    parts = source.shares(options.order)
    if num_workers > parts:
        unit = "blocks" if source.dataset is None else "files"
        if options.order == "partial":
            unit = "samples"
        warn_user(
            f"{num_workers} workers share {parts} {unit}, so some have nothing to train; cut "
            f"the data into at least {num_workers} {unit}, or use {parts} workers"
        )


def _check_whole_epochs(options: FitOptions, schedule: Schedule | None) -> None:
    """Raise ``ValueError`` if something happens inside epochs, whose length is unknown."""
    in_steps = schedule is not None and (schedule.unit == "batches" or schedule.steps > 1)
    if options.merge.unit == "epochs" and options.num_batches_per_worker is None and not in_steps:
        return
    steps = schedule and f"Schedule(steps={schedule.steps}, unit={schedule.unit!r})"
    raise ValueError(
        f"Merge(unit={options.merge.unit!r}), "
        f"num_batches_per_worker={options.num_batches_per_worker} and schedule={steps}: "
        "without the number of samples in an epoch they can only be 'epochs', None and "
        "stepped once an epoch; give Samples(dataset, size=...), or leave them out"
    )


def _check_order(options: FitOptions, source: DataSource) -> None:
    """Raise ``ValueError`` for samples that cannot be mixed as the options say."""
    pools = options.buffer is not None or options.order == "partial"
    option = f"shuffle={options.shuffle!r}" if options.buffer is None else "buffer="
    if source.is_stream and options.mixes_blocks:
        raise ValueError(
            f"{option} does not suit an IterableDataset: leave it out, and let the data set shuffle"
        )
    if source.structure.ragged and pools:
        raise ValueError(
            f"{option} does not suit sequences that differ in length: leave it out, or pad them"
        )
    if source.dataset is not None and options.order == "total":
        raise ValueError(
            "shuffle='total' would open every file for every batch; take PartialShuffle(), "
            "which mixes samples in pools, or load files that fit in memory with "
            "BlockedTensor.from_files"
        )


def _check_batches(options: FitOptions, source: DataSource, num_workers: int) -> None:
    """Raise ``ValueError`` if blocks are too small, or a buffer for its batches and samples."""
    sizes = source.sizes
    smallest = min(sizes)
    batches = options.num_batches_per_worker
    if batches is not None and batches > smallest:
        raise ValueError(
            f"num_batches_per_worker={batches}, but block "
            f"{sizes.index(smallest)} has only {smallest} rows; use {smallest} batches at "
            "most, or larger blocks"
        )
    if options.buffer is None:
        return
    batch_size = options.batch_size or -(-max(sizes) // (batches or 1))
    options.buffer.check(min(sum(sizes), batch_size))
    most_blocks = -(-len(sizes) // num_workers)
    options.buffer.check_samples(sum(sorted(sizes)[-most_blocks:]))


def check_epochs(options: FitOptions, epochs: range, blocks: int) -> None:
    """Raise ``ValueError`` if ``Merge.every`` is wrong in these epochs, or a round is too long.

    A function is called for the first ``CHECKED_EPOCHS`` epochs, and for later ones when they are
    reached.
    """
    merge = options.merge
    for epoch in epochs[: CHECKED_EPOCHS if callable(merge.every) else 1]:
        units = partitioning.units_between_merges(epoch, merge.every)
        length = 1
        if merge.unit == "epochs" or not units:
            length = min(units or len(epochs), len(epochs))
        if length > 1 and length * blocks > MAX_PASSES:
            raise ValueError(
                f"a round of {length} epochs would pass over {blocks} blocks {length} times "
                "before workers merge, and is planned as a whole: merge more often, with "
                f"Merge(every=...) of at most {MAX_PASSES // blocks or 1}"
            )
