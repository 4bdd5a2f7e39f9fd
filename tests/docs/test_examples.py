"""The examples of the documents run as printed, and the tutorials."""

import json
import os
import re
import shutil
import subprocess
import sys
from threading import Thread

import numpy as np
import pytest

from compss_train.model import parameters
from compss_train.reports.history import History
from tests.helpers.models import assert_same_bits
from tests.helpers.processes import ROOT, python_blocks
from tests.helpers.waiting import LIMIT
from tests.online.simulations import free_port
from tests.online.solvers.compiled import AS_ROOT, compiled, mpirun

PRINTED = {
    "README.md": r"'accuracy'",
    "docs/start.md": r"'accuracy'",
    "docs/files.md": r"'accuracy'",
    "docs/data.md": r"^\(300, 2\)\n\[120, 80, 120, 80\]\n$",
    "docs/parameter-server.md": r"^\[1.0, 1.0, 1.0\]\n\[(0.8999999761581421(, |\])){2}\n10.0\n$",
    "docs/training-options.md": r"^\[0.004, 0.082, 0.097, 0.081, 0.056, 0.028, 0.008, 0.0\]\n"
    r"0.0001\n1\n",
    "docs/models.md": r"^\['accuracy', 'sparsity', 'val_accuracy'\]\n20\n"
    r"\{'like': \(400, 2\), 'stars': \(400,\)\}\n$",
    "docs/export.md": r"^torch.Size\(\[3, 2\]\)\n$",
    "docs/language-models.md": r"^True\nthe cat sat",
    "docs/learning.md": r"^25 5 batches average None",
    "docs/from-dislib.md": r"^\{'loss': 0\.\d+\}\n$",
    "docs/from-djl-and-partially-shuffle.md": r"^\[-0\.2 -0\.2\]\n$",
    "docs/from-melissa.md": r"^3\.0 \[1\]\n$",
    "docs/slow-networks.md": r"^\[2, 4\]\n$",
    "docs/scikit-learn.md": r"^0\.9[4-9].*\n\(3, 10\)\n\(450, 64\)\n"
    r"\{'num_epochs': 8, 'optimizer__lr': 0.01\}\n$",
}
"""What the examples of each document print, as one script."""
AFTER_THE_README = {
    "docs/buffers.md": r"\[ *0 +\d+",
    "docs/watching.md": r"\n\['accuracy', 'auroc', 'confidence', 'loss'\]\n[0-9a-f]{32}\n",
}
"""What the examples of documents print that go on from the first example of README.md."""
ON_PROCESSES = ("README.md", "docs/start.md", "docs/files.md")
"""Examples that run on local processes, as those of users do."""
PACKAGES = {
    "docs/data.md": ("pandas", "datasets"),
    "docs/language-models.md": ("datasets", "tokenizers", "transformers"),
    "docs/watching.md": ("torchmetrics", "mlflow", "sqlalchemy"),
}


def test_every_page_with_examples_is_run_by_some_test():
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for page in (ROOT / "docs").glob("*.md"):
        if python_blocks(f"docs/{page.name}"):
            assert f"docs/{page.name}" in tests or f'"{page.stem}"' in tests, page.name


@pytest.mark.filterwarnings("ignore:.*float64 becomes float32")
@pytest.mark.filterwarnings("ignore:The epoch parameter in")  # of schedulers of torch 2.6
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::ResourceWarning"
)
@pytest.mark.parametrize("document", [*PRINTED, *AFTER_THE_README])
def test_examples_run_as_printed(run_blocks, document, tmp_path, monkeypatch):
    if document not in ON_PROCESSES:
        monkeypatch.setenv("COMPSS_TRAIN_ENGINE", "serial")
    for package in PACKAGES.get(document, ()):
        pytest.importorskip(package)
    blocks = python_blocks(document)
    assert blocks
    if document in PRINTED:
        assert re.search(PRINTED[document], run_blocks(blocks))
        return
    assert re.search(
        AFTER_THE_README[document], run_blocks([python_blocks("README.md")[0], *blocks])
    )
    if document == "docs/watching.md":
        assert len(History.load(tmp_path / "history.jsonl")) == 7
        assert len(History.load(tmp_path / "run" / "history.jsonl")) == 2
        files = {path.name for path in (tmp_path / "run").iterdir()}
        assert files == {
            "history.jsonl",
            "configuration.json",
            "history.csv",
            "board",
            "report.html",
        }


def test_the_example_of_long_runs_ends_once(run_blocks):
    blocks = python_blocks("docs/long-runs.md")
    assert [run_blocks(blocks) for _ in range(2)] == [
        "None None\nTrue\n",
        "None run/checkpoints/round-000009\nTrue\n",
    ]


def test_the_two_loops_of_one_page_train_the_same_bits(run_blocks, tmp_path):
    """With one worker and no shuffle, as the page says; otherwise they run as printed."""
    blocks = python_blocks("docs/from-your-loop.md")
    run_blocks(blocks)
    changes = {
        "num_workers=2": "num_workers=1",
        "shuffle=True": "shuffle=False",
        "run/checkpoints": "one/checkpoints",
    }
    changes["resume=True"] = "resume=True, shuffle=None, shuffle_block_data=False"
    for old, new in changes.items():
        assert any(old in block for block in blocks)
        blocks = [block.replace(old, new) for block in blocks]
    run_blocks(blocks)
    plain, ours = (parameters.load(tmp_path / name) for name in ("plain.pt", "ours.safetensors"))
    assert_same_bits({name: ours[name] for name in plain}, plain)
    assert plain.keys() == ours.keys()


