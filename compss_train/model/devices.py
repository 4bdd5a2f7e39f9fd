"""Devices by name: the CPU and GPUs, and the generators of random numbers that GPUs have of their own."""

import torch

CPU = "cpu"


def gpu(number: int | None = None) -> str:
    """Return the name of a GPU, by default of the current one."""
    return "cuda" if number is None else f"cuda:{number}"


def is_gpu(device: str) -> bool:
    """Return whether a device is a GPU."""
    return device.startswith("cuda")


def generator_state(device: str) -> torch.Tensor | None:
    """Return the state of a GPU's generator; ``None`` for the CPU, whose generator is torch's own."""
    return torch.cuda.get_rng_state(device) if is_gpu(device) else None


def set_generator_state(device: str, state: torch.Tensor | None) -> None:
    """Set a GPU's generator to a state that ``generator_state`` returned."""
    if state is not None:
        torch.cuda.set_rng_state(state, device)


def seed_torch(seed: int, device: str) -> None:
    """Seed torch's generator, and that of a GPU; ``torch.manual_seed`` would seed those that others use, too."""
    torch.default_generator.manual_seed(seed)
    if is_gpu(device):
        with torch.cuda.device(device):
            torch.cuda.manual_seed(seed)
