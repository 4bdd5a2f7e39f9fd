"""``export``: writes a trained network for programs that need no ``compss_train``.

The written file runs before it gets its name, and its outputs must be those of ``predict``.
"""

import io
import logging
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from compss_train._utils.files import atomic_path, write_in_memory
from compss_train._utils.imports import import_optional
from compss_train._utils.nested import leaves, rebuilt
from compss_train.data.block_passes import BlockPass
from compss_train.model import copies
from compss_train.model import parameters as params
from compss_train.model.devices import CPU, IN_PROCESS
from compss_train.model.replica import outputs
from compss_train.model.training_spec import TrainingSpec
from compss_train.training.data_source import EXAMPLE_ROWS, DataSource
from compss_train.training.inference import first_batch, one_batch
from compss_train.worker.inference import first_inputs

TRACED_ROWS = 2
"""Samples of the batch that the network is traced with; with one, torch would fix the size."""

TOLERANCE = 1e-3
"""By how much outputs may differ, as a share of the largest one."""

HALF_TOLERANCE = 2e-2
"""The same for networks in bfloat16 or float16."""

_EXPORTING_TO_ONNX = "torch.onnx", "onnxscript", "onnx_ir"
"""The loggers of torch's exporter to ONNX and of the packages that it calls."""

_CAUSAL_MASK_CHECK = "_detect_is_causal_mask"
"""The function of torch that compares masks in ``nn.Transformer``."""


@dataclass(frozen=True)
class Call:
    """A batch of samples, as the network gets it, and its outputs in ``predict``."""

    samples: int
    x: Any
    output: Any


@dataclass(frozen=True)
class Calls:
    """Two calls of a network, with different numbers of samples."""

    traced: Call
    """The call that the network is traced with."""
    compared: Call
    """The call whose outputs the written network must have."""
    padded: bool
    """Whether samples may be padded to other lengths than in these calls."""


def export(path: Path, net: nn.Module, spec: TrainingSpec, example: DataSource | None) -> None:
    """Write a network in evaluation mode to a file, in the format of its suffix.

    ``example`` are samples to trace it with, and to compare its outputs on; weights can be written
    without. Raises ``ValueError`` for other suffixes, without an example where one is needed, and
    for a network that cannot be exported or whose outputs differ.
    """
    if path.suffix not in _WRITERS:
        raise ValueError(f"cannot export to {path.name!r}; use the suffix {', '.join(_WRITERS)}")
    if path.suffix == ".onnx":
        _onnx_package("onnxscript")
        _onnx_package("onnxruntime")
    calls = None
    if example is not None:
        calls = _calls(net, replace(spec, net=net, precision="fp32"), example)
    elif path.suffix != ".safetensors":
        raise ValueError(
            "export needs some samples to trace the network with, and the last fit left none: give "
            "example=, such as x[:8], samples as for predict"
        )
    with atomic_path(path) as unfinished, torch.no_grad():
        written = _WRITERS[path.suffix](unfinished, net, calls)
        if calls is not None:
            _check_outputs(path.name, written(calls.compared.x), calls.compared.output)


def _calls(net: nn.Module, spec: TrainingSpec, example: DataSource) -> Calls:
    """Return two calls of the network on the first samples."""
    arrays = params.from_module(net)
    traced = _call(spec, arrays, example, TRACED_ROWS)
    compared = _call(spec, arrays, example, EXAMPLE_ROWS)
    padded = example.structure.ragged or example.reader is not None or spec.collate is not None
    return Calls(traced, compared, padded=padded)


def _call(spec: TrainingSpec, arrays: params.Parameters, example: DataSource, rows: int) -> Call:
    """Return a call of the network on a number of the first samples; a single one is repeated."""
    work = first_batch(example, 0, rows)
    if example.dataset is None:
        numbers = np.arange(rows) % example.sizes[0]
        block_pass = BlockPass(0, 0, rows, sample_numbers=numbers)
        work = replace(work, block_passes=(block_pass,), starts=(0,))
    with IN_PROCESS:
        x, output = first_inputs(one_batch(spec, example), arrays, example.load(0), work)
    parts = []
    for part in leaves(x):
        if not isinstance(part, torch.Tensor):
            raise ValueError(
                f"the network gets a {type(part).__name__}, and an exported one takes tensors "
                "only: pad sequences in collate=, and give the network their lengths"
            )
        # Of a view, as collate= may make one, the network would take views only.
        parts.append(part.clone(memory_format=torch.contiguous_format))
    return Call(work.samples, rebuilt(x, parts), output)


