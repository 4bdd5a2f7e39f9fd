"""The app that trains from many files."""

import re

from tests.apps.checks import assert_wrong_option

OPTIONS = ("--engine", "serial", "--epochs", 3, "--files", 5, "--shuffle-buffer", 50)


def test_it_trains_from_files_and_says_how_they_were_read(here, images, tmp_path):
    done = here("npz_files", *OPTIONS, "--batch-size", 10, "--data", images, "--output", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"240 samples in 5 files in {tmp_path / 'run' / 'train'}" in done.stdout
    assert sorted(path.name for path in (tmp_path / "run" / "train").iterdir()) == [
        f"part-{number:06d}.npz" for number in range(5)
    ]
    opened = [int(number) for number in re.findall(r"(\d+) files opened", done.stdout)]
    assert len(opened) == 3
    assert all(5 <= number <= 6 for number in opened)  # one is cut between the two workers
    assert float(re.search(r"test accuracy ([\d.]+)%", done.stdout)[1]) > 80


def test_a_second_run_replaces_only_files_of_the_first(here, images, tmp_path):
    others = [
        tmp_path / "run" / "train" / name for name in ("notes.txt", "part-000000.npz.txt", "apart/part-0.npz")
    ]
    for other in others:
        other.parent.mkdir(parents=True, exist_ok=True)
        other.touch()
    for number in (7, 3):
        options = (*OPTIONS[:4], "--files", number, "--data", images, "--output", tmp_path / "run")
        assert here("npz_files", *options).returncode == 0
        assert len(list((tmp_path / "run" / "train").glob("part-*.npz"))) == number
        assert all(other.exists() for other in others)


def test_files_of_the_user_are_not_mixed_with_others_and_wrong_options_told(here, images, tmp_path):
    (tmp_path / "run" / "train").mkdir(parents=True)
    (own := tmp_path / "run" / "train" / "own.npz").touch()
    done = here("npz_files", *OPTIONS, "--data", images, "--output", tmp_path / "run")
    assert_wrong_option(done, "already contains own.npz; give a folder without .npz files")
    assert [*own.parent.iterdir()] == [own]
    for options, message in {
        "--files 0": "--files=0",
        "--pools 3": "pools=3",
        "--file-buffer 0": "file_buffer=0",
    }.items():
        done = here("npz_files", *OPTIONS, "--data", "digits", *options.split(), "--output", tmp_path / "other")
        assert_wrong_option(done, message)
