"""The check of ``make lint`` finds what is planted, and lets be what only looks like it."""

import ast

import pytest

from tests import lint_density
from tests.lint_density import (
    LONG,
    Counts,
    assignments_of_several,
    lines_of_code,
    long_functions,
    stray_walruses,
    vague_names,
    walruses,
)


def function_of(lines):
    return "def function():" + "\n    pass" * (lines - 1)


FOUND = {
    "several values": (assignments_of_several, "x, y = 1, 2"),
    "several values, on lines of their own": (
        assignments_of_several,
        "(\n    x,\n    y,\n) = 1, 2",
    ),
    "several values of one object": (assignments_of_several, "self.x, self.y = x.shape, y.shape"),
    "a walrus": (walruses, "while line := file.readline():\n    print(line)"),
    "a walrus that no body uses": (stray_walruses, "if (line := read()) is None:\n    pass"),
    "a walrus that only the else uses": (stray_walruses, "if x := f():\n    pass\nelse:\n    x"),
    "a walrus in a comprehension": (stray_walruses, "[y for x in xs if (y := f(x))]"),
    "a walrus in an argument": (stray_walruses, "print(x := 1)"),
    "a variable": (vague_names, "own = 1"),
    "one of a loop": (vague_names, "for number, each in pairs:\n    pass"),
    "one of a comprehension": (vague_names, "{one.name for one in names}"),
    "a parameter": (vague_names, "def check(given):\n    pass"),
    "a long function": (long_functions, function_of(LONG + 1)),
}
LET_BE = {
    "one value that is unpacked": (assignments_of_several, "x, y = pair"),
    "values that need each other": (assignments_of_several, "a, b = b, a + b"),
    "one name": (assignments_of_several, "pair = 1, 2"),
    "a walrus that the body uses": (
        stray_walruses,
        "if (x := f()) is not None and x > 1:\n    print(x)",
    ),
    "a name that is only used": (vague_names, "print(own.rest)"),
    "a name that says more": (vague_names, "own_process = 1"),
    "a function on one screen": (long_functions, function_of(LONG)),
}


@pytest.mark.parametrize(("finds", "program"), FOUND.values(), ids=FOUND)
def test_what_is_planted_is_found(finds, program):
    assert len([*finds(ast.parse(program))]) == 1


@pytest.mark.parametrize(("finds", "program"), LET_BE.values(), ids=LET_BE)
def test_what_only_looks_like_it_is_let_be(finds, program):
    assert not [*finds(ast.parse(program))]


def test_documentation_is_no_code():
    text = '"""Says\n\nmore."""\n\n# why\nx = 1  # how\n"""What x is."""\ny = (\n    2\n)\n'
    assert lines_of_code(text, ast.parse(text)) == 4


def test_counts_are_in_relation_to_the_size(monkeypatch, tmp_path, capsys):
    program = "x = 0\n" * 997 + "own = 1\n" + "a, b = 1, 2\n" * 2
    counts = Counts()
    counts.add("a.py", program)
    densities = {habit.finds: counts.density(habit) for habit in lint_density.HABITS}
    assert densities[assignments_of_several] == 2
    assert densities[vague_names] == 100 / 1002
    (tmp_path / "a.py").write_text(program)
    monkeypatch.setattr(lint_density, "ROOT", tmp_path)
    assert lint_density.main(["."]) == 1
    printed = capsys.readouterr().out
    assert "a.py:999" in printed
    assert "a.py:998" not in printed  # of a count that is within its limit
    (tmp_path / "a.py").write_text("x = 1\n")
    assert lint_density.main(["."]) == 0
