"""What an import of the package brings with it, in a fresh interpreter."""

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import compss_train
from compss_train import DistributedTrainer, Engine
from tests.helpers.waiting import LIMIT


def run(program, *arguments):
    subprocess.run([sys.executable, "-c", program, *map(str, arguments)], check=True, timeout=LIMIT)


def test_the_command_needs_no_torch(tmp_path):
    run(
        """
import os, sys
import compss_train.cli
assert not {"torch", "numpy", "compss_train.engines.base"} & set(sys.modules)
sys.modules["torch"] = None
os.environ["PATH"] = "/nowhere"
assert compss_train.cli.main(["configure", "--units", "1", "--folder", sys.argv[1]]) == 0
assert compss_train.cli.main(["doctor", "--engine", "compss"]) == 1
""",
        tmp_path,
    )


def test_names_are_listed_and_fits_run_without_scikit_learn_torchmetrics_and_zeromq():
    run(
        """
import sys
from types import SimpleNamespace
sys.modules["sklearn"] = None
from compss_train.data import BlockedTensor
assert "compss_train.engines" not in sys.modules
sys.modules["pycompss"] = None
try:
    BlockedTensor.from_dislib(SimpleNamespace(tensors=[[object()]]))
except ImportError as error:
    assert "the compss engine needs PyCOMPSs" in str(error)
else:
    raise SystemExit("a future was described without PyCOMPSs")
del sys.modules["pycompss"]
import compss_train
assert "DistributedTrainer" not in vars(compss_train)
assert compss_train.engines.LocalEngine is compss_train.LocalEngine
from compss_train.model import parameters
assert parameters.from_module and compss_train.callbacks.JsonLines
assert vars(compss_train)["LocalEngine"] is compss_train.LocalEngine
from compss_train import *
assert DistributedTrainer is compss_train.trainer.DistributedTrainer
assert shuffle is compss_train.data.shuffle and callable(shuffle)
assert BlockedTensor and "DistributedClassifier" in dir(compss_train)
try:
    compss_train.DistributedClassifier
except ModuleNotFoundError as error:
    assert "pip install 'compss_train[sklearn]'" in str(error) and error.name == "sklearn"
else:
    raise SystemExit("an estimator without scikit-learn")
import numpy as np
from torch import nn
import compss_train.worker.server_exchange
with DistributedTrainer(1, engine="serial") as trainer:
    trainer.build(nn.Linear(2, 2), {"optimizer": "sgd", "lr": 0.1}, "ce", ["accuracy", "mae"][:1])
    trainer.fit(np.ones((4, 2), "f"), np.ones(4, int), num_epochs=1, batch_size=2, progress=False)
assert not {"torchmetrics", "zmq"} & set(sys.modules)
"""
    )


def test_every_public_name_can_be_had():
    assert all(getattr(compss_train, name) is not None for name in dir(compss_train))
    assert {*compss_train.__all__, "__version__", "engines", "model"} <= set(dir(compss_train))
    extras = {"DistributedClassifier", "DistributedRegressor", "SampleSender"}
    functions = {"load", "shuffle", "write_files"}
    types = {name for name in dir(compss_train) if name[0].isupper()}
    assert types == {*compss_train.__all__, *extras} - functions
    assert all(getattr(compss_train, name).__name__ == name for name in extras)


def test_other_names_are_no_attributes():
    with pytest.raises(AttributeError, match="'compss_train' has no attribute 'Trainer'"):
        compss_train.Trainer  # noqa: B018
    with pytest.raises(ImportError, match="cannot import name 'Trainer'"):
        from compss_train import Trainer  # noqa: F401


PACKAGE = Path(compss_train.__file__).parent
TESTS = Path(__file__).parent
NOT_OF_THE_PACKAGE = {  # of files beside it, and what many tests use
    *("apps", "docs", "runcompss", "sources"),
    *("emulated_gpu", "helpers", "same_bits", "simulation", "soak"),
    *("compss", "gpu", "ray"),  # fits on real clusters, and on emulated GPUs
}


def test_folders_of_tests_are_those_of_the_package():
    folders = {path.parent.relative_to(TESTS) for path in TESTS.rglob("test_*.py")} - {Path()}
    mirrored = (path for path in folders if path.parts[0] not in NOT_OF_THE_PACKAGE)
    missing = [
        path
        for path in mirrored
        if not (PACKAGE / path).is_dir() and not (PACKAGE / path).with_suffix(".py").exists()
    ]
    assert missing == []


def test_interfaces_are_small():
    for name, limit in (("build", 17), ("fit", 17), ("fit_online", 15)):
        parameters = inspect.signature(getattr(DistributedTrainer, name)).parameters.keys()
        assert len(parameters - {"self"}) <= limit
    assert len(Engine.__abstractmethods__) <= 12
