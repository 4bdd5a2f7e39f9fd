import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import nn

from compss_train import BadFileError
from compss_train.model import parameters as params
from compss_train.model.commutative_updates import apply_delta
from tests.helpers.models import assert_close, assert_same_bits, awkward_net, mlp
from tests.helpers.tolerances import average, sum_error

LARGEST = 1e6
floats = hnp.arrays(np.float32, (3, 2), elements=st.floats(-LARGEST, LARGEST, width=32))
counts = st.integers(1, 2**28)


def version(array):
    return {"w": array, "steps": np.array(int(abs(array.sum())) % 100), "on": array[0] > 0}


@given(arrays=st.lists(floats, min_size=3, max_size=3), data=st.data())
def test_deltas_commute_and_add_up_to_the_average(arrays, data):
    base, first, second = map(version, arrays)
    a = data.draw(counts)
    b = data.draw(counts)
    steps = [(first, a), (second, b)]

    def run(order, buffers):
        current = base
        for trained, count in order:
            current = apply_delta(current, base, trained, count=count, total=a + b, buffers=buffers)
        return current

    most = average([base, first, second], [1, 1, 1])  # for the integers' maximum
    expected = average([first, second], [a, b]) | {"steps": most["steps"], "on": most["on"]}
    scale = max(1.0, *(np.abs(array).max() for array in arrays))
    for order in (steps, steps[::-1]):
        for buffers in ((), ("w",)):
            # Two updates, each rounded to single precision; before, one may be three times as large
            # as the arrays.
            assert_close(run(order, buffers), expected, sum_error(np.float32, 2, 3 * scale))


@given(data=st.data())
def test_merged_variances_stay_positive_however_stale_the_bases(data):
    variances = st.floats(0, 100)
    current = {"v": np.array([data.draw(variances)], np.float32)}
    for _ in range(6):
        base, trained = ({"v": np.array([data.draw(variances)], np.float32)} for _ in range(2))
        count = data.draw(st.integers(1, 9))
        current = apply_delta(current, base, trained, count=count, total=9, buffers={"v"})
        assert current["v"] >= 0


def test_bfloat16_is_stored_as_float32_and_restored_exactly():
    source = mlp().bfloat16()
    target = mlp().bfloat16()
    nn.init.normal_(source[0].weight)
    arrays = params.from_module(source)
    assert arrays["0.weight"].dtype == np.float32
    params.load_into(target, arrays)
    assert torch.equal(target[0].weight, source[0].weight)


def test_names_and_shapes_must_agree():
    arrays = params.from_module(mlp())
    with pytest.raises(ValueError, match=r"\['0.bias'\] are missing in the parameters"):
        params.load_into(mlp(), {name: array for name, array in arrays.items() if name != "0.bias"})
    with pytest.raises(
        ValueError, match=r"\['extra'\] are missing in the parameters, or are not in the network"
    ):
        params.load_into(mlp(), {**arrays, "extra": np.zeros(1)})
    with pytest.raises(ValueError, match=r"'0.bias' has shape \(2,\), but \(16,\) in the network"):
        params.load_into(mlp(), {**arrays, "0.bias": np.zeros(2)})


def test_not_finite_values_are_found():
    arrays = {"a": np.zeros(2), "b": np.array([1.0, np.nan, np.inf])}
    net = nn.ParameterDict({name: torch.from_numpy(array) for name, array in arrays.items()})
    with pytest.raises(ValueError, match="'b' has NaN or infinite values"):
        params.check_finite(arrays, net)
    net.b.requires_grad_(False)
    params.check_finite(arrays, net)


@pytest.mark.parametrize(
    ("before", "after", "diverged"),
    [
        ([1.0, 2.0], [1.0, 2.0], False),
        ([1.0, 2.0], [1.0, np.nan], True),
        ([1.0, 2.0], [np.inf, 2.0], True),
        ([0.0, -np.inf], [0.0, -np.inf], False),
        ([np.inf, 0.0], [3.0, np.inf], False),
        ([np.inf, 0.0], [np.nan, 0.0], True),
        ([np.nan, 0.0], [np.nan, 1.0], False),
    ],
)
def test_what_training_makes_infinite(before, after, diverged):
    arrays = {"count": np.array(3), "a": np.array(after)}
    name = params.first_diverged(arrays, {"count": np.array(2), "a": np.array(before)})
    assert name == ("a" if diverged else None)


