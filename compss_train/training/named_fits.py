"""The eight named fits: dislib's names and keywords, each one call of ``fit``.

Three choices make eight names: synchronous or asynchronous (commutative) merging, every epoch or every n epochs,
and shuffling by blocks or in total. They train on the CPU if ``num_gpu`` is 0.
"""

from abc import abstractmethod
from typing import Any, Generic, TypeVar

from compss_train._utils.validation import check_choice, check_count
from compss_train.data.partitioning import Shuffle

Fitted = TypeVar("Fitted")


class NamedFits(Generic[Fitted]):
    """The eight fits on top of an abstract ``fit``, whose result is ``Fitted``.

    Common to all: ``x_train`` and ``y_train`` are blocked tensors (samples and targets; y may be ``None``),
    ``num_batches_per_worker`` is the number of batches that each block is cut into, ``num_epochs`` the number of
    passes over all samples. ``n_epocs_sync`` is the number of epochs between merges, 0 for one merge at the end.
    ``shuffle_blocks`` distributes blocks to workers in a new order each epoch, ``shuffle_block_data`` shuffles the
    samples within each block. Results and errors are those of ``fit``.
    """

    @abstractmethod
    def fit(self, *args: Any, **kwargs: Any) -> Fitted:
        """Train; see ``DistributedTrainer.fit``."""

    def _fit(self, x: Any, y: Any, num_batches_per_worker: int, num_epochs: int, **options: Any) -> Fitted:
        check_count("num_batches_per_worker", num_batches_per_worker)
        check_count("n_epocs_sync", options.get("merge_every", 1), least=0)
        return self.fit(x, y, num_batches_per_worker=num_batches_per_worker, num_epochs=num_epochs, **options)

    def fit_synchronous_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
    ) -> Fitted:
        """Average all workers at the end of every epoch."""
        return self._fit(
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            shuffle=_by_blocks(shuffle_blocks),
            shuffle_block_data=shuffle_block_data,
        )

    def fit_synchronous_shuffle_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int
    ) -> Fitted:
        """Average all workers at the end of every epoch; all samples are shuffled together before each."""
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, shuffle="total")

    def fit_synchronous_every_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 1,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
    ) -> Fitted:
        """Average all workers every ``n_epocs_sync`` epochs and after the last."""
        return self._fit(
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            merge_every=n_epocs_sync,
            shuffle=_by_blocks(shuffle_blocks),
            shuffle_block_data=shuffle_block_data,
        )

    def fit_synchronous_shuffle_every_n_epochs_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int, n_epocs_sync: int = 1
    ) -> Fitted:
        """Average all workers every ``n_epocs_sync`` epochs; all samples are shuffled together every epoch."""
        return self._fit(
            x_train, y_train, num_batches_per_worker, num_epochs, merge_every=n_epocs_sync, shuffle="total"
        )

    def fit_asynchronous_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
    ) -> Fitted:
        """Each worker adds its change to the global parameters after every epoch and continues at once."""
        return self._fit(
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            merge="commutative",
            shuffle=_by_blocks(shuffle_blocks),
            shuffle_block_data=shuffle_block_data,
        )

    def fit_asynchronous_shuffle_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int
    ) -> Fitted:
        """Merge commutatively after every epoch; all samples are shuffled together before each."""
        return self._fit(x_train, y_train, num_batches_per_worker, num_epochs, merge="commutative", shuffle="total")

    def fit_asynchronous_n_epochs_with_GPU(
        self,
        x_train: Any,
        y_train: Any,
        num_batches_per_worker: int,
        num_epochs: int,
        n_epocs_sync: int = 0,
        shuffle_blocks: bool = True,
        shuffle_block_data: bool = True,
    ) -> Fitted:
        """Merge commutatively every ``n_epocs_sync`` epochs, by default once at the end."""
        return self._fit(
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            merge="commutative",
            merge_every=n_epocs_sync,
            shuffle=_by_blocks(shuffle_blocks),
            shuffle_block_data=shuffle_block_data,
        )

    def fit_asynchronous_shuffle_n_epochs_with_GPU(
        self, x_train: Any, y_train: Any, num_batches_per_worker: int, num_epochs: int, n_epocs_sync: int = 0
    ) -> Fitted:
        """Merge commutatively every ``n_epocs_sync`` epochs; all samples are shuffled together every epoch."""
        return self._fit(
            x_train,
            y_train,
            num_batches_per_worker,
            num_epochs,
            merge="commutative",
            merge_every=n_epocs_sync,
            shuffle="total",
        )


def _by_blocks(shuffle_blocks: bool) -> Shuffle:
    check_choice("shuffle_blocks", shuffle_blocks, (True, False))
    return "blocks" if shuffle_blocks else None
