"""Spack's own recipe with the version that compss_train needs."""

from spack.package import *
from spack_repo.builtin.packages.py_safetensors.package import PySafetensors as BuiltinPySafetensors


class PySafetensors(BuiltinPySafetensors):
    """Spack's package, with a newer version."""

    version("0.7.0", sha256="07663963b67e8bd9f0b8ad15bb9163606cd27cc5a1b96235a50d8369803b96b0")
