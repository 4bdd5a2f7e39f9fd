"""Recipes and workflows agree with ``pyproject.toml`` and the Makefile."""

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import compss_train

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
CORE = dict(re.fullmatch(r"([\w-]+)>=([\d.]+)", line).groups() for line in PROJECT["dependencies"])
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))


def test_conda_recipe_has_the_dependencies_and_the_version():
    recipe = yaml.safe_load((ROOT / "packaging/conda/recipe.yaml").read_text())
    run = dict(line.split(" >=") for line in recipe["requirements"]["run"])
    assert recipe["context"]["version"] == compss_train.__version__
    assert run.pop("python") == PROJECT["requires-python"].removeprefix(">=")
    assert run.pop("pytorch") == CORE["torch"]
    assert run == {name: least for name, least in CORE.items() if name != "torch"}


def test_spack_recipe_has_the_dependencies_and_the_version():
    text = (
        ROOT / "packaging/spack/spack_repo/compss_train/packages/py_compss_train/package.py"
    ).read_text()
    compile(text, "package.py", "exec")
    depends = dict(re.findall(r'depends_on\("py-([\w-]+)@([\d.]+):"\)', text))
    assert f'version("{compss_train.__version__}")' in text
    assert f'"python@{PROJECT["requires-python"].removeprefix(">=")}:"' in text
    assert {name: depends.pop(name) for name in CORE} == CORE
    assert set(depends) == {"setuptools"}


@pytest.mark.parametrize("name", ["Dockerfile", "compss_train.def"])
def test_images_install_extras_that_exist(name):
    text = (ROOT / "packaging" / name).read_text()
    lists = re.findall(r"EXTRAS=([\w,]+)|\.whl\)\[([\w,]+)]", text)
    extras = {extra for pair in lists for part in pair for extra in part.split(",") if extra}
    assert extras
    assert extras <= set(PROJECT["optional-dependencies"])


def targets_of_the_makefile():
    return set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_documents_call_targets_of_the_makefile():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
    called = {
        name
        for page in pages
        for name in re.findall(r"(?:^|`)make (\w+)", page.read_text(), re.MULTILINE)
    }
    assert {"install", "demo", "test", "extras"} <= called <= targets_of_the_makefile()


def test_readme_and_its_page_install_by_the_same_command_which_is_one_of_pip():
    assert "| Install | `make install`;" in (ROOT / "README.md").read_text()
    (first,) = re.findall(
        r"## With pip\n\n```sh\n(make \w+) ", (ROOT / "docs/install.md").read_text()
    )
    dry = [
        "make",
        "--dry-run",
        "--no-print-directory",
        *first.split()[1:],
        "EXTRAS=online,report",
        "PYTHON=python",
    ]
    commands = subprocess.run(
        dry, cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert commands[1:] == ["python -m pip install '.[online,report]'"]


CPU_INDEX = "https://download.pytorch.org/whl/cpu"


def test_the_demo_installs_neither_tools_of_developers_nor_cuda_unless_asked_for():
    def commands(*settings):
        dry = ["make", "--dry-run", "--no-print-directory", "demo", "VENV=none", *settings]
        printed = subprocess.run(dry, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        return [line for line in printed.splitlines() if "pip install" in line]

    (only,) = commands()
    assert only.endswith("--editable '.[sklearn]'")
    cpu, everything_else = commands("TORCH=cpu")
    assert cpu.endswith(f"--index-url {CPU_INDEX} torch")
    assert everything_else == only


def test_pages_name_the_same_command_for_the_small_build_of_torch():
    command = f"pip install torch --index-url {CPU_INDEX}"
    assert all(command in (ROOT / page).read_text() for page in ("README.md", "docs/install.md"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_call_targets_of_the_makefile(path):
    targets = targets_of_the_makefile()
    jobs = yaml.safe_load(path.read_text())["jobs"]
    commands = [
        step["run"] for job in jobs.values() for step in job.get("steps", []) if "run" in step
    ]
    called = {command.split()[1] for command in commands if command.startswith("make ")}
    assert called <= targets
    assert called or path.stem == "release"
