import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BlockedTensor, FileDataset, write_files
from compss_train.runs.problems import WrongValueError
from compss_train.runs.split import split


@given(st.integers(2, 50), st.floats(0.02, 0.98), st.integers(0, 5), st.booleans())
def test_every_sample_is_trained_on_or_kept_with_its_target(samples, fraction, seed, tensors):
    x, y = np.arange(samples) * 2, np.arange(samples)
    pair = (torch.from_numpy(x), torch.from_numpy(y)) if tensors else (x, y)
    count = round(samples * fraction)
    if not 0 < count < samples:
        with pytest.raises(WrongValueError, match="give another fraction"):
            split(pair, fraction, seed)
        return
    (train_x, train_y), (kept_x, kept_y) = split(pair, fraction, seed)
    assert len(kept_x) == count
    assert sorted([*train_y.tolist(), *kept_y.tolist()]) == y.tolist()
    assert train_x.tolist() == [2 * n for n in train_y.tolist()]
    assert kept_x.tolist() == [2 * n for n in kept_y.tolist()]


def test_the_seed_chooses():
    x = np.arange(100)
    kept = [split((x, None), 0.3, seed)[1][0].tolist() for seed in (1, 1, 2)]
    assert kept[0] == kept[1] != kept[2]


def test_blocks_stay_as_many():
    x = BlockedTensor.from_array(np.arange(40), (4, 1))
    (train, none), (kept, _) = split((x, None), 0.25, 0)
    assert (train.shape, train.number_samples, none) == ((4, 1), 30, None)
    assert sorted([*train.collect(), *kept]) == list(range(40))


def test_files_are_kept_whole_with_all_their_options(tmp_path):
    write_files(tmp_path, {"a": np.arange(20), "b": np.arange(20)}, rows=2)
    files = FileDataset(f"{tmp_path}/*.npz", x="a", y="b")
    (train, _), (kept, _) = split((files, None), 0.3, 0)
    assert (len(train.files), len(kept.files)) == (7, 3)
    assert sorted([*train.files, *kept.files]) == files.files
    assert (kept.x, kept.y, kept.number_samples) == ("a", "b", 6)


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 2, True, "half"])
def test_fractions_are_between_0_and_1(fraction):
    with pytest.raises(WrongValueError, match="give a number between 0 and 1"):
        split((np.arange(10), None), fraction, 0)


def test_pairs_of_different_lengths_are_told():
    with pytest.raises(WrongValueError, match="x has 10 samples, y 9"):
        split((np.arange(10), np.arange(9)), 0.5, 0)
