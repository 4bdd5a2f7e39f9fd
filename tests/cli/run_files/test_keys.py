"""The keys that compss-train fit --keys tells of, which are those that run files may have."""

import pytest

from compss_train.cli.run_files.keys import told_keys


def told(section):
    """Return the keys of a section with what is said of each."""
    blocks = [block.splitlines() for block in told_keys().split("\n\n")]
    (lines,) = [lines for title, *lines in blocks if title == section]
    return {line.split()[0]: line for line in lines}


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("[trainer]", ["num_workers", "engine", "seed", "threads"]),
        ("[data] and [validation], of arrays", ["x", "y", "weight", "blocks"]),
        ("[data] and [validation], of a function, with its arguments as other keys", ["import", "blocks"]),
        ("[validation], of a part of [data]", ["fraction"]),
        ("[output]", ["folder", "checkpoint", "csv", "report", "tensorboard"]),
        ("[output] checkpoint, a table", ["every", "keep", "best", "mode", "overwrite"]),
        ("[fit] early_stopping, a table", ["monitor", "patience", "min_delta", "mode", "restore_best"]),
    ],
)
def test_all_sections_are_told(section, keys):
    assert list(told(section)) == keys


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("[fit]", "early_stopping = false # true or false or a table"),
        ("[output]", "report = true # true or false or a table"),
        ("[validation], of a part of [data]", "fraction (needed) # a number"),
    ],
)
def test_defaults_and_what_is_accepted_are_told(section, line):
    assert line in [" ".join(each.split()) for each in told(section).values()]
