"""Exporting a network to a file for other programs: its parameters, or the network as ONNX."""

import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compss_train._utils.files import atomic_path
from compss_train._utils.imports import import_optional
from compss_train.model import parameters

Transform = Callable[[Tensor], Tensor]

ONNX = ".onnx"
FORMATS = (*parameters.FORMATS, ONNX)
"""Suffixes of the files that can be exported to."""
INPUT, OUTPUT = "x", "output"
"""Names of input and output in an ONNX file."""


def export(
    path: str | os.PathLike[str], net: nn.Module, example: Any = None, *, transform: Transform | None = None
) -> None:
    """Write a network to a file in the format of its suffix; the file is complete or does not exist.

    Parameters
    ----------
    path:
        ``.safetensors`` or ``.npz`` for the arrays of its state_dict; ``.onnx`` for the network in evaluation mode,
        with one input ``x`` and one output ``output``. ONNX needs the extra ``onnx``, and holds 2 GiB at most.
    example:
        For ONNX: a batch of x, such as ``x[:2]``, an array or tensor. Only shape and dtype of a sample matter: the
        exported network takes any number of samples.
    transform:
        For ONNX: applied to x before the network, and exported with it, so that the exported network
        takes the same input as the workers.

    Raises ``ValueError`` for another suffix, a missing example, and a network that ONNX cannot represent, for
    example one whose control flow depends on values of x.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot export to {path.name!r}; use a name that ends in {', '.join(FORMATS)}")
    write = _onnx_writer(net, example, transform) if path.suffix == ONNX else partial(_write_parameters, net)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as unfinished:
        write(unfinished)


def _write_parameters(net: nn.Module, path: Path) -> None:
    parameters.save(path, parameters.from_module(net))


def _onnx_writer(net: nn.Module, example: Any, transform: Transform | None) -> Callable[[Path], None]:
    batch = _example_batch(example)
    for package in ("onnx", "onnxscript"):
        import_optional(package, extra="onnx", needed_by="export to ONNX")
    return partial(_write_onnx, _TransformedNet(net, transform).eval(), batch)


class _TransformedNet(nn.Module):
    """A network with the transform of its input."""

    def __init__(self, net: nn.Module, transform: Transform | None) -> None:
        super().__init__()
        self.net, self.transform = net, transform

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.net(x if self.transform is None else self.transform(x))
        return output


def _example_batch(example: Any) -> Tensor:
    if example is None:
        raise ValueError("ONNX needs the shape and dtype of a sample: give example=x[:2], a batch of x")
    samples = example if isinstance(example, Tensor) else np.asanyarray(example)
    if samples.ndim == 0:
        raise ValueError(f"the example is a scalar: {example!r}; give a batch of x, such as x[:2]")
    if len(samples) == 0:
        raise ValueError("the example has no samples; give a batch of x with at least one")
    batch = samples[:2].detach().cpu() if isinstance(samples, Tensor) else torch.from_numpy(np.array(samples[:2]))
    # The exporter takes a dimension of size 1 for a constant.
    return batch if len(batch) > 1 else torch.cat([batch, batch])


def _write_onnx(net: nn.Module, batch: Tensor, path: Path) -> None:
    samples = torch.export.Dim("samples", min=1)
    with _silence_exporter():
        try:
            torch.onnx.export(
                net,
                (batch,),
                path,
                dynamo=True,
                input_names=[INPUT],
                output_names=[OUTPUT],
                dynamic_shapes=({0: samples},),
                external_data=False,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            raise ValueError(
                "torch cannot export this network to ONNX, which has no Python code that depends on values of x: "
                f"{_root_cause(error)}"
            ) from error


@contextmanager
def _silence_exporter() -> Iterator[None]:
    """Suppress warnings and logs of the exporter and its packages, among them pages about failed exports."""
    disabled = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _root_cause(error: BaseException) -> str:
    """Return the first line of the root cause of an exporter's error, whose own message has pages."""
    while error.__cause__ is not None:
        error = error.__cause__
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}" if str(error) else type(error).__name__
