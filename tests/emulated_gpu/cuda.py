"""The functions of ``torch.cuda`` for emulated devices, in place of those that need the CUDA
library.
"""

import threading
from typing import Any

import torch

from tests.emulated_gpu.tensors import counts, memory, run, with_index

RESIZING = (
    *("arange", "arange.start", "arange.start_step"),
    *("linspace", "randperm", "randperm.generator", "eye", "eye.m"),
)
"""Factories that would resize an empty tensor of the device."""


class Current(threading.local):
    """The current device of a thread."""

    number = 0


class Stream:
    """A stream on which everything has already run."""

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        self.device = with_index("cuda" if device is None else device)

    def wait_stream(self, stream: Any) -> None: ...
    def wait_event(self, event: Any) -> None: ...
    def query(self) -> bool:
        return True

    def is_capturing(self) -> bool:
        return False

    def synchronize(self) -> None:
        counts["waits"] += 1

    def record_event(self, event: Any = None) -> "Event":
        return event or Event()

    def __enter__(self) -> "Stream":
        return self

    def __exit__(self, *_: object) -> None: ...


class Event:
    """An event that has already happened."""

    def __init__(self, **_: Any) -> None: ...
    def record(self, stream: Any = None) -> None: ...
    def wait(self, stream: Any = None) -> None: ...
    def synchronize(self) -> None: ...
    def query(self) -> bool:
        return True

    def elapsed_time(self, other: Any) -> float:
        return 0.0


def gru(
    x: Any, hidden: Any, weights: Any, biases: bool, layers: int, *options: Any
) -> tuple[Any, Any]:
    """Run a GRU operation by operation, as the CPU does, which has no kernel for the cells of a
    device.
    """
    dropout, _, bidirectional, batch_first = options
    if dropout or bidirectional or not biases:
        raise NotImplementedError("the emulation has plain GRUs only")
    linear = torch.nn.functional.linear
    chunks = torch.unsafe_chunk
    x = x.transpose(0, 1) if batch_first else x
    ends = []
    for layer, last in enumerate(hidden.unbind(0)):
        of_inputs, of_hidden, input_bias, hidden_bias = weights[4 * layer : 4 * layer + 4]
        outputs = []
        for gates in linear(x, of_inputs, input_bias).unbind(0):
            ours = chunks(gates, 3, 1)
            theirs = chunks(linear(last, of_hidden, hidden_bias), 3, 1)
            reset = theirs[0].add_(ours[0]).sigmoid_()
            update = theirs[1].add_(ours[1]).sigmoid_()
            new = ours[2].add(theirs[2].mul_(reset)).tanh_()
            last = (last - new).mul_(update).add_(new)
            outputs.append(last)
        x = torch.stack(outputs, 0)
        ends.append(last)
    return x.transpose(0, 1) if batch_first else x, torch.stack(ends, 0)


def install(devices: int) -> None:
    """Make ``torch.cuda`` and ``torch.accelerator`` see this many devices."""
    cuda = torch.cuda
    current = Current()
    numbers = range(devices)

    class Device:
        def __init__(self, device: Any) -> None:
            self.number = cuda._utils._get_device_index(device, optional=True)
            self.before = -1

        def __enter__(self) -> None:
            self.before = current.number
            set_device(self.number)

        def __exit__(self, *_: object) -> None:
            set_device(self.before)

    def set_device(device: Any) -> None:
        number = torch.device(device).index if not isinstance(device, int) else device
        current.number = with_index(
            torch.device("cuda", current.number if number is None else number)
        ).index
        torch._C._accelerator_setDeviceIndex(current.number)

    def number_of(device: Any) -> int:
        if isinstance(device, int):
            return device
        return current.number if device is None else with_index(device).index

    def pinned(tensor: torch.Tensor, device: Any = None) -> torch.Tensor:
        if tensor.device.type != "cpu":
            raise RuntimeError(
                "cannot pin 'torch.cuda.FloatTensor' only dense CPU tensors can be pinned"
            )
        return tensor.clone()

    def state(device: Any = "cuda") -> torch.Tensor:
        return cuda.default_generators[number_of(device)].get_state()

    def set_state(new: torch.Tensor, device: Any = "cuda") -> None:
        cuda.default_generators[number_of(device)].set_state(new)

    def seed(value: int) -> None:
        cuda.default_generators[current.number].manual_seed(value)

    def seed_all(value: int) -> None:
        for generator in cuda.default_generators:
            generator.manual_seed(value)

    def reset_peak(device: Any = None) -> None:
        memory.peak[number_of(device)] = memory.allocated[number_of(device)]

    replaced = {
        "_lazy_init": lambda: None,
        "init": lambda: None,
        "is_initialized": lambda: True,
        "is_available": lambda: devices > 0,
        "device_count": lambda: devices,
        "current_device": lambda: current.number,
        "set_device": set_device,
        "device": Device,
        "synchronize": lambda device=None: None,
        "empty_cache": lambda: None,
        "Stream": Stream,
        "Event": Event,
        "stream": lambda stream: stream or Stream(),
        "current_stream": Stream,
        "default_stream": Stream,
        "get_rng_state": state,
        "set_rng_state": set_state,
        "get_rng_state_all": lambda: [state(each) for each in numbers],
        "manual_seed": seed,
        "manual_seed_all": seed_all,
        "get_device_capability": lambda device=None: (8, 0),
        "get_device_name": lambda device=None: "emulated",
        "is_bf16_supported": lambda including_emulation=True: True,
        "memory_allocated": lambda device=None: memory.allocated[number_of(device)],
        "memory_reserved": lambda device=None: memory.allocated[number_of(device)],
        "max_memory_allocated": lambda device=None: memory.peak[number_of(device)],
        "reset_peak_memory_stats": reset_peak,
        "mem_get_info": lambda device=None: (2**34 - memory.allocated[number_of(device)], 2**34),
    }
    for name, function in replaced.items():
        setattr(cuda, name, function)
    torch.accelerator.current_stream = Stream
    on_cpu, torch._VF.gru = (
        torch._VF.gru,
        lambda x, *given: (on_cpu if x.device.type == "cpu" else gru)(x, *given),
    )
    cuda.default_generators = tuple(torch.Generator(device=f"cuda:{number}") for number in numbers)
    cuda.random.get_rng_state, cuda.random.set_rng_state = state, set_state
    torch.Tensor.pin_memory = pinned
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)
    everything = torch.library.Library("_", "IMPL")
    factories = torch.library.Library("aten", "IMPL")
    everything.fallback(lambda func, *args, **kwargs: run(func, args, kwargs), "CUDA")
    for name in RESIZING:
        packet, _, overload = name.partition(".")
        func = getattr(getattr(torch.ops.aten, packet), overload or "default")
        factories.impl(name, lambda *args, func=func, **kwargs: run(func, args, kwargs), "CUDA")
    install.libraries = everything, factories  # they live as long as the program
