"""What the package does with private names of torch, torchmetrics, datasets and Ray.

There are no public ones for it. A release of theirs may change them:
``tests/_utils/test_private_names.py`` lists them, and is what fails then.
"""

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import attrgetter
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.utils.data._utils import worker as torch_worker
from torch.utils.data.dataloader import _BaseDataLoaderIter

_NAMESPACE = "compss_train"
"""Where the head of a Ray cluster keeps our values."""


def is_batch_norm(module: nn.Module) -> bool:
    """Return whether a module normalizes by statistics of batches, and keeps averages of them."""
    return isinstance(module, _BatchNorm)


def own_tensors(module: nn.Module) -> dict[str, torch.Tensor | None]:
    """Return the parameters and persistent buffers of a module itself, without its submodules.

    Those that it declares but lacks are ``None``.
    """
    kept = {**module._parameters, **module._buffers}
    return {name: kept[name] for name in kept if name not in module._non_persistent_buffers_set}


def state_tensors(net: nn.Module) -> dict[str, torch.Tensor]:
    """Return the parameters and persistent buffers of a network themselves, by torch's names.

    These are the entries of ``net.state_dict()``, in its order, unless a class or hook changes
    that: it may leave out what is trained, rename or copy it, or add what is no tensor of the
    network, such as the arguments of its ``__init__`` or a ``get_extra_state``.
    """
    return {
        f"{path}.{name}" if path else name: tensor
        for path, module in net.named_modules(remove_duplicate=False)
        for name, tensor in {**module._parameters, **module._buffers}.items()
        if tensor is not None and name not in module._non_persistent_buffers_set
    }


def held_by(module: nn.Module) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the dicts in which a module itself holds parameters, buffers and submodules."""
    return module._parameters, module._buffers, module._modules


def version_of(tensor: torch.Tensor) -> int:
    """Return how often a tensor has been changed in place."""
    return tensor._version


def hooks_of(owner: nn.Module | torch.Tensor) -> list[Any]:
    """Return the hooks of a module, or of a tensor's gradient, which may keep something.

    Those by which networks of transformers capture hidden states keep nothing, and are left out.
    """
    if isinstance(owner, torch.Tensor):
        return [hook for hooks in hook_dicts(owner) if hooks for hook in hooks.values()]
    if not any(map(vars(owner).get, _HOOKS)):
        return []
    return [
        hook
        for name in _HOOKS
        for hook in vars(owner).get(name, {}).values()
        if not is_capturing_hook(hook)
    ]


def is_capturing_hook(value: Any) -> bool:
    """Return whether it is a hook by which a network of transformers captures hidden states.

    A network that has none gets them when it is first asked for such states.
    """
    return (
        isinstance(value, FunctionType)
        and value.__module__ == _CAPTURING
        and value.__name__ == "output_capturing_hook"
    )


def capturing_hook(**variables: Any) -> Any:
    """Return such a hook with the variables of another one in its cells.

    Its functions cannot be pickled.
    """
    module = nn.Module()
    names = ("key", "index", "capture_initial_hidden_state")
    arguments = {name: variables[name] for name in names if name in variables}
    importlib.import_module(_CAPTURING).install_output_capuring_hook(module, **arguments)
    return next(iter(module._forward_hooks.values()))


def register_captured() -> None:
    """Let networks of transformers that were unpickled capture hidden states.

    What a class captures is known in processes where a network of it has been made.
    """
    registry = getattr(sys.modules.get(_CAPTURING), "_CAN_RECORD_REGISTRY", None)
    modeling = sys.modules.get("transformers.modeling_utils")
    if registry is None or modeling is None:  # other versions capture by other means
        return
    kinds = [modeling.PreTrainedModel]
    for kind in kinds:  # which grow meanwhile
        kinds += kind.__subclasses__()
        captured = getattr(kind, "_can_record_outputs", None)
        if isinstance(captured, dict):
            dict.setdefault(registry, f"{kind}", captured)


HAS_CAPTURING_HOOKS = "_output_capturing_hooks_installed"
"""The attribute of networks of transformers that have these hooks."""

_CAPTURING = "transformers.utils.output_capturing"
"""The module of these hooks."""


hook_dicts = attrgetter("_backward_hooks", "_post_accumulate_grad_hooks")
"""Returns the hooks of a tensor's gradient, and those that follow its accumulation.

