"""Modules of a program that nodes may lack."""

from pathlib import Path


def write_modules(folder: Path) -> None:
    """Write a module with a network and its loss, and the package that it imports."""
    (folder / "layers").mkdir()
    (folder / "layers/__init__.py").write_text("from layers.scaled import Scaled\n")
    (folder / "layers/scaled.py").write_text(
        "from torch import nn\nclass Scaled(nn.Linear):\n    pass\n"
    )
    (folder / "network.py").write_text(
        "from torch import manual_seed, nn\nfrom layers import Scaled\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        manual_seed(0)\n"
        "        self.scaled = Scaled(2, 1)\n"
        "    def forward(self, x):\n"
        "        return self.scaled(x)\n"
        "def loss(outputs, y):\n"
        "    return ((outputs - y) ** 2).mean()\n"
    )
