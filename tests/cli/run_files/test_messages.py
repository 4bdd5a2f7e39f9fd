"""The keys that compss-train fit --keys prints, which are those that run files accept."""

import pytest

from compss_train.cli.fit import format_keys


def printed_keys(section):
    """Return the lines of the keys of a section, by key."""
    blocks = [block.splitlines() for block in format_keys().split("\n\n")]
    (lines,) = [lines for title, *lines in blocks if title == section]
    return {line.split()[0]: line for line in lines}


@pytest.mark.parametrize(
    ("section", "keys"),
    [
        ("[trainer]", ["num_workers", "engine", "seed", "threads", "worker_timeout"]),
        ("[data] and [validation], of arrays", ["x", "y", "weight", "blocks"]),
        ("[data] and [validation], of a function, with its arguments as other keys", ["import", "blocks"]),
        ("[validation], of a part of [data]", ["fraction"]),
        ("[output]", ["folder", "checkpoint", "csv", "profile", "report", "tensorboard"]),
        ("[output] checkpoint, a table", ["every", "keep", "best", "mode", "overwrite"]),
        ("[fit] early_stopping, a table", ["monitor", "patience", "min_delta", "mode", "restore_best"]),
    ],
)
def test_every_section_is_printed(section, keys):
    assert list(printed_keys(section)) == keys


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ("[fit]", "early_stopping = false # true or false or a table"),
        ("[output]", "report = true # true or false or a table"),
        ("[validation], of a part of [data]", "fraction (required) # a number"),
    ],
)
def test_defaults_and_accepted_values_are_printed(section, line):
    assert line in [" ".join(each.split()) for each in printed_keys(section).values()]
