"""Steps that follow a reduce: of an outer optimizer, and of a moving average.

The mean change of a round is the negative of a gradient, with which an *outer optimizer* steps
(Reddi et al. 2021, "Adaptive federated optimization"; DiLoCo, Douillard et al. 2023, arXiv
2311.08105).
"""

import copy
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from compss_train.model.optimizers import OptimizerFactory
from compss_train.model.parameters import Parameters, check_outer_step
from compss_train.model.parts import Piece

OuterState: TypeAlias = dict[str, Any]
"""The ``"kind"`` of the outer optimizer, and its ``"state"``: what it keeps by names of weights."""

NO_STATE: OuterState = {"kind": "", "state": {}}
"""That before the first step, and of a part without weights."""

ELEMENT_BY_ELEMENT = (
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.Adamax,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.ASGD,
)
"""Optimizers that step each element by itself, so that pieces of weights can be stepped apart."""


WEIGHT_BY_WEIGHT = [vars(torch.optim).get(name) for name in ("Adafactor", "Muon")]
"""Optimizers that step each weight by itself, with statistics of its elements, if torch has them.
"""


def steps_by_element(factory: OptimizerFactory) -> bool:
    """Return whether pieces of weights can be stepped apart."""
    return _class_of(factory) in ELEMENT_BY_ELEMENT


def steps_by_weight(factory: OptimizerFactory) -> bool:
    """Return whether whole weights can be stepped apart.

    Others may look at all weights, as for a global norm, and callables may group them.
    """
    return _class_of(factory) in [*ELEMENT_BY_ELEMENT, *WEIGHT_BY_WEIGHT]


def _class_of(factory: OptimizerFactory) -> Any:
    """Return the class that the factory calls with its parameters unchanged; else the factory."""
    return factory.func if isinstance(factory, partial) else factory


def outer_step(
    factory: OptimizerFactory,
    weights: Collection[str],
    base: Parameters,
    mean: Mapping[str, NDArray[Any]],
    saved: OuterState | None,
) -> tuple[Parameters, OuterState]:
    """Return the parameters after a step from ``base``, and the state of the optimizer.

    ``weights`` names those that are stepped; the others are those of ``mean``. Raises
    ``DivergedError`` if the step leads to NaN or infinity.
    """
    names = [name for name in weights if name in base]
    if not names:
        return dict(mean), dict(NO_STATE)
    stepping = {name: nn.Parameter(torch.from_numpy(_wide(base[name]))) for name in names}
    for name, weight in stepping.items():
        # Numpy makes numbers of scalars.
        weight.grad = torch.from_numpy(np.asarray(_wide(base[name]) - mean[name]))
    optimizer = factory(stepping.values())
    numbers = _numbers(optimizer, stepping)
    # Else of another fit's outer optimizer.
    if saved is not None and saved["kind"] == _kind(optimizer):
        kept = copy.deepcopy(saved["state"])  # optimizers update loaded tensors in place
        numbered = {numbers[name]: state for name, state in kept.items() if name in numbers}
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": numbered, "param_groups": groups})
    optimizer.step()
    stepped = {
        name: _relative_to_mean(weight.detach().numpy(), base[name], mean[name])
        for name, weight in stepping.items()
    }
    check_outer_step(stepped, base, mean)
    after = optimizer.state_dict()["state"]
    state = {name: after[number] for name, number in numbers.items() if number in after}
    parameters = {name: stepped.get(name, array) for name, array in mean.items()}
    return parameters, {"kind": _kind(optimizer), "state": state}


def _numbers(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, nn.Parameter]
) -> dict[str, int]:
    """Return the number of each weight in the optimizer's state_dict."""
    names = {id(weight): name for name, weight in weights.items()}
    ordered = (weight for group in optimizer.param_groups for weight in group["params"])
    return {names[id(weight)]: number for number, weight in enumerate(ordered)}


