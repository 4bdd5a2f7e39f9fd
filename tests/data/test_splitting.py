"""Splits have as many samples as asked for, each once, and with ``stratify`` of each class."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train import FileDataset, write_files
from compss_train.data.readers import ImageFolderReader
from compss_train.data.reading import RowRange
from compss_train.data.splitting import drawn_alike, drawn_ranges


@given(st.lists(st.integers(1, 40), min_size=2, max_size=30), st.integers(0, 9))
def test_ranges_have_exactly_the_fraction(sizes, seed):
    count = round(sum(sizes) * 0.3)
    if not 0 < count < sum(sizes):
        return
    taken = drawn_ranges(sizes, 0.3, seed)
    assert sum(taken) == count
    assert all(0 <= rows <= size for rows, size in zip(taken, sizes, strict=True))
    assert sum(0 < rows < size for rows, size in zip(taken, sizes, strict=True)) <= 1


@given(st.lists(st.integers(2, 30), min_size=1, max_size=6), st.floats(0.1, 0.9), st.integers(0, 9))
def test_classes_have_their_shares_to_one_sample(sizes, fraction, seed):
    classes = np.repeat([f"class {number}" for number in range(len(sizes))], sizes)
    count = round(len(classes) * fraction)
    if not 0 < count < len(classes):
        return
    held = drawn_alike(classes, fraction, seed)
    assert held.sum() == count
    for number, size in enumerate(sizes):
        share = size * count / len(classes)
        assert abs(held[classes == f"class {number}"].sum() - share) < 1


def samples_of(dataset):
    part = dataset.part([*range(len(dataset.files))], ("x", "y"))
    for number, block in enumerate(dataset.blocks.values()):
        arrays = part.read(RowRange(number, 0, block.rows))
        arrays = arrays.arrays if hasattr(arrays, "arrays") else arrays
        pixels = arrays["x"].reshape(block.rows, -1)[:, 0]
        yield from zip(pixels.tolist(), arrays["y"].tolist(), strict=True)


@pytest.fixture
def pets(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(120):
        kind = "dog" if number % 10 == 0 else ("cat", "newt")[number % 2]
        folder = tmp_path / "pets" / kind
        folder.mkdir(parents=True, exist_ok=True)
        image.new("L", (2, 2), number).save(folder / f"{number}.png")
    return tmp_path / "pets"


@pytest.mark.parametrize("stratify", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_images_are_split_by_samples(pets, stratify, seed):
    dataset = FileDataset(pets, ImageFolderReader(mode="L", rows=50))
    training, validation = dataset.split(0.25, seed=seed, stratify=stratify)
    assert (training.number_samples, validation.number_samples) == (90, 30)
    assert max(training.sizes) <= 50
    parts = [[*samples_of(part)] for part in (training, validation)]
    assert sorted(parts[0] + parts[1]) == sorted(samples_of(dataset))
    if stratify:
        whole = Counter(kind for _, kind in samples_of(dataset))
        of_validation = Counter(kind for _, kind in parts[1])
        assert all(of_validation[kind] == pytest.approx(n / 4, abs=1) for kind, n in whole.items())
        again = dataset.split(0.25, seed=seed, stratify=True)[1]
        assert [*samples_of(again)] == parts[1]
        sliced = validation[3:17]
        assert [*samples_of(sliced)] == parts[1][3:17]


def test_files_of_arrays_are_split_exactly(tmp_path, raises):
    x = np.arange(613, dtype=np.float32)[:, None]
    files = write_files(tmp_path / "files", {"x": x, "y": x[:, 0]}, rows=100)
    dataset = FileDataset(files)
    for seed in range(4):
        training, validation = dataset.split(0.2, seed=seed)
        assert (training.number_samples, validation.number_samples) == (490, 123)
        rows = [row for part in (training, validation) for row, _ in samples_of(part)]
        assert sorted(rows) == x[:, 0].tolist()
    with raises(ValueError, "stratify=True: only folders of images"):
        dataset.split(0.2, stratify=True)
    with raises(ValueError, "fraction=0.0001 of 613 samples is 0"):
        dataset.split(0.0001)


def test_a_class_of_one_sample_is_not_split(raises):
    with raises(ValueError, "class 'a' has a single sample"):
        drawn_alike(np.array(["b", "a", "b", "b"]), 0.5, 0)
