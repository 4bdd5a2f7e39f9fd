"""The files with the output of solvers: whose they are, and what errors have of them."""

import os
import sys
import threading
from pathlib import Path

import pytest

from compss_train import SimulationError, Simulations, Solver
from compss_train.online.solver_output import new_file
from tests.helpers.processes import ROOT
from tests.helpers.slurm import DONE, SlurmCluster, skip_without_slurm
from tests.online.fits import fit_and_count, run_fit
from tests.online.simulations import CountingNet
from tests.online.solvers.compiled import compiled, mpirun, needs, solver
from tests.online.test_fitting_solver import STEPS, faulty, inputs


def contents(folder):
    return {path.name: path.read_text() for path in Path(folder).iterdir()}


@pytest.mark.parametrize("ranks", [None, 2])
def test_a_run_that_fails_leaves_its_file_and_the_next_run_has_another(
    local, tmp_path, ranks, capfd
):
    values = inputs("killed", str(tmp_path / "flag")) + inputs("fine", "")
    values[1]["number"] = 1
    simulate = faulty(2 * STEPS, ranks=ranks, output=tmp_path / "new" / "output")
    with pytest.warns(UserWarning, match=r"(?s)this goes wrong.*output: .*simulation-000000.out"):
        _, trained = fit_and_count(local, CountingNet(2 * STEPS), simulate, values)
    assert trained == [1] * (2 * STEPS)
    written = contents(tmp_path / "new" / "output")
    assert sorted(written) == [
        "simulation-000000-run-2.out",
        "simulation-000000.out",
        "simulation-000001.out",
    ]
    assert "this goes wrong" in written["simulation-000000.out"]
    out, error = capfd.readouterr()
    assert "this goes wrong" not in out + error


def test_output_and_errors_are_in_one_file_in_order_and_not_in_the_programs(tmp_path, capfd):
    made = solver(["sh", "-c", "seq 3; echo bad >&2; seq 2; exit 3"], output=tmp_path)
    for _ in range(2):
        with pytest.raises(ChildProcessError, match=r"status 3\n  1\n  2\n  3\n  bad\n  1\n  2\n"):
            list(made(None))
    text = "1\n2\n3\nbad\n1\n2\n"
    assert contents(tmp_path) == {"solver.out": text, "solver-run-2.out": text}
    assert capfd.readouterr() == ("", "")


def test_all_of_long_output_is_in_the_file_and_its_end_in_the_error(tmp_path):
    with pytest.raises(ChildProcessError) as raised:
        list(solver(["sh", "-c", "seq 100000; exit 1"], output=tmp_path)(None))
    _, *lines, last = str(raised.value).splitlines()
    assert lines == [f"  {number}" for number in range(99991, 100001)]
    assert last == f"  (output: {tmp_path}/solver.out)"
    assert len((tmp_path / "solver.out").read_text().split()) == 100000


def test_a_launcher_may_write_a_file_for_each_rank(tmp_path):
    program = compiled("mpicc", "faulty.c", flags=("-DWITH_MPI",))
    command = [*mpirun(2, program), "fine"]
    command[1:1] = ["--output-filename", "{output}.ranks"]
    assert len(list(solver(command, output=tmp_path)(None))) == STEPS
    ranks = tmp_path / "solver.ranks" / "1"
    assert sorted(path.name for path in ranks.iterdir()) == ["rank.0", "rank.1"]


HYDRA_RANK = """
import os, sys
from compss_train.online import client

rank = int(os.environ["PMI_RANK"])
print("rank", rank, "of", os.environ["PMI_SIZE"])
print("told", file=sys.stderr)
if rank == 0:
    client.init("u", 1)
    client.send("u", [7.0])
    client.finalize()
else:
    sys.exit(int(os.environ["STATUS"]))
"""


def test_hydra_writes_a_file_for_each_rank(tmp_path):
    """The launcher of MPICH and Intel MPI. These ranks need no library of theirs."""
    needs("mpiexec.hydra")
    options = ["-n", "2", "-outfile-pattern", "{output}.%r", "-errfile-pattern", "{output}.%r"]
    command = ["mpiexec.hydra", *options, sys.executable, "-u", "-c", HYDRA_RANK]
    paths = {"PYTHONPATH": str(ROOT)}
    made = solver(command, environment={**paths, "STATUS": "0"}, output=tmp_path)
    assert [fields["u"].tolist() for _, _, fields in made(None)] == [[7.0]]
    failing = solver(command, environment={**paths, "STATUS": "3"}, output=tmp_path)
    with pytest.raises(ChildProcessError, match="status 3") as raised:
        list(failing(None))
    assert f"(output: {tmp_path}/solver-run-2." in str(raised.value)
    written = contents(tmp_path)
    for run in ("solver", "solver-run-2"):
        for rank in range(2):
            assert written[f"{run}.{rank}"].splitlines()[:2] == [f"rank {rank} of 2", "told"]


