"""fit_online of what solvers send: each sample once, whatever becomes of the solvers."""

import pytest

from compss_train import BufferSpec, SimulationError, Simulations
from compss_train.engines import Resources
from tests.helpers.waiting import wait_until
from tests.online.fits import fit_and_count, run_fit
from tests.online.simulations import CountingNet, one_hot
from tests.online.solvers.compiled import compiled, mpirun, solver, solvers_running

pytestmark = pytest.mark.usefixtures("check_threads")

STEPS = 6
"""Time steps of a run of the solver."""


def counted(samples):
    """Return a function that makes the samples of countable inputs."""

    def sample(value, step, fields):
        assert fields["u"][0] == step
        return one_hot(STEPS * value["number"] + step, samples), fields["u"][:1].astype(
            "float32"
        ) * 0

    return sample


def inputs(what, *flags):
    return [{"what": what, "number": number, "flag": flag} for number, flag in enumerate(flags)]


def faulty(samples, *, ranks=None, **options):
    """Return a solver that does what its input says, on ranks of MPI if these are given."""
    if ranks is None:
        command = [compiled("gcc", "faulty.c")]
    else:
        command = mpirun(ranks, compiled("mpicc", "faulty.c", flags=("-DWITH_MPI",)))
    return solver([*command, "{what}", "{flag}"], counted(samples), **options)


def test_samples_of_ranks_are_trained_on_once(local):
    trainer, trained = fit_and_count(
        local,
        CountingNet(18),
        faulty(18, ranks=2, cpus=2),
        inputs("fine", "", "", ""),
        workers=2,
        count=2,
    )
    assert trained == [1] * 18
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 3, "failed": 0}
    assert local.cpus >= 2 + 2 * 2
    wait_until(lambda: not solvers_running())


def test_a_solver_that_is_killed_sends_only_what_is_missing(local, tmp_path):
    flags = [str(tmp_path / str(number)) for number in range(2)]
    failed = r"simulation \d of input .*killed.* failed"
    words = rf"{failed}: ChildProcessError: .* ended by SIGKILL; retry 1 of 2\n  this"
    with pytest.warns(UserWarning, match=words) as warned:
        trainer, trained = fit_and_count(
            local, CountingNet(12), faulty(12), inputs("killed", *flags), workers=2
        )
    assert len(warned) == 2
    assert trained == [1] * 12
    assert trainer.history[-1]["received"] == 12


def test_a_solver_that_hangs_ends_with_all_its_processes_and_runs_again(local, tmp_path):
    simulate = faulty(6, ranks=2)
    options = {"timeout": 3.0, "retries": 9}  # it starts again where that takes longer
    with pytest.warns(
        UserWarning,
        match=r"(?s)no sample within 3.0 s; retry \d of 9\n.*solver_messages.*\n  this goes wrong",
    ):
        _, trained = fit_and_count(
            local, CountingNet(6), simulate, inputs("hangs", str(tmp_path / "flag")), **options
        )
    assert trained == [1] * 6
    wait_until(lambda: not solvers_running())


def test_solvers_end_with_the_fit(local):
    options = {"buffer": BufferSpec("FIFO", 16), "batch_size": 1, "max_batches": 2}
    _, error = run_fit(local, CountingNet(12), faulty(12), inputs("hangs", "", ""), **options)
    assert error is None
    wait_until(lambda: not solvers_running())


def test_the_first_failure_of_all_is_the_error(local):
    with pytest.warns(UserWarning, match="cannot start ./nowhere"):
        _, error = run_fit(local, CountingNet(6), solver(["./nowhere"]), [None], retries=0)
    assert isinstance(error, SimulationError)
    first, last = str(error).splitlines()
    failed = "simulation 0 of input None failed: NotStartedError: ./nowhere ended with status 127"
    assert first == f"{failed}; no simulation is complete, and 1 were given up"
    assert "cannot start ./nowhere" in last


def test_cores_are_those_of_the_solver():
    def resources(simulate):
        return Simulations(simulate, [1]).resources

    assert resources(solver(["./heat", "{}"], cpus=3)) == Resources(cpus=3, own_process=True)
    assert resources(counted(1)) == Resources(own_process=True)


EARLY = {"early": 3, "fine": STEPS}
"""How many time steps a solver sends by what its input says."""


def test_a_solver_that_ends_early_with_status_0_has_failed_if_its_steps_are_known(local):
    values = [{"what": "fine", "number": 0, "flag": ""}, {"what": "early", "number": 1, "flag": ""}]
    with pytest.warns(UserWarning, match=f"ended after 3 of {STEPS} time steps"):
        trainer, trained = fit_and_count(
            local, CountingNet(12), faulty(12), values, steps=STEPS, retries=1
        )
    assert trained == [1] * 9 + [0] * 3
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 1, "failed": 1}
    trainer, _ = fit_and_count(
        local, CountingNet(12), faulty(12), values, steps=lambda value: EARLY[value["what"]]
    )
    assert trainer.history[-1]["simulations"] == {"running": 0, "done": 2, "failed": 0}
