"""``compss-train simulate``: run simulations of a program, and write their samples to files."""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from compss_train.cli.run_files.objects import load_object
from compss_train.exceptions import SimulationError
from compss_train.online.options import Simulations
from compss_train.online.simulation_records import SimulationRecords
from compss_train.reports.formatting import counted


def simulate(options: argparse.Namespace) -> int:
    """Write the simulations that the options name, and print how many files there are.

    Returns 1 if some were given up, or all. Raises ``ValueError`` and ``TypeError`` for a name
    without ``Simulations``, and what ``Simulations.write`` raises.
    """
    simulations = _load(options.simulations)
    if options.count is not None:
        simulations = replace(simulations, count=options.count)
    try:
        files = simulations.write(options.output, engine=options.engine, format=options.format)
    except SimulationError as error:
        print(f"compss-train simulate: {error}", file=sys.stderr)
        return 1
    print(f"{counted(len(files), 'file')} in {options.output.absolute()}")
    return 1 if SimulationRecords(options.output).given_up else 0


def _load(name: str) -> Simulations:
    """Return the simulations called ``"study.py:name"`` or ``"module:name"``.

    Modules are found as ``python study.py`` finds them.
    """
    source, _, attribute = name.rpartition(":")
    folder = Path()
    if source.endswith(".py"):
        path = Path(source)
        if not path.is_file():
            raise FileNotFoundError(f"{path} does not exist; give study.py:NAME or module:NAME")
        folder = path.parent
        source = path.stem
    sys.path.insert(0, str(folder.absolute()))
    value = load_object(f"{source}:{attribute}")
    if not isinstance(value, Simulations) and callable(value):
        value = value()
    if not isinstance(value, Simulations):
        raise TypeError(
            f"{name} is a {type(value).__name__}; name Simulations(simulate, inputs), or a "
            "function that returns them"
        )
    return value
