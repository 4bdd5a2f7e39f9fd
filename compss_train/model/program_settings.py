"""``ProgramSettings``: torch's and numpy's settings of the program, which its tasks have, too."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import numpy as np
import torch

_FLAGS = (
    "fp32_precision",
    "cudnn.fp32_precision",
    "mkldnn.fp32_precision",
    "cuda.matmul.allow_tf32",
    "cudnn.allow_tf32",
    "cuda.matmul.fp32_precision",
    "cudnn.conv.fp32_precision",
    "cudnn.rnn.fp32_precision",
    "mkldnn.matmul.fp32_precision",
    "mkldnn.conv.fp32_precision",
    "mkldnn.rnn.fp32_precision",
    "cudnn.enabled",
    "cudnn.benchmark",
    "cudnn.deterministic",
    "mkldnn.enabled",
    "mkldnn.deterministic",
    "cuda.matmul.allow_fp16_reduced_precision_reduction",
    "cuda.matmul.allow_bf16_reduced_precision_reduction",
    "cuda.matmul.allow_fp16_accumulation",
)
"""Flags below ``torch.backends``; those of all operations also set those of single ones after them.
"""

_NOT_TRAVELLING = ("call", "log")
"""What numpy does with an error by a function of the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramSettings:
    """Settings that change what torch and numpy compute, or raise.

    An instance holds those of the program when it was made. Attributes of older or newer releases
    of torch that this one does not have, or cannot tell, are left out.
    """

    dtype: torch.dtype = field(default_factory=torch.get_default_dtype)
    """The default floating-point dtype."""
    matmul_precision: str | None = field(default_factory=lambda: _matmul_precision())
    flags: dict[str, Any] = field(default_factory=lambda: _flags())
    """Flags of cuDNN, oneDNN and TF32, by their path below ``torch.backends``."""
    deterministic: bool = field(default_factory=torch.are_deterministic_algorithms_enabled)
    warn_only: bool = field(default_factory=torch.is_deterministic_algorithms_warn_only_enabled)
    """Whether algorithms that are not deterministic only warn."""
    detect_anomaly: bool = field(default_factory=torch.is_anomaly_enabled)
    flush_denormal: bool = field(default_factory=lambda: _flushes_denormal())
    numpy_errors: dict[str, Any] = field(default_factory=lambda: {**np.geterr()})
    """What numpy does with floating-point errors, as ``numpy.seterr`` takes it."""

    @property
    def left_out(self) -> list[str]:
        """The settings of this program that its tasks cannot have."""
        settings = [
            f"numpy.seterr({kind}={reaction!r})"
            for kind, reaction in self.numpy_errors.items()
            if reaction in _NOT_TRAVELLING
        ]
        device = torch.get_default_device()
        if device.type != "cpu":
            settings.append(f"torch.set_default_device({str(device)!r})")
        return settings

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set these in the process of a task, and restore its settings at the end."""
        before = type(self)()
        if before == self:  # as in most programs
            yield
            return
        errors = {
            kind: reaction
            for kind, reaction in self.numpy_errors.items()
            if reaction not in _NOT_TRAVELLING
        }
        try:
            self.set()
            with np.errstate(**errors):
                yield
        finally:
            before.set()

    def set(self) -> None:
        """Set all but numpy's, which have a context."""
        torch.set_default_dtype(self.dtype)
        if self.matmul_precision not in (None, _matmul_precision()):
            torch.set_float32_matmul_precision(self.matmul_precision)
        for path, value in self.flags.items():
            if value != _flags(path).get(path, value):
                module, _, name = f"backends.{path}".rpartition(".")
                setattr(attrgetter(module)(torch), name, value)
        torch.use_deterministic_algorithms(self.deterministic, warn_only=self.warn_only)
        torch.autograd.set_detect_anomaly(self.detect_anomaly)
        if self.flush_denormal != _flushes_denormal():
            torch.set_flush_denormal(self.flush_denormal)


def _matmul_precision() -> str | None:
    with suppress(RuntimeError):
        return torch.get_float32_matmul_precision()
    return None  # it was set in two ways


def _flags(*paths: str) -> dict[str, Any]:
    """Return these flags, all by default."""
    flags = {}
    for path in paths or _FLAGS:
        # Another release has it; or it was set in two ways.
        with suppress(AttributeError, RuntimeError):
            flags[path] = attrgetter(path)(torch.backends)
    return flags


def _flushes_denormal() -> bool:
    """Return whether this thread takes numbers near 0 for 0, which torch cannot tell."""
    return math.prod((1e-310, 1.0)) == 0