def _dynamic_shapes(calls: Calls) -> Any:
    """Return which dimensions of the inputs may differ, for ``torch.export.export``."""
    batch = torch.export.Dim("batch")
    batch_sizes = (calls.traced.samples, calls.compared.samples)
    shapes = []
    for part, other in zip(leaves(calls.traced.x), leaves(calls.compared.x), strict=True):
        dimensions = {}
        for number, sizes in enumerate(zip(part.shape, other.shape, strict=True)):
            if sizes == batch_sizes:
                dimensions[number] = batch
            elif sizes[0] != sizes[1] or calls.padded:
                dimensions[number] = torch.export.Dim.AUTO
        shapes.append(dimensions)
    x = calls.traced.x
    return rebuilt(x if isinstance(x, dict | tuple | list) else (x,), shapes)


def _program(net: nn.Module, calls: Calls) -> torch.export.ExportedProgram:
    """Return the network as a graph that takes batches of any size."""
    x = calls.traced.x
    args: tuple[Any, ...] = (x,)
    kwargs: dict[str, Any] = {}
    if isinstance(x, dict):
        args = ()
        kwargs = x
    elif isinstance(x, tuple | list):
        args = tuple(x)
    printed = io.StringIO()  # the graph of a network that cannot be exported
    try:
        with (
            redirect_stderr(printed),
            _without_logs("torch.fx.experimental.symbolic_shapes"),
            _without_fused_attention(),
        ):
            return torch.export.export(
                net, args, kwargs, dynamic_shapes=_dynamic_shapes(calls), strict=False
            )
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        frames = traceback.extract_tb(error.__traceback__)
        hint = ""
        if any(frame.name == _CAUSAL_MASK_CHECK for frame in frames):
            hint = "; nn.Transformer compares its masks, unless it gets tgt_is_causal=True or False"
        raise ValueError(
            f"{type(net).__name__} cannot be exported: {reason}{_place_in(frames)} An exported "
            "network is a graph for batches of any size: forward must not depend on a fixed size "
            f"of batches, nor choose by values of tensors in Python{hint}"
        ) from error


def _place_in(frames: Sequence[traceback.FrameSummary]) -> str:
    """Return, for a message, the last line of code outside torch that was traced; or nothing."""
    torch_folder = str(Path(torch.__file__).parent)
    package_folder = str(Path(__file__).parents[1])
    places = [
        frame
        for frame in frames
        if frame.line and not frame.filename.startswith((torch_folder, package_folder))
    ]
    if not places:
        return ""
    place = places[-1]
    return f" This was {place.filename}, line {place.lineno}: {place.line}."


def _name_outputs(graph: Any, names: Sequence[str]) -> None:
    """Name the outputs of an ONNX graph, if there are as many as names, each a value by itself."""
    outputs = list(graph.outputs)
    if len(names) != len(outputs) or len({id(value) for value in outputs}) != len(outputs):
        return
    taken = {value.name for value in [*graph.inputs, *graph.initializers.values()]}
    free_names = [f"{name}_output" if name in taken else name for name in names]
    for node in graph:
        for value in node.outputs:
            if value.name in free_names:
                value.name = f"{value.name}_inside"
    for output, name in zip(outputs, free_names, strict=True):
        output.name = name


@contextmanager
def _without_fused_attention() -> Iterator[None]:
    """Have the layers of ``nn.Transformer`` call operations that other programs know, too."""
    is_enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(is_enabled)


@contextmanager
def _without_logs(*names: str) -> Iterator[None]:
    """Within the block, show records of loggers only by handlers that are not theirs.

    Loggers of torch have handlers, which may be those of other loggers, too. Those of other
    packages have none, and Python would print their warnings where a program has set up no logging.
    """
    loggers = [*map(logging.getLogger, names)]
    muted = [
        (handler, _record_filter(logger.name)) for logger in loggers for handler in logger.handlers
    ]
    unheard = logging.NullHandler()
    for handler, record_filter in muted:
        handler.addFilter(record_filter)
    for logger in loggers:
        logger.addHandler(unheard)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(unheard)
        for handler, record_filter in muted:
            handler.removeFilter(record_filter)


