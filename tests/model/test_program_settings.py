"""Settings of torch and numpy that a program changes, and its tasks have."""

import pickle
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from compss_train.model.program_settings import ProgramSettings

backends = torch.backends
CHANGES = {
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "precision of products": lambda: torch.set_float32_matmul_precision("medium"),
    "TF32": lambda: setattr(backends.cuda.matmul, "allow_tf32", True),
    "TF32 of cuDNN": lambda: setattr(backends.cudnn, "allow_tf32", False),
    "cuDNN": lambda: setattr(backends.cudnn, "deterministic", True),
    "search of kernels": lambda: setattr(backends.cudnn, "benchmark", True),
    "no cuDNN": lambda: setattr(backends.cudnn, "enabled", False),
    "half sums": lambda: setattr(
        backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False
    ),
    "oneDNN": lambda: setattr(backends.mkldnn, "enabled", False),
    "deterministic": lambda: torch.use_deterministic_algorithms(True),
    "deterministic, with warnings": lambda: torch.use_deterministic_algorithms(
        True, warn_only=True
    ),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "no numbers near 0": lambda: torch.set_flush_denormal(True),
    "numpy's errors": lambda: np.seterr(over="raise", divide="ignore"),
}
if hasattr(backends, "fp32_precision"):  # newer than 2.6
    CHANGES["precision of all"] = lambda: setattr(backends, "fp32_precision", "tf32")
    CHANGES["precision of convolutions"] = lambda: setattr(
        backends.cudnn.conv, "fp32_precision", "ieee"
    )
    CHANGES["precision on the CPU"] = lambda: setattr(
        backends.mkldnn.matmul, "fp32_precision", "bf16"
    )


TOGETHER = ["default dtype", "TF32", "deterministic", "numpy's errors", "no numbers near 0"]


@contextmanager
def changed(names):
    """Change these settings of the program inside the context, which gets all settings."""
    before = ProgramSettings()
    with np.errstate():
        try:
            for name in names:
                CHANGES[name]()
            yield ProgramSettings()
        finally:
            before.set()


@pytest.mark.parametrize("name", CHANGES)
def test_a_task_has_what_the_program_has_and_then_its_own_again(name):
    before = ProgramSettings()
    with changed([name]) as changes:
        assert changes != before
    changes = pickle.loads(pickle.dumps(changes))
    assert ProgramSettings() == before
    with changes.applied():
        assert ProgramSettings() == changes
    assert ProgramSettings() == before


def test_several_settings_travel_together():
    before = ProgramSettings()
    with changed(TOGETHER) as changes:
        pass
    with changes.applied():
        assert torch.zeros(1).dtype == torch.float64
        with pytest.raises(FloatingPointError, match="overflow"):
            np.float32(1e38) * np.float32(10)
    with pytest.raises(ZeroDivisionError), changes.applied():
        raise ZeroDivisionError
    assert ProgramSettings() == before


def test_what_cannot_travel_is_named():
    assert ProgramSettings().left_out == []
    with np.errstate(over="call", call=lambda *_: None):
        settings = ProgramSettings()
        assert settings.left_out == ["numpy.seterr(over='call')"]
    with settings.applied():
        assert np.geterr()["over"] == "warn"
    with torch.device("meta"):
        assert ProgramSettings().left_out == ["torch.set_default_device('meta')"]


def test_asking_for_settings_warns_of_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ProgramSettings()
