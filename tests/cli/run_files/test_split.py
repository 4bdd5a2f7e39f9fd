import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from compss_train import BlockedTensor, DistributedTrainer, FileDataset, write_files
from compss_train.cli.run_files.data import Samples
from compss_train.cli.run_files.problems import WrongValueError
from compss_train.cli.run_files.split import split
from tests.helpers.models import SGD, mlp


@given(st.integers(2, 50), st.floats(0.02, 0.98), st.integers(0, 5), st.booleans())
def test_every_sample_is_trained_on_or_kept_with_its_target_and_weight(number, fraction, seed, tensors):
    x, y, weight = np.arange(number) * 2, np.arange(number), np.arange(number) / 4
    samples = Samples(torch.from_numpy(x), torch.from_numpy(y), weight) if tensors else Samples(x, y, weight)
    count = round(number * fraction)
    if not 0 < count < number:
        with pytest.raises(WrongValueError, match="give another fraction"):
            split(samples, fraction, seed)
        return
    train, kept = split(samples, fraction, seed)
    assert len(kept.x) == count
    assert sorted([*train.y.tolist(), *kept.y.tolist()]) == y.tolist()
    for part in (train, kept):
        assert part.x.tolist() == [2 * n for n in part.y.tolist()]
        assert part.weight.tolist() == [n / 4 for n in part.y.tolist()]


def test_the_seed_chooses():
    kept = [split(Samples(np.arange(100)), 0.3, seed)[1].x.tolist() for seed in (1, 1, 2)]
    assert kept[0] == kept[1] != kept[2]


def test_blocks_stay_as_many():
    samples = Samples(BlockedTensor.from_array(np.arange(40), (4, 1)))
    train, kept = split(samples, 0.25, 0)
    assert (train.x.shape, train.x.number_samples, train.y) == ((4, 1), 30, None)
    assert sorted([*train.x.collect(), *kept.x]) == list(range(40))


def test_files_are_kept_whole_and_read_in_the_same_way(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32), np.arange(20) % 3
    write_files(tmp_path, {"a": x, "b": y}, rows=2)
    files = FileDataset(f"{tmp_path}/*.npz", x="a", y="b")
    train, kept = (part.x for part in split(Samples(files), 0.3, 0))
    assert (len(train.files), len(kept.files), len(files.files)) == (7, 3, 10)
    assert sorted([*train.files, *kept.files]) == files.files
    assert (kept.x, kept.y, kept.number_samples) == ("a", "b", 6)
    again = FileDataset(train.files, x="a", y="b")
    outputs = []
    for dataset in (train, again):
        with DistributedTrainer(1, engine="serial", seed=0, threads=1) as trainer:
            trainer.build(mlp(), SGD, "cross_entropy")
            trainer.fit(dataset, num_epochs=1, batch_size=2, progress=False)
            outputs.append(trainer.predict(kept))
    assert np.array_equal(*outputs)


@pytest.mark.parametrize("fraction", [0, 1, -0.5, 2, True, "half"])
def test_fractions_are_between_0_and_1(fraction):
    with pytest.raises(WrongValueError, match="give a number between 0 and 1"):
        split(Samples(np.arange(10)), fraction, 0)


def test_samples_of_different_lengths_are_told():
    with pytest.raises(WrongValueError, match="these have different lengths: x 10, y 9"):
        split(Samples(np.arange(10), np.arange(9)), 0.5, 0)
