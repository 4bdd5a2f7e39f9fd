"""Programs that are disturbed for long: an hour, unless ``--soak-minutes`` says otherwise. See
docs/testing.md.
"""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import ROOT
from tests.soak import studies
from tests.soak.disturbed import Disturbed
from tests.soak.fits import EVERY, disturb_fit
from tests.soak.online_program import STEPS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(0)]


def launch(folder: Path, program: str, *args: object) -> subprocess.Popen:
    """Start a program, whose output is a file."""
    command = [sys.executable, "-m", f"tests.soak.{program}", str(folder), *map(str, args)]
    with (folder / "output.txt").open("a") as output:
        return subprocess.Popen(
            command, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )


def test_a_disturbed_fit_on_processes_ends_with_the_bits(soak_folder, soak_minutes):
    disturb_fit(
        soak_folder,
        lambda epochs: launch(soak_folder, "fit_program", epochs),
        soak_minutes,
        megabytes=16,
    )


def test_an_online_fit_trains_each_sample(soak_folder, soak_minutes):
    seconds = 60 * min(10.0, soak_minutes)
    with Disturbed(soak_folder, lambda: launch(soak_folder, "online_program")) as program:
        program.run(
            seconds,
            (EVERY, lambda: program.kill("simulations")),
            (3.5 * EVERY, lambda: program.kill("workers")),
            (5.2 * EVERY, lambda: program.kill("simulations", signal.SIGSTOP)),
            (5.8 * EVERY, lambda: program.kill("workers", signal.SIGSTOP)),
            (1.3 * EVERY, program.resume),
        )
        program.resume()
        (soak_folder / "over").touch()
        assert program.end() == 0, (soak_folder / "output.txt").read_text()
    ended = json.loads((soak_folder / "ended.json").read_text())
    simulations = ended["record"]["simulations"]
    samples = simulations["done"] * STEPS
    counts = ended["counts"]
    program.report(simulations=simulations, samples=samples, trained=sum(counts))
    assert simulations["failed"] == simulations["running"] == 0
    assert min(counts[:samples]) >= 1
    assert not any(counts[samples:])
    program.check_flat(16)


def test_studies_whose_processes_are_killed_lose_no_sample_in_silence(soak_minutes):
    """About one a minute."""
    assert studies.main(max(1, int(soak_minutes))) == 0
