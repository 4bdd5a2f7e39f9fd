"""The cache of files: what is stored comes back, within its limit, and only the user's own
undamaged entries.
"""

import errno
import functools
import gc
import importlib
import logging
import os
import pickle
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train._utils.files import TemporaryFolder
from compss_train.data import FileDataset, file_cache
from compss_train.data.block_bytes import rows_of_bytes
from compss_train.data.file_cache import FileCache, entry_bytes, make_cache
from compss_train.data.reading import layout_of
from compss_train.samplers import PartialShuffleSampler

ROWS = 4
DTYPES = [
    *"bBhHiIqQefdFD?",
    torch.bfloat16,
    torch.float32,
    torch.int64,
    torch.bool,
    torch.complex64,
    torch.uint8,
]


@pytest.fixture
def cache(tmp_path):
    return make_cache(tmp_path / "cache", None)


def entries(cache):
    return sorted(name for name in os.listdir(cache.folder) if name.endswith(".npz"))


def array_of(dtype, shape, seed=0):
    """Return random bits: rows of any shape and dtype of numpy or torch."""
    torch_dtype = dtype if isinstance(dtype, torch.dtype) else torch.uint8
    itemsize = torch_dtype.itemsize if isinstance(dtype, torch.dtype) else np.dtype(dtype).itemsize
    bits = np.random.default_rng(seed).integers(0, 2, (ROWS, *shape, itemsize), dtype=np.uint8)
    if isinstance(dtype, torch.dtype):
        return torch.from_numpy(bits).reshape(-1).view(dtype).reshape(ROWS, *shape)
    return bits.reshape(-1).view(dtype).reshape(ROWS, *shape)


def numbers(value, rows=ROWS):
    return {"x": np.full((rows, 5000), value, np.float64)}  # much larger than its headers


def entry_of(cache, file, arrays, stamp=(1, 2), reader="reader"):
    layout = layout_of(arrays)
    rows = len(next(iter(arrays.values())))
    return cache.entry(file, list(stamp), reader, rows=rows, layout=layout)


def assert_same(got, arrays):
    assert list(got) == list(arrays)
    for key, array in arrays.items():
        assert type(got[key]) is type(array)
        assert (got[key].dtype, tuple(got[key].shape)) == (array.dtype, tuple(array.shape))
        np.testing.assert_array_equal(rows_of_bytes(got[key]), rows_of_bytes(array), strict=True)


FIELDS = st.tuples(st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=2))


@given(fields=st.dictionaries(st.text(min_size=1, max_size=5), FIELDS, min_size=1, max_size=4))
def test_arrays_and_tensors_come_back_under_any_names(tmp_path_factory, fields):
    arrays = {
        key: array_of(dtype, shape, seed)
        for seed, (key, (dtype, shape)) in enumerate(fields.items())
    }
    arrays |= {
        "f": np.asfortranarray(np.arange(12.0).reshape(4, 3)),
        "t": torch.arange(12).reshape(3, 4).T,
    }
    entry = entry_of(make_cache(tmp_path_factory.getbasetemp() / "any", None), "file", arrays)
    entry.store(arrays)
    got = entry.load()
    assert_same(got, arrays)
    for array in got.values():
        array[:] = 0  # the cache's own stays
    assert_same(entry.load(), arrays)


