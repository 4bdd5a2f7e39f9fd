"""Samplers, blocked tensors and skipped files, of tables."""

import numpy as np
import pytest

from compss_train import BlockedTensor, FileDataset, PartialShuffleSampler
from tests.data.readers.table_files import ROWS, TABLES, columns

OPTIONS = {"x": ["a", "b"], "y": "kind"}


@pytest.fixture
def path(tmp_path):
    return TABLES["parquet"].saved(tmp_path, **columns())


def sampler(path, **options):
    return PartialShuffleSampler(FileDataset(path, **OPTIONS), shuffle_buffer=8, batch_size=5, seed=0, **options)


def test_a_sampler_yields_each_row_once_and_resumes_within_row_groups(path):
    batches = list(sampler(path))
    assert sorted(x for batch in batches for x in batch["x"][:, 0]) == sorted(columns()["a"])
    interrupted, resumed = sampler(path), sampler(path)
    next(iter(interrupted))
    resumed.load_state_dict(interrupted.state_dict())
    for ours, theirs in zip(resumed, batches[1:], strict=True):
        np.testing.assert_array_equal(ours["x"], theirs["x"])
        np.testing.assert_array_equal(ours["kind"], theirs["kind"])


def test_the_cache_of_a_sampler_keeps_row_groups(path, tmp_path):
    cached = sampler(path, cache=str(tmp_path / "cache"))
    for _ in range(2):
        for ours, theirs in zip(cached, sampler(path), strict=True):
            np.testing.assert_array_equal(ours["x"], theirs["x"])


def test_a_data_set_with_other_lengths_keeps_columns_and_classes(path):
    dataset = FileDataset(path, **OPTIONS)
    again = dataset.with_reader(None, None)
    assert (again.sizes, again.classes, again.layout) == (dataset.sizes, dataset.classes, dataset.layout)


def test_a_column_is_a_blocked_tensor(path):
    np.testing.assert_array_equal(BlockedTensor.from_files([path], key="a").collect(), columns()["a"])


def test_a_damaged_table_is_skipped_where_that_is_wanted(path, tmp_path):
    (damaged := tmp_path / "bad.parquet").write_bytes(b"PAR1 no more")
    with pytest.warns(UserWarning, match=r"skipped .*bad\.parquet"):
        dataset = FileDataset([path, str(damaged)], on_bad_file="skip", **OPTIONS)
    assert (dataset.number_samples, list(dataset.skipped)) == (ROWS, [str(damaged)])


def test_with_given_lengths_a_file_is_a_block(path):
    assert FileDataset([path], None, {path: ROWS}, **OPTIONS).sizes == (ROWS,)
