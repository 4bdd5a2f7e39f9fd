"""Hints on errors of networks and losses: what the batch was, and what would suit."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from compss_train._utils.nested import is_sequence, leaves
from compss_train.model.losses import last_axis_hint

_SPARSE_GRADIENTS = (
    "Embeddings with sparse=True have sparse gradients: only sparseadam, adagrad and sgd take "
    "them, without weight decay and without clipping. For anything else leave sparse=True out."
)

_HINTS = {
    "backward through the graph a second time": (
        "The trainer calls backward() itself: leave it out of the training step."
    ),
    "Specify retain_graph=True": (
        "If a module keeps what an earlier batch has computed, as a spiking neuron does, reset or "
        "detach() it in forward or in the step, through the model that this gets: a class that "
        "lists its objects, as snntorch's do, does not know the copies of workers."
    ),
    "between 0 and 1": (
        "The loss takes probabilities: end the network with nn.Sigmoid(), or build with "
        "torch.nn.BCEWithLogitsLoss(), which takes logits."
    ),
    "does not support sparse gradients": _SPARSE_GRADIENTS,
    "add(sparse, dense)": _SPARSE_GRADIENTS,
    "from the 'Sparse": _SPARSE_GRADIENTS,
    "Expected more than 1 value per channel": (
        "BatchNorm needs two samples in each batch: choose a batch_size that leaves no batch of "
        "one, or GroupNorm or LayerNorm."
    ),
}
"""Hints on errors of torch, by words of their messages."""

_UNLABELLED = 255
"""What marks pixels without a class in masks of 8 bits."""


def error_notes(
    error: Exception, x: Any, y: Any, *, net: nn.Module, own_target: bool = False
) -> list[str]:
    """Return notes on an error that a batch has raised: what the batch was, and what would suit.

    ``own_target`` tells that there is no y, and x is its own target.
    """
    message = str(error)
    return [
        _batch_note(x, y, net),
        *_call_hints(message, x),
        *_target_hints(message, x, y, own_target=own_target),
        *_shape_hints(message, x),
        *_embedding_hints(message, x),
        *_gradient_hints(message),
        *(hint for words, hint in _HINTS.items() if words in message),
    ]


def _batch_note(x: Any, y: Any, net: nn.Module) -> str:
    """Return the shapes and dtypes of a batch, and the dtypes of the network."""
    batch = f"x with {_description(x)}"
    if tensors(y):
        batch += f" and y with {_description(y)}"
    network_dtypes = sorted({dtype_name(parameter) for parameter in net.parameters()})
    note = (
        f"While a batch of {batch} went through a network with {', '.join(network_dtypes)} "
        "parameters."
    )
    if not {*dtypes(x)} <= {*network_dtypes}:
        note += " If this is the problem, convert x, or batches by build(transform=)."
    return note


def _call_hints(message: str, x: Any) -> Iterator[str]:
    """Iterate over hints on how the network is called with x."""
    if isinstance(x, Tensor) and x.ndim == 1:
        yield "Each x is a number, of shape (); a network of features needs shape (1,)."
    if "forward" not in message:
        return
    if isinstance(x, dict):
        arguments = "keyword arguments " + ", ".join(x)
    elif is_sequence(x):
        arguments = f"{len(x)} arguments"
    else:
        return
    yield f"x is a {type(x).__name__}, so the network is called with {arguments}."


def _target_hints(message: str, x: Any, y: Any, *, own_target: bool) -> Iterator[str]:
    """Iterate over hints on targets."""
    if own_target and isinstance(x, dict) and "unexpected keyword" in message:
        yield "Name the inputs and targets of samples: Samples(dataset, x=..., y=...)."
    if own_target:
        yield "There is no y, so x is its own target."
    has_classes = isinstance(y, Tensor) and y.numel() and not y.is_floating_point()
    if message.startswith("Target ") and has_classes:
        yield (
            f"The targets of the batch go from {int(y.min())} to {int(y.max())}: classes are "
            "numbered from 0, and the network needs an output for each."
        )
        mark = int(y.min()) if y.min() < 0 else int(y.max())
        if mark < 0 or mark == _UNLABELLED:
            yield (
                f"If {mark} marks targets that are not known, the loss leaves them out with "
                f"torch.nn.CrossEntropyLoss(ignore_index={mark})."
            )


def _shape_hints(message: str, x: Any) -> Iterator[str]:
    """Iterate over hints on the dimensions of an x that is a single tensor."""
    parts = tensors(x)
    if len(parts) != 1:
        return
    shape = parts[0].shape
    # Torch takes the samples for channels.
    if "channels" in message and len(shape) == 3 and "input[1, " in message:
        yield (
            "x has no dimension of channels: give x[:, None], or build(transform=lambda x: "
            "x.unsqueeze(1))."
        )
    if "channels" in message and len(shape) == 4 and shape[-1] in (1, 3, 4):
        yield (
            f"x seems to have its {shape[-1]} channels last, but torch expects them after the "
            "samples: give x.transpose(0, 3, 1, 2), or build(transform=lambda x: "
            "x.permute(0, 3, 1, 2))."
        )
    if "cannot be multiplied" in message and len(shape) == 1:
        yield "x has one number for each sample: give x[:, None], or x[None] for a single sample."


def _embedding_hints(message: str, x: Any) -> Iterator[str]:
    """Iterate over hints on what embeddings take."""
    if "embedding" in message and "indices" in message:
        yield (
            "nn.Embedding takes integers: give codes apart from other numbers, as in "
            "x={'numbers': ..., 'codes': ...}; of CSV files with "
            "CsvReader(dtypes={'code': 'int64'})."
        )
    if message == "index out of range in self":
        ranges = [
            f"from {int(part.min())} to {int(part.max())}"
            for part in tensors(x)
            if _has_integers(part)
        ]
        yield (
            "nn.Embedding(n, ...) takes integers from 0 to n - 1; those in x go "
            f"{' and '.join(ranges)}."
        )


def _gradient_hints(message: str) -> Iterator[str]:
    """Iterate over hints on gradients that are not computed."""
    if "does not require grad" in message and not torch.is_grad_enabled():
        yield "Evaluation computes no gradients, except within `with torch.enable_grad():`."


def label_hint(loss: object, output: object, target: object) -> str:
    """Return what makes targets suitable that a cross entropy of torch has refused; or nothing."""
    if not isinstance(loss, nn.CrossEntropyLoss | nn.NLLLoss):
        return ""
    if not (isinstance(output, Tensor) and isinstance(target, Tensor)):
        return ""
    hint = last_axis_hint(output, target)
    if hint:
        return hint
    if target.shape == output.shape and isinstance(loss, nn.CrossEntropyLoss):
        return (
            "One-hot targets are floating-point numbers: give y.float(), or class numbers, "
            "y.argmax(1)."
        )
    if output.dim() < 2 or target.numel() * output.shape[1] != output.numel():
        return ""
    suitable = "y"
    if target.dim() == output.dim() and target.shape[1:2] == (1,):
        suitable += ".squeeze(1)"
    if target.is_floating_point() or target.dtype == torch.bool:
        suitable += ".long()"
    if suitable == "y":
        return ""
    return f"Targets are an integer class number for each sample: give {suitable}."


def kind_of(value: Any) -> str:
    """Return what a value is, for a message."""
    if value is None:
        return "None"
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)}"
    if isinstance(value, Mapping):
        return f"a dict of {', '.join(map(repr, value)) or 'nothing'}"
    return f"a {type(value).__name__}"


def _description(batch: Any) -> str:
    """Return the shapes and dtypes of the tensors of a batch."""
    return " and ".join(
        f"shape {tuple(part.shape)} and dtype {dtype_name(part)}" for part in tensors(batch)
    )


def tensors(values: Any) -> list[Tensor]:
    """Return the tensors of a batch; of packed sequences, their items."""
    if isinstance(values, Mapping):  # what a collate of Hugging Face makes is no dict
        values = dict(values)
    parts = [leaf.data if isinstance(leaf, PackedSequence) else leaf for leaf in leaves(values)]
    return [part for part in parts if isinstance(part, Tensor)]


def dtypes(values: Any) -> list[str]:
    """Return the names of the dtypes of the tensors of a batch."""
    return [dtype_name(tensor) for tensor in tensors(values)]


def dtype_name(tensor: Tensor) -> str:
    """Return the name of a tensor's dtype."""
    return str(tensor.dtype).removeprefix("torch.")


def _has_integers(tensor: Tensor) -> bool:
    return not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
