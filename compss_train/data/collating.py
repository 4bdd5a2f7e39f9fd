"""How samples become a batch: stacked, or by the function ``collate`` of a user."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Number
from typing import Any, TypeAlias

import numpy as np
import torch

from compss_train._utils.nested import leaves, map_leaves
from compss_train.data.block import as_tensor
from compss_train.data.layout import quote_names
from compss_train.data.ragged import Ragged
from compss_train.data.sample_roles import TARGETS
from compss_train.data.values import check_dtype, check_values, holds_numbers, signed, tensor_of

Collate: TypeAlias = Callable[[list[Any]], Any]


def collate_pairs(collate: Collate, pairs: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """Return x and y of a batch that the function ``collate`` of ``build`` makes of samples.

    It gets a list of (x, y), or of x without targets, and must return a batch of the same kind. A
    collator of Hugging Face gets samples with their labels, and makes one dict of them. Raises
    ``TypeError`` for other results.
    """
    if pairs[0][1] is None:
        return in_tensors(collate([x for x, _ in pairs])), None
    if isinstance(collate, PredictionCollate):
        if takes_whole_samples(collate.collate):
            return collate([x for x, _ in pairs]), None
        collate = collate.collate
    if takes_whole_samples(collate):
        return in_tensors(collate([_whole(*pair) for pair in pairs])), None
    try:
        batch = collate(pairs)
    except Exception as error:
        if isinstance(pairs[0][0], Mapping):
            error.add_note(
                "collate= was called with a list of (x, y). A function for whole samples is given "
                "as Samples(dataset, collate=...), or as collate_fn= of a DataLoader."
            )
        raise
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        made = f"a {type(batch).__name__}"
        if isinstance(batch, tuple | list):
            made += f" of {len(batch)} parts"
        raise TypeError(
            f"collate returned {made} for a list of (x, y); return two, (x, y), where several "
            "inputs or targets are a tuple or a dict, as ((x1, x2), y)"
        )
    return in_tensors(batch[0]), in_tensors(batch[1])


def takes_whole_samples(collate: Collate) -> bool:
    """Return whether a function is a collator of Hugging Face; imports nothing."""
    function = collate.func if isinstance(collate, partial) else collate
    module = getattr(function, "__module__", None) or ""
    return module.partition(".")[0] == "transformers"


def _whole(x: Any, y: Any = None) -> dict[str, Any]:
    """Return a sample as a dict with the names of Hugging Face's tokenizers."""
    sample = dict(x) if isinstance(x, Mapping) else {"input_ids": x}
    return sample if y is None else {**sample, "labels": y}


def split_targets(made: Any) -> tuple[Any, Any]:
    """Return x and y of a batch that was made of samples without y, for a loss.

    A mapping is inputs with targets, by the names in ``TARGETS``, and a pair is x and y; anything
    else is x, and y is ``None``.
    """
    if isinstance(made, Mapping):
        inputs = dict(made)
        name = next((name for name in TARGETS if name in inputs), None)
        return inputs, None if name is None else inputs.pop(name)
    if type(made) is tuple and len(made) == 2:
        return made
    return made, None


def in_tensors(part: Any, function: str = "collate") -> Any:
    """Return x or y that a user's function made.

    Raises ``TypeError`` for arrays, which networks do not take.
    """
    if any(isinstance(leaf, np.ndarray) for leaf in leaves(part)):
        raise TypeError(
            f"{function} returned a numpy array: return tensors, as torch.from_numpy(array)"
        )
    return part


