"""Options from signatures: of a function defined here, of the trainer's methods, and as --keys prints them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias

import pytest

from compss_train import DistributedTrainer
from compss_train.cli.fit import format_keys
from compss_train.cli.run_files import RunFileError
from compss_train.cli.run_files.options import REQUIRED, describe, parse_options, signature_options


class Unknown(Protocol):
    pass


Named: TypeAlias = "Callable[[int], int] | Literal['a', 'b'] | None"


@dataclass
class Box:
    size: int
    lid: bool = True

    def __post_init__(self):
        if self.size < 1:
            raise ValueError(f"size={self.size}: give an integer of at least 1")


def function(
    self,
    count: int,
    share: float = 0.5,
    flag: bool = False,
    name: str | None = "x",
    named: Named = None,
    many: Sequence[str] = (),
    mapping: dict[str, int] | None = None,
    box: Box | None = None,
    unknown: Unknown | None = None,
    bare=None,
    **others: Any,
):
    pass


def parse(**table):
    return parse_options("[s]", {"count": 1, **table}, signature_options(function))


def test_accepted_values_are_returned_and_tables_made_into_dataclasses():
    numbers = {"count": 3, "share": 1, "flag": True, "name": "y", "named": "a", "many": ["a"], "mapping": {"a": 1}}
    for table in (numbers, {"share": 0.25, "unknown": "anything", "bare": [1]}, {"bare": "none"}):
        assert parse(**table) == {"count": 1, **table}
    assert parse(name="none", box="none") == {"count": 1, "name": None, "box": None}
    assert parse(named="import:operator:neg")["named"](1) == -1
    assert parse(box={"size": 2}) == {"count": 1, "box": Box(2)}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cuont", 1, "[s] cuont: unknown key; did you mean count? The keys are count, share, flag"),
        ("zzz", 1, "[s] zzz: unknown key. The keys are count"),
        ("self", 1, "[s] self: unknown key"),
        ("count", "3", '[s] count: "3" is not accepted; give an integer'),
        ("count", True, "[s] count: true is not accepted; give an integer"),
        ("count", "none", '[s] count: "none" is not accepted; give an integer'),
        ("share", "x", '[s] share: "x" is not accepted; give a number'),
        ("flag", 1, "[s] flag: 1 is not accepted; give true or false"),
        ("name", 1, '[s] name: 1 is not accepted; give a string or "none"'),
        ("named", "c", '[s] named: "c" is not accepted; give "import:module:name" or "a" or "b" or "none"'),
        ("many", "a", '[s] many: "a" is not accepted; give an array'),
        ("mapping", [1], '[s] mapping: [1] is not accepted; give a table or "none"'),
        ("named", "import:operator:negg", "[s] named: 'operator:negg': operator has no negg; did you mean neg?"),
        ("box", 3, '[s] box: 3 is not accepted; give a table or "none"'),
        ("box", {"size": 0}, "[s] box: size=0: give an integer of at least 1"),
        ("box", {"sizes": 1}, "[s] box sizes: unknown key; did you mean size?"),
        ("box", {}, "[s] box: size is missing; give an integer"),
        ("box", {"size": "a"}, '[s] box size: "a" is not accepted; give an integer'),
    ],
)
def test_invalid_values_are_errors_with_key_and_accepted_values(key, value, message):
    with pytest.raises(RunFileError) as error:
        parse(**{key: value})
    assert message in str(error.value)


def test_all_errors_are_raised_at_once():
    with pytest.raises(RunFileError) as error:
        parse(count="a", shar=1, box={"size": 0})
    assert len(error.value.messages) == 3
    with pytest.raises(RunFileError, match=r"\[s\]: count is missing; give an integer$"):
        parse_options("[s]", {}, signature_options(function))


@pytest.mark.parametrize("method", [DistributedTrainer, DistributedTrainer.build, DistributedTrainer.fit])
def test_every_default_of_the_trainer_fits_what_it_takes(method):
    """Giving an option's default is the same as leaving it out."""
    options = signature_options(method)
    defaults = {name: option.default for name, option in options.items() if option.default is not REQUIRED}
    texts = {(): [], None: "none"}
    table = {name: texts[value] if value in ((), None) else value for name, value in defaults.items()}
    parse_options("[s]", table, {name: options[name] for name in defaults})
    assert defaults
    assert all(describe(option.annotation) for option in options.values())


KEYS = {
    "[trainer]": ["num_workers", "engine", "seed", "threads", "worker_timeout"],
    "[data] and [validation], of arrays": ["x", "y", "weight", "blocks"],
    "[data] and [validation], of a function, with its arguments as other keys": ["import", "blocks"],
    "[validation], of a part of [data]": ["fraction"],
    "[output]": ["folder", "checkpoint", "csv", "profile", "report", "tensorboard"],
    "[output] checkpoint, a table": ["every", "keep", "best", "mode", "overwrite"],
    "[fit] early_stopping, a table": ["monitor", "patience", "min_delta", "mode", "restore_best"],
}
LINES = {
    "[fit]": "early_stopping = false # true or false or a table",
    "[output]": "report = true # true or false or a table",
    "[validation], of a part of [data]": "fraction (required) # a number",
}


def test_keys_are_printed_with_defaults_and_accepted_values():
    sections = {}
    for title, *lines in (block.splitlines() for block in format_keys().split("\n\n")):
        sections[title] = {line.split()[0]: " ".join(line.split()) for line in lines}
    assert {title: list(sections[title]) for title in KEYS} == KEYS
    assert all(line in sections[title].values() for title, line in LINES.items())
