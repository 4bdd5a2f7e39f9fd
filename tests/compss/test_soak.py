"""A fit on two nodes that is disturbed for long; see docs/testing.md."""

import pytest

from tests.helpers.documents import ROOT
from tests.soak.fits import disturb_fit


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_disturbed_fit_on_two_nodes_ends_with_the_bits(launch, soak_folder, soak_minutes):
    def start(epochs):
        program = ROOT / "tests/soak/fit_program.py"
        return launch(program, soak_folder, epochs, flags=("--nodes=2", "--units=1")).process

    disturb_fit(soak_folder, start, min(10.0, soak_minutes), megabytes=64)
