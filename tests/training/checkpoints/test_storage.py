"""A checkpoint is complete or does not exist, and a damaged one is never taken for a good one."""

import errno
import hashlib
import json
import os
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from compss_train import BadCheckpointError
from compss_train.model.value_encoding import DTYPES
from compss_train.training import checkpoints as storage
from compss_train.training.checkpoints import read_checkpoint, write_checkpoint
from tests.helpers.shared_engine import result_of_process
from tests.training.checkpoints.killed_writes import killed_writes
from tests.training.checkpoints.trees import assert_same

SMALL = {
    "history": [
        {"loss": 0.125, "worst": float("nan"), "round": 0},
        {"loss": 0.5, "worst": float("inf"), "round": 1},
    ],
    "reached": (1, None, True),
    "arrays": {"a": np.arange(3, dtype=np.float32), "b": torch.ones(2, 2, dtype=torch.bfloat16)},
}


FILES = ["state.json", "arrays.safetensors", "history-000000.jsonl"]


@pytest.fixture
def good(tmp_path):
    write_checkpoint(tmp_path / "good", SMALL)
    return tmp_path / "good"


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
def test_arrays_are_a_safetensors_file_of_every_dtype(tmp_path, dtype):
    tensors = {
        "a": torch.zeros(2, 3).to(dtype),
        "b": torch.ones(()).to(dtype),
        "c": torch.zeros(0, 4).to(dtype),
    }
    write_checkpoint(tmp_path / "it", tensors)
    file = tmp_path / "it" / "arrays.safetensors"
    loaded = load_file(file)
    assert loaded.keys() == tensors.keys()
    assert_same([loaded[name] for name in tensors], list(tensors.values()))
    document = json.loads((tmp_path / "it" / "state.json").read_text())
    assert document["sha256"]["arrays.safetensors"] == hashlib.sha256(file.read_bytes()).hexdigest()


def test_files_are_complete_when_they_are_fsynced(tmp_path, monkeypatch):
    fsynced = {}

    def fsync(descriptor):
        status = os.fstat(descriptor)
        fsynced[status.st_ino] = status.st_size

    monkeypatch.setattr(os, "fsync", fsync)
    write_checkpoint(tmp_path / "it", SMALL)
    for path in (tmp_path / "it").iterdir():
        assert fsynced[path.stat().st_ino] == path.stat().st_size > 0
    assert {(tmp_path / "it").stat().st_ino, tmp_path.stat().st_ino} <= set(fsynced)


def test_permissions_follow_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write_checkpoint(tmp_path / "it", SMALL)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "it").iterdir()}
    assert modes == dict.fromkeys(FILES, 0o640)
    assert stat.S_IMODE((tmp_path / "it").stat().st_mode) == 0o750


def test_an_existing_checkpoint_is_replaced(good):
    write_checkpoint(good, {"new": 1})
    assert read_checkpoint(good) == {"new": 1}
    assert os.listdir(good.parent) == ["good"]


def same_or_bad(path: Path) -> bool:
    """Return whether reading finds damage; fail if it returns other content than was written."""
    try:
        content = read_checkpoint(path)
    except BadCheckpointError as error:
        # The checkpoint before a damaged one is used, whatever the version seems to be.
        return error.damaged and error.path == path and str(path) in str(error)
    assert_same(SMALL, content)
    return False


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_detected_anywhere(good, name):
    file = good / name
    whole = file.read_bytes()
    detected = 0
    for position in range(len(whole)):
        for bit in (0x01, 0x20, 0x80):
            file.write_bytes(
                whole[:position] + bytes([whole[position] ^ bit]) + whole[position + 1 :]
            )
            detected += same_or_bad(good)
    assert detected > 2.9 * len(whole)


@pytest.mark.parametrize("name", FILES)
def test_truncated_and_extended_files_are_detected(good, name):
    file = good / name
    whole = file.read_bytes()
    for length in range(len(whole) - 1):  # the newline at the end says nothing
        file.write_bytes(whole[:length])
        assert same_or_bad(good)
    file.write_bytes(whole + b"x")
    assert same_or_bad(good)