@pytest.mark.parametrize(
    "changes",
    [
        {"file": "other"},
        {"stamp": (1, 3)},
        {"stamp": ()},
        {"reader": "other"},
        {"arrays": numbers(1, 5)},
        {"arrays": {"y": numbers(1)["x"]}},
        {"arrays": {"x": np.ones((ROWS, 5000), "f")}},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_changed_or_otherwise_read_file_is_another_one(cache, changes):
    arrays = numbers(1)
    entry_of(cache, "file", arrays).store(arrays)
    assert entry_of(cache, "file", arrays).load() is not None
    entry = entry_of(cache, **{"file": "file", "arrays": arrays, **changes})
    assert entry.load() is None


SIZE = entry_bytes(ROWS, layout_of(numbers(0)))


@given(used=st.lists(st.integers(0, 6), max_size=20), room=st.integers(1, 4))
def test_it_holds_those_used_last_within_its_limit(tmp_path_factory, used, room):
    cache = make_cache(tmp_path_factory.mktemp("limit"), room * SIZE)
    recent = []
    clock = 10**9
    for number in used:
        entry = entry_of(cache, str(number), numbers(number))
        assert (entry.load() is not None) == (number in recent)
        if number in recent:  # using it has renewed it
            assert (Path(cache.folder) / entry.name).stat().st_mtime_ns > clock
        if number not in recent:
            entry.store(numbers(number))
        recent = [*(key for key in recent if key != number), number][-room:]
        clock += 1  # not that of the file system, which may be coarse
        os.utime(Path(cache.folder) / entry.name, ns=(clock, clock))
        assert (
            sum((Path(cache.folder) / name).stat().st_size for name in entries(cache))
            <= cache.max_bytes
        )
    assert len(entries(cache)) == len(recent)


@pytest.mark.parametrize("made", [lambda reader: reader, functools.partial])
def test_a_reader_whose_module_changed_is_another_one(tmp_path, monkeypatch, made):
    np.savez(tmp_path / "data.npz", x=np.ones(4))
    body = "return ({{'x': numpy.full(4, {})}}, 4) if get_data else 4"
    code = f"import numpy\ndef read(name, get_data=False):\n    {body}\n"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    read = []
    for value in (1, 1, 22):
        (tmp_path / "reader_of_test.py").write_text(code.format(value))
        os.utime(tmp_path / "reader_of_test.py", (1, 1))
        sys.modules.pop("reader_of_test", None)
        importlib.invalidate_caches()
        reader = importlib.import_module("reader_of_test").read
        files = FileDataset(str(tmp_path / "*.npz"), made(reader), cache=tmp_path / "cache")
        sampler = PartialShuffleSampler(files, batch_size=4, shuffle=False)
        read += [(batch["x"][0], sampler.reads.cached) for batch in sampler]
    # The constructor of a sampler reads the first file into the cache.
    assert read == [(1, 1), (1, 1), (22, 1)]
    sys.modules.pop("reader_of_test", None)


def test_only_entries_that_fit_and_are_not_there_are_written(tmp_path):
    cache = make_cache(tmp_path, 2 * SIZE)
    for number in (1, 2, 2):  # the file 2 was read by two workers at the same time
        entry_of(cache, str(number), numbers(number)).store(numbers(number))
    assert len(entries(cache)) == 2
    assert entry_of(make_cache(tmp_path, SIZE - 1), "file", numbers(1)) is None


def test_threads_and_processes_may_write_at_the_same_time(tmp_path):
    wrong = []

    def work(first):
        cache = make_cache(tmp_path, 3 * SIZE)  # as each process has its own
        for number in range(first, first + 20):
            entry = entry_of(cache, str(number % 7), numbers(number % 7))
            got = entry.load()
            if got is None:
                entry.store(numbers(number % 7))
            elif not np.array_equal(got["x"], numbers(number % 7)["x"]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert 1 <= len(entries(make_cache(tmp_path, SIZE))) <= 3


def cut(path):
    path.write_bytes(path.read_bytes()[:-200])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def pickled(path):
    np.savez(path, **{"0": np.array([{}] * ROWS)})


def other_numbers(path):
    np.savez(path, **{"0": np.zeros((ROWS, 99))})


@pytest.mark.parametrize(
    "damage", [cut, flip, pickled, other_numbers, lambda path: path.write_bytes(b"")]
)
def test_a_damaged_entry_is_removed_and_not_there(cache, damage, caplog):
    entry = entry_of(cache, "file", numbers(1))
    entry.store(numbers(1))
    damage(Path(cache.folder) / entry.name)
    with caplog.at_level(logging.WARNING, "compss_train"):
        assert entry.load() is None
    assert "is read again" in caplog.text
    assert entries(cache) == []
    entry.store(numbers(1))
    assert_same(entry.load(), numbers(1))


def test_a_full_disk_or_a_killed_writer_leaves_nothing(cache, monkeypatch, caplog):
    def full(path, part):
        path.write_bytes(b"some of it")
        raise OSError(errno.ENOSPC, "No space left on device")

    abandoned = Path(cache.folder) / ".of-one-that-was-killed.npz"
    abandoned.write_bytes(b"half")
    monkeypatch.setattr(file_cache, "write_npz", full)
    with caplog.at_level(logging.WARNING, "compss_train"):
        entry_of(cache, "file", numbers(1)).store(numbers(1))
    assert "not kept in the cache" in caplog.text
    assert entries(cache) == []


@pytest.mark.parametrize("how", ["rights", "link", "user"])
def test_a_folder_that_others_may_write_to_is_an_error(cache, how, monkeypatch):
    if how == "rights":
        os.chmod(cache.folder, 0o777)
    elif how == "link":
        Path(cache.folder).with_name("link").symlink_to(cache.folder)
        cache = FileCache(str(Path(cache.folder).with_name("link")), SIZE)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(ValueError, match="others could write to it"):
        cache.open()


def test_a_folder_is_made_for_the_user_alone_and_stays(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    cache = make_cache("deep/down", 1000)
    folder = Path(cache.folder)
    assert folder.parent == tmp_path / "deep" / "down"
    assert folder.stat().st_mode & 0o777 == 0o700
    assert cache.max_bytes == 1000
    again = make_cache(tmp_path / "deep" / "down", None)
    assert (again.folder, again.max_bytes) == (cache.folder, file_cache.FOLDER_BYTES)
    del cache, again
    gc.collect()
    assert folder.is_dir()


def test_memory_is_given_back_and_shared_with_tasks(tmp_path, monkeypatch):
    monkeypatch.setattr(file_cache, "SHARED_MEMORY", tmp_path)
    cache = make_cache("memory", None)
    assert (cache.max_bytes, cache.temporary) == (file_cache.MEMORY_BYTES, True)
    entry_of(cache, "file", numbers(1)).store(numbers(1))
    sent = pickle.loads(pickle.dumps(cache))
    assert_same(entry_of(sent, "file", numbers(1)).load(), numbers(1))
    del sent
    gc.collect()
    assert entries(cache)
    del cache
    gc.collect()
    assert os.listdir(tmp_path) == []


def test_another_node_makes_its_own_and_removes_it(tmp_path, monkeypatch):
    registered = []
    monkeypatch.setattr("atexit.register", lambda *call: registered.append(call))
    cache = FileCache(str(tmp_path / "compss_train-1-abc"), 10**6, temporary=True)
    for _ in range(2):
        entry_of(cache, "file", numbers(1)).store(numbers(1))
        assert entries(cache)
    ((remove, *arguments),) = registered
    remove(arguments[0], os.getpid() + 1)  # a process that was forked
    assert entries(cache)
    remove(*arguments)
    assert not Path(cache.folder).exists()
    assert isinstance(arguments[0], TemporaryFolder)


@pytest.mark.parametrize(
    ("cache", "max_bytes", "error", "name"),
    [
        (None, 5, ValueError, "cache_bytes=5: name a cache, 'memory' or a folder"),
        ("memory", 0, ValueError, "cache_bytes=0"),
        ("memory", 1.5, ValueError, "cache_bytes=1.5"),
        (True, None, TypeError, "cache=True"),
        ("", None, TypeError, "cache=''"),
        (__file__, None, ValueError, "; give a folder on a local disk"),
        (f"{__file__}/cache", None, ValueError, "; give a folder on a local disk"),
    ],
)
def test_wrong_arguments(cache, max_bytes, error, name, raises):
    with raises(error, name):
        make_cache(cache, max_bytes)