def test_the_error_has_the_last_lines_of_the_rank_that_wrote_last(tmp_path):
    """As srun does: its own file has only what it says itself."""
    script = "echo first > $1.0; sleep 0.02; echo second > $1.1; echo task 1: exited; exit 3"
    made = solver(["sh", "-c", script, "srun", "{output}"], output=tmp_path)
    with pytest.raises(ChildProcessError) as raised:
        list(made(None))
    assert str(raised.value).splitlines()[1:] == [
        "  task 1: exited",
        f"  (output: {tmp_path}/solver.out)",
        "  second",
        f"  (output: {tmp_path}/solver.1)",
    ]


def test_the_folder_is_that_of_the_program_that_made_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = solver(["sh", "-c", "echo here"], output="output")
    monkeypatch.chdir("/")
    with pytest.raises(ChildProcessError):
        list(made(None))
    assert contents(tmp_path / "output") == {"solver.out": "here\n"}


def test_runs_that_begin_at_the_same_time_have_files_of_their_own(tmp_path):
    files = []
    threads = [
        threading.Thread(target=lambda: files.append(new_file(str(tmp_path), 7))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(files)) == 8
    assert set(files) == set(tmp_path.iterdir())


def test_an_input_may_have_a_key_of_that_name(tmp_path):
    made = solver(["sh", "-c", "echo $0", "{output}"], output=tmp_path)
    with pytest.raises(ChildProcessError, match="\n  mine\n"):
        list(made({"output": "mine"}))
    with pytest.raises(ValueError, match="reads nothing of its inputs"):
        Simulations(solver(["./heat", "{output}"], output=tmp_path), [1.0])
    with pytest.raises(ValueError, match=r"{output} needs Solver\(..., output=folder\)"):
        list(solver(["./heat", "{output}"])({"left": 1.0}))


@pytest.mark.parametrize(
    ("output", "kind", "said"),
    [
        (3, TypeError, "output=3: give the path of a folder"),
        ("", ValueError, "output=''"),
        ("s3://bucket/output", ValueError, "output='s3://bucket/output'"),
        (__file__, ValueError, "exists and is no folder"),
    ],
)
def test_what_is_no_folder_is_an_error(output, kind, said, raises):
    with raises(kind, said):
        Solver(["./heat"], len, output=output)


def test_a_folder_that_cannot_be_made_is_the_error_of_the_fit(local):
    simulate = faulty(6, output="/proc/nowhere/output")
    with pytest.warns(UserWarning, match="/proc/nowhere"):
        _, error = run_fit(local, CountingNet(6), simulate, inputs("fine", ""), retries=0)
    assert isinstance(error, SimulationError)
    assert "/proc/nowhere" in str(error)


OVER_NODES = """
import sys
from compss_train import Solver

rank = (
    "import os; from compss_train.online import client\\n"
    "rank = int(os.environ['SLURM_PROCID'])\\n"
    "print('rank', rank, 'on', os.environ['SLURMD_NODENAME'], flush=True)\\n"
    "if rank == 0:\\n"
    "    client.init('u', 1); client.send('u', [7.0]); client.finalize()\\n"
    "else:\\n"
    "    raise SystemExit(int(os.environ['STATUS']))\\n"
)
for status in "03":
    command = ["srun", "--nodes=2", "--ntasks=2", "--output={output}.%t", sys.executable]
    solver = Solver(
        [*command, "-c", rank],
        lambda value, step, fields: fields["u"],
        environment={"STATUS": status},
        output="output",
    )
    try:
        print([x.tolist() for step, x in solver(None)])
    except ChildProcessError as error:
        print(error)
"""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_solver_over_two_nodes_of_slurm_has_a_file_for_each_rank(tmp_path):
    skip_without_slurm()
    environment = {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": str(ROOT),
    }
    cluster = SlurmCluster(tmp_path, environment)
    try:
        (tmp_path / "study.py").write_text(OVER_NODES)
        flags = ["--nodes=2", "--ntasks-per-node=1", "--output=compss-%j.out"]
        said = cluster.run("sbatch", *flags, "--wrap=python study.py")
        job = said.split()[-1]
        assert cluster.wait(job, DONE) == "COMPLETED", cluster.output(job)
        output = cluster.output(job)
    finally:
        cluster.end()
    written = contents(tmp_path / "output")
    for run in ("solver", "solver-run-2"):
        assert [written[f"{run}.{rank}"].split()[1] for rank in range(2)] == ["0", "1"]
    assert len({text.split()[-1] for name, text in written.items() if name[-1].isdigit()}) == 2
    first, failed, *lines = output.splitlines()
    assert first == "[[7.0]]"
    assert "ended with status 3" in failed
    assert any("task 1: Exited with exit code 3" in line for line in lines)
    assert any(f"(output: {tmp_path}/output/solver-run-2." in line for line in lines)
