"""Blocked tensors and files as X and y."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from compss_train import BlockedTensor, FileDataset, PartialShuffle, write_files
from tests.helpers.models import assert_same_bits, blocked, classification, mlp, state_arrays
from tests.integrations.sklearn.estimators import FAST_ADAM, classifier, regressor

X, Y = classification()
LABELS = np.array([10, 20, 40])


def files_of(folder, **arrays):
    write_files(folder, arrays, rows=20)
    return FileDataset(f"{folder}/*.npz")


def dislib(array):
    return SimpleNamespace(tensors=[[block] for block in np.split(array, 2)])


def of_torch(array):
    return BlockedTensor.from_array(torch.from_numpy(array), (2, 1))


@pytest.mark.parametrize("cut", [lambda array: BlockedTensor.from_array(array, (2, 1)), dislib, of_torch])
def test_blocks_train_as_arrays_cut_alike_do(cut):
    bx, by = cut(X), cut(LABELS[Y])
    ours = classifier(shuffle="blocks").fit(bx, by)
    arrays = classifier(shuffle="blocks").fit(X, LABELS[Y])
    assert_same_bits(state_arrays(ours.module_), state_arrays(arrays.module_))
    np.testing.assert_array_equal(ours.classes_, LABELS)
    np.testing.assert_array_equal(ours.predict(bx), arrays.predict(X))
    assert ours.score(bx, by) == ours.score(X, LABELS[Y]) == arrays.score(X, LABELS[Y])
    assert ours.n_features_in_ == 6


def test_regression_in_blocks_has_the_shape_of_the_targets():
    targets = X.reshape(60, 3, 2)
    estimator = regressor(optimizer=FAST_ADAM).fit(*blocked(X, targets, 3))
    assert estimator.n_outputs_ == 6
    assert estimator.predict(X).shape == (60, 3, 2)


def test_files_hold_samples_and_targets(tmp_path):
    files = files_of(tmp_path / "classes", x=X, y=Y)
    estimator = classifier(shuffle=PartialShuffle()).fit(files)
    np.testing.assert_array_equal(estimator.classes_, [0, 1, 2])
    np.testing.assert_array_equal(estimator.predict(files), estimator.predict(X))
    estimator.partial_fit(files)
    numbers = files_of(tmp_path / "numbers", x=X, y=X[:, :2])
    assert regressor(shuffle=PartialShuffle()).fit(numbers).predict(numbers).shape == (60, 2)


def test_given_classes_are_not_read_from_files(tmp_path, monkeypatch):
    files = files_of(tmp_path, x=X, y=Y)
    read = []
    original = type(files).part
    monkeypatch.setattr(type(files), "part", lambda *args: read.append(args[1]) or original(*args))
    classifier(shuffle=PartialShuffle()).partial_fit(files, classes=[0, 1, 2])
    limited = len(read)
    read.clear()
    classifier(shuffle=PartialShuffle(), num_epochs=1).fit(files)
    assert len(read) == limited + len(files.files)


def test_bad_files_are_skipped_when_labels_are_read(tmp_path):
    write_files(tmp_path, {"x": X, "y": Y}, rows=20)
    paths = sorted(tmp_path.glob("*.npz"))
    files = FileDataset(paths, on_bad_file="skip")
    paths[1].write_bytes(b"")
    with pytest.warns(UserWarning, match="skipped .* is empty"):
        assert len(classifier(shuffle=PartialShuffle()).fit(files).classes_) == 3
    strict = FileDataset([paths[0], paths[2]])
    paths[2].write_bytes(b"")
    with pytest.raises(ValueError, match="is empty"):
        classifier(shuffle=PartialShuffle()).fit(strict)


@pytest.mark.parametrize(
    ("error", "message", "pair"),
    [
        (TypeError, "X is a BlockedTensor and y a ndarray; give both", lambda f: (blocked(X, Y, 2)[0], Y)),
        (TypeError, "X is a ndarray and y a BlockedTensor; give both", lambda f: (X, blocked(X, Y, 2)[1])),
        (TypeError, "X is a BlockedTensor and y a NoneType", lambda f: (blocked(X, Y, 2)[0], None)),
        (TypeError, "whose files include y; omit y=ndarray", lambda f: (files_of(f, x=X, y=Y), Y)),
        (ValueError, "the files have the labels .10 20 40.", lambda f: (files_of(f, x=X, y=LABELS[Y]), None)),
        (ValueError, "the files have no targets beside 'x'", lambda f: (files_of(f, x=X), None)),
        (ValueError, "Unknown label type: continuous", lambda f: blocked(X, X[:, 0], 2)),
        (ValueError, "X has one number per sample", lambda f: blocked(X[:, 0], Y, 2)),
        (ValueError, "grid", lambda f: (blocked(X, Y, 2)[0], blocked(X, Y, 3)[1])),
        (ValueError, r"take PartialShuffle\(\)", lambda f: (files_of(f, x=X, y=Y), None)),
    ],
)
def test_incompatible_samples_and_targets_are_errors(error, message, pair, tmp_path):
    with pytest.raises(error, match=message):
        classifier().fit(*pair(tmp_path))


def test_other_features_and_targets_than_those_of_the_fit():
    bx, by = blocked(X, Y, 2)
    estimator = classifier().fit(bx, by)
    fewer = BlockedTensor.from_array(X[:, :4], (2, 1))
    for call in (estimator.predict, lambda x: estimator.partial_fit(x, by)):
        with pytest.raises(ValueError, match="X has 4 features, but DistributedClassifier is expecting 6 features"):
            call(fewer)
    with pytest.raises(ValueError, match="previously unseen labels"):
        estimator.partial_fit(*blocked(X, Y + 1, 2))
    with pytest.raises(ValueError, match=r"targets of shape \(2,\), but those of the first fit had \(\)"):
        regressor().fit(X, X[:, 0]).partial_fit(X, X[:, :2])
    with pytest.raises(ValueError, match=r"validation_fraction=0.1 needs arrays"):
        classifier(net=mlp(), validation_fraction=0.1).fit(bx, by)
