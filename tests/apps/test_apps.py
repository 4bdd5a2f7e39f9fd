"""The apps as a user runs them, in this process: starting one with torch takes seconds."""

import gzip
import json
import re
import warnings

import numpy as np
import pytest

from compss_train.model import parameters
from tests.apps.conftest import assert_one_line_error, assert_wrong_option, idx

QUICK = ("--epochs", "2", "--engine", "serial")
INTERRUPTED = 130


def history(folder):
    return [json.loads(line) for line in (folder / "history.jsonl").read_text().splitlines()]


def test_digits_prints_what_it_reached_and_writes_history_and_parameters(here, tmp_path):
    done = here("digits", "--epochs", 15, "--engine", "serial")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""  # no progress bar where nobody watches
    assert float(re.search(r"test accuracy ([\d.]+)%", done.stdout)[1]) > 95
    assert re.search(
        r"[\d,]+ samples/s over all .* in the best round; 2 workers, 1 thread each", done.stdout
    )
    output = tmp_path / "runs" / "digits"
    assert [record["epoch"] for record in history(output)] == list(range(1, 16))
    assert parameters.load(output / "parameters.safetensors")["0.weight"].shape == (128, 64)


def test_the_table_has_a_row_for_each_round(here, tmp_path):
    done = here("digits", *QUICK, "--validate", "--merge-unit", "blocks", "--output", tmp_path)
    lines = done.stdout.splitlines()
    assert re.split(r"\s{2,}", lines[1].strip()) == [
        *("round", "epoch", "loss", "accuracy", "val loss", "val accuracy", "seconds", "samples/s")
    ]
    rows = [line.split() for line in lines[2:10]]
    assert [row[0] for row in rows] == [str(number) for number in range(8)]
    assert len({len(line) for line in lines[1:10]}) == 1
    assert [f"{record['loss']:.4f}" for record in history(tmp_path)] == [row[2] for row in rows]


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_fashion_mnist_learns_from_idx_files(here, images, tmp_path, model):
    options = ("--model", model, "--batch-size", 10, "--blocks", 4, "--epochs", 4)
    done = here("fashion_mnist", *QUICK, *options, "--data", images, "--output", tmp_path)
    assert done.returncode == 0, done.stderr
    assert history(tmp_path)[-1]["samples"] == 240
    assert float(re.search(r"test accuracy ([\d.]+)%", done.stdout)[1]) > 90
    assert parameters.load(tmp_path / "parameters.safetensors")


def test_missing_data_say_how_to_get_them(here, images, tmp_path):
    missing = tmp_path / "nowhere"
    advice = ("apt install dataset-fashion-mnist", "--data")
    assert_one_line_error(here("fashion_mnist", "--data", missing), str(missing), *advice)
    (images / "t10k-labels-idx1-ubyte.gz").unlink()
    assert_one_line_error(
        here("fashion_mnist", "--data", images), "t10k-labels-idx1-ubyte.gz", *advice
    )


def broken(content):
    """Ways in which a file can be damaged, with what the message says of each."""
    plain = gzip.decompress(content)
    return {
        "truncated": (content[: len(content) // 2], "cannot read"),
        "corrupt": (content[:20] + bytes(10) + content[30:], "cannot read"),
        "not gzipped": (plain, "cannot read"),
        "empty": (gzip.compress(b""), "not an idx file"),
        "another format": (gzip.compress(b"\x00\x00\x0d" + plain[3:]), "not an idx file"),
        "too short": (gzip.compress(plain[:-5]), "header announces"),
        "fewer labels": (idx(np.zeros(7, np.uint8)), "240 train images, but 7 labels"),
        "wrong labels": (idx(np.full(240, 11, np.uint8)), "from 0 to 9"),
    }


def test_damaged_files_are_named(here, images):
    path = images / "train-labels-idx1-ubyte.gz"
    for content, message in broken(path.read_bytes()).values():
        path.write_bytes(content)
        assert_one_line_error(here("fashion_mnist", "--data", images), message, str(images))


WRONG = {
    "--workers 0": ("num_workers=0", "at least 1"),
    "--batches 3 --batch-size 10": ("not allowed with",),
    "--merge sometimes": ("'sometimes'", "commutative"),
    "--lr -1": ("lr=-1.0", "at least 0"),
}


def test_wrong_options_are_errors_of_the_command_line(here, tmp_path):
    for options, parts in WRONG.items():
        assert_wrong_option(here("digits", *QUICK, *options.split()), *parts)
    (tmp_path / "file").write_text("")
    assert_one_line_error(here("digits", *QUICK, "--output", tmp_path / "file"), "--output", "file")
    assert_one_line_error(here("digits", *QUICK, "--lr", "1e30"), "lower the learning rate")


def test_more_workers_than_blocks_is_a_warning_of_one_line(here):
    with pytest.warns(UserWarning, match="3 workers share 2 blocks"):
        assert here("digits", *QUICK, "--workers", 3, "--blocks", 2).returncode == 0
    assert warnings.formatwarning(UserWarning("look out"), UserWarning, "common.py", 1) == (
        "warning: look out\n"
    )


def test_ctrl_c_ends_with_a_short_message(here, ctrl_c_when, tmp_path):
    written = tmp_path / "history.jsonl"
    ctrl_c_when(lambda: written.exists() and len(history(tmp_path)) >= 4)
    done = here(
        "digits", "--engine", "serial", "--epochs", 100_000, "--workers", 1, "--output", tmp_path
    )
    assert done.returncode == INTERRUPTED
    line = r"compss_train: fit interrupted by Ctrl-C; last complete round: \d+, epoch \d+"
    message = rf"{line}\ninterrupted\n"
    assert re.fullmatch(message, done.stderr)
    assert len(history(tmp_path)) >= 4
    assert parameters.load(tmp_path / "parameters.safetensors")


def test_help_lists_the_options_with_their_defaults(here):
    text = " ".join(here("fashion_mnist", "--help").stdout.split())
    for option, default in {
        "--lr": "0.05",
        "--workers": "2",
        "--blocks": "4 a worker",
        "--model": "mlp",
    }.items():
        assert re.search(rf"{option} .*?\(default: {re.escape(default)}\)", text)
    assert "/usr/share/datasets/fashion-mnist" in text
