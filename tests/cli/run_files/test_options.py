"""Options by introspection: of a function of the tests' own, and of the trainer's as they are."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pytest

from compss_train import DistributedTrainer
from compss_train.cli.run_files.annotations import described
from compss_train.cli.run_files.options import options_of, read_options
from compss_train.cli.run_files.problems import Problems, RunFileError

if TYPE_CHECKING:
    from nowhere import Unknown

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
) -> None:
    pass


def read(**table):
    problems = Problems("file")
    given = read_options("[s]", {"count": 1, **table}, options_of(function), problems)
    problems.check()
    return given


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("count", 3),
        ("share", 1),
        ("share", 0.25),
        ("flag", True),
        ("name", "y"),
        ("named", "a"),
        ("many", ["a"]),
        ("mapping", {"a": 1}),
        ("unknown", "anything"),
        ("bare", [1]),
        ("bare", "none"),
    ],
)
def test_values_that_fit_are_taken_as_they_are(key, value):
    assert read(**{key: value})[key] == value


def test_none_stands_for_none_where_that_fits_objects_are_made_and_so_are_dataclasses():
    assert read(name="none", box="none") == {"count": 1, "name": None, "box": None}
    assert read(named="import:operator:neg")["named"](1) == -1
    assert read(box={"size": 2}) == {"count": 1, "box": Box(2)}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("cuont", 1, "[s] cuont: there is no such key; did you mean count? The keys are count, share, flag"),
        ("zzz", 1, "[s] zzz: there is no such key; The keys are count"),
        ("self", 1, "[s] self: there is no such key"),
        ("count", "3", '[s] count: "3" does not fit; give an integer'),
        ("count", True, "[s] count: true does not fit; give an integer"),
        ("count", "none", '[s] count: "none" does not fit; give an integer'),
        ("share", "x", '[s] share: "x" does not fit; give a number'),
        ("flag", 1, "[s] flag: 1 does not fit; give true or false"),
        ("name", 1, '[s] name: 1 does not fit; give a text or "none"'),
        ("named", "c", '[s] named: "c" does not fit; give "import:module:name" or "a" or "b" or "none"'),
        ("many", "a", '[s] many: "a" does not fit; give an array'),
        ("mapping", [1], '[s] mapping: [1] does not fit; give a table or "none"'),
        ("named", "import:operator:negg", "[s] named: 'operator:negg': operator has no negg; did you mean neg?"),
        ("box", 3, '[s] box: 3 does not fit; give a table or "none"'),
        ("box", {"size": 0}, "[s] box: size=0: give an integer of at least 1"),
        ("box", {"sizes": 1}, "[s] box sizes: there is no such key; did you mean size?"),
        ("box", {}, "[s] box: size is missing; give an integer"),
        ("box", {"size": "a"}, '[s] box size: "a" does not fit; give an integer'),
    ],
)
def test_what_does_not_fit_is_told_with_its_key_and_what_fits(key, value, message):
    with pytest.raises(RunFileError) as error:
        read(**{key: value})
    assert message in str(error.value)


def test_all_problems_are_told_at_once():
    with pytest.raises(RunFileError) as error:
        read(count="a", shar=1, box={"size": 0})
    assert len(str(error.value).splitlines()) == 4


def test_what_is_missing_is_told():
    problems = Problems("file")
    read_options("[s]", {}, options_of(function), problems)
    with pytest.raises(RunFileError, match=r"^file: \[s\]: count is missing; give an integer$"):
        problems.check()


@pytest.mark.parametrize("method", [DistributedTrainer, DistributedTrainer.build, DistributedTrainer.fit])
def test_every_default_of_the_trainer_fits_what_it_takes(method):
    """Whatever options there are, leaving one out and giving its default are the same."""
    problems = Problems("file")
    defaults = {
        name: parameter.default
        for name, parameter in inspect.signature(method).parameters.items()
        if parameter.default is not parameter.empty
    }
    options = {name: option for name, option in options_of(method).items() if name in defaults}
    table = {name: list(value) if isinstance(value, tuple) else value for name, value in defaults.items()}
    read_options(
        "[s]", {name: "none" if value is None else value for name, value in table.items()}, options, problems
    )
    problems.check()
    assert options
    assert all(described(option.annotation) for option in options_of(method).values())
