"""Files of arrays are what the library of safetensors reads, and what it would write."""

import hashlib
import json

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from compss_train.training.checkpoints.arrays import TYPES, save
from tests.training.checkpoints.trees import assert_same, tensors, texts

names = texts.filter(lambda name: name.isprintable() and name != "__metadata__")
contents = st.dictionaries(names, tensors(), max_size=5)


def head_of(path):
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    return 8 + length, json.loads(content[8 : 8 + length])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(contents)
def test_the_library_reads_the_same_tensors_and_each_is_aligned(tmp_path, content):
    content = {name: tensor.detach().resolve_conj().resolve_neg().contiguous() for name, tensor in content.items()}
    path = tmp_path / "file"
    path.unlink(missing_ok=True)
    assert save(content, path) == hashlib.sha256(path.read_bytes()).hexdigest()
    found = load_file(path)
    assert found.keys() == content.keys()
    assert_same([found[name] for name in content], list(content.values()))
    start, head = head_of(path)
    for name, tensor in content.items():
        assert (start + head[name]["data_offsets"][0]) % tensor.element_size() == 0


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_types_and_shapes_are_told_as_the_library_does(tmp_path, dtype):
    content = {"a": torch.zeros(2, 3).to(dtype), "b": torch.ones(()).to(dtype), "c": torch.zeros(0, 4).to(dtype)}
    save(content, tmp_path / "ours")
    save_file(content, tmp_path / "theirs")
    assert head_of(tmp_path / "ours") == head_of(tmp_path / "theirs")
