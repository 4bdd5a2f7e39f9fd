"""Emulates CUDA devices in every Python process that has this folder on its path, when it imports
torch.
"""

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path


class AfterTorch:
    """Finds torch as usual, and installs the devices once it has been imported."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = PathFinder.find_spec(name)
        run = spec.loader.exec_module

        def exec_module(module: object) -> None:
            library.load()
            run(module)
            from tests.emulated_gpu import cuda

            cuda.install(int(os.environ["EMULATED_GPUS"]))

        spec.loader.exec_module = exec_module
        return spec


if os.environ.get("EMULATED_GPUS"):
    sys.path.append(str(Path(__file__).parents[3]))
    from tests.emulated_gpu import library

    sys.meta_path.insert(0, AfterTorch())
