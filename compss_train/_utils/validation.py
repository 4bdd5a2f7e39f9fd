"""Checks of single arguments. Each message says what was given and what is accepted."""

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import cache, wraps
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_args

from compss_train.exceptions import SimulationError, WorkerTraceback

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _number(
    name: str, value: Any, kind: type, is_accepted: Callable[[Any], bool], accepted: str
) -> Any:
    if isinstance(value, bool) or not isinstance(value, kind) or not is_accepted(value):
        raise ValueError(f"{name}={value!r}: give {accepted}")
    return value


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an int; raise ``ValueError`` unless it is an integer of at least
    ``least``.
    """
    return int(
        _number(
            name, value, Integral, lambda given: given >= least, f"an integer of at least {least}"
        )
    )


def check_integer(name: str, value: Any) -> int:
    """Return ``value`` as an int; raise ``ValueError`` unless it is an integer."""
    return int(_number(name, value, Integral, lambda _: True, "an integer"))


def check_positive(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise ``ValueError`` unless it is a finite number above 0."""
    return float(
        _number(name, value, Real, lambda given: 0 < given < inf, "a number above 0, or None")
    )


def check_seconds(name: str, value: Any) -> float:
    """Return ``value`` as seconds; raise ``ValueError`` unless it is a finite number above 0."""
    return float(
        _number(name, value, Real, lambda given: 0 < given < inf, "a number of seconds above 0")
    )