Both are dicts by numbers, or ``None``.
"""


def set_hook_dicts(tensor: torch.Tensor, hooks: tuple[Any, Any]) -> None:
    """Give a tensor what ``hook_dicts`` returned of another one."""
    tensor._backward_hooks, tensor._post_accumulate_grad_hooks = hooks


_HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
)
"""The dicts in which a module has its hooks, by their numbers."""


def spectral_vectors(module: nn.Module) -> Iterator[torch.Tensor]:
    """Return the singular vectors by which a module normalizes weights.

    Torch has a new and an old way to do so.
    """
    if isinstance(module, parametrizations._SpectralNorm):
        yield from module.buffers()
    for hook in module._forward_pre_hooks.values():
        if isinstance(hook, SpectralNorm):
            yield from (getattr(module, f"{hook.name}_{side}") for side in "uv")


def parametrized(plain: type[nn.Module], names: Sequence[str]) -> nn.Module:
    """Return an object of a class with parametrizations of these names, without attributes."""
    module = plain.__new__(plain)
    parametrize._inject_new_class(module)
    for name in names:
        parametrize._inject_property(module, name)
    return module


def call_by(module: nn.Module, call: Callable[..., Any]) -> None:
    """Have calls of a module, hooks included, made by a function.

    A copy of the module does not have it.
    """
    module._compiled_call_impl = call


def call_uncompiled(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Call a module and its hooks, whatever ``call_by`` has set."""
    return module._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]


def allow_any_length(tensor: torch.Tensor) -> None:
    """Let what is compiled for this tensor serve those with another first dimension, too."""
    torch._dynamo.maybe_mark_dynamic(tensor, 0)


def is_compiled(module: nn.Module) -> bool:
    """Return whether ``torch.compile`` has wrapped a module; does not import the compiler."""
    wrapper = sys.modules.get("torch._dynamo.eval_frame")
    return wrapper is not None and isinstance(module, wrapper.OptimizedModule)


def norms(tensors: list[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Return the norm of each tensor, in half the time that ``get_total_norm`` takes."""
    return torch._foreach_norm(tensors)


def let_scaler_skip(optimizer: torch.optim.Optimizer) -> None:
    """Have a ``GradScaler`` skip the steps of an optimizer that would skip them itself."""
    optimizer._step_supports_amp_scaling = False  # type: ignore[attr-defined]


WorkerInfo = torch_worker.WorkerInfo
"""What ``torch.utils.data.get_worker_info`` returns."""


@contextmanager
def worker_info(info: WorkerInfo) -> Iterator[None]:
    """Have ``torch.utils.data.get_worker_info`` return this."""
    before = torch_worker._worker_info
    torch_worker._worker_info = info
    try:
        yield
    finally:
        torch_worker._worker_info = before


def fetched_ahead(value: object) -> tuple[int, bool] | None:
    """Return how many batches an iteration of a ``DataLoader`` fetches ahead.

    The second value is whether it keeps their order. ``None`` for all other objects.
    """
    if not isinstance(value, _BaseDataLoaderIter):
        return None
    if value._num_workers == 0:
        return 0, True
    with_processes: Any = value
    return with_processes._num_workers * with_processes._prefetch_factor, with_processes._in_order


def reductions(metric: Any) -> Mapping[str, Any]:
    """Return by name how states of a torchmetrics metric are merged."""
    by_name: Mapping[str, Any] = metric._reductions
    return by_name


def set_merged(metric: Any, updates: Iterable[int]) -> None:
    """Tell a torchmetrics metric that it is merged from copies with these numbers of updates."""
    metric._update_count = sum(updates)
    metric._to_sync = False  # even if this process belongs to a torch.distributed group


def row_numbers(dataset: Any) -> Any:
    """Return the table of row numbers of a Hugging Face data set in another order, or ``None``."""
    return dataset._indices


def forget_last_cluster(ray: ModuleType) -> None:
    """Have Ray forget the settings and the token of the last cluster that it has tried to join."""
    ray._raylet.Config.initialize("")
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def keep_in_cluster(key: str, value: bytes) -> None:
    """Let the head of the Ray cluster of this program keep a value."""
    _kept_values()._internal_kv_put(key, value, namespace=_NAMESPACE)


def kept_in_cluster(key: str) -> bytes | None:
    """Return a value that the head of the Ray cluster keeps, if it does."""
    value: bytes | None = _kept_values()._internal_kv_get(key, namespace=_NAMESPACE)
    return value


def drop_from_cluster(key: str) -> None:
    """Let the head of the Ray cluster drop a value."""
    _kept_values()._internal_kv_del(key, namespace=_NAMESPACE)


def _kept_values() -> Any:
    return importlib.import_module("ray.experimental.internal_kv")
