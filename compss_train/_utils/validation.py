"""Checks of single arguments. Each message says what was given and what is accepted."""

import inspect
import re
import sys
import warnings
from collections.abc import Callable, Collection
from difflib import get_close_matches
from functools import cache, wraps
from math import isfinite
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, Unpack, get_args, get_origin

from compss_train._utils.tracebacks import without_inner_frames
from compss_train.exceptions import SimulationError, WorkerTraceback

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def _number(
    name: str, value: Any, kind: type, is_accepted: Callable[[Any], bool], accepted: str
) -> Any:
    is_number = isinstance(value, kind) and not isinstance(value, bool)
    if not is_number or not is_accepted(value):
        raise ValueError(f"{name}={value!r}: give {accepted}")
    return value


def is_finite(number: Any) -> bool:
    """Return whether a number is finite as a float: the largest integers are not."""
    try:
        return isfinite(number)
    except OverflowError:
        return False


def _is_positive(number: Any) -> bool:
    return bool(number > 0) and is_finite(number)


def _is_non_negative(number: Any) -> bool:
    return bool(number >= 0) and is_finite(number)


def check_count(name: str, value: Any, least: int = 1) -> int:
    """Return ``value`` as an int; raise ``ValueError`` unless it is one of at least ``least``."""
    accepted = f"an integer of at least {least}"
    return int(_number(name, value, Integral, lambda number: number >= least, accepted))


def check_integer(name: str, value: Any) -> int:
    """Return ``value`` as an int; raise ``ValueError`` unless it is an integer."""
    return int(_number(name, value, Integral, lambda _: True, "an integer"))