def check_non_negative(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise ``ValueError`` unless it is a finite number of at least
    0.
    """
    return float(
        _number(name, value, Real, lambda given: 0 <= given < inf, "a number of at least 0")
    )


def check_fraction(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise ``ValueError`` unless it is a number between 0 and 1."""
    return float(
        _number(name, value, Real, lambda given: 0 < given < 1, "a number above 0 and below 1")
    )


def check_seed(value: Any) -> int:
    """Return ``value`` as an int; raise ``ValueError`` unless it is a seed that torch accepts."""
    if check_count("seed", value, least=0) >= 2**63:
        raise ValueError(f"seed={value!r}: give an integer below 2**63")
    return int(value)


def check_choice(name: str, value: Any, accepted: Collection[Any]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of the accepted ones, listing them."""
    if not any(
        value is choice or (isinstance(value, str) and value == choice) for choice in accepted
    ):
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(repr, accepted))}")


def check_dense(name: str, tensor: Any) -> None:
    """Raise ``TypeError`` for a tensor that is not a dense array of numbers."""
    if (
        tensor.is_nested
        or tensor.is_meta
        or tensor.is_quantized
        or str(tensor.layout) != "torch.strided"
    ):
        kind = "nested tensor" if tensor.is_nested else "tensor"
        raise TypeError(
            f"{name} is a {kind} of {tensor.dtype}, {tensor.layout} on {tensor.device}; give a "
            "dense one of numbers, tensor.to_dense(), tensor.dequantize() or "
            "torch.nested.to_padded_tensor(tensor, 0.0)"
        )


_OTHERS = {
    "lr": "learning_rate",
    "optimizer": "lr learning_rate momentum weight_decay",
    "loss": "criterion",
    "net": "model module network",
    "num_gpu": "device devices accelerator",
    "num_workers": "n_jobs nprocs num_processes world_size",
    "x": "data dataloader train_data train_dataloader train_dataloaders train_dataset",
    "validation_data": "val_dataloaders val_loader valid_set",
    "progress": "verbose",
    "resume": "ckpt_path",
    "callbacks": "checkpoint early_stopping logger patience",
    "model()": "module module_ net net_ network get_model unwrap_model to_onnx",
    "model().state_dict()": "state_dict",
    "get_parameters()": "parameters named_parameters params weights get_weights",
    "set_parameters()": "load_state_dict load_params load_weights set_weights",
    "fit()": "learn partial_fit run train train_on_batch",
    "build(num_gpu=1)": "cuda device to",
    "evaluate()": "score test validate",
    "history": "callback_metrics current_epoch epoch history_ logged_metrics loss metrics plot",
}
"""Ours, which begins with a name that is accepted, and what other libraries call it."""


def suggestion(name: str, accepted: Collection[str]) -> str:
    """Return "; did you mean ...?" with the accepted name most similar to ``name``, or ``""``.

    Words of other libraries are known, and abbreviations: the begin of a name, its end or its
    initials.
    """
    meant = _meant(name, accepted)
    return f"; did you mean {meant}?" if meant else ""


def _meant(name: str, accepted: Collection[str]) -> str:
    given = name.lower()
    by_lower = {key.lower(): key for key in accepted}
    for ours, others in _OTHERS.items():
        if given in others.split() and ours.partition("(")[0] in by_lower:
            return ours
    similar = get_close_matches(given, by_lower, n=1)
    short = len(given) > 1 and not similar
    for key in sorted(by_lower, key=len, reverse=True) if short else ():
        initials = "".join(part[:1] for part in key.split("_"))
        begins = key.startswith(given) or (len(key) > 1 and given.startswith(key))
        if (
            begins
            or initials == given
            or (len(given) > 2 and key.endswith(given.removesuffix("s")))
        ):
            similar = [key]
    return by_lower[similar[0]] if similar else ""


class Suggesting:
    """An object whose missing attributes are errors that name what users of other libraries may
    mean.
    """

    _meaning = ""
    """What it is, where its own name does not tell."""

    if not TYPE_CHECKING:  # type checkers know what is missing

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that has raised this error
                return super().__getattribute__(name)
            known = [each for each in dir(type(self)) if each[0] != "_"]
            hint = (self._meaning or suggestion(name, known)) if name[:1] != "_" else ""
            # With ``name=``, Python adds no suggestion of its own.
            raise AttributeError(
                f"{type(self).__name__!r} object has no attribute {name!r}{hint}", name=name
            )


def _keywords(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's arguments, with those of a typed dict."""
    parameters = inspect.signature(function).parameters
    dicts = (
        own
        for each in parameters.values()
        if each.kind is each.VAR_KEYWORD
        for own in get_args(each.annotation)
    )
    return [*parameters, *(name for own in dicts for name in own.__annotations__)]


def _called(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__").rpartition(".")[2]


def check_keywords(function: Callable[..., Any], keywords: Collection[str]) -> None:
    """Raise ``TypeError`` for a keyword that the function lacks, with the most similar one of it or
    its class.
    """
    accepted = _keywords(function)
    owner = function.__qualname__.rpartition(".")[0]
    siblings = vars(getattr(sys.modules[function.__module__], owner, type))
    methods = [
        each for each in siblings.values() if inspect.isfunction(each) and _called(each)[0] != "_"
    ]
    for name in keywords:
        if name not in accepted:
            elsewhere = {
                key: _called(each) for each in reversed(methods) for key in _keywords(each)
            }
            meant = _meant(name, accepted)
            other = _meant(name, elsewhere)
            if other and (name in elsewhere or not meant):
                meant = f"{elsewhere[other]}({other}=)"
            hint = (
                f"did you mean {meant}?"
                if meant
                else f"it takes {', '.join(accepted).removeprefix('self, ')}"
            )
            raise TypeError(
                f"{_called(function)}() got an unexpected keyword argument {name!r}; {hint}"
            ) from None  # Python's own error says less


def entry_point(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let a method that users call check its keywords by ``check_keywords``: Python's own error
    suggests nothing.

    Exceptions of tasks are raised without the package's frames: the task's own say where they come
    from.
    """

    @wraps(method)
    def checked(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Result:
        try:
            return method(*args, **kwargs)
        except Exception as error:
            if isinstance(error, TypeError):
                check_keywords(method, kwargs)
            if isinstance(error, SimulationError) or isinstance(error.__cause__, WorkerTraceback):
                raise error.with_traceback(None) from error.__cause__
            raise

    return checked


@cache
def warn_once(message: str) -> None:
    """Warn as ``warn_user`` does, once a program."""
    warn_user(message)


def warn_user(message: str) -> None:
    """Issue a ``UserWarning`` that points to the line of the user's code that called this
    package.
    """
    frame = sys._getframe(1)
    level = 2
    inside = ("compss_train", "contextlib")  # the package's context managers are called from there
    while (
        frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] in inside
    ):
        frame = frame.f_back
        level = level + 1
    warnings.warn(message, stacklevel=level)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``"tcp://host:port"``; raise ``ValueError`` for anything else."""
    match = re.fullmatch(r"tcp://([^\s:/*]+):(\d+)", address) if isinstance(address, str) else None
    if match is None or int(match[2]) >= 2**16:
        raise ValueError(f"address={address!r}: give tcp://HOST:PORT")
    return match[1], int(match[2])
