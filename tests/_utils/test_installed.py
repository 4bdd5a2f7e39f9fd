"""Which source files are of installed packages."""

import numpy as np
import torch

from compss_train._utils.installed import is_installed


def written(path, text=""):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def test_packages_of_an_environment_are_installed(tmp_path):
    assert is_installed(np.__file__)
    assert is_installed(torch.nn.__file__)
    assert not is_installed(__file__)
    assert not is_installed("<stdin>")
    assert not is_installed("/tmp/ipykernel_7/123.py")


def test_packages_of_pip_install_target_are_installed(tmp_path):
    inner = written(tmp_path / "einsum" / "layers" / "torch.py")
    written(tmp_path / "einsum" / "__init__.py")
    written(tmp_path / "einsum" / "layers" / "__init__.py")
    single = written(tmp_path / "single.py")
    program = written(tmp_path / "train.py")
    metadata = tmp_path / "einsum-1.0.dist-info"
    written(metadata / "METADATA", "Metadata-Version: 2.1\nName: einsum\nVersion: 1.0\n")
    files = ["einsum/__init__.py", "einsum/layers/torch.py", "single.py"]
    record = [*files, "einsum-1.0.dist-info/RECORD", "../bin/einsum"]
    written(metadata / "RECORD", "".join(f"{file},,\n" for file in record))
    assert is_installed(inner)
    assert is_installed(single)
    assert not is_installed(program)


def test_packages_that_are_edited_are_not(tmp_path):
    edited = written(tmp_path / "mine" / "net.py")
    written(tmp_path / "mine" / "__init__.py")
    metadata = tmp_path / "mine.egg-info"
    written(metadata / "PKG-INFO", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    written(metadata / "SOURCES.txt", "mine/__init__.py\nmine/net.py\n")
    assert not is_installed(edited)
