"""The eight named fits: dislib's names and arguments. Each is one call of ``fit``, and takes its
other keywords.

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
    """The keywords of ``DistributedTrainer.fit`` that no name fixes; its documentation explains
    them.
    """

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


def in_blocks(shuffle_blocks: bool, shuffle_block_data: bool) -> Mapping[str, Any]:
    """Return the keywords of ``fit`` for the order of blocks and of the samples within each."""
    check_choice("shuffle_blocks", shuffle_blocks, (True, False))
    return {
        "shuffle": "blocks" if shuffle_blocks else None,
        "shuffle_block_data": shuffle_block_data,
    }


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

    def _fit(
        self,
        kind: MergeKind,
        data: tuple[Any, Any],
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int,
        shuffled: Mapping[str, Any],
        options: FitKeywords,
    ) -> Fitted:
        """Call ``fit`` with ``options``; a keyword that ``shuffled`` or the name fixes raises
        ``TypeError``.
        """
        check_count("n_epocs_sync", n_epocs_sync, least=0)
        merge = Merge.of(options.pop("merge", Merge()))
        takes_preset = kind == "synchronous" and merge.preset is not None
        given = {
            "kind": None if takes_preset else merge.kind,
            "every": merge.every,
            "unit": merge.unit,
        }
        for option, value in given.items():
            if value is not None:
                raise TypeError(
                    f"this fit takes no Merge({option}=...): its name and its arguments fix "
                    f"kind={kind!r}, every={n_epocs_sync} and unit='epochs'; leave it out, or "
                    f"call fit(..., merge={merge!r})"
                )
        merge = replace(merge, kind=merge.kind or kind, every=n_epocs_sync, unit="epochs")
        size = {"num_batches_per_worker": num_batches_per_worker, "num_epochs": num_epochs}
        return self.fit(*data, **size, **shuffled, merge=merge, **options)

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
        shuffled = in_blocks(shuffle_blocks, shuffle_block_data)
        data = (x_train, y_train)
        return self._fit(
            "synchronous", data, num_batches_per_worker, num_epochs, 1, shuffled, options
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
        """Average all workers at the end of every epoch; all samples are shuffled together before
        each.
        """
        return self._fit(
            "synchronous", (x_train, y_train), num_batches_per_worker, num_epochs, 1, TOTAL, options
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
        shuffled = in_blocks(shuffle_blocks, shuffle_block_data)
        data = (x_train, y_train)
        return self._fit(
            "synchronous", data, num_batches_per_worker, num_epochs, n_epocs_sync, shuffled, options
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
        """Average all workers every ``n_epocs_sync`` epochs; all samples are shuffled together
        every epoch.
        """
        shuffled = TOTAL
        data = (x_train, y_train)
        return self._fit(
            "synchronous", data, num_batches_per_worker, num_epochs, n_epocs_sync, shuffled, options
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
        """Average the workers that have arrived after every epoch; late ones go on, and are merged
        later.
        """
        shuffled = in_blocks(shuffle_blocks, shuffle_block_data)
        data = (x_train, y_train)
        return self._fit(
            "commutative", data, num_batches_per_worker, num_epochs, 1, shuffled, options
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
        """Merge commutatively after every epoch; all samples are shuffled together before each."""
        return self._fit(
            "commutative", (x_train, y_train), num_batches_per_worker, num_epochs, 1, TOTAL, options
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
        shuffled = in_blocks(shuffle_blocks, shuffle_block_data)
        data = (x_train, y_train)
        return self._fit(
            "commutative", data, num_batches_per_worker, num_epochs, n_epocs_sync, shuffled, options
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
        """Merge commutatively every ``n_epocs_sync`` epochs; all samples are shuffled together
        every epoch.
        """
        shuffled = TOTAL
        data = (x_train, y_train)
        return self._fit(
            "commutative", data, num_batches_per_worker, num_epochs, n_epocs_sync, shuffled, options
        )