@dataclass(frozen=True)
class PredictionCollate:
    """``build``'s ``collate`` in prediction: of samples without y it returns x of the batch.

    ``collate`` gets (x, y) as in training, with a tensor of zero in place of y, a number or a
    sequence of one; a function that takes neither gets x alone.
    """

    collate: Collate

    def __call__(self, samples: list[Any]) -> Any:
        """Return x of the batch; if all ways fail, raise the error for (x, y), with a note."""
        if takes_whole_samples(self.collate):
            return split_targets(self.collate([_whole(x) for x in samples]))[0]
        failures: list[Exception] = []
        for shape in ((), (1,)):
            pairs = [(x, torch.zeros(shape, dtype=torch.int64)) for x in samples]
            try:
                return collate_pairs(self.collate, pairs)[0]
            except Exception as error:
                failures.append(error)
        try:
            return split_targets(self.collate(samples))[0]
        except Exception as error:
            failures[0].add_note(
                "predict has no y: collate was called with a list of (x, y), with zeros in place "
                f"of y, and then with a list of x, which also failed ({type(error).__name__}: "
                f"{error}); let it take one of these"
            )
            raise failures[0] from None
        finally:
            failures.clear()  # the frames of its errors would keep the batch


def collate_batch(collate: Collate, x: Any, y: Any, *, samples: int) -> tuple[Any, Any]:
    """Return x and y of a batch that ``build``'s ``collate`` makes of the rows of x and y."""

    def sample(part: Any, number: int) -> Any:
        return None if part is None else map_leaves(lambda leaf: leaf[number], part)

    pairs = [(sample(x, number), sample(y, number)) for number in range(samples)]
    return collate_pairs(collate, pairs)


def stacked(values: Sequence[Any]) -> Any:
    """Return samples as one tensor with a row for each, or tuples, lists and dicts of such tensors.

    Python floats, also in lists, become torch's default dtype. Sequences that differ in length are
    returned as ``Ragged``.

    Raises ``TypeError`` for values that are not numbers, ``ValueError`` for shapes that differ
    otherwise.
    """
    first = values[0]
    if isinstance(first, Mapping):
        for value in values:
            if value.keys() != first.keys():
                raise ValueError(
                    f"samples of a batch have different parts, {quote_names(first)} and "
                    f"{quote_names(value)}: give each the same, or name those to use with "
                    "Samples(dataset, x=..., y=...)"
                )
        return {name: stacked([value[name] for value in values]) for name in first}
    if isinstance(first, tuple | list) and not holds_numbers(first):
        columns = [stacked(column) for column in zip(*values, strict=True)]
        return tuple(columns) if isinstance(first, tuple) else columns
    if isinstance(first, Number) and not isinstance(first, np.generic):
        return tensor_of(values)
    tensors = [_as_tensor(value) for value in values]
    if len({tensor.shape for tensor in tensors}) == 1:
        return torch.stack(tensors)
    if len({tensor.shape[1:] for tensor in tensors}) == 1:
        return Ragged(tensors)
    shapes = list(dict.fromkeys(tuple(tensor.shape) for tensor in tensors))
    examples = ", ".join(map(str, shapes[:3]))
    raise ValueError(
        f"the samples of a batch have shapes that differ, such as {examples}: resize or pad them "
        "in the data set, or give Samples(dataset, collate=...), a function that makes a batch "
        "of a list of samples"
    )


def _as_tensor(value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor | np.ma.MaskedArray) or hasattr(value, "nnz"):
        check_values("a part of a sample", value)
    if isinstance(value, torch.Tensor):
        return signed(value.detach().cpu())
    if isinstance(value, list) and holds_numbers(value):
        return tensor_of(value)
    try:
        array = np.asarray(value)  # of an image, too
    except ValueError:  # of an object that can be iterated over, such as a graph
        array = np.array(None)
    if array.dtype.kind not in "biufc":
        kind = type(value).__name__
        content = f"a {kind}"
        if isinstance(value, str):
            content = f"the {kind} {value!r}"[:80]
        elif hasattr(value, "dtype") or array.dtype != object:
            content += f" of dtype {array.dtype}"
        raise TypeError(
            f"a sample holds {content}, which is not a number; convert it in the data set, "
            "leave it out with Samples(dataset, x=..., y=...), or give the function that makes a "
            "batch of a list of samples: Samples(dataset, collate=...)"
        )
    check_dtype(array.dtype)
    return as_tensor(signed(array))