def _wide(array: NDArray[Any]) -> NDArray[Any]:
    """Return a copy in at least single precision."""
    return array.astype(np.result_type(array.dtype, np.float32))


def _relative_to_mean(
    stepped: NDArray[Any], base: NDArray[Any], mean: NDArray[Any]
) -> NDArray[Any]:
    """Return the stepped values, computed as mean - (base - gradient - stepped).

    The bracket is the difference from plain SGD with a learning rate of 1, whose result is the
    mean: computed this way, it is exactly the mean, without the rounding of base - (base - mean).
    """
    wide = _wide(base)
    difference = wide - (wide - mean)
    difference -= stepped
    return np.asarray(mean - difference).astype(mean.dtype, copy=False)


def _kind(optimizer: torch.optim.Optimizer) -> str:
    """Return what decides which state there is: the class, and options such as ``amsgrad``."""
    without_state = {"params", "lr", "foreach", "fused", "capturable", "differentiable"}
    enabled = [
        name
        for name, value in optimizer.param_groups[0].items()
        if name not in without_state and not torch.is_tensor(value) and value
    ]
    return " ".join([type(optimizer).__name__, *enabled])


def moving_average(
    averaged: Parameters | None,
    parameters: Parameters,
    decay: float,
    newest: Collection[str] = (),
) -> Parameters:
    """Return decay · averaged + (1 - decay) · parameters.

    Integers are the newest, and so are the parameters named by ``newest``.
    """
    if averaged is None:
        return parameters
    moved = dict(parameters)
    for name, array in parameters.items():
        if array.dtype.kind in "fc" and name not in newest:
            average = np.asarray(decay * averaged[name] + (1 - decay) * array)
            moved[name] = average.astype(array.dtype)
    return moved


def joined_outer(states: Sequence[OuterState], cuts: Sequence[Mapping[str, Piece]]) -> OuterState:
    """Return the state of an outer optimizer from those of all parts, cut at ``cuts``."""
    kinds = [state["kind"] for state in states if state["kind"]]
    pieces: dict[str, list[dict[str, Any]]] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    for state, cut in zip(states, cuts, strict=True):
        shapes |= {name: piece.shape for name, piece in cut.items()}
        for name, kept in state["state"].items():
            pieces.setdefault(name, []).append(kept)
    whole = {
        name: _joined_state(kept, shapes[name]) if name in shapes else kept[0]
        for name, kept in pieces.items()
    }
    return {"kind": kinds[0] if kinds else "", "state": whole}


def _joined_state(pieces: Sequence[Mapping[str, Any]], shape: tuple[int, ...]) -> dict[str, Any]:
    """Return what an optimizer keeps for a weight: scalars once, pieces one after another.

    That of a weight in one piece may have other shapes than the weight.
    """
    if len(pieces) == 1:
        return dict(pieces[0])
    return {
        name: torch.cat([piece[name] for piece in pieces]).reshape(shape)
        if torch.is_tensor(value) and value.ndim
        else value
        for name, value in pieces[0].items()
    }


def split_outer(state: OuterState, parts: Sequence[Mapping[str, Piece]]) -> list[OuterState]:
    """Return the state of an outer optimizer for each part of the weights."""
    if len(parts) == 1:
        return [state]
    kept = state["state"]
    return [
        {
            "kind": state["kind"],
            "state": {
                name: _state_of_piece(kept[name], piece)
                for name, piece in part.items()
                if name in kept
            },
        }
        for part in parts
    ]


def _state_of_piece(state: Mapping[str, Any], piece: Piece) -> dict[str, Any]:
    """Return what an optimizer keeps for a piece of a weight: scalars, and elements of tensors."""
    if piece.is_whole:
        return dict(state)
    return {
        name: value.reshape(-1)[piece.start : piece.stop]
        if torch.is_tensor(value) and value.ndim
        else value
        for name, value in state.items()
    }
