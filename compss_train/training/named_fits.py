"""The eight named fits: dislib's names and arguments, each one call of ``fit``, whose other keywords they take.

Three choices make eight names: synchronous or asynchronous (commutative) merging, every epoch or every n epochs,
and shuffling by blocks or in total. They train on the CPU if ``num_gpu`` is 0.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Generic, Literal, TypedDict, TypeVar, Unpack

from compss_train._utils.validation import check_choice, check_count
from compss_train.buffers import BufferSpec
from compss_train.data import FileDataset
from compss_train.data.partitioning import Shuffle
from compss_train.model.compression import MergeDtype
from compss_train.model.optimizers import OptimizerSpec
from compss_train.training.callback import AnyCallback
from compss_train.training.fit_options import Rule
from compss_train.training.presets import OptimizerState, Preset
from compss_train.training.profile import ProfileLike

Fitted = TypeVar("Fitted")


class FitKeywords(TypedDict, total=False):
    """The keywords of ``DistributedTrainer.fit`` that no name fixes; its documentation explains them."""

    preset: Preset | None
    validation_data: tuple[Any, Any] | FileDataset | None
    callbacks: Sequence[AnyCallback]
    progress: bool
    profile: ProfileLike
    resume: str | os.PathLike[str] | bool
    max_time: float | timedelta | None
    worker_timeout: float | None
    rule: Rule
    outer_optimizer: OptimizerSpec | None
    optimizer_state: OptimizerState | None
    weight_averaging: Literal["ema"] | float | None
    merge_dtype: MergeDtype | None
    buffer: BufferSpec | None
    file_buffer: int
    bucket_by_length: bool
    sample_weight: Any


_COMMON: Mapping[str, Any] = {"merge_unit": "epochs", "shuffle_buffer": None, "pools": 1}
_SYNCHRONOUS: Mapping[str, Any] = {**_COMMON, "merge": "synchronous"}
_ASYNCHRONOUS: Mapping[str, Any] = {**_COMMON, "merge": "commutative"}
_EVERY_EPOCH: Mapping[str, Any] = {"merge_every": 1}
_IN_TOTAL: Mapping[str, Any] = {"shuffle": "total", "shuffle_block_data": True}

FIXED: Mapping[str, Mapping[str, Any]] = {
    "fit_synchronous_with_GPU": {**_SYNCHRONOUS, **_EVERY_EPOCH},
    "fit_synchronous_shuffle_with_GPU": {**_SYNCHRONOUS, **_EVERY_EPOCH, **_IN_TOTAL},
    "fit_synchronous_every_n_epochs_with_GPU": _SYNCHRONOUS,
    "fit_synchronous_shuffle_every_n_epochs_with_GPU": {**_SYNCHRONOUS, **_IN_TOTAL},
    "fit_asynchronous_with_GPU": {**_ASYNCHRONOUS, **_EVERY_EPOCH},
    "fit_asynchronous_shuffle_with_GPU": {**_ASYNCHRONOUS, **_EVERY_EPOCH, **_IN_TOTAL},
    "fit_asynchronous_n_epochs_with_GPU": _ASYNCHRONOUS,
    "fit_asynchronous_shuffle_n_epochs_with_GPU": {**_ASYNCHRONOUS, **_IN_TOTAL},
}
"""The keywords of ``fit`` that each name fixes, with their values."""
ARGUMENTS: Mapping[str, str] = {
    "batch_size": "num_batches_per_worker",
    "merge_every": "n_epocs_sync",
    "shuffle": "shuffle_blocks",
}
"""The keywords of ``fit`` that the named fits have arguments of their own for."""


def check_keywords(name: str, given: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for the first keyword that this named fit fixes or has an argument of its own for."""
    keyword_of = {argument: keyword for keyword, argument in ARGUMENTS.items()}
    for key in given:
        keyword = keyword_of.get(key, key)
        if keyword in FIXED[name]:
            reason = f"its name fixes {keyword}={FIXED[name][keyword]!r}"
        elif keyword in ARGUMENTS:
            reason = f"its argument {ARGUMENTS[keyword]} decides that"
        else:
            continue
        raise TypeError(f"{name} takes no {key}=: {reason}; leave it out, or call fit(..., {keyword}=...)")