def test_the_picture_of_a_report_exists_and_can_be_read_on_a_phone():
    assert "(report.png)" in (ROOT / "docs/watching.md").read_text()
    picture = (ROOT / "docs/report.png").read_bytes()
    assert 10_000 < len(picture) < 200_000
    # Its width: texts have at least half of their size.
    assert int.from_bytes(picture[16:20]) <= 2 * 400


SOLVERS = "docs/solvers.md"


def blocks(kind, document):
    return re.findall(
        rf"^```{kind}\n(.*?)^```", (ROOT / document).read_text(), re.MULTILINE | re.DOTALL
    )


def test_the_examples_run(run_blocks):
    loss, repetitions = map(float, run_blocks(python_blocks("docs/online.md")).split())
    assert loss < 0.3
    assert repetitions >= 1


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_solvers_in_c_and_python_send_side_by_side(run_blocks, tmp_path):
    address = f"tcp://127.0.0.1:{free_port()}"
    (tmp_path / "solver.c").write_text(blocks("c", SOLVERS)[1])
    subprocess.run(["cc", "-o", "solver", "solver.c", "-lm"], cwd=tmp_path, check=True)
    lines = "".join(blocks("sh", SOLVERS)).splitlines()
    command = next(line for line in lines if line.startswith("compss-train send"))
    command = command.replace("compss-train", f"{sys.executable} -m compss_train")
    (fit,) = (text for text in blocks("python notest", SOLVERS) if "senders=1" in text)
    (send,) = (text for text in blocks("python notest", SOLVERS) if 'name="solver 1"' in text)
    programs = fit, send, *blocks("python notest", "docs/reference/online.md")
    fit, send, plain = (text.replace("tcp://127.0.0.1:5555", address) for text in programs)
    environment = {**os.environ, "COMPSS_TRAIN_TOKEN": "ours alone"}
    solver = subprocess.Popen(
        command.replace("tcp://127.0.0.1:5555", address), shell=True, cwd=tmp_path, env=environment
    )
    samples = [(np.zeros(2, np.float32), np.zeros(1, np.float32))] * 200
    sender = Thread(target=exec, args=(send.replace("solver 1", "solver 2"), {"samples": samples}))
    sender.start()
    assert "compss_train" not in plain
    (tmp_path / "plain.py").write_text(plain)
    bare = subprocess.Popen([sys.executable, "plain.py"], cwd=tmp_path)
    begun = python_blocks("docs/online.md")[0].partition("parameters =")[0]
    ended = "print(trainer.history[-1]['received'], trainer.history[-1]['repetitions'][0])"
    printed = run_blocks([begun, fit.replace("senders=1", "senders=3"), ended])
    assert printed.split() == ["2200", "0"]
    assert (solver.wait(LIMIT), bare.wait(LIMIT)) == (0, 0)
    sender.join(LIMIT)
    assert not sender.is_alive()


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_a_solver_with_the_header_is_trained_on(run_blocks, tmp_path):
    (tmp_path / "decay.c").write_text(blocks("c", SOLVERS)[0])
    command = f"{sys.executable} -m compss_train headers"
    subprocess.run(
        blocks("sh", SOLVERS)[0].replace("compss-train headers", command), shell=True, check=True
    )
    begun = python_blocks("docs/online.md")[0].partition("parameters =")[0]
    printed = run_blocks(
        [begun, blocks("python notest", SOLVERS)[0], "print(trainer.history[-1]['received'])"]
    )
    assert printed == "2000\n"


@pytest.mark.slow  # 20 simulations, each two processes of MPI
@pytest.mark.skipif(shutil.which("mpicc") is None, reason="there is no MPI")
def test_the_program_for_users_of_melissa_trains_on_its_solver(run_blocks, tmp_path):
    shutil.copy(compiled("mpicc", "heat.c"), tmp_path / "heat")
    (program,) = blocks("python notest", "docs/from-melissa.md")
    command = json.dumps(mpirun(2, "./heat"))[1:-1]
    assert '"mpirun", "-n", "2", "./heat"' in program
    program = program.replace('"mpirun", "-n", "2", "./heat"', command)
    program = program.replace("sample, cpus=2", f"sample, cpus=2, environment={AS_ROOT}")
    assert float(run_blocks([program]).split()[-1]) < 0.01


TUTORIALS = sorted((ROOT / "docs" / "tutorials").glob("*.ipynb"))
LONG = ("cluster", "text")
"""Those that import other packages for seconds, or start several engines."""


def code_cells(notebook):
    cells = json.loads(notebook.read_text("utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def comparable(text):
    """Without what other machines may round differently."""
    return re.sub(r"\d+|PRUNED  |COMPLETE", "0", text)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize(
    "notebook",
    [
        pytest.param(path, marks=[pytest.mark.slow, pytest.mark.timeout(600)] * (path.stem in LONG))
        for path in TUTORIALS
    ],
    ids=lambda path: path.stem,
)
def test_a_tutorial_prints_what_it_shows(run_blocks, notebook, monkeypatch):
    code = ["".join(cell["source"]) for cell in code_cells(notebook)]
    for package in ("matplotlib", "optuna", "transformers"):
        if any(re.search(rf"(import|from) {package}\b", block) for block in code):
            pytest.importorskip(package)
    monkeypatch.setenv("MPLBACKEND", "agg")
    shown = [output for cell in code_cells(notebook) for output in cell["outputs"]]
    printed = "".join("".join(output.get("text", "")) for output in shown)
    assert comparable(run_blocks(code)) == comparable(printed)


@pytest.mark.parametrize("notebook", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_was_run_whole_and_is_small(notebook):
    cells = code_cells(notebook)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert {output.get("name", "stdout") for output in outputs} == {"stdout"}
    assert "error" not in {output["output_type"] for output in outputs}
    assert notebook.stat().st_size < 100_000
