"""What workers send to the coordinator and get back from it, as data: safetensors and JSON, never pickles."""

import json
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from compss_train.model.saved_state import from_json, to_json, without_sharing
from compss_train.net.messages import MessageError

_DOCUMENT, _TENSORS = "json", "value"


def encode_value(value: Any) -> torch.Tensor:
    """Return a value of numbers, strings, lists, tuples, dicts, arrays and tensors as a tensor of bytes.

    The bytes are a safetensors file of its arrays, and of one that holds the JSON that refers to them by name.
    Raises ``TypeError`` for other types.
    """
    tensors: dict[str, torch.Tensor] = {}
    document = json.dumps(to_json(value, _TENSORS, tensors)).encode()
    tensors[_DOCUMENT] = torch.frombuffer(bytearray(document), dtype=torch.uint8)
    return torch.frombuffer(bytearray(save(without_sharing(tensors))), dtype=torch.uint8)


def decode_value(data: torch.Tensor) -> Any:
    """Return the value that ``encode_value`` encoded; nothing in it can execute code.

    Raises ``MessageError`` for other bytes, also for lists in lists that are too deep for Python.
    """
    try:
        tensors = load(np.asarray(data).tobytes())
        return from_json(json.loads(np.asarray(tensors.pop(_DOCUMENT)).tobytes()), tensors)
    except (SafetensorError, ValueError, TypeError, LookupError, RecursionError) as error:
        raise MessageError(
            f"{data.numel()} bytes are no value that encode_value made ({type(error).__name__}: {error}); the "
            "sender is damaged or has another version of compss_train"
        ) from error
