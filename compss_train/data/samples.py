"""``Samples``: a data set that is an object, map-style or iterable, and that workers read."""

from collections.abc import Callable, Sequence, Sized
from copy import copy
from typing import Any

from torch.utils import data as torch_data
from torch.utils.data import DataLoader, IterableDataset, Subset

from compss_train._utils.validation import check_count
from compss_train.data.arrow_rows import arrow_rows
from compss_train.data.collating import Collate
from compss_train.data.frames import is_frame
from compss_train.data.order import even_parts
from compss_train.data.sample_reading import MapReader, SampleReader
from compss_train.data.sample_roles import Keys, Roles
from compss_train.data.streams import StreamReader
from compss_train.data.values import is_grouped

_RAY_DATA = "ray.data.dataset"
"""The module of Ray's data sets."""


class Samples:
    """A data set with options that ``fit(dataset)`` alone cannot express.

    Parameters
    ----------
    dataset:
        A map-style data set of torch, or any object with ``__len__`` and ``__getitem__``; an
        ``IterableDataset``; a ``datasets.Dataset`` of Hugging Face; or, on Ray, a
        ``ray.data.Dataset``. Each sample includes its targets.
    x, y:
        Keys of the parts of a sample that are x and y: names in dicts, indices in tuples. Several
        names give a dict of inputs or outputs, several indices a tuple. By default a pair is (x,
        y); in a dict, y is the part called y, label, labels, target or targets, and x is the part
        called x, or all others. If you give only ``x``, there is no y.
    blocks:
        Number of blocks of a map-style data set, or of shards of an iterable one. By default one
        for each worker.
    collate:
        Makes a batch from a list of the data set's samples, like torch's ``collate_fn``; x and y
        are then parts of the batch. By default samples are stacked, and sequences that differ in
        length are padded.
    size:
        Number of samples of an ``IterableDataset`` that all workers together train on in an epoch.
        Shards with fewer samples end early; the rest of longer shards is left out. With ``None``
        (default) they train on all samples, and merge only after whole epochs.
    worker_init_fn:
        Called with the number of a shard of an ``IterableDataset`` before it is iterated over, as
        in a ``DataLoader``. ``None`` (default) for none.
    drop_last:
        Whether to leave out the last batch of an ``IterableDataset``'s shard if it is smaller;
        ``False`` by default. Batch sizes of other data sets differ by at most one sample.

    Raises ``TypeError`` for other objects, and ``ValueError`` for an empty data set and for
    unsuitable numbers.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        x: Keys | None = None,
        y: Keys | None = None,
        blocks: int | None = None,
        collate: Collate | None = None,
        size: int | None = None,
        worker_init_fn: Callable[[int], None] | None = None,
        drop_last: bool = False,
    ) -> None:
        self.is_stream = isinstance(dataset, IterableDataset)
        if is_ray_data(dataset):
            _check_ray_options(blocks, collate)
        else:
            _check_dataset(dataset)
        for name, value in (("size", size), ("worker_init_fn", worker_init_fn)):
            if value is not None and not self.is_stream:
                raise ValueError(
                    f"{name}= belongs to an IterableDataset; leave it out for a "
                    f"{type(dataset).__name__}"
                )
        if collate is not None and not callable(collate):
            raise TypeError(f"collate={collate!r}: give a function of a list of samples, or None")
        self.dataset = dataset
        self.roles = Roles(x, y)
        self.blocks = None if blocks is None else check_count("blocks", blocks)
        self.collate = collate
        self.size = None if size is None else check_count("size", size)
        self.worker_init_fn = worker_init_fn
        self.drop_last = drop_last
        self.batch_size: int | None = None
        """The batch size of the ``DataLoader`` that these samples were taken from."""

    def sizes(self, blocks: int) -> list[int]:
        """Return the sizes of the blocks, ``blocks`` by default; 1 for shards of unknown size."""
        number = self.blocks or blocks
        total = self.size if self.is_stream else len(self.dataset)
        if total is None:
            return [1] * number
        return [stop - start for start, stop in even_parts(total, min(number, total))]

    def reader(self, blocks: int, floats: str | None) -> SampleReader:
        """Return the workers' reader of the samples in this number of blocks.

        Floating-point columns of tables become ``floats``.
        """
        if self.is_stream:
            return StreamReader(
                self.dataset,
                self.roles,
                self.collate,
                shards=blocks,
                initialize=self.worker_init_fn,
                counted=self.size is not None,
                drop_last=self.drop_last,
            )
        rows = None
        if _is_hugging_face(self.dataset) and self.collate is None:
            rows = arrow_rows(self.dataset, self.roles, floats)
        return rows or MapReader(self.dataset, self.roles, self.collate)

    @property
    def tensors(self) -> tuple[Any, Any] | None:
        """x and y if the data set is a ``TensorDataset`` of exactly these, or else ``None``."""
        has_options = self.collate or self.blocks or self.roles != Roles()
        if has_options or type(self.dataset) is not torch_data.TensorDataset:
            return None
        tensors = self.dataset.tensors
        if len(tensors) > 2:
            return None
        return tensors[0], tensors[1] if len(tensors) == 2 else None

    def select(self, numbers: Sequence[int]) -> "Samples":
        """Return some samples of a map-style data set, by number; ``TypeError`` for another one."""
        if self.is_stream or is_ray_data(self.dataset):
            raise TypeError(
                f"the samples of {self} have no numbers to select them by; give a "
                "map-style data set"
            )
        selected = copy(self)
        if _is_hugging_face(self.dataset):
            selected.dataset = self.dataset.select(numbers)
        else:
            selected.dataset = Subset(self.dataset, numbers)
        return selected

    def __repr__(self) -> str:
        if is_ray_data(self.dataset):
            return "Samples(ray.data.Dataset)"
        number = self.size if self.is_stream else len(self.dataset)
        count = "unknown number of" if number is None else number
        return f"Samples({type(self.dataset).__name__}, {count} samples)"


def _check_ray_options(blocks: int | None, collate: Collate | None) -> None:
    """Raise ``ValueError`` for options that a data set of Ray does not have."""
    if blocks is not None:
        raise ValueError(
            f"blocks={blocks}, but a Ray data set is in blocks: give dataset.repartition({blocks})"
        )
    if collate is not None:
        raise ValueError(
            "collate= makes batches of a data set's samples, but a Ray data set has columns: give "
            "build(collate=), or prepare the data by map_batches"
        )


def _check_dataset(dataset: Any) -> None:
    kind = type(dataset).__name__
    if isinstance(dataset, IterableDataset):
        return
    if is_frame(dataset) or is_grouped(dataset):
        raise TypeError(
            f"dataset is a {kind}, which has columns rather than samples: give x=frame[[...]] "
            "and y=frame[...] to fit"
        )
    is_map_style = isinstance(dataset, Sized) and hasattr(dataset, "__getitem__")
    if not is_map_style or isinstance(dataset, dict):
        raise TypeError(
            f"dataset is a {kind}; give one with __len__ and __getitem__ (of a dict of splits "
            "one split, such as dataset['train']), or an IterableDataset of torch.utils.data"
        )
    if len(dataset) == 0:
        raise ValueError(f"the {kind} has no samples")


def _is_hugging_face(value: Any) -> bool:
    """Return whether a value is a data set of Hugging Face, or a dict of them; imports nothing."""
    return type(value).__module__.partition(".")[0] == "datasets" and hasattr(value, "column_names")


def is_ray_data(value: Any) -> bool:
    """Return whether a value is a data set of Ray; imports nothing."""
    return type(value).__module__ == _RAY_DATA and hasattr(value, "materialize")


def as_samples(value: Any) -> Samples | None:
    """Return a data set or a ``DataLoader`` as ``Samples``, or ``None`` for any other value.

    Raises ``ValueError`` for a loader with its own order or batches of samples.
    """
    if isinstance(value, Samples):
        return value
    if isinstance(value, DataLoader):
        return _samples_of_loader(value)
    is_of_ray = type(value).__module__ == _RAY_DATA
    if isinstance(value, torch_data.Dataset) or is_of_ray or _is_hugging_face(value):
        return Samples(value)
    return None


def _samples_of_loader(loader: DataLoader[Any]) -> Samples:
    dataset = loader.dataset
    batch_sampler = loader.batch_sampler
    if type(batch_sampler) is not torch_data.BatchSampler:
        argument = f"batch_sampler={type(batch_sampler).__name__}(...)"
        if batch_sampler is None:
            argument = "batch_size=None"
        raise ValueError(
            f"the DataLoader has {argument}, so it makes batches itself, but workers must make "
            "their own: give fit(dataset, batch_size=...) a data set of single samples"
        )
    if not isinstance(dataset, IterableDataset):
        _check_sampler(batch_sampler.sampler, dataset)
        if loader.worker_init_fn is not None:
            raise ValueError(
                "the DataLoader has worker_init_fn=, and its processes are not used: leave it out. "
                f"Random draws of a {type(dataset).__name__} are seeded for each sample; what a "
                "process needs, such as open files, it makes in its first __getitem__"
            )
    is_default = loader.collate_fn is torch_data.default_collate
    samples = Samples(
        dataset,
        collate=None if is_default else loader.collate_fn,
        worker_init_fn=loader.worker_init_fn,
        drop_last=batch_sampler.drop_last,
    )
    samples.batch_size = batch_sampler.batch_size
    return samples


def _check_sampler(sampler: Any, dataset: Any) -> None:
    """Raise ``ValueError`` for a sampler that does not draw each sample of a data set once."""
    is_random = type(sampler) is torch_data.RandomSampler
    drawn_once = is_random and not sampler.replacement and sampler.num_samples == len(dataset)
    if type(sampler) is not torch_data.SequentialSampler and not drawn_once:
        raise ValueError(
            f"the DataLoader has a {type(sampler).__name__}, whose order fit cannot follow, "
            "because workers get blocks of samples: give fit the data set, with shuffle=, with "
            "sample_weight= for weights in the loss, or as torch.utils.data.Subset(dataset, "
            "indices) for a part of it"
        )