def check_positive(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise ``ValueError`` unless it is a finite number above 0."""
    accepted = "a number above 0, or None"
    return float(_number(name, value, Real, _is_positive, accepted))


def check_seconds(name: str, value: Any) -> float:
    """Return ``value`` as seconds; raise ``ValueError`` unless it is a finite number above 0."""
    accepted = "a number of seconds above 0"
    return float(_number(name, value, Real, _is_positive, accepted))


def check_non_negative(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise ``ValueError`` unless it is finite and at least 0."""
    accepted = "a number of at least 0"
    return float(_number(name, value, Real, _is_non_negative, accepted))


def check_fraction(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise ``ValueError`` unless it is a number between 0 and 1."""
    accepted = "a number above 0 and below 1"
    return float(_number(name, value, Real, lambda number: 0 < number < 1, accepted))


def check_probability(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise ``ValueError`` unless it is a number from 0 to 1."""
    accepted = "a number from 0 to 1"
    return float(_number(name, value, Real, lambda number: 0 <= number <= 1, accepted))


def check_seed(value: Any) -> int:
    """Return ``value`` as an int; raise ``ValueError`` unless it is a seed that torch accepts."""
    if check_count("seed", value, least=0) >= 2**63:
        raise ValueError(f"seed={value!r}: give an integer below 2**63")
    return int(value)


def is_iterable(value: object) -> bool:
    """Return whether a value has items; an array without axes, a number, has none."""
    try:
        iter(value)  # type: ignore[call-overload]
    except TypeError:
        return False
    return True


def check_choice(name: str, value: Any, accepted: Collection[Any]) -> None:
    """Raise ``ValueError`` unless ``value`` is one of the accepted ones, listing them."""
    is_text = isinstance(value, str)
    if not any(value is choice or (is_text and value == choice) for choice in accepted):
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(map(repr, accepted))}")


def is_text(value: object) -> bool:
    """Return whether a value is a string that can be sent; one with half a character cannot."""
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def check_name(option: str, value: Any) -> None:
    """Raise ``ValueError`` unless a value is a text that is not empty, or ``None``."""
    if value is not None and not (is_text(value) and value):
        raise ValueError(f"{option}={value!r}: give a string that is not empty, or None")


def check_token(token: Any) -> str:
    """Return the token; raise ``ValueError`` unless it is a text that is not empty."""
    if not isinstance(token, str) or not token or not is_text(token):
        raise ValueError(
            f"token={token!r}: give a secret string that is not empty, such as "
            "secrets.token_urlsafe()"
        )
    return token


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


_WORDS_OF_OTHERS = {
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
    "engine=RayEngine(resources={'bigmem': 1})": "resources custom_resources resources_per_worker",
    "model()": "module module_ net net_ network get_model unwrap_model",
    "model().state_dict()": "state_dict",
    "export()": "export_onnx onnx save_onnx to_onnx to_torchscript",
    "get_parameters()": "parameters named_parameters params weights get_weights",
    "set_parameters()": "load_state_dict load_params load_weights set_weights",
    "fit()": "learn partial_fit run train train_on_batch",
    "build(num_gpu=1)": "cuda device to",
    "evaluate()": "score test validate",
    "predict(probabilities=True)": "predict_log_proba predict_proba",
    "history": "callback_metrics current_epoch epoch history_ logged_metrics loss metrics plot",
}
"""Words of other libraries, by ours: each of these begins with a name that may be accepted.

``name=value`` is a keyword with a value that may be meant.
"""


def suggestion(name: str, accepted: Collection[str]) -> str:
    """Return "; did you mean ...?" with the accepted name most similar to ``name``, or ``""``.

    Words of other libraries are known, and abbreviations: the beginning of a name, its end or its
    initials.
    """
    meant = _meant(name, accepted)
    return f"; did you mean {meant}?" if meant else ""


def _meant(name: str, accepted: Collection[str]) -> str:
    """Return the accepted name that ``name`` may stand for, or ``""``."""
    word = name.lower()
    by_lower = {key.lower(): key for key in accepted}
    for ours, theirs in _WORDS_OF_OTHERS.items():
        if word in theirs.split() and re.split("[(=]", ours)[0] in by_lower:
            return ours
    similar = get_close_matches(word, by_lower, n=1)
    if not similar:
        similar = [key for key in sorted(by_lower, key=len) if _abbreviates(word, key)]
    return by_lower[similar[0]] if similar else ""


def _abbreviates(word: str, name: str) -> bool:
    """Return whether a word begins or ends a name, is its initials, or begins with it."""
    if len(word) < 2:
        return False
    initials = "".join(part[:1] for part in name.split("_"))
    return (
        word == initials
        or name.startswith(word)
        or (len(name) > 1 and word.startswith(name))
        or (len(word) > 2 and name.endswith(word.removesuffix("s")))
    )


class Suggesting:
    """An object whose missing attributes are errors that name what may be meant.

    Words of other libraries are known.
    """

    _meaning = ""
    """What it is, where its own name does not tell."""

    if not TYPE_CHECKING:  # type checkers know what is missing

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that has raised this error
                return super().__getattribute__(name)
            hint = ""
            if not name.startswith("_"):
                public = [attribute for attribute in dir(type(self)) if attribute[0] != "_"]
                hint = self._meaning or suggestion(name, public)
            words = f"{type(self).__name__!r} object has no attribute {name!r}{hint}"
            raise AttributeError(words, name=name)  # to which Python adds no suggestion of its own


def _keywords(function: Callable[..., Any]) -> list[str]:
    """Return the names of a function's arguments, with those of a typed dict of keywords."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if get_origin(parameter.annotation) is Unpack:
            for typed_dict in get_args(parameter.annotation):
                names += typed_dict.__annotations__
        elif parameter.kind is not parameter.VAR_KEYWORD:
            names.append(name)
    return names


def _takes_any_keyword(function: Callable[..., Any]) -> bool:
    return any(
        parameter.kind is parameter.VAR_KEYWORD and get_origin(parameter.annotation) is not Unpack
        for parameter in inspect.signature(function).parameters.values()
    )


def _called(function: Callable[..., Any]) -> str:
    return function.__qualname__.removesuffix(".__init__").rpartition(".")[2]


def check_keywords(function: Callable[..., Any], keywords: Collection[str]) -> None:
    """Raise ``TypeError`` for a keyword that the function lacks.

    It names the most similar keyword of the function or of another public method of its class. A
    function that takes any keyword checks them itself.
    """
    if _takes_any_keyword(function):
        return
    accepted = _keywords(function)
    for name in keywords:
        if name in accepted:
            continue
        meant = _meant(name, accepted)
        methods = _methods_by_keyword(function)
        keyword = _meant(name, methods)
        if "=" in keyword:
            method = methods[keyword.partition("=")[0]]
            meant = f"{method}({keyword})"
        elif keyword and (name in methods or not meant):
            meant = f"{methods[keyword]}({keyword}=)"
        names = ", ".join(accepted).removeprefix("self, ")
        hint = f"did you mean {meant}?" if meant else f"it takes {names}"
        raise TypeError(
            f"{_called(function)}() got an unexpected keyword argument {name!r}; {hint}"
        ) from None  # Python's own error says less


def _methods_by_keyword(function: Callable[..., Any]) -> dict[str, str]:
    """Return by keyword the first public method with it, of the class of a method."""
    owner = function.__qualname__.rpartition(".")[0]
    siblings = vars(getattr(sys.modules[function.__module__], owner, type)).values()
    methods: dict[str, str] = {}
    for method in filter(inspect.isfunction, siblings):
        if not _called(method).startswith("_"):
            for keyword in _keywords(method):
                methods.setdefault(keyword, _called(method))
    return methods


def entry_point(method: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Let a method that users call check its keywords by ``check_keywords``.

    Python's own error suggests nothing. Exceptions of tasks are raised without the package's
    frames: the task's own say where they come from. Those of users' code that runs in this process
    are raised without the frames that lead to it.
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
            error.__traceback__ = without_inner_frames(error.__traceback__)
            raise

    return checked


@cache
def warn_once(message: str) -> None:
    """Warn as ``warn_user`` does, once a program."""
    warn_user(message)


def warn_user(message: str) -> None:
    """Issue a ``UserWarning`` that points to the line of user code that called this package."""
    inside = ("compss_train", "contextlib")  # the package's context managers are called from there
    frame = sys._getframe(1)
    level = 2
    while frame.f_back is not None:
        package = frame.f_globals.get("__name__", "").partition(".")[0]
        if package not in inside:
            break
        frame = frame.f_back
        level += 1
    warnings.warn(message, stacklevel=level)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of ``"tcp://host:port"``; raise ``ValueError`` for anything else."""
    match = re.fullmatch(r"tcp://([^\s:/*]+):(\d+)", address) if isinstance(address, str) else None
    if match is None or int(match[2]) >= 2**16:
        raise ValueError(f"address={address!r}: give tcp://HOST:PORT")
    return match[1], int(match[2])