def _record_filter(name: str) -> Callable[[logging.LogRecord], bool]:
    """Return a filter that lets only records of other loggers pass than one and those below it."""
    return lambda record: not f"{record.name}.".startswith(f"{name}.")


def _write_onnx(path: Path, net: nn.Module, calls: Calls) -> Callable[[Any], Any]:
    """Write a network by torch's exporter; return a function that runs the file."""
    program = _program(net, calls)
    # Of packages that are not needed, and of what torch itself will change.
    silent = warnings.catch_warnings(action="ignore", category=FutureWarning)
    try:
        with silent, _without_logs(*_EXPORTING_TO_ONNX):
            exported: Any = torch.onnx.export(program, dynamo=True, verbose=False)
    except torch.onnx.errors.OnnxExporterError as error:
        reason = " ".join(str(error.__cause__ or error).split())
        raise ValueError(
            f"{type(net).__name__} cannot be written as ONNX, which lacks what it computes: "
            f"{reason}. Export it to a .pt2 file, or compute this in another way"
        ) from error
    if isinstance(calls.compared.output, dict):
        _name_outputs(exported.model.graph, [*calls.compared.output])
    exported.save(path, external_data=False)
    session = _onnx_package("onnxruntime").InferenceSession(
        path, providers=["CPUExecutionProvider"]
    )
    names = [value.name for value in session.get_inputs()]

    def run(x: Any) -> Any:
        arrays = [part.numpy() for part in leaves(x)]
        if isinstance(x, dict) and set(names) <= x.keys():
            arrays = [x[name].numpy() for name in names]
        return session.run(None, dict(zip(names, arrays, strict=True)))

    return run


def _write_program(path: Path, net: nn.Module, calls: Calls) -> Callable[[Any], Any]:
    """Write an exported program; return a function that runs the file."""
    write_in_memory(path, partial(torch.export.save, _program(net, calls)))
    written = torch.export.load(path).module()
    return lambda x: outputs(written, x)


def _write_weights(path: Path, net: nn.Module, calls: Calls | None) -> Callable[[Any], Any]:
    """Write a network's weights; return a copy of the network that has read them."""
    params.save(path, params.from_module(net))
    # Its hooks hold it, as those of the network hold the network.
    written = copies.CopyTemplate(net, []).copy(CPU).eval()
    params.load_into(written, params.load(path))
    return lambda x: outputs(written, x)


_WRITERS: dict[str, Callable[[Path, nn.Module, Any], Callable[[Any], Any]]] = {
    ".onnx": _write_onnx,
    ".pt2": _write_program,
    ".safetensors": _write_weights,
}
"""What writes a network, by the suffix of its file."""


def _onnx_package(name: str) -> Any:
    return import_optional(name, extra="onnx", needed_by="export to ONNX")


def _check_outputs(name: str, written: Any, expected: Any) -> None:
    """Raise ``ValueError`` unless outputs of a written network are those of ``predict``."""
    for output, array in zip(leaves(written), leaves(expected), strict=True):
        tensor = torch.as_tensor(output)
        is_half = tensor.dtype in (torch.float16, torch.bfloat16)
        tolerance = HALF_TOLERANCE if is_half else TOLERANCE
        values = np.asarray(tensor.double() if is_half else tensor)
        largest = float(np.abs(array).max(initial=0))
        if values.shape != array.shape or not np.allclose(
            values, array, rtol=0, atol=tolerance * largest, equal_nan=True
        ):
            difference = "in shape"
            if values.shape == array.shape:
                difference = (
                    f"by {np.abs(values - array).max():.3g}, with outputs up to {largest:.3g}"
                )
            raise ValueError(
                f"{name} was not written: its outputs differ from those of predict {difference}. "
                "Does forward draw random numbers in evaluation mode, or choose by values of "
                "tensors?"
            )
