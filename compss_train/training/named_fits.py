"""The eight named fits: dislib's names and arguments. Each is one call of ``fit``, and takes its other keywords.

Three choices make eight names: synchronous or asynchronous (commutative) merging, every epoch or every n epochs,
and shuffling by blocks or in total. They train on the CPU if ``num_gpu`` is 0.
"""

import os
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from compss_train._utils.validation import check_choice, check_count
from compss_train.buffers import BufferSpec
from compss_train.data import FileDataset
from compss_train.training.callback import AnyCallback
from compss_train.training.merge import Merge, MergeLike, Preset

Fitted = TypeVar("Fitted")


class FitKeywords(TypedDict, total=False):
    """The keywords of ``DistributedTrainer.fit`` that no name fixes; its documentation explains them."""

    merge: Merge | Preset
    buffer: BufferSpec | None
    sample_weight: Any
    validation_data: tuple[Any, Any] | FileDataset | None
    callbacks: Sequence[AnyCallback]
    progress: bool
    resume: str | os.PathLike[str] | bool
    max_time: float | timedelta | None


_IN_TOTAL: Mapping[str, Any] = {"shuffle": "total", "shuffle_block_data": True}

FIXED: Mapping[str, Mapping[str, Any]] = {
    "fit_synchronous_with_GPU": {"kind": "synchronous", "every": 1},
    "fit_synchronous_shuffle_with_GPU": {"kind": "synchronous", "every": 1, **_IN_TOTAL},
    "fit_synchronous_every_n_epochs_with_GPU": {"kind": "synchronous"},
    "fit_synchronous_shuffle_every_n_epochs_with_GPU": {"kind": "synchronous", **_IN_TOTAL},
    "fit_asynchronous_with_GPU": {"kind": "commutative", "every": 1},
    "fit_asynchronous_shuffle_with_GPU": {"kind": "commutative", "every": 1, **_IN_TOTAL},
    "fit_asynchronous_n_epochs_with_GPU": {"kind": "commutative"},
    "fit_asynchronous_shuffle_n_epochs_with_GPU": {"kind": "commutative", **_IN_TOTAL},
}
"""What each name fixes of ``fit`` and its ``Merge``, besides ``unit="epochs"``."""
ARGUMENTS: Mapping[str, str] = {
    "batch_size": "num_batches_per_worker",
    "every": "n_epocs_sync",
    "shuffle": "shuffle_blocks",
}
"""The options for which the named fits have their own arguments."""


def check_keywords(name: str, given: Mapping[str, Any]) -> None:
    """Raise ``TypeError`` for the first keyword that this named fit fixes or has its own argument for."""
    keyword_of = {argument: keyword for keyword, argument in ARGUMENTS.items()}
    for key in given:
        _check_open(name, keyword_of.get(key, key), f"{key}=", "fit(..., {}=...)")


def _check_open(name: str, option: str, written: str, call: str) -> None:
    fixed = {"unit": "epochs", **FIXED[name]}
    if option in fixed:
        reason = f"its name fixes {option}={fixed[option]!r}"
    elif option in ARGUMENTS:
        reason = f"its argument {ARGUMENTS[option]} decides that"
    else:
        return
    raise TypeError(f"{name} takes no {written}: {reason}; leave it out, or call {call.format(option)}")


def merge_of(name: str, given: MergeLike | None, every: int) -> Merge:
    """Return how this named fit merges, with the options of ``given`` that the name leaves open.

    Raises ``TypeError`` for options that the name fixes, and for presets in asynchronous fits.
    """
    merge = Merge() if given is None else Merge.of(given)
    kind = FIXED[name]["kind"]
    for option in ("kind", "every", "unit"):
        preset = option == "kind" and merge.preset is not None and kind == "synchronous"
        if getattr(merge, option) is not None and not preset:
            _check_open(name, option, f"Merge({option}=...)", "fit(..., merge=Merge({}=...))")
    return replace(merge, kind=merge.kind or kind, every=every, unit="epochs")


class NamedFits(Generic[Fitted]):
    """The eight fits on top of an abstract ``fit``, whose result is ``Fitted``.

    Common to all: ``x_train`` and ``y_train`` are blocked tensors (samples and targets; y may be ``None``),
    ``num_batches_per_worker`` is the number of batches that each block is cut into, ``num_epochs`` the number of
    passes over all samples. ``n_epocs_sync`` is the number of epochs between merges, 0 for one merge at the end.
    ``shuffle_blocks`` distributes blocks to workers in a new order each epoch, ``shuffle_block_data`` shuffles the
    samples within each block. All other keywords of ``fit`` may be given as well (``FitKeywords``), except those
    that the name fixes (``FIXED``), which raise ``TypeError``. ``merge`` is therefore a ``Merge`` without ``kind``,
    ``every`` and ``unit``; the synchronous fits also take a preset, and replace its ``every`` and ``unit``. Results
    and errors are those of ``fit``.
    """

    @abstractmethod
    def fit(self, *args: Any, **kwargs: Any) -> Fitted:
        """Train; see ``DistributedTrainer.fit``."""

    def _named(self, name: str, given: Mapping[str, Any]) -> Fitted:
        """Call ``fit`` with what the name fixes, and the arguments ``given`` to the named fit, by name."""
        options, every = given["options"], given.get("n_epocs_sync", 1)
        check_keywords(name, options)
        check_count("num_batches_per_worker", given["num_batches_per_worker"])
        check_count("n_epocs_sync", every, least=0)
        order = _IN_TOTAL
        if "shuffle_blocks" in given:
            check_choice("shuffle_blocks", given["shuffle_blocks"], (True, False))
            shuffle = "blocks" if given["shuffle_blocks"] else None
            order = {"shuffle": shuffle, "shuffle_block_data": given["shuffle_block_data"]}
        size = {key: given[key] for key in ("num_batches_per_worker", "num_epochs")}
        merge = merge_of(name, options.get("merge"), every)
        return self.fit(given["x_train"], given["y_train"], **{**options, **order, **size, "merge": merge})

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
        return self._named("fit_synchronous_with_GPU", locals())

    def fit_synchronous_shuffle_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Average all workers at the end of every epoch; all samples are shuffled together before each."""
        return self._named("fit_synchronous_shuffle_with_GPU", locals())

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
        return self._named("fit_synchronous_every_n_epochs_with_GPU", locals())

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
        return self._named("fit_synchronous_shuffle_every_n_epochs_with_GPU", locals())

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
        return self._named("fit_asynchronous_with_GPU", locals())

    def fit_asynchronous_shuffle_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        **options: Unpack[FitKeywords],
    ) -> Fitted:
        """Merge commutatively after every epoch; all samples are shuffled together before each."""
        return self._named("fit_asynchronous_shuffle_with_GPU", locals())

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
        return self._named("fit_asynchronous_n_epochs_with_GPU", locals())

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
        return self._named("fit_asynchronous_shuffle_n_epochs_with_GPU", locals())