@pytest.mark.parametrize("damage", [[], {}, 1, None, "text", {"arrays.safetensors": 3}])
@pytest.mark.parametrize("key", ["format", "version", "sha256", "state"])
def test_malformed_state_is_detected(good, key, damage):
    file = good / "state.json"
    document = json.loads(file.read_text())
    for other in ({**document, key: damage}, {k: v for k, v in document.items() if k != key}):
        file.write_text(json.dumps(other))
        if other != document:
            assert same_or_bad(good)


def test_the_error_says_what_is_damaged(good, tmp_path):
    def reason_of(path: Path) -> str:
        with pytest.raises(BadCheckpointError) as caught:
            read_checkpoint(path)
        return caught.value.reason

    document = json.loads((good / "state.json").read_text())
    (good / "state.json").write_text(json.dumps({**document, "version": 99}))
    assert reason_of(good) == "state.json is damaged: its checksum does not match"
    (good / "state.json").write_text(json.dumps({**document, "format": "other"}))
    assert reason_of(good) == "state.json is not that of a checkpoint of compss_train"
    (good / "state.json").write_text(json.dumps({**document, "state": 1}))
    assert reason_of(good) == "state.json is damaged: its checksum does not match"
    (good / "state.json").write_text(json.dumps(document))
    (good / "arrays.safetensors").write_bytes(b"x" * 100)
    assert reason_of(good) == (
        "arrays.safetensors is damaged: its checksum is not the one in state.json"
    )
    write_checkpoint(good, SMALL)
    (good / "history-000000.jsonl").write_text("{}\n")
    assert reason_of(good) == (
        "history-000000.jsonl is damaged: its checksum is not the one in state.json"
    )
    (good / "history-000000.jsonl").unlink()
    assert reason_of(good) == "it has no history-000000.jsonl"
    (good / "history-000000.jsonl").mkdir()
    assert reason_of(good).startswith("history-000000.jsonl cannot be read: [Errno 21]")
    (good / "arrays.safetensors").unlink()
    assert reason_of(good) == "it has no arrays.safetensors"
    (good / "state.json").unlink()
    assert reason_of(good) == "it has no state.json"
    (good / "state.json").mkdir()
    assert reason_of(good).startswith("state.json cannot be read: [Errno 21]")
    assert reason_of(tmp_path / "nowhere") == "the folder does not exist"
    (tmp_path / "file").touch()
    assert reason_of(tmp_path / "file").startswith("state.json cannot be read: [Errno 20]")


@pytest.mark.parametrize("name", ["state.json", "arrays.safetensors", "history-000000.jsonl"])
def test_a_fifo_in_place_of_a_file_is_damage_and_no_wait(good, name):
    (good / name).unlink()
    os.mkfifo(good / name)
    with pytest.raises(BadCheckpointError, match=f"{name} cannot be read: .* is not a file"):
        read_checkpoint(good)


SYSTEM = ["os.fsync", "pathlib.Path.mkdir", "pathlib.Path.write_text", "pathlib.Path.write_bytes"]


@pytest.mark.parametrize("call", [*SYSTEM, "compss_train.model.saved_state.save_file"])
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), KeyboardInterrupt()]
)
def test_a_failed_write_leaves_nothing_behind(good, monkeypatch, call, error):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(call, fail)
    for path in (good, good.parent / "new"):
        with pytest.raises(type(error)):
            write_checkpoint(path, {"new": 1, "history": [{"round": 0}, {"round": 1}]})
    monkeypatch.undo()
    assert os.listdir(good.parent) == ["good"]
    assert not same_or_bad(good)


def test_leftovers_of_a_process_with_the_same_id_are_replaced(good):
    """In containers process ids are reused: a program is always number 1."""
    for what in ("new", "old"):
        left = storage.temporary_path(good, what)
        left.mkdir()
        (left / "state.json").touch()
    for content in ({"new": 1}, {"new": 2}):
        write_checkpoint(good, content)
        assert read_checkpoint(good) == content
    storage.delete_checkpoint(good)
    assert os.listdir(good.parent) == []


def test_a_kill_at_any_system_call_leaves_no_partial_checkpoint(tmp_path):
    assert result_of_process(killed_writes, tmp_path) > 30
