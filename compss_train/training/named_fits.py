"""The eight named fits, with dislib's names and arguments: each is one call of ``fit``.

Three choices make eight names: synchronous or asynchronous (commutative) merging, every epoch or
every n epochs, and shuffling by blocks or in total. They train on the CPU if ``num_gpu`` is 0.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from compss_train._utils.validation import check_choice, check_count, entry_point
from compss_train.buffers import BufferSpec
from compss_train.data import FileDataset
from compss_train.training.callback import AnyCallback
from compss_train.training.merge import Merge, MergeKind, Preset

Fitted = TypeVar("Fitted")


class FitKeywords(TypedDict, total=False):
    """The keywords of ``DistributedTrainer.fit`` that no name fixes."""

    merge: Merge | Preset
    bucket_by_length: bool | str
    buffer: BufferSpec | None
    sample_weight: Any
    validation_data: tuple[Any, Any] | FileDataset | None
    callbacks: Sequence[AnyCallback]
    progress: bool
    resume: str | os.PathLike[str] | bool
    max_time: float | timedelta | None


TOTAL: Mapping[str, Any] = {"shuffle": "total", "shuffle_block_data": True}
"""The keywords of ``fit`` for fits that shuffle all samples together."""


def in_blocks(*, shuffle_blocks: bool, shuffle_block_data: bool) -> Mapping[str, Any]:
    """Return the keywords of ``fit`` for the order of blocks and of the samples within each."""
    check_choice("shuffle_blocks", shuffle_blocks, (True, False))
    return {
        "shuffle": "blocks" if shuffle_blocks else None,
        "shuffle_block_data": shuffle_block_data,
    }


def named_merge(options: FitKeywords, kind: MergeKind, n_epocs_sync: int) -> Merge:
    """Return the merge of a fit whose name fixes its kind, with what ``options`` say of it.

    It is removed from ``options``. Raises ``TypeError`` if they give what the name fixes.
    """
    check_count("n_epocs_sync", n_epocs_sync, least=0)
    merge = Merge.of(options.pop("merge", Merge()))
    has_preset = kind == "synchronous" and merge.preset is not None
    fixed = {
        "kind": None if has_preset else merge.kind,
        "every": merge.every,
        "unit": merge.unit,
    }
    for option, value in fixed.items():
        if value is not None:
            raise TypeError(
                f"this fit takes no Merge({option}=...): its name and its arguments fix "
                f"kind={kind!r}, every={n_epocs_sync} and unit='epochs'; leave it out, or "
                f"call fit(..., merge={merge!r})"
            )
    return replace(merge, kind=merge.kind or kind, every=n_epocs_sync, unit="epochs")


class NamedFits(Generic[Fitted]):
    """The eight fits on top of an abstract ``fit``, whose result is ``Fitted``.

    Common to all: ``x_train`` and ``y_train`` are blocked tensors (samples and targets; y may be
    ``None``), ``num_batches_per_worker`` is the number of batches that each block is cut into,
    ``num_epochs`` the number of passes over all samples. ``n_epocs_sync`` is the number of epochs
    between merges, 0 for one merge at the end. ``shuffle_blocks`` distributes blocks to workers in
    a new order each epoch, ``shuffle_block_data`` shuffles the samples within each block. All other
    keywords of ``fit`` may be given as well (``FitKeywords``), except those that the name fixes,
    which raise ``TypeError``. ``merge`` is therefore a ``Merge`` without ``kind``, ``every`` and
    ``unit``; the synchronous fits also take a preset, and replace its ``every`` and ``unit``.
    Results and errors are those of ``fit``.
    """

    @abstractmethod
    def fit(self, *args: Any, **kwargs: Any) -> Fitted:
        """Train; see ``DistributedTrainer.fit``."""

    @entry_point
    def fit_synchronous_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Average all workers at the end of every epoch."""
        order = in_blocks(shuffle_blocks=shuffle_blocks, shuffle_block_data=shuffle_block_data)
        merge = named_merge(options, "synchronous", 1)
        return self.fit(
            x_train,
            y_train,
            num_batches_per_worker=num_batches_per_worker,
            num_epochs=num_epochs,
            merge=merge,
            **order,
            **options,
        )

    @entry_point
    def fit_synchronous_shuffle_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Average all workers after every epoch; shuffle all samples together before each."""
        merge = named_merge(options, "synchronous", 1)
        return self.fit(
            x_train,
            y_train,
            num_batches_per_worker=num_batches_per_worker,
            num_epochs=num_epochs,
            merge=merge,
            **TOTAL,
            **options,
        )

    @entry_point
    def fit_synchronous_every_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 1,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Average all workers every ``n_epocs_sync`` epochs and after the last."""
        order = in_blocks(shuffle_blocks=shuffle_blocks, shuffle_block_data=shuffle_block_data)
        merge = named_merge(options, "synchronous", n_epocs_sync)
        return self.fit(
            x_train,
            y_train,
            num_batches_per_worker=num_batches_per_worker,
            num_epochs=num_epochs,
            merge=merge,
            **order,
            **options,
        )

    @entry_point
    def fit_synchronous_shuffle_every_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 1,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Average all workers every ``n_epocs_sync`` epochs; shuffle all samples in every epoch."""
        merge = named_merge(options, "synchronous", n_epocs_sync)
        return self.fit(
            x_train,
            y_train,
            num_batches_per_worker=num_batches_per_worker,
            num_epochs=num_epochs,
            merge=merge,
            **TOTAL,
            **options,
        )

    @entry_point
    def fit_asynchronous_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Average those that have arrived after every epoch; late ones go on, merged later."""
        order = in_blocks(shuffle_blocks=shuffle_blocks, shuffle_block_data=shuffle_block_data)
        merge = named_merge(options, "commutative", 1)
        return self.fit(
            x_train,
            y_train,
            num_batches_per_worker=num_batches_per_worker,
            num_epochs=num_epochs,
            merge=merge,
            **order,
            **options,
        )

    @entry_point
    def fit_asynchronous_shuffle_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Merge commutatively after every epoch; shuffle all samples together before each."""
        merge = named_merge(options, "commutative", 1)
        return self.fit(
            x_train,
            y_train,
            num_batches_per_worker=num_batches_per_worker,
            num_epochs=num_epochs,
            merge=merge,
            **TOTAL,
            **options,
        )

    @entry_point
    def fit_asynchronous_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 0,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Merge commutatively every ``n_epocs_sync`` epochs, by default once at the end."""
        order = in_blocks(shuffle_blocks=shuffle_blocks, shuffle_block_data=shuffle_block_data)
        merge = named_merge(options, "commutative", n_epocs_sync)
        return self.fit(
            x_train,
            y_train,
            num_batches_per_worker=num_batches_per_worker,
            num_epochs=num_epochs,
            merge=merge,
            **order,
            **options,
        )

    @entry_point
    def fit_asynchronous_shuffle_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 0,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Merge commutatively every ``n_epocs_sync`` epochs; shuffle all samples in every epoch."""
        merge = named_merge(options, "commutative", n_epocs_sync)
        return self.fit(
            x_train,
            y_train,
            num_batches_per_worker=num_batches_per_worker,
            num_epochs=num_epochs,
            merge=merge,
            **TOTAL,
            **options,
        )
