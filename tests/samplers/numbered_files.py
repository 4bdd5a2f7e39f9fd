"""Files whose samples are their own numbers: real ones, and ones without a disk."""

import threading
import weakref
from itertools import pairwise

import numpy as np
from hypothesis import strategies as st

from compss_train.data.files import FileDataset
from compss_train.data.order import partial_shuffle_generator, rank_row_ranges
from compss_train.data.reading import layout_of
from compss_train.exceptions import BadFileError
from compss_train.samplers import PartialShuffleSampler

SIZES = st.lists(st.integers(1, 12), min_size=1, max_size=7)
OPTIONS = st.fixed_dictionaries(
    {
        "shuffle_buffer": st.none() | st.integers(1, 15),
        "batch_size": st.integers(1, 9),
        "pools": st.sampled_from([1, 2]),
        "seed": st.integers(0, 2**40),
        "shuffle": st.sampled_from([True, True, False]),
    }
)
REPLICAS = st.integers(1, 5)
EPOCHS = st.integers(0, 9)


def bounds_of(sizes):
    return list(pairwise(np.cumsum([0, *sizes]).tolist()))


def arrays_of(start, stop):
    x = np.arange(start, stop)
    return {"x": x, "y": np.stack([x * 0.5, -x], axis=1).astype(np.float32)}


def write_files(folder, sizes):
    """Write files of these sizes; ``x`` is the number of a sample among those of all files."""
    names = [str(folder / f"part-{number:03d}.npz") for number in range(len(sizes))]
    for name, bounds in zip(names, bounds_of(sizes), strict=True):
        np.savez(name, **arrays_of(*bounds))
    return names


LAYOUT = layout_of(arrays_of(0, 1))


def names_of(sizes):
    """Return names that a ``CountingReader`` reads without a disk."""
    return [f"numbers://{start}-{stop}" for start, stop in bounds_of(sizes)]


class CountingReader:
    """Counts the files that it reads, and arrays that are alive; reading one in ``bad`` fails."""

    def __init__(self, bad=()):
        self.bad = set(bad)
        self.opened = []
        self.threads = set()
        self.most_alive = 0
        self._arrays = []

    def __reduce__(self):
        return CountingReader, (self.bad,)

    def __call__(self, filename, get_data=False):
        start, stop = map(int, filename.removeprefix("numbers://").split("-"))
        if not get_data:
            return stop - start
        self.opened.append(filename)
        self.threads.add(threading.current_thread())
        if filename in self.bad:
            raise OSError("the disk is gone")
        arrays = arrays_of(start, stop)
        self._arrays.append(weakref.ref(arrays["x"]))
        self.most_alive = max(self.most_alive, sum(array() is not None for array in self._arrays))
        return arrays, stop - start


def sampler_of(sizes, kind=PartialShuffleSampler, reader=None, on_bad_file="raise", **options):
    """Return a sampler of files that are valid when it is made, unlike ``reader.bad`` later."""
    reader = reader or CountingReader()
    bad = reader.bad
    opened = reader.opened
    reader.bad = set()
    reader.opened = []  # of the file that is read to see what is in it
    of_files = {
        name: options.pop(name) for name in ("threads", "cache", "cache_bytes") if name in options
    }
    files = FileDataset(names_of(sizes), reader, on_bad_file=on_bad_file, **of_files)
    sampler = kind(files, **options)
    reader.bad = bad
    reader.opened = opened
    return sampler


def epoch_of(sampler, epoch=0):
    """Return the samples of each batch of an epoch."""
    sampler.set_epoch(epoch)
    return samples(sampler)


def samples(batches):
    return [batch["x"].tolist() for batch in batches]


def flat(batches):
    return [sample for batch in batches for sample in batch]


def samples_of_rank(sampler, sizes, epoch):
    """Return a rank's row ranges, and its samples in the order in which they are read."""
    rank = (sampler.num_replicas, sampler.rank, sampler.seed, epoch)
    bounds = bounds_of(sizes)
    row_ranges = rank_row_ranges(sizes, *rank, shuffle=sampler.shuffle)
    return row_ranges, [
        bounds[part.file][0] + row for part in row_ranges for row in range(part.start, part.stop)
    ]


def expected_order(sampler, sizes, epoch):
    """Return a rank's samples in the expected order, shuffled one by one in plain lists."""
    row_ranges, samples_in_order = samples_of_rank(sampler, sizes, epoch)
    if not sampler.shuffle:
        return samples_in_order
    random = partial_shuffle_generator(sampler.seed, epoch, *row_ranges[0].origin)
    size = sampler.pools.size
    runs = [
        samples_in_order[first : first + size] for first in range(0, len(samples_in_order), size)
    ]
    if sampler.pools.number == 1:
        return [run[place] for run in runs for place in random.permutation(len(run))]
    pool, *later_runs = runs
    pool = [pool[place] for place in random.permutation(len(pool))]
    order = []
    for run in later_runs:
        arriving = [run[place] for place in random.permutation(len(run))]
        for place, sample in zip(random.integers(len(pool), size=len(run)), arriving, strict=True):
            order.append(pool[place])
            pool[place] = sample
    return order + [pool[place] for place in random.permutation(len(pool))]


BUFFERS = st.sampled_from([1, 1, 2, 4])

cases = {"sizes": SIZES, "options": OPTIONS, "file_buffer": BUFFERS}


def until_error(sampler, kind=BadFileError):
    """Return the samples of the batches before an error, and the error."""
    got = []
    try:
        for batch in sampler:
            got.append(batch["x"].tolist())
    except kind as error:
        return got, error
    raise AssertionError("there was no error")
