"""The doctor on a laptop: what it can train with, extras, clusters, and exit codes."""

import json
import os
from importlib import metadata
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compss_train.cli import local_checks, main
from compss_train.cli.findings import ProgramResult
from compss_train.engines.compss import configuration

REQUIREMENTS = [
    "torch>=2.6",
    'pyarrow>=15; extra == "arrow"',
    'jinja2>=3.1; extra == "report"',
    'matplotlib>=3.8; extra == "report"',
    "pyzmq>=25; extra == 'online'",
    'pytest>=8; extra == "test"',
]
EXTRAS = ["arrow", "report", "online", "test"]


@pytest.fixture
def laptop(monkeypatch, tmp_path):
    """A machine with two cores, 24 GB of memory and no GPU, no cluster, and some packages."""
    fake = SimpleNamespace(
        versions={"torch": "2.9", "numpy": "2.1", "pyarrow": "15.0.1", "jinja2": "3.1"},
        programs={"nvidia-smi": ProgramResult(None, "nvidia-smi: No such file")},
        probe=ProgramResult(0, json.dumps({"gpus": []})),
    )

    def run_program(command, *options):
        return fake.programs.get(command[0], fake.probe)

    def distribution(name):
        assert name == "compss_train"
        return SimpleNamespace(
            metadata=SimpleNamespace(get_all=lambda name: EXTRAS), requires=REQUIREMENTS
        )

    monkeypatch.setattr(local_checks, "installed_version", fake.versions.get)
    monkeypatch.setattr(local_checks, "run_program", run_program)
    monkeypatch.setattr(local_checks, "cores", lambda: 2)
    monkeypatch.setattr(local_checks, "usable_memory", lambda: 24 * 10**9)
    monkeypatch.setattr(local_checks, "SHARED_MEMORY", tmp_path / "none")
    monkeypatch.setattr(metadata, "distribution", distribution)
    monkeypatch.setattr(configuration, "presumed_home", lambda: tmp_path)
    return fake


@pytest.fixture
def printed(capsys):
    def run(*options, code):
        assert main(["doctor", *options]) == code
        return capsys.readouterr().out

    return run


def test_a_laptop_without_clusters_is_ready(laptop, printed):
    lines = printed(code=0).splitlines()
    assert lines[0] == "Ready for local training: 2 cores, 24 GB of memory, no GPU."
    assert "  installed      arrow" in lines
    assert "  not installed  online, report" in lines
    assert "  install them   pip install 'compss_train[online,report]'" in lines
    assert lines.index("Extras") < lines.index("Clusters")
    assert lines[-1] == (
        "  compss         not installed; compss-train doctor --engine compss says what it needs"
    )
    assert not any(line.startswith("missing") for line in lines)


def test_programs_read_the_same(laptop, printed):
    laptop.versions["ray"] = "2.60"
    laptop.probe = ProgramResult(0, "a warning\n" + json.dumps({"gpus": ["H100", "H100"]}))
    assert printed(code=0).startswith(
        "Ready for local training: 2 cores, 24 GB of memory, 2 GPUs (H100)."
    )
    answer = json.loads(printed("--json", code=0))
    assert answer["ready"] is True
    assert answer["machine"] == {"cores": 2, "memory": 24 * 10**9, "gpus": ["H100", "H100"]}
    assert answer["extras"]["installed"] == ["arrow"]
    assert answer["extras"]["missing"] == ["online", "report"]
    assert answer["clusters"] == {"ray": True, "compss": False}


@pytest.mark.parametrize(
    ("break_it", "name", "text"),
    [
        (lambda fake: fake.versions.pop("torch"), "torch", "not installed; pip install torch"),
        (lambda fake: fake.versions.pop("numpy"), "numpy", "not installed; pip install numpy"),
        (
            lambda fake: setattr(fake, "probe", ProgramResult(1, "Traceback\nOSError: libcudart")),
            "imports",
            "OSError: libcudart",
        ),
        (lambda fake: setattr(fake, "probe", ProgramResult(None, "")), "imports", "no answer"),
    ],
)
def test_what_local_training_needs_is_missing(laptop, printed, break_it, name, text):
    break_it(laptop)
    out = printed(code=1)
    assert out.startswith(f"Not ready for local training, see {name}: 2 cores")
    assert text in out
    assert json.loads(printed("--json", code=1))["ready"] is False


def test_a_gpu_that_torch_cannot_use_is_a_warning(laptop, printed):
    laptop.programs["nvidia-smi"] = ProgramResult(0, "GPU 0: NVIDIA H100 (UUID: GPU-1)")
    out = printed(code=0)
    assert out.startswith("Ready for local training: 2 cores, 24 GB of memory, no GPU.")
    assert "1 GPU of NVIDIA, but this torch can use none; install torch's build" in out


@pytest.mark.parametrize(("blocks", "warns"), [(16384, True), (1_000_000, False), (0, False)])
def test_little_shared_memory_is_a_warning(laptop, printed, monkeypatch, blocks, warns):
    system = SimpleNamespace(f_blocks=blocks, f_frsize=4096)
    monkeypatch.setattr(os, "statvfs", lambda path: system)
    out = printed(code=0)
    assert ("docker run --shm-size=8g" in out) == warns
    assert ("64 MB in " in out) == warns


def test_memory_is_that_of_the_container(monkeypatch, tmp_path):
    monkeypatch.setattr(local_checks, "MEMORY_LIMITS", ())
    of_machine = local_checks.usable_memory()
    for text, expected in (("max\n", of_machine), ("1000000\n", 10**6), (str(2**63), of_machine)):
        limit = tmp_path / "memory.max"
        limit.write_text(text)
        monkeypatch.setattr(local_checks, "MEMORY_LIMITS", (limit, tmp_path / "none"))
        assert local_checks.usable_memory() == expected


def test_a_package_that_was_not_installed_has_no_extras(laptop, printed, monkeypatch):
    def distribution(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", distribution)
    assert "unknown: compss_train was not installed by pip" in printed(code=0)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=3), st.integers(0, 40))
def test_a_release_is_compared_by_its_numbers(release, patch):
    text = ".".join(map(str, release))
    numbers = local_checks.release_numbers
    assert numbers(f"{text}.0") == numbers(text) == numbers(f"{text}+cpu")
    assert numbers(f"{text}.{patch}") >= numbers(text)
    assert numbers(f"{release[0] + 1}.0") > numbers(text)


@pytest.mark.slow  # imports torch
def test_this_machine_is_ready(printed):
    assert json.loads(printed("--json", code=0))["machine"]["cores"] >= 1
