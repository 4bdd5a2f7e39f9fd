"""Exporting a network to a file for other programs: its parameters, or the network as ONNX."""

import inspect
import io
import logging
import os
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from compss_train._utils import files, imports, nested
from compss_train.model import parameters
from compss_train.model.training_spec import outputs as network_outputs

Transform = Callable[[Any], Any]

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
        with one input ``x`` and one output ``output``. Several inputs are called as the items of a dict or the
        arguments of ``forward``, several outputs as the items of a dict or ``output_0``, ``output_1``, .... ONNX
        needs the extra ``onnx``, and holds 2 GiB at most.
    example:
        For ONNX: a batch of x, such as ``x[:2]``, an array or tensor, or a tuple, list or dict of them. Only shape
        and dtype of a sample matter: the exported network takes any number of samples.
    transform:
        For ONNX: applied to x before the network, and exported with it, so that the exported network
        takes the same input as the workers.

    Raises ``ValueError`` for another suffix, a missing example, and a network that ONNX cannot represent, for
    example one whose control flow depends on values of x.
    """
    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"cannot export to {path.name!r}; use a name that ends in {', '.join(FORMATS)}")
    batch = _onnx_batch(example) if path.suffix == ONNX else None
    path.parent.mkdir(parents=True, exist_ok=True)
    with files.atomic_path(path) as unfinished:
        if path.suffix == ONNX:
            _write_onnx(_TransformedNet(net, transform).eval(), batch, unfinished)
        else:
            parameters.save(unfinished, parameters.from_module(net))


def _onnx_batch(example: Any) -> Any:
    """Return the example as tensors of at least two samples; raise if the example or a package is missing."""
    if example is None:
        raise ValueError("ONNX needs the shape and dtype of a sample: give example=x[:2], a batch of x")
    if isinstance(example, list) and not all(isinstance(each, np.ndarray | Tensor) for each in example):
        example = np.asanyarray(example)
    batch = nested.map_leaves(_example_batch, example)
    for package in ("onnx", "onnxscript"):
        imports.import_optional(package, extra="onnx", needed_by="export to ONNX")
    return batch


class _TransformedNet(nn.Module):
    """A network with the transform of its inputs."""

    def __init__(self, net: nn.Module, transform: Transform | None) -> None:
        super().__init__()
        self.net, self.transform = net, transform
        self.template: Any = None

    def forward(self, *inputs: Tensor) -> Any:
        x = nested.rebuilt(self.template, inputs)
        return network_outputs(self.net, x if self.transform is None else self.transform(x))


def _names(value: Any, name: str) -> list[str]:
    """Return the names of tensors in tuples, lists and dicts."""
    if isinstance(value, dict):
        return [each for key, item in value.items() for each in _names(item, str(key))]
    if isinstance(value, tuple | list):
        return [each for number, item in enumerate(value) for each in _names(item, f"{name}_{number}")]
    return [name]


def _example_batch(example: Any) -> Tensor:
    samples = example if isinstance(example, Tensor) else np.asanyarray(example)
    if samples.ndim == 0 or len(samples) == 0:
        raise ValueError(f"the example has no samples: {example!r}; give a batch of x, such as x[:2]")
    batch = samples[:2].detach().cpu() if isinstance(samples, Tensor) else torch.from_numpy(np.array(samples[:2]))
    # The exporter takes a dimension of size 1 for a constant.
    return batch if len(batch) > 1 else torch.cat([batch, batch])


def _write_onnx(net: _TransformedNet, batch: Any, path: Path) -> None:
    samples, inputs = torch.export.Dim("samples", min=1), tuple(nested.leaves(batch))
    net.template = nested.template_of(batch)
    arguments = [*inspect.signature(net.net.forward).parameters] if isinstance(batch, tuple | list) else []
    fit_arguments = isinstance(batch, tuple | list) and len(arguments) >= len(batch)
    with torch.no_grad():
        output = net(*inputs)
    disabled = logging.root.manager.disable
    with warnings.catch_warnings(), redirect_stderr(io.StringIO()):  # pages of the exporter and its packages
        warnings.simplefilter("ignore")
        logging.disable(logging.ERROR)
        try:
            torch.onnx.export(
                net,
                inputs,
                path,
                dynamo=True,
                input_names=arguments[: len(batch)] if fit_arguments else _names(batch, INPUT),
                output_names=_names(output, OUTPUT),
                dynamic_shapes=(tuple({0: samples} for _ in inputs),),
                external_data=False,
                verbose=False,
            )
        except torch.onnx.OnnxExporterError as error:
            cause: BaseException = error  # the error's own message has pages
            while cause.__cause__ is not None:
                cause = cause.__cause__
            first_line = f": {str(cause).strip().splitlines()[0]}" if str(cause) else ""
            raise ValueError(
                "torch cannot export this network to ONNX, which has no Python code that depends on values of x: "
                f"{type(cause).__name__}{first_line}"
            ) from error
        finally:
            logging.disable(disabled)
