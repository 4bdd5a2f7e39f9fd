"""Counts what makes lines dense: ``python -m tests.lint_density [--places] [FOLDER ...]``.

A stranger should read a line once. What takes a second reading is counted, for each folder in
relation to its size, and so are long functions. Exits with 1 if a count is above its limit, and
then prints its places; ``--places`` prints those of all counts.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
VAGUE = {"each", "found", "given", "more", "one", "others", "own", "rest", "there"}
LONG = 40


def assignments_of_several(tree: ast.AST) -> Iterator[ast.stmt]:
    """Iterate over the assignments of several values, none of which needs the others.

    ``a, b = pair`` unpacks one value, and ``a, b = b, a + b`` needs both at once.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Tuple() as target], ast.Tuple() as values):
                if not names_in(target) & names_in(values):
                    yield node


def names_in(tree: ast.AST) -> set[str]:
    """Return the names of variables in an expression or statement."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def walruses(tree: ast.AST) -> Iterator[ast.NamedExpr]:
    """Iterate over all assignments inside an expression."""
    return (node for node in ast.walk(tree) if isinstance(node, ast.NamedExpr))


def stray_walruses(tree: ast.AST) -> Iterator[ast.NamedExpr]:
    """Iterate over those that are in no ``if`` or ``while`` whose body uses the name."""
    used = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.While):
            names = set().union(*map(names_in, node.body))
            used |= {walrus for walrus in walruses(node.test) if walrus.target.id in names}
    return (walrus for walrus in walruses(tree) if walrus not in used)


def variables(tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """Iterate over the assignments to local variables and the parameters, each with its name."""
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                yield node, name


def vague_names(tree: ast.AST) -> Iterator[ast.AST]:
    """Iterate over the variables whose names do not say what they hold."""
    return (node for node, name in variables(tree) if name in VAGUE)


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Iterate over the functions and methods."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def long_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """Iterate over the functions that one screen does not hold."""
    return (node for node in functions(tree) if node.end_lineno - node.lineno >= LONG)


def lines_of_code(text: str, tree: ast.AST) -> int:
    """Return the number of lines that are not empty, a comment or a docstring."""
    documentation: set[int] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Expr(ast.Constant(value=str())):
                documentation.update(range(node.lineno, node.end_lineno + 1))
    lines = enumerate(map(str.strip, text.splitlines()), start=1)
    return sum(
        bool(line) and not line.startswith("#") and number not in documentation
        for number, line in lines
    )


@dataclass(frozen=True)
class Habit:
    """What is counted, and how often it may be in so many lines, variables or functions."""

    name: str
    finds: Callable[[ast.AST], Iterator[ast.AST]]
    limit: float
    per: int
    unit: str


HABITS = (
    Habit("assignments of several values", assignments_of_several, 1.5, 1000, "lines of code"),
    Habit("assignments in expressions", walruses, 3, 1000, "lines of code"),
    Habit("  whose name no body uses", stray_walruses, 0.5, 1000, "lines of code"),
    Habit(f"names like {', '.join(sorted(VAGUE)[:3])}", vague_names, 1, 100, "variables"),
    Habit(f"functions of more than {LONG} lines", long_functions, 5, 100, "functions"),
)


class Counts:
    """The sizes of folders or programs, and the places of what is counted."""

    def __init__(self) -> None:
        self.sizes = dict.fromkeys((habit.unit for habit in HABITS), 0)
        self.places: dict[str, list[str]] = {habit.name: [] for habit in HABITS}

    def add(self, path: str, text: str) -> None:
        """Count a program."""
        tree = ast.parse(text)
        self.sizes["lines of code"] += lines_of_code(text, tree)
        self.sizes["variables"] += len([*variables(tree)])
        self.sizes["functions"] += len([*functions(tree)])
        for habit in HABITS:
            self.places[habit.name] += [f"{path}:{node.lineno}" for node in habit.finds(tree)]

    def density(self, habit: Habit) -> float:
        """Return how often it is in as much as its limit is for."""
        return habit.per * len(self.places[habit.name]) / max(self.sizes[habit.unit], 1)

    def is_above(self, habit: Habit) -> bool:
        """Return whether it is more often than its limit allows."""
        return self.density(habit) > habit.limit


def main(arguments: list[str]) -> int:
    """Print the counts of each folder; return 1 if one of them is above its limit."""
    shows_all = "--places" in arguments
    folders = [argument for argument in arguments if argument != "--places"]
    above = False
    for folder in folders or ["compss_train"]:
        counts = Counts()
        for path in sorted((ROOT / folder).rglob("*.py")):
            counts.add(str(path.relative_to(ROOT)), path.read_text())
        print(f"{folder}, {counts.sizes['lines of code']} lines of code:")
        for habit in HABITS:
            above = above or counts.is_above(habit)
            print(
                f"{counts.density(habit):6.1f} {habit.name} in {habit.per:,} {habit.unit}, "
                f"limit {habit.limit:g}{': too many' if counts.is_above(habit) else ''}"
            )
            if shows_all or counts.is_above(habit):
                print(*(f"         {place}" for place in counts.places[habit.name]), sep="\n")
    return int(above)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