@given(st.lists(st.sampled_from([0.0, -0.0, 1.5, np.inf, -np.inf, np.nan]), min_size=1))
def test_the_same_bits(values):
    array = np.array(values)
    assert params.has_same_bits(array, array.copy())
    changed = array.copy()
    changed[-1] = 7.0
    assert not params.has_same_bits(array, changed)
    assert not params.has_same_bits(np.array([0.0]), np.array([-0.0]))


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
def test_files(tmp_path, suffix):
    arrays = params.from_module(awkward_net())
    path = tmp_path / f"p{suffix}"
    params.save(path, arrays)
    loaded = params.load(path)
    assert_same_bits({name: loaded[name] for name in arrays}, arrays)
    with pytest.raises(ValueError, match=r"use the suffix \.safetensors or \.npz"):
        params.save(tmp_path / "p.bin", arrays)
    with pytest.raises(ValueError, match="use the suffix"):
        params.load(tmp_path / "p.bin")


@pytest.mark.parametrize("suffix", [".safetensors", ".npz"])
@pytest.mark.parametrize("content", [b"", b"x" * 100, None])
def test_the_error_of_a_damaged_file_names_it(tmp_path, suffix, content):
    path = tmp_path / f"it{suffix}"
    params.save(path, {"a": np.ones(1000)})
    path.write_bytes(path.read_bytes()[:500] if content is None else content)
    with pytest.raises(
        BadFileError, match=rf"it\{suffix} is damaged, or not a file of parameters: "
    ):
        params.load(path)


@given(st.sampled_from([".safetensors", ".npz"]), st.data())
def test_a_flipped_bit_is_an_error_or_changes_nothing(tmp_path, suffix, draw):
    path = tmp_path / f"p{suffix}"
    arrays = params.from_module(awkward_net())
    params.save(path, arrays)
    content = bytearray(path.read_bytes())
    bit = draw.draw(st.integers(0, 8 * len(content) - 1))
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    try:
        loaded = params.load(path)
    except BadFileError:
        return
    assert_same_bits({name: loaded[name] for name in arrays}, arrays)


def test_an_array_that_a_damaged_directory_hides_is_an_error(tmp_path):
    path = tmp_path / "p.npz"
    params.save(path, {"a": np.ones(3), "b": np.ones(3), "c": np.ones(3)})
    content = bytearray(path.read_bytes())
    first, second, third = (entry.start() for entry in re.finditer(b"PK\1\2", content))
    # The first entry's comment, which is empty, becomes the second entry.
    content[first + 32] = third - second
    path.write_bytes(content)
    with pytest.raises(BadFileError, match="has 2 arrays, and had 3"):
        params.load(path)
    content[-3] |= 0x80  # the directory begins before the file
    path.write_bytes(content)
    with pytest.raises(BadFileError, match="is damaged"):
        params.load(path)


@pytest.mark.parametrize("key", [None, "state_dict", "model", "model_state_dict"])
def test_a_state_dict_that_torch_saved_is_loaded(tmp_path, key):
    net = awkward_net()
    state = net.state_dict()
    optimizer = torch.optim.Adam(net.parameters()).state_dict()
    content = state if key is None else {key: state, "optimizer": optimizer, "epoch": 3}
    torch.save(content, tmp_path / "w.pt")
    assert_same_bits(
        params.load(tmp_path / "w.pt"), {name: tensor.numpy() for name, tensor in state.items()}
    )


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (nn.Linear(1, 1), "more than tensors"),
        ([torch.ones(2)], "a list"),
        ({"epoch": 3}, ("it holds 'epoch', and no tensors")),
        ({"model": {"a": torch.ones(1)}, "ema": {"a": torch.ones(1)}}, "'model', 'ema': save one"),
    ],
)
def test_other_files_of_torch_are_errors(tmp_path, content, name, raises):
    torch.save(content, tmp_path / "w.pth")
    with raises(BadFileError, name):
        params.load(tmp_path / "w.pth")
    (tmp_path / "w.pth").write_bytes((tmp_path / "w.pth").read_bytes()[:200])
    with pytest.raises(BadFileError, match="damaged"):
        params.load(tmp_path / "w.pth")


@pytest.mark.parametrize(
    ("rename", "advice"),
    [
        (lambda name: f"module.{name}", "give {name.removeprefix('module.'): array"),
        (lambda name: name.removeprefix("0."), "give {'0.' + name: array"),
        (lambda name: name.upper(), "it has ['0.weight', '0.bias']"),
    ],
)
def test_names_with_another_beginning_are_told_it(rename, advice, raises):
    net = nn.Sequential(nn.Linear(2, 2))
    given = {rename(name): array for name, array in params.from_module(net).items()}
    with raises(ValueError, advice):
        params.load_into(net, given)


@pytest.mark.parametrize("name", ["it.safetensors", "it.npz"])
def test_file_permissions_follow_the_umask(tmp_path, name):
    (tmp_path / "other").touch()
    params.save(tmp_path / name, {"a": np.ones(3)})
    assert (tmp_path / name).stat().st_mode == (tmp_path / "other").stat().st_mode