class NamedFits(Generic[Fitted]):
    """The eight fits on top of an abstract ``fit``, whose result is ``Fitted``.

    Common to all: ``x_train`` and ``y_train`` are blocked tensors (samples and targets; y may be ``None``),
    ``num_batches_per_worker`` is the number of batches that each block is cut into, ``num_epochs`` the number of
    passes over all samples. ``n_epocs_sync`` is the number of epochs between merges, 0 for one merge at the end.
    ``shuffle_blocks`` distributes blocks to workers in a new order each epoch, ``shuffle_block_data`` shuffles the
    samples within each block. All other keywords of ``fit`` may be given as well (``FitKeywords``), except those
    that the name fixes (``FIXED``), which are a ``TypeError``. Results and errors are those of ``fit``.
    """

    @abstractmethod
    def fit(self, *args: Any, **kwargs: Any) -> Fitted:
        """Train; see ``DistributedTrainer.fit``."""

    def _fit(
        self, name: str, given: FitKeywords, x: Any, y: Any, batches: int, num_epochs: int, **options: Any
    ) -> Fitted:
        """Call ``fit`` with what the name fixes, the ``options`` of its arguments, and the ``given`` keywords."""
        check_keywords(name, given)
        check_count("num_batches_per_worker", batches)
        check_count("n_epocs_sync", options.get("merge_every", 1), least=0)
        options |= {**FIXED[name], **given}
        return self.fit(x, y, num_batches_per_worker=batches, num_epochs=num_epochs, **options)

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
        return self._fit(
            "fit_synchronous_with_GPU",
            options,
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            shuffle=_by_blocks(shuffle_blocks),
            shuffle_block_data=shuffle_block_data,
        )

    def fit_synchronous_shuffle_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Average all workers at the end of every epoch; all samples are shuffled together before each."""
        return self._fit(
            "fit_synchronous_shuffle_with_GPU",
            options,
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
        )

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
        return self._fit(
            "fit_synchronous_every_n_epochs_with_GPU",
            options,
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            merge_every=n_epocs_sync,
            shuffle=_by_blocks(shuffle_blocks),
            shuffle_block_data=shuffle_block_data,
        )

    def fit_synchronous_shuffle_every_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 1,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Average all workers every ``n_epocs_sync`` epochs; all samples are shuffled together every epoch."""
        return self._fit(
            "fit_synchronous_shuffle_every_n_epochs_with_GPU",
            options,
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            merge_every=n_epocs_sync,
        )

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
        """Each worker adds its change to the global parameters after every epoch and continues at once."""
        return self._fit(
            "fit_asynchronous_with_GPU",
            options,
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            shuffle=_by_blocks(shuffle_blocks),
            shuffle_block_data=shuffle_block_data,
        )

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
            "fit_asynchronous_shuffle_with_GPU",
            options,
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
        )

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
        return self._fit(
            "fit_asynchronous_n_epochs_with_GPU",
            options,
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            merge_every=n_epocs_sync,
            shuffle=_by_blocks(shuffle_blocks),
            shuffle_block_data=shuffle_block_data,
        )

    def fit_asynchronous_shuffle_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 0,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Merge commutatively every ``n_epocs_sync`` epochs; all samples are shuffled together every epoch."""
        return self._fit(
            "fit_asynchronous_shuffle_n_epochs_with_GPU",
            options,
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            merge_every=n_epocs_sync,
        )


def _by_blocks(shuffle_blocks: bool) -> Shuffle:
    check_choice("shuffle_blocks", shuffle_blocks, (True, False))
    return "blocks" if shuffle_blocks else None
